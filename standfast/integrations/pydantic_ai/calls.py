"""Runs the tools of a durable run, each call at its place in the turn, and other capabilities' durable operations."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.durable_exec import (
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    durable_unit_scope,
    record_durable_unit,
)
from pydantic_ai.messages import ModelResponse, ToolReturn
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from standfast.agent_loop.tool_gates import edit_note
from standfast.effects.keys import EffectKey
from standfast.integrations._guards import ToolGuard, key_of
from standfast.integrations.pydantic_ai.conversations import Turn, key_of_call
from standfast.integrations.pydantic_ai.gates import Verdict
from standfast.integrations.pydantic_ai.toolsets import call_guarded, is_safe
from standfast.messages import JSONObject
from standfast.runtime.child_agents import AskedAgents


@dataclass(slots=True)
class Running:
    """A run that executes a turn.

    Args:
        user_id, tenant_id: the user for whom it runs.
        ctx: the context of the current model request.
        operations: the number of operations of each name at a step.
        verdicts: people's verdicts, by the id of the call.
    """

    turn: Turn
    user_id: str | None
    tenant_id: str | None
    ctx: RunContext[Any] | None = None
    operations: dict[tuple[int, str], int] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A running tool call, in which agents may run."""

    run: Running
    place: str
    agents: AskedAgents


@dataclass
class GuardedTools(WrapperToolset[Any]):
    """All tools of a run, each call of which is claimed in the ledger before it runs."""

    guard: ToolGuard
    running: ContextVar[Running | None]
    trust_hints: bool

    async def call_tool(self, name: str, tool_args: JSONObject, ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        run = self.running.get()
        if run is None:
            return await super().call_tool(name, tool_args, ctx, tool)
        call_id = ctx.tool_call_id or ""
        place, key = place_of(run.turn, name, call_id, ctx)
        executed = False

        async def function() -> Any:
            nonlocal executed
            executed = True
            with calling(RunningCall(run, place, AskedAgents())):
                return await super(GuardedTools, self).call_tool(name, tool_args, ctx, tool)

        safe = is_safe(tool, self.trust_hints)
        try:
            found = await call_guarded(self.guard, name, call_id, tool_args, function, key=key, safe_to_retry=safe)
        finally:
            record_durable_unit(executed=executed)  # a call that did not run here does not have a span in a trace
        verdict = run.verdicts.get(call_id)
        return found if verdict is None or verdict.edit is None else _told_of_edit(found, verdict)


def _told_of_edit(found: Any, verdict: Verdict) -> Any:
    """Return the result of a call that ran with edited arguments, with a note of the edit for the model."""
    value = found.return_value if isinstance(found, ToolReturn) else found
    told = {"note": edit_note(" and ".join(verdict.by)), "arguments": verdict.edit, "result": value}
    return replace(found, return_value=told) if isinstance(found, ToolReturn) else told


running_call: ContextVar[RunningCall | None] = ContextVar("standfast_call", default=None)


@contextmanager
def calling(call: RunningCall) -> Iterator[None]:
    """Register a running call: the agents that it runs are its own, and durable operations in it are part of it."""
    token = running_call.set(call)
    try:
        with durable_unit_scope():
            yield
    finally:
        running_call.reset(token)


def place_of(turn: Turn, name: str, call_id: str, ctx: RunContext[Any]) -> tuple[str, EffectKey | str]:
    """Return the place of a call in its turn, and its key in the ledger."""
    response = next((one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
    ids = [] if response is None else [call.tool_call_id for call in response.tool_calls]
    if call_id in ids:
        place = ids.index(call_id)
        key = key_of_call(turn.scope, ctx.run_step, place, name, approved=ctx.tool_call_approved)
        return f"{turn.kept.number}.{ctx.run_step}.{place}", key
    # A call made by another tool, such as code that the model has written, or a text that becomes the output.
    return f"{turn.kept.number}.{ctx.run_step}.{call_id}", key_of(turn.scope, str(ctx.run_step), call_id or "-")


class Operations(JournalCallableOperationBackend[None]):
    """Runs the durable operations that other capabilities have declared."""

    def __init__(self, guard: ToolGuard, running: ContextVar[Running | None], agent_name: str) -> None:
        config = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        super().__init__(agent_name=agent_name, config=config)
        self._guard, self._running = guard, running

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        """Return an operation's result, at its place in the turn; an operation of unknown outcome runs again."""
        run = self._running.get()
        if run is None:
            return await body()
        step = 0 if run.ctx is None else run.ctx.run_step
        count = run.operations.get((step, name), 0)
        run.operations[step, name] = count + 1
        key = EffectKey(run.turn.scope, f"{name}.{count}", name, step * 1000)
        executed = False

        async def function() -> object:
            nonlocal executed
            executed = True
            return await body()

        made = await self._guard.run(name, "", {}, function, key=key, safe_to_retry=True)
        record_durable_unit(executed=executed)
        return made
