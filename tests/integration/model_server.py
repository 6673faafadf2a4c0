"""A server on loopback that answers by script, with the faults that real ones have, and records what it was asked."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What the server sends, and how it ends.

    Args:
        body: sent as JSON, unless it is bytes; a list is sent as a stream of events.
        end: "whole"; "cut" hangs up before the length that it announced, "closed" announces none; "reset" breaks the
            connection without a word; "silent" neither speaks nor hangs up.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: Literal["whole", "cut", "closed", "reset", "silent"] = "whole"

    def encoded(self) -> bytes:
        match self.body:
            case bytes():
                return self.body
            case list():
                return b"".join(b"data: %s\n\n" % _json(event) for event in self.body)
            case _:
                return _json(self.body)


def _json(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()


class ModelServer:
    """Gives one reply per request, in order; `requests` has what came.

    Use it as an async context manager.
    """

    def __init__(self, *script: Reply) -> None:
        self.requests: list[Request] = []
        self._script = list(script)
        self._serving: list[asyncio.Task[None]] = []
        self.asked, self.hung_up = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> "ModelServer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._serving)  # left open, a connection is warned about in some later test

    @property
    def url(self) -> str:
        return f"http://{self.address}/v1"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.create_task(self._answer(reader, writer)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            try:
                await self._reply(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append(Request(first.split()[1], headers, body))
        reply = self._script[len(self.requests) - 1]
        self.asked.set()
        if reply.end == "reset":
            # Closed without lingering, a connection is reset.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return
        if reply.end != "silent":
            writer.write(_head(reply) + reply.encoded())
            await writer.drain()
        else:
            await reader.read()  # until the client hangs up
            self.hung_up.set()


def _head(reply: Reply) -> bytes:
    length = len(reply.encoded()) + (10 if reply.end == "cut" else 0)
    announced = {} if reply.end == "closed" else {"Content-Length": str(length)}
    headers = {**announced, "Connection": "close", **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} It", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def says(content: str | None, *calls: Mapping[str, Any], usage: Any = None, finish: str = "stop", **more: Any) -> Reply:
    """Return a whole answer in OpenAI's format."""
    message = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}
    body = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return Reply({**body, **({"usage": usage} if usage else {})})


def calls(name: str, arguments: Any, call_id: str | None = "c1", **more: Any) -> dict[str, Any]:
    """Return a tool call in OpenAI's format, or a piece of one with `index=`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def streams(*deltas: Mapping[str, Any] | str, finish: str | None = "stop", usage: Any = None, **options: Any) -> Reply:
    """Return a streamed answer in OpenAI's format: each delta is an event, a text a delta of content."""
    said = [{"content": delta} if isinstance(delta, str) else delta for delta in deltas]
    events: list[Any] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in said]
    if finish:
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage:
        events.append({"choices": [], "usage": usage})
    return Reply([*events, b"[DONE]"], **options)


def fragments(*pieces: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Return a delta for each piece of a tool call."""
    return ({"tool_calls": [piece]} for piece in pieces)
