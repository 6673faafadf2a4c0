"""Turns a LangGraph graph's tools into standfast tools: in a copy of the graph, a call is an interrupt; internal.

A tool of `langchain-mcp-adapters` is compared with its server before each call, in the call's session. The adapters
keep a tool as its server described it when it was read. The other data for a call is in the closure of the tool's
function. A user's function around it hides that, and the call is made unchecked.
"""

import copy
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables.config import merge_configs
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tools.base import InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from standfast.errors import DefinitionError, InterruptError, RetryableError, StandfastError
from standfast.integrations._foreign_agents import Declared, valued
from standfast.integrations._guards import has_guard, said_safe
from standfast.integrations._langgraph_results import for_graph, written
from standfast.integrations._langgraph_threads import OURS, Threads, call_with, runner_of
from standfast.integrations._server_connections import has_changed, is_answer, unknown
from standfast.mcp.held_clients import first_error
from standfast.mcp.schemas import digest_of
from standfast.messages import JSONObject, error_text
from standfast.tools import Approval, ToolContext

QUESTION, REVIEW = "graph_question", "graph_review"

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


def tool_nodes(graph: Pregel[Any, Any, Any, Any]) -> Iterator[ToolNode]:
    """Yield the tool nodes of a graph, and of the graphs that are its nodes."""
    for node in graph.nodes.values():
        if isinstance(node.bound, ToolNode):
            yield node.bound
        elif isinstance(node.bound, Pregel):
            yield from tool_nodes(node.bound)


def with_dispatched(graph: Any, names: frozenset[str]) -> Any:
    """Return a copy of a graph in which the calls of these tools are interrupts."""
    nodes = {}
    for name, node in graph.nodes.items():
        if isinstance(node.bound, ToolNode):
            nodes[name] = node.copy({"bound": _dispatching(node.bound, names)})
        elif isinstance(node.bound, Pregel):
            inner = with_dispatched(node.bound, names)
            nodes[name] = node.copy({"bound": inner, "subgraphs": [inner]})
        else:
            nodes[name] = node
    twin = copy.copy(graph)
    twin.nodes = nodes
    return twin


