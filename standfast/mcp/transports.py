"""Clients of MCP servers that limit how much they read, and track the delivery of each request."""

import importlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from standfast.errors import StandfastError
from standfast.mcp.processes import bounded_process, past_limit
from standfast.messages import JSONObject

LEFT_OUT = "standfast/left-out"  # in the `_meta` of a tool: why it cannot be used
MAX_ANSWER_BYTES = 16 * 2**20
_REFUSALS = {401: "401 Unauthorized", 403: "403 Forbidden"}


@dataclass(frozen=True, slots=True)
class Access:
    """A client's identity: its credentials, and its answers to the server. Identities never share a connection.

    Args:
        auth: an `httpx2.Auth`.
        callbacks: the `mcp.Client` callbacks for the server's own requests.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Any = field(default=None, repr=False)
    callbacks: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class Sending:
    """The delivery status of the last request that the current task sends.

    Args:
        refused: the reason why the server did not accept it; None if it may have accepted it.
    """

    refused: str | None = None


class NotLetInError(StandfastError):
    """Raised by an `Auth` without credentials for the server. The request was not accepted."""


SENDING: ContextVar[Sending | None] = ContextVar("sending", default=None)


@asynccontextmanager
async def bounded_client(
    mcp: Any, server: Any, limit: int, note: Callable[[str], None], access: Access
) -> AsyncIterator[Any]:
    """Connect to a server. Its answers are read within bounds, and not checked against its own schemas.

    The SDK would match a result against the patterns of the tool's `outputSchema` on the event loop, however long that
    takes. A model reads the result unchanged.

    Args:
        limit: the size limit of one message, in bytes.
        note: called for a message above the limit, or at the end of a process. The SDK does not report either.
    """
    if isinstance(server, str):
        async with _http(limit, note, access) as http:
            connect = importlib.import_module("mcp.client.streamable_http")
            transport = connect.streamable_http_client(server, http_client=http, max_sse_event_size=limit)
            async with mcp.Client(transport, **access.callbacks) as client:
                yield _unchecked(client)
        return
    if isinstance(server, mcp.StdioServerParameters) and hasattr(os, "killpg"):  # Windows ends processes differently
        server = bounded_process(server, limit, note)
    elif callable(server) and not is_transport(server):
        server = server()
    async with mcp.Client(server, **access.callbacks) as client:
        yield _unchecked(client)


def is_transport(server: object) -> bool:
    """Whether the server is a transport, which can be opened once. A function that makes one can be called again."""
    return hasattr(server, "__aenter__")


def _http(limit: int, note: Callable[[str], None], access: Access) -> Any:
    httpx2 = importlib.import_module("httpx2")
    usual = importlib.import_module("mcp.client.streamable_http").create_mcp_http_client()
    flow_error: type[Exception] = importlib.import_module("mcp.client.auth").OAuthFlowError

    class Client(httpx2.AsyncClient):  # type: ignore[misc, name-defined]  # its base is known when the SDK is there
        async def send(self, request: Any, **options: Any) -> Any:
            """Send a request, and note whether the server accepted it: the SDK reports all failures alike."""
            sending = SENDING.get()
            if sending is None or request.method != "POST":
                return await super().send(request, **options)
            sending.refused = None
            try:
                response = await super().send(request, **options)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
                sending.refused = f"no connection: {error}"
                raise
            except (NotLetInError, flow_error) as error:  # the `Auth` raised it, before the server accepted anything
                sending.refused = str(error)
                raise
            if response.status_code in _REFUSALS and sending.refused is None:
                sending.refused = f"it answers {_REFUSALS[response.status_code]}: headers= or auth= must let it in"
            return response

    return Client(
        headers={**access.headers, "Accept-Encoding": "identity"},
        auth=access.auth,
        timeout=usual.timeout,
        event_hooks={"response": [partial(_bound, limit, note)]},
    )


def _unchecked(client: Any) -> Any:
    async def anything(name: str, result: Any) -> None:
        pass

    async def sent(method: str, params: Any, *given: Any, **options: Any) -> Any:
        result = await send(method, params, *given, **options)
        return _readable(client.session, result) if method == "tools/list" else result

    client.session.validate_tool_result = anything
    dispatcher = client.session._dispatcher
    send, dispatcher.send_raw_request = dispatcher.send_raw_request, sent
    return client


def _readable(session: Any, listing: Any) -> Any:
    """Return a listing that the SDK can read: each tool that would make it unreadable is replaced by a mark."""
    methods = importlib.import_module("mcp.client.session")._methods  # the SDK checks answers by this
    version = session._negotiated_version or "2025-11-25"
    tools = listing.get("tools") if isinstance(listing, dict) else None
    if not isinstance(tools, list):
        return listing

    def problem(tools: list[Any]) -> str | None:
        try:
            methods.validate_server_result("tools/list", version, {**listing, "tools": tools})
        except KeyError:  # a version that the SDK does not check
            return None
        except ValueError as error:
            return "; ".join(f"{'.'.join(map(str, one['loc'][2:]))}: {one['msg']}" for one in error.errors()[:3])  # type: ignore[attr-defined]
        return None

    if problem(tools) is None or problem([]) is not None:
        return listing
    return {**listing, "tools": [tool if (why := problem([tool])) is None else _marked(tool, why) for tool in tools]}


def _marked(tool: Any, why: str) -> JSONObject:
    name = tool.get("name") if isinstance(tool, dict) else None
    shown = name if isinstance(name, str) and name else "(without a name)"
    return {"name": shown, "inputSchema": {"type": "object"}, "_meta": {LEFT_OUT: f"its declaration is invalid: {why}"}}


async def _bound(limit: int, note: Callable[[str], None], response: Any) -> None:
    """Bound an answer. Streams live as long as their connection, and the SDK bounds their events."""
    if (packed := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
        raise StandfastError(f"the MCP server's answer is packed as {packed!r:.40}, which was not requested")
    if response.headers.get("Content-Type", "").startswith("text/event-stream"):
        return
    stream, usual = response.stream, importlib.import_module("httpx2").AsyncByteStream

    class Bounded(usual):  # type: ignore[misc, valid-type]  # its base is known when the SDK is there
        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = limit
            async for piece in stream:
                left -= len(piece)
                if left < 0:
                    note(past_limit(str(response.url.host), limit))
                    raise StandfastError(f"the MCP server's answer has more than {limit:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    response.stream = Bounded()
