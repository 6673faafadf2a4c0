"""A TLS endpoint before a Temporal server, as Temporal Cloud has one: certificates, client certificates, API keys.

It ends TLS, notes the metadata of each call, and forwards HTTP/2 unchanged.
"""

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _CONTINUATION = 1, 9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 1, 4, 8, 32
_REFUSAL = [  # in the words of Temporal Cloud
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-status", "7"),
    ("grpc-message", "Request unauthorized."),
]
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority, whose files are in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = self._made(self._name, self._key, days=1, authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, *, days: int = 1) -> Certificate:
        """Issue a certificate for a host name or an address, that ends in some days; it has ended if negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._made(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, days=days, host=name)
        found = Certificate(self._folder / f"{name}{days}.crt", self._folder / f"{name}{days}.key")
        found.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        found.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return found

    def _made(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int, authority: bool = False, host: str = ""
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - 10 * _DAY).not_valid_after(now + days * _DAY)
        made = made.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        if host:
            made = made.add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
        return made.sign(self._key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass
class TLSFront:
    """A running endpoint, and the metadata of the calls that came to it."""

    port: int
    api_key: str | None  # that each call must have
    service: str | None  # that may not be called, such as "OperatorService"
    calls: list[dict[str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def said(self, header: str) -> set[str | None]:
        """Return the values of a header, of all calls."""
        return {call.get(header) for call in self.calls}

    def refuse(self, call: dict[str, str]) -> bool:
        wrong_key = self.api_key is not None and call.get("authorization") != f"Bearer {self.api_key}"
        return wrong_key or (self.service is not None and f".{self.service}/" in call[":path"])


@contextlib.asynccontextmanager
async def tls_front(
    target: str,
    own: Certificate,
    *,
    clients: Authority | None = None,
    api_key: str | None = None,
    without: str | None = None,
) -> AsyncIterator[TLSFront]:
    """Listen on 127.0.0.1 with a certificate while a block lasts, and forward to a server that speaks plainly.

    Args:
        clients: demands client certificates of this authority.
        api_key: refuses calls without this key.
        without: refuses calls of this service, as Temporal Cloud does with "OperatorService".
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    context.set_alpn_protocols(["h2"])
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.file)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await _serve(reader, writer, target, front)
        finally:
            writer.transport.abort()
            tasks.discard(task)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    front = TLSFront(listening.sockets[0].getsockname()[1], api_key, without)
    try:
        yield front
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, front: TLSFront) -> None:
    assert await reader.readexactly(len(_PREFACE)) == _PREFACE
    host, _, port = target.rpartition(":")
    from_server, to_server = await asyncio.open_connection(host, int(port))
    to_server.write(_PREFACE)
    answering = asyncio.create_task(_answer(from_server, writer))
    decoder, encoder, refused, block, first = Decoder(), Encoder(), set[int](), b"", 0
    try:
        async for kind, flags, stream, body in _frames(reader):
            if kind in (_HEADERS, _CONTINUATION):
                block, first = (_block(body, flags), flags) if kind == _HEADERS else (block + body, first)
                if flags & _END_HEADERS:
                    headers = decoder.decode(block)
                    call = {str(name): str(value) for name, value in headers}
                    front.calls.append(call)
                    if front.refuse(call):
                        refused.add(stream)
                        answer = Encoder().encode([NeverIndexedHeaderTuple(*header) for header in _REFUSAL])
                        writer.write(_frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, answer))
                    else:
                        # Encoded again: the server does not see all blocks, and would lose count of the table.
                        to_server.write(
                            _frame(_HEADERS, first & _END_STREAM | _END_HEADERS, stream, encoder.encode(headers))
                        )
            elif stream not in refused:
                to_server.write(_frame(kind, flags, stream, body))
            await to_server.drain()
    finally:
        answering.cancel()
        to_server.transport.abort()


async def _answer(from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        async for frame in _frames(from_server):
            writer.write(_frame(*frame))
            await writer.drain()
    writer.close()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, int, int, bytes]]:
    while True:
        head = await reader.readexactly(9)
        yield head[3], head[4], int.from_bytes(head[5:9]), await reader.readexactly(int.from_bytes(head[:3]))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body


def _block(body: bytes, flags: int) -> bytes:
    """Return the header block of a HEADERS frame, without padding and priority."""
    padding = body[0] if flags & _PADDED else 0
    start = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
    return body[start : len(body) - padding]
