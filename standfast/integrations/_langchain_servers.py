"""Compares a `langchain-mcp-adapters` tool with its server before each call, in the call's session; internal.

The adapters keep a tool as its server described it when it was read. The other data for a call is in the closure of the
tool's function. A user's function around it hides that, and the call is made unchecked.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from standfast.errors import RetryableError, StandfastError
from standfast.integrations._server_connections import has_changed
from standfast.mcp.declarations import digest_of
from standfast.mcp.held_clients import first_error
from standfast.messages import error_text

_WITH_HEADERS = ("sse", "http", "streamable_http", "streamable-http")


def is_of_server(tool: Any) -> bool:
    """Whether a LangChain tool belongs to an MCP server."""
    return getattr(getattr(tool, "coroutine", None), "__module__", "").startswith("langchain_mcp_adapters")


def fingerprint_of(tool: Any) -> str:
    """Return a digest of everything that a server declared about a tool when it was read; "" for any other tool."""
    known = _known_of(tool)
    return "" if known is None else _digest(known["tool"])


def compared(tool: Any) -> Any:
    """Return a tool that calls its server only if the description is unchanged; any other tool unchanged."""
    known = _known_of(tool)
    if known is None:
        return tool
    theirs: Any = inspect.getmodule(tool.coroutine)
    converted = theirs.convert_mcp_tool_to_langchain_tool(
        known["session"],
        known["tool"],
        connection=known["connection"],
        callbacks=known["callbacks"],
        tool_interceptors=[*(known["tool_interceptors"] or ()), _compared_call(theirs, **known)],
        server_name=known["server_name"],
    )
    return tool.model_copy(update={"coroutine": converted.coroutine})


def _known_of(tool: Any) -> dict[str, Any] | None:
    if not is_of_server(tool) or not inspect.isfunction(tool.coroutine):
        return None
    found = inspect.getclosurevars(tool.coroutine).nonlocals
    names = ("session", "tool", "connection", "callbacks", "tool_interceptors", "server_name")
    return {name: found[name] for name in names} if all(name in found for name in names) else None


def _compared_call(
    theirs: Any, session: Any, tool: Any, connection: Any, callbacks: Any, server_name: str | None, **_: Any
) -> Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]:
    """Return the innermost interceptor of a call, which makes the call in the session that compared the tool.

    Args:
        theirs: the module of the adapters' tools.
    """
    told = None
    if callbacks is not None:
        told = callbacks.to_mcp_format(context=theirs.CallbackContext(server_name=server_name, tool_name=tool.name))

    async def compare(session: Any) -> None:
        if _digest(tool) not in {fingerprint_of(one) for one in await theirs.load_mcp_tools(session)}:
            raise has_changed(tool.name)

    async def intercept(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        if session is not None:
            try:
                await compare(session)
            except Exception as error:
                raise _unsent(tool, error) from error
            return await handler(request)
        where, sent, found, failed = _with_headers(connection, request.headers), False, None, Exception()
        try:
            async with theirs.create_session(where, mcp_callbacks=told) as opened:
                # An error raised in here would be one of several errors outside.
                try:
                    await opened.initialize()
                    await compare(opened)
                    sent, progress = True, None if told is None else told.progress_callback
                    found = await opened.call_tool(request.name, request.args, progress_callback=progress)
                except Exception as error:
                    failed = error
        except Exception as error:
            failed = error
        if found is not None:
            return found
        raise failed if sent else _unsent(tool, failed)

    return intercept


def _unsent(tool: Any, error: Exception) -> StandfastError:
    """Return the error of a call that the server never got."""
    if isinstance(error, StandfastError):
        return error
    why = error_text(first_error(error)) or type(error).__name__
    return RetryableError(f"Not called: the MCP server of tool {tool.name!r} cannot list its tools: {why}")


def _with_headers(connection: Any, headers: Any) -> dict[str, Any]:
    """Return a connection with the headers that a user's interceptor has added for one call."""
    if headers is None or connection["transport"] not in _WITH_HEADERS:
        return dict(connection)
    return {**connection, "headers": {**(connection.get("headers") or {}), **headers}}


def _digest(item: Any) -> str:
    return digest_of(json.loads(item.model_dump_json(by_alias=True, exclude_none=True)))
