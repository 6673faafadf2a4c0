"""Runs OpenAI Agents SDK agents; guards its function tools, including its Temporal integration's tools.

The guard is around `FunctionTool.on_invoke_tool`. The SDK's guardrails and hooks cannot return a stored result.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, Unpack, get_type_hints

from standfast.agents import Agent as OurAgent
from standfast.effects.keys import in_activity, in_workflow
from standfast.errors import DefinitionError, InputError, ToolDurabilityError
from standfast.integrations._foreign_agents import Declared, Gate, Options, make_agent, name_of
from standfast.integrations._guards import (
    AroundTool,
    ToolGuard,
    check_key,
    check_version,
    has_guard,
    key_of,
    second_guard,
)
from standfast.llm import Price
from standfast.stores.protocol import DurableStore
from standfast.tools import Duration
from standfast.tools.checks import GUARDED
from standfast.tools.signatures import bound

check_version("openai-agents", "0.22", "0.25", extra="openai-agents")

from agents import Agent, FunctionTool, RunConfig, UserError  # noqa: E402
from agents.tool_context import ToolContext  # noqa: E402

from standfast.integrations._openai_runs import OpenAIRun  # noqa: E402
from standfast.integrations._openai_servers import servers_of  # noqa: E402
from standfast.integrations._openai_tools import (  # noqa: E402
    RunSettings,
    agents_of,
    declare,
    model_name,
    output_of,
    raising,
    written_result,
)

__all__ = ["as_agent", "guarded", "guarded_activity"]

AgentOrTool = TypeVar("AgentOrTool")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def as_agent(
    agent: Agent[Any],
    *,
    name: str | None = None,
    context: Any = None,
    approval: Mapping[str, Gate | None] | None = None,
    safe_to_retry: Sequence[str] = (),
    timeout: Mapping[str, Duration] | None = None,
    trust_hints: bool = False,
    run_config: RunConfig | None = None,
    price: Price | None = None,
    **options: Unpack[Options],
) -> OurAgent[Any]:
    """Return a standfast agent. The SDK runs it, one model turn at a time, and standfast runs its tools and handoffs.

    Args:
        name: by default the agent's own.
        context: the SDK's context of runs: a value, or a function that returns it. Its argument is an `AgentContext`
            for a turn of the model and a `ToolContext` for a tool's call.
        approval: gates by tool name; None removes the gate of its `needs_approval`.
        safe_to_retry: names of tools that may run twice; all others, and `Handoff`s, have effects.
        timeout: of calls, by tool name; by default the tool's own, or the usual one.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.
        run_config: for each turn; by default all turns of a run are one group of traces.
        price: the model's price, if it is not known.
        options: `description`, `formerly`, `loop`, `access` and the hooks of an `Agent`.

    Raises:
        DefinitionError: naming the invalid part: a name, a tool that the SDK would run itself, two agents or tools of
            one name, a handoff that changes the conversation. Faults that only MCP servers reveal are found when a run
            or a worker begins.
    """
    if not isinstance(agent, Agent):
        raise DefinitionError(f"as_agent needs an agent of the OpenAI Agents SDK, got {agent!r:.80}")
    name = name_of(agent, name, agent.name)
    agents, declared = agents_of(agent), Declared(name, approval, safe_to_retry, timeout, trust_hints)
    settings = RunSettings(context, run_config or RunConfig())
    declare(agents, declared, settings)
    options.setdefault("description", agent.handoff_description or None)
    return make_agent(
        name,
        OpenAIRun(agent, agents, settings, price, declared),
        declared.check(servers_of(agents, declared, settings)),
        model=model_name(agent),
        output=output_of(agents.values()),
        options=options,
    )


def guarded(
    agent_or_tool: AgentOrTool,
    *,
    store: DurableStore,
    key: Callable[[Any], str],
    safe_to_retry: Sequence[str] = (),
) -> AgentOrTool:
    """Guard a function tool, or all current tools of an agent, and return the same object.

    Args:
        agent_or_tool: changed in place. These are not guarded: an agent's MCP tools, which are made for each run and do
            not get the call's id; hosted tools; and agents that are tools, which must be guarded themselves.
        store: a durable one.
        key: distinguishes a call from all others of the tool, from its `ToolContext`. The SDK's call ids are unique
            only within their conversation, whose id a tool does not get. For example `lambda call:
            f"{call.context.order}/{call.tool_call_id}"`.
        safe_to_retry: names of an agent's tools that may run twice, and are not guarded.

    Raises:
        DefinitionError: it is neither an agent nor a function tool, has no tool to guard, or a tool is already guarded
            or does not exist.
        MemoryStoreNotDurableError: the store is not durable.
    """
    guard = ToolGuard(store)
    check_key(key, "the call's ToolContext", is_optional=False)
    match agent_or_tool:
        case Agent(tools=tools):
            found = [tool for tool in tools if isinstance(tool, FunctionTool) and not tool._is_agent_tool]
        case FunctionTool():
            found = [agent_or_tool]
        case _:
            raise DefinitionError(f"guarded needs an agent or a function tool, got {agent_or_tool!r:.80}")
    if not found:
        raise DefinitionError(
            f"guarded: agent '{agent_or_tool.name}' has no function tool to guard; add its tools first"
        )
    if isinstance(safe_to_retry, str):
        raise DefinitionError(f"guarded: safe_to_retry lists names, got the text {safe_to_retry!r:.80}")
    if unknown := sorted({*safe_to_retry} - {tool.name for tool in found}):
        raise DefinitionError(f"guarded: safe_to_retry names {', '.join(unknown)}, which the agent does not have")
    found = [tool for tool in found if tool.name not in safe_to_retry]
    for tool in found:
        if has_guard(tool, tool.on_invoke_tool):
            raise second_guard(tool.name)
    for tool in found:
        tool.on_invoke_tool = _Guarded(raising(tool).on_invoke_tool, guard, key)
        tool.timeout_error_function = tool.timeout_error_function or _timed_out
    return agent_or_tool


def _timed_out(context: Any, error: Exception) -> str:
    """Return the text for the model about a call that the SDK has cut off."""
    return json.dumps(ToolDurabilityError(context.tool_name, context.tool_call_id, reason=str(error)).payload())


class _Guarded(AroundTool):
    """Invokes a tool, behind the guard. The tool itself answers all other requests of the SDK."""

    def __init__(self, invoke: Any, guard: ToolGuard, key: Callable[[Any], str]) -> None:
        self._invoke, self._guard, self._key = invoke, guard, key

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith("__agents"):
            raise AttributeError(name)
        return getattr(self.__dict__["_invoke"], name)

    def __agents_bind_function_tool__(self, tool: Any) -> "_Guarded":
        """Return the same for a copy of the tool."""
        return _Guarded(raising(tool, self._invoke).on_invoke_tool, self._guard, self._key)

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        if in_workflow():
            raise UserError(
                f"Tool '{context.tool_name}' has effects, and runs in a workflow, where it cannot be guarded: make it "
                "an activity with guarded_activity, and give it to activity_as_tool"
            )

        async def call() -> Any:
            return [written_result(await self._invoke(context, arguments))]

        said = self._key(context)
        if not isinstance(said, str) or not said:
            raise InputError(
                f"Tool '{context.tool_name}': key= must return a different text for each call, got {said!r:.80}; "
                "nothing was run"
            )
        key = key_of(said)
        given = {"arguments": _parsed(arguments)}
        return _read(await self._guard.run(context.tool_name, context.tool_call_id, given, call, key=key))


def guarded_activity(store: DurableStore) -> Callable[[FunctionT], FunctionT]:
    """Guard an async activity that is a tool: write it below `@activity.defn`, and pass that to `activity_as_tool`.

    It runs at most once per call of the workflow, even after a reset. An unknown outcome becomes its result, as text
    for the model. An error is not retried: at the next attempt, the result is the error's text.

    Args:
        store: a durable one.

    Raises:
        MemoryStoreNotDurableError: the store is not durable.
    """
    guard = ToolGuard(store)

    def decorate(function: FunctionT) -> FunctionT:
        if isinstance(function, FunctionTool):
            raise DefinitionError(
                f"guarded_activity needs an async function, got the tool '{function.name}': give the activity that it "
                "guards to activity_as_tool, which makes a tool of it"
            )
        name = getattr(function, "__name__", "")
        if not iscoroutinefunction(function):
            raise DefinitionError(f"guarded_activity: '{name or repr(function)[:80]}' must be an async function")
        if hasattr(function, "__temporal_activity_definition"):
            raise DefinitionError(f"guarded_activity: write it below @activity.defn at '{name}', which bypasses it")
        if has_guard(function):
            raise DefinitionError(f"guarded_activity: '{name}' is already guarded")
        returns: Any = list[get_type_hints(function).get("return", Any)]  # type: ignore[misc]

        @wraps(function)
        async def activity(*arguments: Any, **options: Any) -> Any:
            if not in_activity():
                raise InputError(f"guarded_activity: '{name}' was called outside an activity, and nothing was run")
            from temporalio.activity import info

            async def call() -> Any:
                return [await function(*arguments, **options)]

            given = bound(function, arguments, options)
            return _read(await guard.run(name, info().activity_id, given, call, key=None, returns=returns))

        setattr(activity, GUARDED, None)  # a guard, though not one that `execute_effect` accepts
        return activity  # type: ignore[return-value]

    return decorate


def _read(kept: Any) -> Any:
    """Return a tool's result, or the text for the model that replaces it."""
    return kept[0] if isinstance(kept, list) else json.dumps(kept)


def _parsed(arguments: str) -> Any:
    """Return arguments as data, so that different spellings are equal; text that is not JSON is unchanged."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
