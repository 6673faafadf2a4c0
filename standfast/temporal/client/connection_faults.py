"""Explains why a connection to a Temporal server failed, and which setting fixes it.

The SDK reports the text printed by its Rust core. The messages of TLS libraries mean nothing to most people. The usual
advice for an unused address, to start a server, does not help against a certificate.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

_CA = "--tls-ca-path, TEMPORAL_TLS_SERVER_CA_CERT_PATH, or `server_ca_cert_path` in the profile's `tls`"
_CLIENT = "--tls-cert-path and --tls-key-path, TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH"
_ON = "--tls, TEMPORAL_TLS=true, or the profile's `tls`; an API key also turns it on"
_START = "Start one with `standfast dev`, or set TEMPORAL_ADDRESS to the address of yours"


@dataclass(frozen=True)
class Attempt:
    """A failed connection: its target, and its settings."""

    where: str
    namespace: str
    tls: bool
    has_certificate: bool
    has_key: bool


def words_for(error: str, attempt: Attempt) -> str:
    """Return one or two sentences about an error as the SDK's core prints it: what happened, and what to do."""
    for pattern, explain in _FAULTS:
        if found := pattern.search(error):
            return explain(found, attempt)
    return f"No Temporal server could be reached at {attempt.where}: {reason_of(error)}. {_START}."


def reason_of(error: str) -> str:
    """Return the innermost message of an error that Rust printed as nested structures, or all of it."""
    found: list[str] = re.findall(r'(?:message|error): "([^"]+)"', error)
    return found[-1] if found else error


def _strange_ca(_: re.Match[str], attempt: Attempt) -> str:
    return (
        f"The Temporal server at {attempt.where} has a certificate from a CA that is not trusted here. If it is "
        f"yours, name the CA's certificate: {_CA}."
    )


def _other_name(found: re.Match[str], attempt: Attempt) -> str:
    names = re.findall(r'\((?:\\?")?([^"\\()]+)', found["presented"] or "")
    return (
        f"The Temporal server at {attempt.where} has a certificate for {', '.join(names) or 'others'}, not for the "
        "requested name. Connect by a name in the certificate, or set it: --tls-server-name, "
        "TEMPORAL_TLS_SERVER_NAME."
    )


def _out_of_date(found: re.Match[str], attempt: Attempt) -> str:
    time = found["time"]
    when = f" on {datetime.fromtimestamp(int(time), UTC):%Y-%m-%d %H:%M} UTC" if time else ""
    verb = "ended" if found["kind"] == "Expired" else "begins"
    return (
        f"The certificate of the Temporal server at {attempt.where} {verb}{when}. Renew it there, unless this "
        "machine's clock is wrong."
    )


def _bad_certificate(found: re.Match[str], attempt: Attempt) -> str:
    return f"The Temporal server at {attempt.where} has an unusable certificate: {found[1]}. Replace it there."


def _speaks_plainly(_: re.Match[str], attempt: Attempt) -> str:
    why = ", which an API key turns on" if attempt.has_key else ""
    return (
        f"The server at {attempt.where} does not speak TLS, and this client does{why}. Turn it off if the network is "
        "trusted: --no-tls, TEMPORAL_TLS=false."
    )


def _refused_certificate(found: re.Match[str], attempt: Attempt) -> str:
    if not attempt.has_certificate:
        return _wants_certificate(attempt)
    return (
        f"The Temporal server at {attempt.where} does not accept this client's certificate ({found[1]}): it has "
        f"expired, or is not from a CA that the server trusts. Give another: {_CLIENT}."
    )


def _wants_certificate(attempt: Attempt) -> str:
    return f"The Temporal server at {attempt.where} requires a client certificate. Give one: {_CLIENT}."


def _closed(found: re.Match[str], attempt: Attempt) -> str:
    if not attempt.tls:
        return (
            f"The server at {attempt.where} closed the connection at once. If it speaks TLS, turn that on: {_ON}. "
            "Otherwise it is not a Temporal server."
        )
    if not attempt.has_certificate:
        return (
            f"The server at {attempt.where} closed the connection without a reason. If it requires a client "
            f"certificate, give one: {_CLIENT}."
        )
    return (
        f"The server at {attempt.where} closed the connection without a reason. Most likely it does not accept "
        f"this client's certificate, which has expired, or is not from a CA that the server trusts: {_CLIENT}."
    )


def _unauthorized(found: re.Match[str], attempt: Attempt) -> str:
    key = "Its API key may be wrong or expired" if attempt.has_key else "It has no API key (TEMPORAL_API_KEY)"
    return (
        f"The Temporal server at {attempt.where} refuses this client: {reason_of(found[0]).rstrip('.')}. {key}, or may "
        f"not use the namespace {attempt.namespace!r}."
    )


_FAULTS: list[tuple[re.Pattern[str], Callable[[re.Match[str], Attempt], str]]] = [
    (re.compile(r"InvalidCertificate\(UnknownIssuer"), _strange_ca),
    (re.compile(r"InvalidCertificate\(NotValidForName(?:Context \{.*presented: \[(?P<presented>.*)\])?"), _other_name),
    (
        re.compile(
            r"InvalidCertificate\((?P<kind>Expired|NotValidYet)(?:.*not_(?:after|before): UnixTime\((?P<time>\d+))?"
        ),
        _out_of_date,
    ),
    (re.compile(r"InvalidCertificate\((\w+)"), _bad_certificate),
    (re.compile(r"InvalidMessage\("), _speaks_plainly),
    (
        re.compile(r"(?:fatal alert: |AlertReceived\()(\w*Certificate\w*|UnknownCA|HandshakeFailure|AccessDenied)"),
        _refused_certificate,
    ),
    (re.compile(r'code: (?:PermissionDenied|Unauthenticated), message: "[^"]*"'), _unauthorized),
    (re.compile(r"BrokenPipe|ConnectionReset|UnexpectedEof|ConnectionAborted|connection closed"), _closed),
]
