"""A model behind a real HTTP server on loopback, which answers by script and simulates real servers' faults.

It serves Chat Completions, Responses and Messages, depending on the path of the request, and Cloudflare's error format.
So it also tests the providers' own SDKs, which a mock of their transport could not.
"""

import asyncio
import contextlib
import inspect
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from standfast.messages import JSONObject, LLMResponse
from standfast.testing.wire_formats import FORMATS, error

End = Literal["whole", "cut", "closed", "reset", "silent"]


class Request(NamedTuple):
    """A request to the server; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: JSONObject


@dataclass(frozen=True)
class Fault:
    """A request that fails, or a faulty answer.

    Args:
        status: the reply's status; 200 with an `answer`.
        retry_after: seconds, as the header of that name.
        words: the provider's text.
        answer: the answer that begins, for use with `end` or `delay`.
        end: "cut" hangs up before the announced length or the last event, "reset" breaks the connection without notice,
            "silent" neither sends anything nor hangs up.
        delay: seconds between the pieces of an answer.
    """

    status: int = 500
    retry_after: float | str | None = None
    words: str = "something went wrong"
    answer: str | LLMResponse | None = None
    end: End = "whole"
    delay: float = 0.0


@dataclass(frozen=True)
class Reply:
    """The server's exact reply, and how it ends.

    Args:
        body: sent as JSON, unless it is bytes; a list is sent as a stream of events.
        end: as in `Fault`; "closed" does not announce a length.
    """

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "whole"
    delay: float = 0.0

    def pieces(self) -> list[bytes]:
        match self.body:
            case bytes():
                return [self.body]
            case list():
                return [_event(event) for event in self.body]
            case _:
                return [_json(self.body)]


Script = Iterable[Any] | Callable[[Request], Any]


class ModelServer:
    """Gives one answer per request; `requests` has all requests. Use it as an async context manager.

    Args:
        script: answers in order, or a function of the `Request`. An answer is a text, an `LLMResponse` or a dict of its
            keys, a `Fault`, or a `Reply` with the exact bytes.
    """

    def __init__(self, *script: Any) -> None:
        self.requests: list[Request] = []
        self._answer = script[0] if len(script) == 1 and callable(script[0]) else None
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
        await asyncio.gather(*self._serving)  # an open connection would cause a warning in a later test

    @property
    def url(self) -> str:
        """The address before `/chat/completions` or `/responses`; Anthropic's SDK expects it without `/v1`."""
        return f"http://{self.address}/v1"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, EOFError):  # a client that hangs up
            try:
                await self._reply(reader, writer)
            finally:
                writer.close()
                await writer.wait_closed()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        path, length = first.split()[1], headers.get("content-length")
        if length is None:  # not a request to a model: it comes from another program, or lists models
            refusal = Reply(error(path, 411, "a request to a model has a body"), 411)
            writer.writelines([_head(refusal), *refusal.pieces()])
            return
        request = Request(path, headers, json.loads(await reader.readexactly(int(length))))
        self.requests.append(request)
        reply = _as_reply(await self._next(request), request)
        self.asked.set()
        if reply.end == "reset":
            # Closed without lingering, a connection is reset.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return
        if reply.end == "silent":
            await reader.read()  # until the client hangs up
            self.hung_up.set()
            return
        writer.write(_head(reply))
        for piece in reply.pieces():
            writer.write(piece)
            await writer.drain()
            if reply.delay:
                await asyncio.sleep(reply.delay)

    async def _next(self, request: Request) -> Any:
        if self._answer is not None:
            answer = self._answer(request)
            return await answer if inspect.isawaitable(answer) else answer
        if len(self.requests) > len(self._script):
            return Fault(400, words=f"the script has {len(self._script)} answers, and this is another request")
        return self._script[len(self.requests) - 1]


def _as_reply(answer: Any, request: Request) -> Reply:
    match answer:
        case Reply():
            return answer
        case Fault(answer=None):
            headers = {} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)}
            return Reply(error(request.path, answer.status, answer.words), answer.status, headers, answer.end)
        case Fault(answer=begun):
            whole = _as_reply(begun, request)
            body = whole.body
            if answer.end == "cut" and isinstance(body, list):
                body = body[: max(1, len(body) // 2)]
            return Reply(body, headers=whole.headers, end=answer.end, delay=answer.delay)
    whole_of, events_of = next(
        (form for path, form in FORMATS.items() if request.path.partition("?")[0].endswith(path)), (None, None)
    )
    if whole_of is None or events_of is None:
        return Reply(error(request.path, 404, f"no such path: {request.path}"), 404)
    said = LLMResponse(text=answer) if isinstance(answer, str) else LLMResponse.read(answer)
    model = str(request.body.get("model"))
    if request.body.get("stream"):
        return Reply(list(events_of(said, model)), headers={"Content-Type": "text/event-stream"})
    return Reply(whole_of(said, model), headers={"Content-Type": "application/json"})


def _head(reply: Reply) -> bytes:
    length = sum(map(len, reply.pieces())) + (10 if reply.end == "cut" else 0)
    announced = {} if reply.end == "closed" else {"Content-Length": str(length)}
    headers = {**announced, "Connection": "close", **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} It", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def _event(event: Any) -> bytes:
    name, data = event if isinstance(event, tuple) else (None, event)
    named = b"" if name is None else f"event: {name}\n".encode()
    written = data.encode() if data == "[DONE]" else _json(data)
    return b"%sdata: %s\n\n" % (named, written)


def _json(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
