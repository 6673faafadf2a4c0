"""Tools of MCP servers, which an agent has like any others."""

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, WithJsonSchema

from holdfast.errors import DefinitionError, HoldfastError, RetryableError, ToolDurabilityError
from holdfast.messages import ToolCall, error_text
from holdfast.tools import Approval, Duration, Tool, ToolContext

T = TypeVar("T")


@asynccontextmanager
async def mcp_tools(
    server: Any,
    *,
    only: Iterable[str] | None = None,
    safe_to_retry: Mapping[str, bool] | None = None,
    approval: Mapping[str, Approval | Callable[[ToolCall], Approval | None]] | None = None,
    timeout: Duration | None = None,  # noqa: ASYNC109  # of each call, not of this one
) -> AsyncIterator[list[Tool[..., Any]]]:
    """Connect to a server and yield its tools, for as long as the block lasts; a lost connection is made again.

    Args:
        server: the URL of a server with streamable HTTP, or an `mcp.StdioServerParameters`, whose process is started.
        only: names of the tools to take; all of them if None.
        safe_to_retry: by the name of a tool, in place of what the server says: a tool is safe if its `readOnlyHint` or
            `idempotentHint` is set. Of a server that you do not trust, say it yourself.
        approval: by the name of a tool.
        timeout: of one call.

    Raises:
        DefinitionError: the server has no tool of a name.
        HoldfastError: it cannot be reached.
        ImportError: the SDK is not installed.
    """
    try:
        mcp = importlib.import_module("mcp")
        jsonschema = importlib.import_module("jsonschema")
    except ImportError as error:
        raise ImportError("MCP servers need their SDK: pip install 'holdfast[mcp]'") from error
    connection = _Connection(mcp, server)
    try:
        found = {item.name: item for item in await connection.tools()}
        safe, gates = dict(safe_to_retry or {}), dict(approval or {})
        wanted = list(found if only is None else only)
        if unknown := sorted({*wanted, *safe, *gates} - found.keys()):
            raise DefinitionError(f"The MCP server has no tool {unknown[0]!r}; it has {', '.join(found) or 'none'}")
        yield [_tool(connection, found[name], jsonschema, safe.get(name), gates.get(name), timeout) for name in wanted]
    finally:
        await connection.close()


def _tool(
    connection: "_Connection", item: Any, jsonschema: Any, safe: bool | None, approval: Any, timeout: Duration | None
) -> Tool[..., Any]:
    schema = {"type": "object", "properties": {}, **item.input_schema}
    checker = jsonschema.Draft202012Validator(schema)

    def check(arguments: dict[str, Any]) -> dict[str, Any]:
        fault = jsonschema.exceptions.best_match(checker.iter_errors(arguments))
        if fault is not None:
            raise ValueError(f"{'.'.join(map(str, fault.path)) or 'arguments'}: {fault.message}")
        return arguments

    hints = item.annotations
    is_safe = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint) if safe is None else safe

    async def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        return await connection.call(item.name, arguments, ctx, is_safe=is_safe)

    return Tool(
        re.sub(r"[^a-zA-Z0-9_-]", "_", item.name)[:64],
        description=item.description or item.title or item.name,
        input=Annotated[dict[str, Any], AfterValidator(check), WithJsonSchema(schema)],
        handler=call,
        safe_to_retry=is_safe,
        approval=approval,
        timeout=timeout,
    )


class _Connection:
    """A client on the loop that made it; calls may come from any other, such as that of a worker's handlers."""

    def __init__(self, mcp: Any, server: Any) -> None:
        self._mcp, self._server = mcp, server
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None

    async def tools(self) -> list[Any]:
        client, found, cursor = await self._connected(), [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def call(self, name: str, arguments: dict[str, Any], ctx: ToolContext, *, is_safe: bool) -> Any:
        """Return what a tool returned.

        Raises:
            HoldfastError: what it said went wrong.
            RetryableError: it was not called, or may be called again.
            ToolDurabilityError: nobody can tell whether it ran.
        """
        return await self._here(self._call(name, arguments, ctx, is_safe))

    async def _call(self, name: str, arguments: dict[str, Any], ctx: ToolContext, is_safe: bool) -> Any:
        try:
            client = await self._connected()
        except HoldfastError as error:
            raise RetryableError(error_text(error)) from error
        try:
            result = await client.call_tool(name, arguments)
        except Exception as error:
            if isinstance(error, self._mcp.MCPError) and not self._is_lost(error):
                raise HoldfastError(error_text(error)) from error
            await self._disconnect()
            reason = f"the connection to its MCP server was lost: {error_text(error)}"
            if is_safe:
                raise RetryableError(reason) from error
            raise ToolDurabilityError(name, ctx.tool_call_id, reason=reason) from error
        value = _value(result)
        if result.is_error:
            raise HoldfastError(value if isinstance(value, str) else str(value))
        return value

    def _is_lost(self, error: Any) -> bool:
        code = error.error.code
        return code in (self._mcp.types.CONNECTION_CLOSED, self._mcp.types.REQUEST_TIMEOUT)

    # --- the connection, which one task opens and closes, as the SDK wants it ---

    async def _connected(self) -> Any:
        async with self._opening:
            if self._client is None:
                ready: asyncio.Future[Any] = self._loop.create_future()
                self._task = asyncio.create_task(self._serve(ready))
                try:
                    self._client = await ready
                except Exception as error:
                    raise HoldfastError(f"The MCP server cannot be reached: {error_text(_first(error))}") from error
            return self._client

    async def _serve(self, ready: "asyncio.Future[Any]") -> None:
        try:
            async with self._mcp.Client(self._server) as client:
                ready.set_result(client)
                await asyncio.Event().wait()  # until it is cancelled
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)

    async def _disconnect(self) -> None:
        task, self._client, self._task = self._task, None, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    async def close(self) -> None:
        await self._disconnect()

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _first(error: BaseException) -> BaseException:
    """Return what a group of errors is about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _value(result: Any) -> Any:
    """Return what a model reads of a result: its data, or its texts."""
    if result.structured_content is not None:
        data = result.structured_content
        return data["result"] if data.keys() == {"result"} else data  # what the SDK makes of a plain value
    return "\n".join(
        block.text if block.type == "text" else f"[{block.type}, which cannot be shown]" for block in result.content
    )
