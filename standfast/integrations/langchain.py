"""Runs LangGraph graphs and LangChain agents; guards the tools of graphs and agents that run elsewhere."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, Unpack, cast

from pydantic import PlainSerializer, PlainValidator

from standfast.agents import Agent
from standfast.effects.keys import in_activity
from standfast.errors import DefinitionError, InputError
from standfast.integrations._foreign_agents import Declared, Gate, Options, make_agent, name_of
from standfast.integrations._guards import ToolGuard, check_key, check_version, key_of, said_safe
from standfast.llm import Price
from standfast.stores.protocol import DurableStore
from standfast.tools import Duration

check_version("langchain", "1.3", "2", "langchain")
check_version("langgraph", "1.2", "2", "langchain")

from langchain.agents.middleware import AgentMiddleware  # noqa: E402 - only in a version that has it
from langchain.agents.middleware.types import ToolCallRequest  # noqa: E402
from langchain_core.messages import AIMessage, ToolMessage  # noqa: E402
from langgraph.checkpoint.base import BaseCheckpointSaver  # noqa: E402
from langgraph.errors import GraphBubbleUp  # noqa: E402
from langgraph.pregel import Pregel  # noqa: E402
from langgraph.types import Command  # noqa: E402

from standfast.integrations._langgraph_results import dump, load  # noqa: E402
from standfast.integrations._langgraph_runs import GraphRun  # noqa: E402
from standfast.integrations._langgraph_savers import SaverAnywhere  # noqa: E402
from standfast.integrations._langgraph_threads import Threads  # noqa: E402
from standfast.integrations._langgraph_tools import declare, declared_safe  # noqa: E402

__all__ = ["AtMostOnce", "as_agent"]

Result: TypeAlias = ToolMessage | Command[Any]
_Kept = Annotated[Any, PlainSerializer(dump), PlainValidator(load)]


def as_agent(
    graph: Any,
    *,
    name: str | None = None,
    context: Any = None,
    approval: Mapping[str, Gate | None] | None = None,
    safe_to_retry: Sequence[str] = (),
    timeout: Mapping[str, Duration] | None = None,
    trust_hints: bool = False,
    output: Any = None,
    answer: Callable[[Any], Any] | None = None,
    config: Mapping[str, Any] | None = None,
    price: Price | None = None,
    **options: Unpack[Options],
) -> Agent[Any]:
    """Return a standfast agent that runs a graph whose state has `messages`; standfast runs its tool calls.

    Args:
        graph: a compiled graph, such as one from `create_agent`. With a checkpointer, which should be durable, it
            continues from its last state. Without one, it starts over at each turn, with all messages.
        name: by default the graph's own.
        context: the graph's runtime context, also for its tools: a value, or a function of the `AgentContext` that
            returns it.
        approval: gates by tool name.
        safe_to_retry: names of tools that may run twice, besides those declared in their `metadata`.
        timeout: of calls, by tool name.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.
        output: the type of the final answer.
        answer: a function of the graph's last values that returns the answer: text, or a value to write as JSON. By
            default, `structured_response`, or the text of the last message.
        config: for each run of the graph, such as its `recursion_limit`.
        price: of the models' tokens.
        options: `description`, `formerly`, `loop`, `access` and the hooks of an `Agent`.

    Raises:
        DefinitionError: naming the invalid part: a name, a tool with effects that needs the state of a graph without a
            checkpointer, two tools of one name, a graph that runs elsewhere.
    """
    if not isinstance(graph, Pregel):
        raise DefinitionError(f"Of LangGraph only a compiled graph can be run, got {type(graph).__name__}")
    name = name_of(graph, name, graph.name)
    declared = Declared(name, approval, safe_to_retry, timeout, trust_hints)
    saver = graph.checkpointer
    threads = Threads(name, SaverAnywhere(saver) if isinstance(saver, BaseCheckpointSaver) else None)
    names = declare(graph, declared, threads, context, config)
    run = GraphRun(name, graph, names, threads, context=context, config=config, answer=answer, price=price)
    return make_agent(name, run, declared.check(), model=None, output=output, options=options)


class AtMostOnce(AgentMiddleware[Any, Any, Any]):
    """Middleware for `create_agent` that runs a tool's call at most once; put it last, next to the tools.

    A tool is safe, and not guarded, if its `metadata` has `{"safe_to_retry": True}`. All others have effects. A
    server's hints in the metadata of an MCP tool count only with `trust_hints`.

    Elsewhere: `ToolNode(tools, wrap_tool_call=guard.wrap_tool_call, awrap_tool_call=guard.awrap_tool_call)`.

    Args:
        store: a durable one, which may be shared.
        key: distinguishes a call from all others, from its request. By default, the ids of the thread, the model's
            message and the call; in a Temporal activity, the activity's id.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.

    Raises:
        MemoryStoreNotDurableError: the store is not durable.

    A guarded call raises:
        InputError: it has no key, since its graph has no thread; or it was made before with other arguments.
        StoreError: the store does not answer; nothing was run.
    """

    def __init__(
        self,
        store: DurableStore,
        *,
        key: Callable[[ToolCallRequest], str] | None = None,
        trust_hints: bool = False,
    ) -> None:
        check_key(key, "the ToolCallRequest")
        super().__init__()
        self._guard, self._key, self._trust_hints = ToolGuard(store, not_run=(GraphBubbleUp,)), key, trust_hints

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Result]) -> Result:
        if self._is_safe(request):
            return handler(request)
        call, key = request.tool_call, self._key_of(request)
        return _message(
            request,
            self._guard.run_plain(
                call["name"], _id_of(request), call["args"], lambda: handler(request), key=key, returns=_Kept
            ),
        )

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Result]]
    ) -> Result:
        if self._is_safe(request):
            return await handler(request)
        call, key = request.tool_call, self._key_of(request)
        return _message(
            request,
            await self._guard.run(
                call["name"], _id_of(request), call["args"], lambda: handler(request), key=key, returns=_Kept
            ),
        )

    def _is_safe(self, request: ToolCallRequest) -> bool:
        if declared_safe(request.tool):
            return True
        return self._trust_hints and said_safe(getattr(request.tool, "metadata", None))

    def _key_of(self, request: ToolCallRequest) -> str | None:
        if self._key is not None:
            return self._key(request)
        if in_activity():
            return None
        config = getattr(request.runtime, "config", None) or {}
        thread = config.get("configurable", {}).get("thread_id")
        if thread is None:
            raise InputError(
                f"Tool '{request.tool_call['name']}' cannot be guarded: its graph has no thread_id, which "
                "identifies repeated calls. Give it a checkpointer and a thread_id, or AtMostOnce a key="
            )
        return key_of(str(thread), _message_id(request), _id_of(request))


def _id_of(request: ToolCallRequest) -> str:
    return request.tool_call["id"] or ""


def _message_id(request: ToolCallRequest) -> str:
    """Return the id of the message with the call; some models count their calls from 0 in each message."""
    state = request.state
    messages = state if isinstance(state, list) else state.get("messages", []) if isinstance(state, dict) else []
    for message in reversed(messages or getattr(state, "messages", [])):
        if isinstance(message, AIMessage) and any(call["id"] == request.tool_call["id"] for call in message.tool_calls):
            return str(message.id or "-")
    return "-"


def _message(request: ToolCallRequest, found: Any) -> Result:
    """Return a result, or the message that tells the model that there is none."""
    if not isinstance(found, dict):
        return cast(Result, found)
    text = json.dumps(found, ensure_ascii=False)
    call = request.tool_call
    return ToolMessage(content=text, name=call["name"], tool_call_id=call["id"], status="error")
