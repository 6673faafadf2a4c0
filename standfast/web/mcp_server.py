"""Serves the tools of `mcp_tools` by the Model Context Protocol: over stdio to one user of this machine, and over HTTP.

Over HTTP each request stands for itself: the server keeps no sessions, so that it may be killed and replaced at any
time, and every request is admitted by the rules of the page.
"""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.extras import distribution, install
from standfast.web.access import Person
from standfast.web.api.errors import problem
from standfast.web.api.errors import refusal as to_program
from standfast.web.api.senders import Senders
from standfast.web.listening import Health, check_listening, hosts_of
from standfast.web.mcp_tools import Offer, Offers
from standfast.web.visitors import Recognised, Visitors, who

try:
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
except ImportError as error:  # pragma: no cover
    raise ImportError(f"Serving MCP needs its package: {install('mcp')}", name=error.name) from error

PATH = "/mcp"
_MOST_BYTES = 1_048_576  # of a request
_LOG = logging.getLogger("standfast.web")
_INSTRUCTIONS = (
    "Agents and pipelines that run durably in the background. Start one with a session_id, then ask for its `result` "
    "until `has_ended` is true. A run that waits for people goes on when they have decided: tell your user what waits."
)


async def serve_stdio(offers: Offers, person: Person) -> None:
    """Serve a client that has started this process, as `person`, until it closes our standard input."""
    server = _server(offers, lambda _: person)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def create_mcp_app(
    offers: Offers, senders: Senders, visitors: Visitors, *, host: str = "127.0.0.1", names: tuple[str, ...] = ()
) -> Starlette:
    """Make the server over HTTP; it is at `/mcp`, while `async with app.state.running()` holds.

    Args:
        host: the address at which it will listen.
        names: host names of the server; requests for others are refused.

    Raises:
        DefinitionError: strangers could reach it, and nobody has to sign in.
    """
    check_listening(host, senders.access, names)

    def sender(request: Any) -> Person:
        person = who(request)
        assert person is not None  # `_Door` has let it in
        return person

    manager = StreamableHTTPSessionManager(
        _server(offers, sender), json_response=True, stateless=True, max_request_body_size=_MOST_BYTES
    )

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with manager.run():
            yield

    app = Starlette(
        routes=[Route(PATH, _Door(manager, senders))],
        middleware=[
            Middleware(Health),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts_of(host, names), www_redirect=False),
            Middleware(Recognised, visitors=visitors, to_program=to_program),
        ],
    )
    app.state.running = running
    return app


class _Door:
    """Lets the requests of known people through."""

    def __init__(self, manager: StreamableHTTPSessionManager, senders: Senders) -> None:
        self._manager, self._senders = manager, senders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._senders.sender(Request(scope))
        except HTTPException as error:
            await to_program(error)(scope, receive, send)
            return
        await self._manager.handle_request(scope, receive, send)


def _server(offers: Offers, sender: Any) -> Server[Any]:
    """Return the server of a protocol's messages.

    Args:
        sender: returns the person who has sent a request.
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
    """Return an error as a model reads it, without the page's advice to programs."""
    found = problem(error)
    return types.CallToolResult(content=[_text({"code": found["code"], "message": found["message"]})], is_error=True)
