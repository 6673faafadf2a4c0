"""Makes the tools of a graph of LangGraph ours: in a copy of the graph, a call is an interrupt; internal."""

import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.tools.base import InjectedToolCallId
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from standfast.errors import DefinitionError, InterruptError
from standfast.integrations._foreign_agents import Declared
from standfast.tools import Approval, ToolContext

QUESTION, REVIEW = "graph_question", "graph_review"
OURS = "standfast_call"  # the key of a tool's call in the interrupt that stands for it


def tool_nodes(graph: Pregel[Any, Any, Any, Any]) -> Iterator[ToolNode]:
    """Yield the nodes of a graph, and of the graphs that are its nodes, that run tools."""
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

    def dispatch(request: Any) -> ToolMessage:
        call = request.tool_call
        found = interrupt({OURS: {"id": call["id"], "name": call["name"], "args": call["args"]}})
        return ToolMessage(found["content"], name=call["name"], tool_call_id=call["id"], status=found["status"])

    async def wrap(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        if request.tool_call["name"] not in names:
            return await (execute(request) if wrapped is None else wrapped(request, execute))
        if wrapped is not None:

            async def run(request: Any) -> Any:
                return dispatch(request)

            return await wrapped(request, run)
        return dispatch(request) if wrapped_plainly is None else wrapped_plainly(request, dispatch)

    twin._awrap_tool_call = wrap
    twin.func, twin.afunc = twin._func, twin._afunc  # they were those of the original
    return twin


# --- its tools ---


def declare(graph: Any, declared: Declared) -> frozenset[str]:
    """Declare the tools of a graph, and return the names of those that our loop runs.

    Raises:
        DefinitionError: a tool with effects cannot run outside of the graph.
    """
    names = set[str]()
    for node in tool_nodes(graph):
        for name, tool in node.tools_by_name.items():
            if _needs_graph(node, tool):
                if not declared_safe(tool):
                    raise DefinitionError(
                        f"Tool '{name}' takes the graph's state, store, runtime or the call's id, so it runs in the "
                        "graph, where it would run again after a crash: make it a tool of its arguments alone, or say "
                        'that it is harmless to run it twice, by metadata={"safe_to_retry": True}'
                    )
                continue
            names.add(name)
            schema = convert_to_openai_tool(tool)["function"].get("parameters")
            declared.add(tool, name, tool.description, schema, _handler(tool), safe=declared_safe(tool))
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
    """Whether the user has declared a tool safe; `langchain-mcp-adapters` copies what a server says into metadata."""
    is_of_mcp = getattr(getattr(tool, "coroutine", None), "__module__", "").startswith("langchain_mcp_adapters")
    return (getattr(tool, "metadata", None) or {}).get("safe_to_retry") is True and not is_of_mcp


def _needs_graph(node: ToolNode, tool: BaseTool) -> bool:
    injected = node._injected_args[tool.name]
    if injected.state or injected.store or injected.runtime:
        return True
    return any(
        isinstance(one, InjectedToolCallId) or one is InjectedToolCallId
        for field in tool.get_input_schema().model_fields.values()
        for one in field.metadata
    )


def _handler(tool: BaseTool) -> Callable[[dict[str, Any], ToolContext], Awaitable[Any]]:
    async def run(arguments: dict[str, Any], ctx: ToolContext) -> Any:
        call = {"type": "tool_call", "id": ctx.tool_call_id, "name": tool.name, "args": arguments}
        result = await tool.ainvoke(call)
        if not isinstance(result, ToolMessage):
            raise TypeError(
                f"it ran, and returned a {type(result).__name__} for the graph, which cannot be given to it"
            )
        if result.status == "error":
            raise RuntimeError(str(result.content))
        return result.content

    return run


async def _ask(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    asked = arguments.get("question")
    raise InterruptError(asked if isinstance(asked, str) and asked else json.dumps(asked, ensure_ascii=False))


async def _reviewed(arguments: dict[str, Any], ctx: ToolContext) -> Any:
    return arguments
