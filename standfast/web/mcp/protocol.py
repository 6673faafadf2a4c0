"""Speaks the Model Context Protocol, by its package, for the tools of `mcp_tools`: over stdio, and over HTTP.

Over HTTP each request is independent: the server keeps no sessions, so that it may be killed and replaced at any time.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.extras import MissingExtraError, distribution, install
from standfast.web.api.errors import problem
from standfast.web.api.errors import refusal as to_program
from standfast.web.api.senders import Senders
from standfast.web.identity.people import Person
from standfast.web.identity.visitors import who
from standfast.web.mcp.tools import Offer, Offers

try:
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
except ImportError as error:  # pragma: no cover
    raise MissingExtraError(f"Serving MCP needs its package: {install('mcp')}") from error

_MOST_BYTES = 1_048_576  # of a request
_LOG = logging.getLogger("standfast.web")
_INSTRUCTIONS = (
    "Agents and pipelines that run durably in the background. Start one with a session_id, then ask for its "
    "`result` until `has_ended` is true. A run that waits for people continues when they have decided: tell your "
    "user what it waits for."
)


async def serve_stdio(offers: Offers, person: Person) -> None:
    """Serve a client that has started this process, as `person`, until it closes standard input."""
    server = _server(offers, lambda _: person)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _sender(request: Any) -> Person:
    person = who(request)
    assert person is not None  # `Door` has admitted it
    return person


class Door:
    """Admits requests of known people.

    The protocol's background tasks begin with the first request: a mounted application has no lifespan.
    """

    def __init__(self, offers: Offers, senders: Senders) -> None:
        self._senders = senders
        self._manager = StreamableHTTPSessionManager(
            _server(offers, _sender), json_response=True, stateless=True, max_request_body_size=_MOST_BYTES
        )
        self._running: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._senders.sender(Request(scope))
        except HTTPException as error:
            await to_program(error)(scope, receive, send)
            return
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await self._is_ready.wait()
        await self._manager.handle_request(scope, receive, send)

    async def _run(self) -> None:
        async with self._manager.run():
            self._is_ready.set()
            await asyncio.Event().wait()

    def close(self) -> None:
        """End the background tasks."""
        if self._running is not None:
            self._running.cancel()


def _server(offers: Offers, sender: Callable[[Any], Person]) -> Server[Any]:
    """Return the server for a protocol's messages.

    Args:
        sender: returns the sender of a request.
    """

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(one) for one in offers.of(sender(ctx.request))])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            found = await offers.call(sender(ctx.request), params.name, params.arguments or {})
        except (HTTPException, StandfastError, RPCError, ValidationError) as error:
            return _refused(error)
        except Exception as error:
            _LOG.exception("The tool %s could not be used", params.name[:100])
            return _refused(error)
        return types.CallToolResult(content=[_text(found)], structured_content=found)

    about = version(distribution())
    return Server(
        "standfast", version=about, instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _tool(offer: Offer) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=offer.is_reading,
        destructive_hint=not offer.is_reading,
        idempotent_hint=offer.is_reading or offer.is_once,
        open_world_hint=not offer.is_reading,
    )
    return types.Tool(name=offer.name, description=offer.description, input_schema=offer.schema, annotations=hints)


def _text(value: Mapping[str, Any]) -> types.TextContent:
    return types.TextContent(type="text", text=json.dumps(value, ensure_ascii=False))


def _refused(error: Exception) -> types.CallToolResult:
    """Return an error for a model, without the page's advice to programs."""
    found = problem(error)
    return types.CallToolResult(content=[_text({"code": found["code"], "message": found["message"]})], is_error=True)
