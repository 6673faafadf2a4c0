"""Errors of the SDK's core, and the sentences that people read instead."""

import pytest

from standfast.temporal.client.connections import Attempt, words_for

TLS = Attempt(where="cloud:7233 (as given)", namespace="shop", tls=True, has_certificate=False, has_key=False)
CERTIFIED = Attempt(where="cloud:7233 (as given)", namespace="shop", tls=True, has_certificate=True, has_key=False)


def from_core(fault: str) -> str:
    return f"Failed client connect: Server connection error: tonic::transport::Error(Transport, {fault})"


def broken(fault: str) -> str:
    return (
        "Failed client connect: `get_system_info` call error after connection: Status { code: Unknown, message: "
        f'"transport error", source: Some(tonic::transport::Error(Transport, hyper::Error(Io, {fault}))) }}'
    )


@pytest.mark.parametrize(
    ("attempt", "error", "says"),
    [
        (
            TLS,
            broken('Custom { kind: InvalidData, error: "received fatal alert: CertificateRequired" }'),
            "requires a client",
        ),
        (
            TLS,
            from_core("ConnectError(Custom { error: AlertReceived(HandshakeFailure) })"),
            "requires a client certificate",
        ),
        (CERTIFIED, from_core("ConnectError(Custom { error: AlertReceived(UnknownCA) })"), "(UnknownCA)"),
        (CERTIFIED, broken("Kind(ConnectionReset)"), "Most likely it does not accept this client's certificate"),
        (TLS, broken("Kind(ConnectionReset)"), "If it requires a client certificate, give one"),
        (
            TLS,
            from_core("InvalidCertificate(NotValidYetContext { not_before: UnixTime(1795506274) })"),
            "begins on 2026-11-24",
        ),
        (
            TLS,
            from_core("InvalidCertificate(Expired)"),
            "of the Temporal server at cloud:7233 (as given) ended. Renew it",
        ),
        (TLS, from_core("InvalidCertificate(NotValidForName)"), "a certificate for others, not"),
        (TLS, from_core("InvalidCertificate(BadSignature)"), "an unusable certificate: BadSignature"),
        (TLS, from_core("InvalidMessage(InvalidContentType)"), "does not speak TLS"),
        (
            TLS,
            'Status { code: Unauthenticated, message: "Jwt expired.", source: None }',
            "this client: Jwt expired. It has no",
        ),
        (
            TLS,
            broken('Custom { error: "Connection refused" }'),
            "could be reached at cloud:7233 (as given): Connection refused",
        ),
        (TLS, "something new", "could be reached at cloud:7233 (as given): something new. Start one with"),
    ],
)
def test_the_error_of_a_connection_is_said_in_words(attempt: Attempt, error: str, says: str) -> None:
    words = words_for(error, attempt)
    assert says in words
    assert "\n" not in words