def _dispatching(node: ToolNode, names: frozenset[str]) -> ToolNode:
    twin = copy.copy(node)
    wrapped, wrapped_plainly = node._awrap_tool_call, node._wrap_tool_call
    with_state = {name for name, tool in node.tools_by_name.items() if _needs_graph(node, tool)}

    def dispatch(request: Any) -> Any:
        call = request.tool_call
        plain = {OURS: {"id": call["id"], "name": call["name"], "args": call["args"]}}
        found = interrupt(call_with(call, request.state) if call["name"] in with_state else plain)
        return for_graph(call, found["content"], failed=found["failed"])

    async def wrap(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        if request.tool_call["name"] not in names:
            return await (execute(request) if wrapped is None else wrapped(request, execute))
        if wrapped is not None:

            async def run(request: Any) -> Any:
                return dispatch(request)

            return await wrapped(request, run)
        return dispatch(request) if wrapped_plainly is None else wrapped_plainly(request, dispatch)

    twin._awrap_tool_call = wrap
    twin.func, twin.afunc = twin._func, twin._afunc  # they belonged to the original
    return twin


# --- its tools ---


def declare(
    graph: Any, declared: Declared, threads: Threads, context: Any, config: Mapping[str, Any] | None
) -> frozenset[str]:
    """Declare the tools of a graph, and return the names of the tools that our loop runs.

    Args:
        context, config: of the graph's runs.

    Raises:
        DefinitionError: a tool with effects cannot run outside the graph.
    """
    names = set[str]()
    for node in tool_nodes(graph):
        for name, tool in node.tools_by_name.items():
            safe = declared_safe(tool) or (declared.trust_hints and said_safe(tool.metadata))
            if _needs_graph(node, tool) and threads.saver is None:
                if not declared_safe(tool):
                    raise DefinitionError(
                        f"Tool '{name}' takes the graph's state, store, runtime or the call's id, which is not "
                        "stored for its call: compile the graph with a checkpointer, or declare it safe to run "
                        'twice, by metadata={"safe_to_retry": True}'
                    )
                continue
            names.add(name)
            schema = convert_to_openai_tool(tool)["function"].get("parameters")
            call = _GraphCall(graph, node, compared(tool), threads, context, config, declared.is_safe(name, safe))
            guard, known_by = has_guard(*_functions(tool)), fingerprint_of(tool)
            declared.add(
                tool, name, tool.description, schema, call.run, safe=safe, has_guard=guard, fingerprint=known_by
            )
    if isinstance(graph.checkpointer, BaseCheckpointSaver):
        declared.add(QUESTION, QUESTION, "A question of the graph.", {"properties": {"question": {}}}, _ask, safe=True)
        declared.add(
            REVIEW,
            REVIEW,
            "A call that the graph wants people to review.",
            {"properties": {"name": {"type": "string"}, "args": {"type": "object"}}, "required": ["name", "args"]},
            _reviewed,
            approval=Approval(message=lambda call: f"Run {call.arguments.get('name')}?"),
            safe=True,
        )
    return frozenset(names)


def declared_safe(tool: Any) -> bool:
    """Whether the user has declared a tool safe; `langchain-mcp-adapters` copies a server's hints into metadata."""
    return (getattr(tool, "metadata", None) or {}).get("safe_to_retry") is True and not is_of_server(tool)


def _functions(tool: Any) -> tuple[Any, Any]:
    return getattr(tool, "func", None), getattr(tool, "coroutine", None)


def _needs_graph(node: ToolNode, tool: BaseTool) -> bool:
    injected = node._injected_args[tool.name]
    if injected.state or injected.store or injected.runtime:
        return not is_of_server(tool)  # its adapter requests a runtime that it does not need
    return any(
        isinstance(one, InjectedToolCallId) or one is InjectedToolCallId
        for field in tool.get_input_schema().model_fields.values()
        for one in field.metadata
    )


@dataclass(frozen=True)
class _GraphCall:
    """The handler of a tool: calls it as its node does, with the state that the graph had for this call."""

    graph: Any
    node: ToolNode
    tool: BaseTool
    threads: Threads
    context: Any
    config: Mapping[str, Any] | None
    is_safe: bool

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        call: Any = {"type": "tool_call", "id": ctx.tool_call_id, "name": self.tool.name, "args": arguments}
        config: Any = dict(self.config or {})
        if _needs_graph(self.node, self.tool):
            asked = await self.threads.asked(ctx)
            call["id"], config = asked.call["id"], merge_configs(config, cast(Any, asked.config))
            runtime = ToolRuntime(
                state=asked.state,
                context=valued(self.context, runner_of(ctx)),
                config=config,
                stream_writer=lambda _: None,
                tool_call_id=call["id"],
                store=self.graph.store,
            )
            injected: Any = self.node._inject_tool_args(call, runtime, self.tool)
        else:
            injected = call
        try:
            result: Any = await self.tool.ainvoke(injected, config)
        except Exception as error:
            is_known = isinstance(error, (ToolException, StandfastError)) or is_answer(error)
            if not is_of_server(self.tool) or is_known:
                raise
            lost = unknown(self.tool.name, ctx.tool_call_id, error)
            raise (RetryableError(lost.reason) if self.is_safe else lost) from error
        return written(result, call["id"], keeps=self.threads.saver is not None)


async def _ask(arguments: JSONObject, ctx: ToolContext) -> Any:
    asked = arguments.get("question")
    raise InterruptError(asked if isinstance(asked, str) and asked else json.dumps(asked, ensure_ascii=False))


async def _reviewed(arguments: JSONObject, ctx: ToolContext) -> Any:
    return arguments
