"""Turns a LangGraph graph's tools into standfast tools: in a copy of the graph, a call is an interrupt; internal."""

import copy
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
from standfast.integrations._langchain_servers import compared, fingerprint_of, is_of_server
from standfast.integrations._langgraph_results import for_graph, written
from standfast.integrations._langgraph_threads import OURS, Threads, call_with, runner_of
from standfast.integrations._server_connections import is_answer, unknown
from standfast.tools import Approval, ToolContext

QUESTION, REVIEW = "graph_question", "graph_review"


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

    async def run(self, arguments: dict[str, Any], ctx: ToolContext) -> Any:
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


async def _ask(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    asked = arguments.get("question")
    raise InterruptError(asked if isinstance(asked, str) and asked else json.dumps(asked, ensure_ascii=False))


async def _reviewed(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    return arguments
