"""Connections that break in every way, with real adapters: each is a transient error that says what to check."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.tls_fronts import Authority

from integration.models.test_providers import HI, ask
from standfast import ModelError
from standfast.llm import create_adapter

Serve = Callable[[asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BEGUN = {
    "openai": b'event: response.created\ndata: {"type": "response.created", "response": {"id": "r"}}\n\n',
    "anthropic": b'event: message_start\ndata: {"type": "message_start", "message": {"content": [], "usage": {}}}\n\n',
    "openai-compatible": b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n',
}


@pytest.fixture(params=list(BEGUN))
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@contextlib.asynccontextmanager
async def served(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Listen on a port, read each request, and go on as a test says."""
    serving: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(task := asyncio.current_task())  # type: ignore[arg-type]
        assert task is not None
        with contextlib.suppress(ConnectionError, EOFError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            await serve(writer)
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def adapter(provider: str, address: str, **options: Any) -> Any:
    version = "" if provider == "anthropic" else "/v1"
    return create_adapter(provider=provider, model="m", api_key="key", base_url=f"{address}{version}", **options)


@pytest.mark.parametrize(
    ("begun", "end"),
    [(STREAM[:20], "stalls"), (STREAM, "stalls"), (None, "stalls"), (None, "is reset")],
    ids=["half a head", "a head", "a stream that stalls", "a stream that is reset"],
)
async def test_an_answer_that_breaks_off_anywhere_may_be_asked_for_again(
    provider: str, begun: bytes | None, end: str
) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + BEGUN[provider] if begun is None else begun)
        await writer.drain()
        if end == "stalls":
            await asyncio.Event().wait()
        linger = struct.pack("ii", 1, 0)  # closed without lingering, a connection is reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async with served(serve) as port:
        with pytest.raises(ModelError, match="gave no answer") as raised:
            await ask(adapter(provider, f"http://127.0.0.1:{port}", timeout=0.2), "stream")
    assert raised.value.transient


async def test_a_page_of_html_is_not_a_stream(provider: str) -> None:
    async def serve(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>Soon</htm")
        await writer.drain()

    async with served(serve) as port:
        with pytest.raises(ModelError, match="gave no answer") as raised:
            await ask(adapter(provider, f"http://127.0.0.1:{port}"), "stream")
    assert raised.value.transient


@pytest.mark.parametrize("address", ["http://no-such-host.invalid", "http://127.0.0.1:9"], ids=["no name", "refused"])
async def test_a_server_that_cannot_be_reached_may_be_later(provider: str, address: str) -> None:
    with pytest.raises(ModelError, match=r"check base_url, and the network") as raised:
        await adapter(provider, address).chat(HI, [])
    assert raised.value.transient


async def test_a_certificate_that_is_not_valid_may_be_renewed(provider: str, tmp_path: Path) -> None:
    """A run would wait for that, and loses nothing: it ends by no fault that someone can mend."""
    own = Authority(tmp_path, "stranger").certificate("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)

    async def serve(writer: asyncio.StreamWriter) -> None: ...

    async with served(serve, context) as port:
        with pytest.raises(ModelError, match=r"check base_url, the clock, and which certificates .* trusts") as raised:
            await adapter(provider, f"https://127.0.0.1:{port}").chat(HI, [])
    assert raised.value.transient
