"""Tools of MCP servers, which an agent uses like any others."""

import importlib
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from standfast.errors import DefinitionError
from standfast.extras import install
from standfast.mcp.clients import MAX_ANSWER_BYTES
from standfast.mcp.connections import Connection, fingerprint
from standfast.mcp.schemas import check_listing, checked_by
from standfast.messages import ToolCall, cut
from standfast.tools import Approval, Duration, Tool, ToolContext, check_count

__all__ = ["mcp_tools"]

Gate = Approval | Callable[[ToolCall], Approval | None]
_OTHERS = "*"  # of a mapping by name, the tools that it does not name
_LONGEST_DESCRIPTION = 16 * 1024  # bytes


@asynccontextmanager
async def mcp_tools(
    server: Any,
    *,
    only: Iterable[str] | None = None,
    safe_to_retry: Mapping[str, bool] | None = None,
    approval: Gate | Mapping[str, Gate | None] | None = None,
    trust_hints: bool = False,
    timeout: Duration | None = None,  # noqa: ASYNC109  # of each call, not of this one
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> AsyncIterator[list[Tool[..., Any]]]:
    """Connect to a server and yield its tools for as long as the block lasts; a lost connection is opened again.

    Args:
        server: the URL of a server with streamable HTTP, or an `mcp.StdioServerParameters`, whose process is started.
        only: names of the tools to take, as the server has them; all if None. Here a tool's name has letters, digits,
            `_` and `-` alone, and a number at its end if another one has it.
        safe_to_retry: by the name of a tool; others have effects, unless `trust_hints` says otherwise.
        approval: one for all tools, including those that the server adds later; or by the name of a tool, where "*" is
            for all that are not named, and None for a tool that needs none. Without "*", those need none either.
        trust_hints: believe the server, whose tools are then safe if their `readOnlyHint` or `idempotentHint` is set.
        timeout: the limit of one call.
        max_answer_bytes: the most that the server may send at once; if it sends more, the connection is closed.

    Raises:
        DefinitionError: the server has no tool of a name; a limit is not a positive number.
        StandfastError: it cannot be reached.
        ImportError: the SDK is not installed.
    """
    try:
        mcp = importlib.import_module("mcp")
        importlib.import_module("jsonschema")
    except ImportError as error:
        raise ImportError(f"MCP servers need their SDK: {install('mcp')}") from error
    check_count("max_answer_bytes", max_answer_bytes, 1)
    connection = Connection(mcp, server, max_answer_bytes)
    try:
        found = {item.name: item for item in await connection.tools()}
        check_listing([found[name] for name in found if only is None or name in set(only)])
        names = _names(found)
        safe = dict(safe_to_retry or {})
        gates = dict(approval) if isinstance(approval, Mapping) else {_OTHERS: approval}
        others = gates.pop(_OTHERS, None)
        wanted = list(found if only is None else only)
        if unknown := sorted({*wanted, *safe, *gates} - found.keys()):
            raise DefinitionError(f"The MCP server has no tool {unknown[0]!r}; it has {', '.join(found) or 'none'}")
        yield [
            _tool(
                connection,
                names[name],
                found[name],
                safe.get(name, trust_hints and _is_said_safe(found[name])),
                gates.get(name, others),
                timeout,
            )
            for name in wanted
        ]
    finally:
        await connection.close()


def _names(theirs: Iterable[str]) -> dict[str, str]:
    """Return the names of tools here: all different, and each acceptable to providers."""
    ours: dict[str, str] = {}
    for name in theirs:
        clean = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:60] or "_"
        clean = clean if clean[0].isalpha() or clean[0] == "_" else f"_{clean}"
        number, free = 2, clean
        while free in ours.values():
            free, number = f"{clean}_{number}", number + 1
        ours[name] = free
    return ours


def _is_said_safe(item: Any) -> bool:
    hints = item.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def _tool(
    connection: Connection, name: str, item: Any, is_safe: bool, approval: Any, timeout: Duration | None
) -> Tool[..., Any]:
    schema = {"type": "object", "properties": {}, **item.input_schema}

    async def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        return await connection.call(item, arguments, ctx, is_safe=is_safe)

    return Tool(
        name,
        description=cut(item.description or item.title or item.name, _LONGEST_DESCRIPTION),
        input=Annotated[dict[str, Any], AfterValidator(checked_by(schema)), WithJsonSchema(schema)],
        handler=call,
        safe_to_retry=is_safe,
        approval=approval,
        timeout=timeout,
        fingerprint=fingerprint(item),
    )
