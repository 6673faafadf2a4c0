"""Connects to a Temporal server, and explains which setting fixes a connection that failed.

Address, namespace, key and TLS are read only by `temporalio.envconfig`, from TEMPORAL_* and TOML profiles. So
standfast, the `temporal` command and every other SDK use the same server.
"""

import atexit
import functools
import gc
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, Plugin
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import GrpcCompression, TLSConfig

from standfast.errors import InputError, StandfastError
from standfast.temporal.client.converters import DATA_CONVERTER, with_codec
from standfast.time_limits import time_limit

DEFAULT_TARGET = "localhost:7233"  # the default of the `temporal` command; envconfig has none
_TCP_SECONDS = 10  # the default is the operating system's limit, which is minutes
_SECONDS = 15  # for the whole attempt: the SDK waits for a TLS handshake for ever, and for an answer for half a minute

_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\]):\d+")

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


async def connect(
    target: str | None = None,
    *,
    namespace: str | None = None,
    profile: str | None = None,
    plugins: Sequence[Plugin] = (),
    data_converter: DataConverter | None = None,
    codec: PayloadCodec | str | None = None,
    **options: Any,
) -> Client:
    """Connect to the Temporal server named by the arguments, the environment or a profile, in this order.

    Args:
        target: `host:port`; `localhost:7233` if no source names one.
        profile: a profile of the TOML file at TEMPORAL_CONFIG_FILE, or at Temporal's default path.
        data_converter: if None, one that reads and writes pydantic models.
        codec: encodes (for example, encrypts) the contents of histories, failure messages included: a codec, or its
            `module:attribute`; if None, the value of STANDFAST_CODEC. Workers, the page and commands need the same one.
        options: further arguments of `Client.connect`. Settings that a `tls=TLSConfig(…)` omits, and all settings for
            `tls=True`, come from the environment and the profile.

    Raises:
        InputError: the profile, its file, a certificate, the address or the codec is invalid.
        StandfastError: no server answers, or it refuses this client, or is not trusted; the error says what to do.
    """
    configured = _configured(profile)
    found: dict[str, Any] = {"target_host": DEFAULT_TARGET, "connect_timeout": timedelta(seconds=_TCP_SECONDS)}
    found |= configured
    found |= {key: value for key, value in (("target_host", target), ("namespace", namespace)) if value is not None}
    found |= {"plugins": plugins, "data_converter": with_codec(data_converter or DATA_CONVERTER, codec)} | options
    if _LOOPBACK.fullmatch(found["target_host"]):
        # Between two processes of a machine, compression saves nothing and costs both processor time.
        found.setdefault("grpc_compression", GrpcCompression.NONE)
    found["tls"] = tls = _tls(options.get("tls"), configured.get("tls"))
    if found.get("api_key"):
        found["api_key"] = found["api_key"].strip()  # with a line break, as in files, the SDK sends no key at all
    where = f"{found['target_host']} ({_origin(target, configured)})"
    attempt = Attempt(
        where=where,
        namespace=found.get("namespace", "default"),
        tls=bool(tls) or (tls is None and bool(found.get("api_key"))),
        has_certificate=isinstance(tls, TLSConfig) and tls.client_cert is not None,
        has_key=bool(found.get("api_key")),
    )
    exit_cleanly()
    try:
        async with time_limit(None if "connect_timeout" in options else _SECONDS):
            return await Client.connect(**found)
    except ValueError as error:
        raise InputError(f"Cannot connect to {where}: {error}") from error
    except TimeoutError as error:
        raise StandfastError(words_for(f"it did not answer within {_SECONDS} s", attempt)) from error
    except RuntimeError as error:
        if "PrivateKeyParseError" in str(error) or "KeyMismatch" in str(error):
            raise InputError(
                f"Cannot connect to {where}: the client certificate and its key are not PEM, or do not belong together"
            ) from error
        raise StandfastError(words_for(str(error), attempt)) from error


def _tls(given: bool | TLSConfig | None, configured: bool | TLSConfig | None) -> bool | TLSConfig | None:
    """Return TLS settings: the given ones, completed from the environment and the profile."""
    if given is None or (given is True and isinstance(configured, TLSConfig)):
        given = configured
    elif isinstance(given, TLSConfig) and isinstance(configured, TLSConfig):
        given = TLSConfig(
            server_root_ca_cert=given.server_root_ca_cert or configured.server_root_ca_cert,
            domain=given.domain or configured.domain,
            client_cert=given.client_cert or configured.client_cert,
            client_private_key=given.client_private_key or configured.client_private_key,
        )
    ca = given.server_root_ca_cert if isinstance(given, TLSConfig) else None
    if ca is not None and b"-----BEGIN CERTIFICATE-----" not in ca:  # the SDK would trust no server, without a reason
        raise InputError("The certificate of the server's CA is not PEM: there is no BEGIN CERTIFICATE in it")
    return given


@functools.cache  # once per process
def exit_cleanly() -> None:
    """Let this process exit with its own exit code, although it made a Temporal client.

    Threads of the SDK's Rust core may still ask for the interpreter during its shutdown, and abort the process with
    code 134 or 139 after all work is done (sdk-python#300). Their objects are collected first, and they get a moment to
    finish. `os._exit` would skip the exit handlers and buffers of all other code.
    """
    atexit.register(_let_go)


def _let_go() -> None:
    with suppress(KeyboardInterrupt):  # it exits anyway
        gc.collect()
        time.sleep(0.05)


def _configured(profile: str | None) -> ClientConnectConfig:
    try:
        return ClientConfig.load_client_connect_config(profile)
    except (RuntimeError, OSError) as error:  # ConfigError is a RuntimeError, and a missing certificate an OSError
        file = os.environ.get("TEMPORAL_CONFIG_FILE") or "temporalio/temporal.toml in your configuration folder"
        lines = str(error).splitlines() or [""]
        # A TOML error quotes the line between these two, which may be an API key.
        reason = lines[0] if len(lines) == 1 else f"{lines[0]}: {lines[-1]}"
        raise InputError(f"Temporal's configuration cannot be used ({file}, TEMPORAL_*): {reason}") from error


def _origin(target: str | None, configured: ClientConnectConfig) -> str:
    if target is not None:
        return "as given"
    if os.environ.get("TEMPORAL_ADDRESS"):
        return "from TEMPORAL_ADDRESS"
    return "from the profile" if "target_host" in configured else "the default"
