"""Clients of MCP servers that limit how much they read."""

import importlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from standfast.errors import StandfastError
from standfast.mcp.processes import bounded_process, past_limit

MAX_ANSWER_BYTES = 16 * 2**20


@asynccontextmanager
async def bounded_client(mcp: Any, server: Any, limit: int, note: Callable[[str], None]) -> AsyncIterator[Any]:
    """Connect to a server; its answers are read within bounds, and are not checked by its own schemas.

    The SDK would match a result with the patterns of the tool's `outputSchema` on the event loop, however long that
    takes. A model reads the result as it is.

    Args:
        limit: of one message, in bytes.
        note: is called about a longer one, which the SDK does not report.
    """
    if isinstance(server, mcp.StdioServerParameters) and hasattr(os, "killpg"):  # Windows ends processes differently
        server = bounded_process(server, limit, note)
    if not isinstance(server, str):
        async with mcp.Client(server) as client:
            yield _unchecked(client)
        return
    connect = importlib.import_module("mcp.client.streamable_http")
    async with connect.create_mcp_http_client(headers={"Accept-Encoding": "identity"}) as http:
        http.event_hooks = {"response": [partial(_bound, limit, note)]}
        transport = connect.streamable_http_client(server, http_client=http, max_sse_event_size=limit)
        async with mcp.Client(transport) as client:
            yield _unchecked(client)


def _unchecked(client: Any) -> Any:
    async def anything(name: str, result: Any) -> None:
        pass

    client.session.validate_tool_result = anything
    return client


async def _bound(limit: int, note: Callable[[str], None], response: Any) -> None:
    """Bound an answer; streams live as long as their connection, and the SDK bounds their events."""
    if (packed := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
        raise StandfastError(f"the MCP server's answer is packed as {packed!r:.40}, which nobody asked for")
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
