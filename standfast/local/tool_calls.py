"""Carries out tool calls in this process, in batches, with retries and timeouts, and through a cancel."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast

from standfast.agent_loop import (
    CallTools,
    Gate,
    LoopState,
    Settled,
    ToolState,
    cancelled,
    cancelled_itself,
    failed_for_good,
    not_found,
    not_started,
    result_message,
    with_edit,
)
from standfast.events import Event, QuestionAsked, ToolEnded, ToolOutcome, ToolStarted
from standfast.messages import ToolCall
from standfast.runtime.call_ledger import Fence, within_row
from standfast.runtime.cancellation import Cancellation
from standfast.runtime.users_functions import refused_in_time, run_bounded, verified
from standfast.stores.protocol import AgentStore
from standfast.tools import Asked, Failed, Outcome, Tool, ToolContext, Unknown


class ToolCalls:
    """The calls of one turn, and the action that decides what to do with them.

    Args:
        context: makes the context of an attempt.
        fence: crossed before a call runs that may have run before.
        emit: called at every start and end; None without listeners.
        store: stores the results.
        agent_state: changed by the calls, and never stored before their results.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool[..., Any]],
        state: LoopState,
        action: CallTools,
        context: Callable[[ToolCall, int], ToolContext],
        fence: Fence,
        emit: Callable[[Event], None] | None,
        store: AgentStore | None,
        agent_state: ToolState,
    ) -> None:
        self.agent_state = agent_state
        self._tools = tools
        self._store = store
        self._state = state
        self._action = action
        self._context = context
        self._fence = fence
        self._emit = emit
        self._outcomes: dict[str, Outcome] = {call.id: outcome for call, outcome in action.settled}
        self.begun: set[str] = set()  # ids of calls that may have run
        self._stopped_by: str | None = None

    def outcomes(self) -> list[Settled]:
        """Return the outcome of every call of the turn, in call order, including calls that were not started."""
        recovering, why = self._action.recovering, self._stopped_by
        outcomes = {
            call.id: not_started(self._tools.get(call.name), recovering=recovering, why=why)
            for call in self._state.open_calls
        } | self._outcomes
        return [(call, outcomes[call.id]) for call in self._state.open_calls]

    async def run(self) -> None:
        """Carry out the action. Even if this is cancelled, `outcomes()` returns the outcome of each call."""
        recovering = self._action.recovering
        for batch in self._action.batches:
            if self._stopped_by is not None:
                return
            if len(batch) == 1:
                await self._call(batch[0], recovering)
            else:
                await self._together(batch, recovering)

    async def _together(self, batch: tuple[ToolCall, ...], recovering: bool) -> None:
        slots = asyncio.Semaphore(self._state.loop.max_tool_concurrency)

        async def one(call: ToolCall) -> None:
            async with slots:
                if self._stopped_by is None:
                    await self._call(call, recovering)

        tasks = {asyncio.create_task(one(call)) for call in batch}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Each is cancelled once, then awaited: a plain function among them ends in its own time.
            unfinished = {task for task in tasks if not task.done()}
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
        for task in tasks:
            task.result()

    async def _call(self, call: ToolCall, recovering: bool) -> None:
        cancellation = Cancellation()
        tool = self._tools.get(call.name)
        gate = self._state.verdict(call)
        if gate is not None:
            call = ToolCall(id=call.id, name=call.name, arguments=gate.arguments if gate.edit is None else gate.edit)
        if self._emit is not None:
            edited = (
                {} if gate is None or gate.edit is None else {"edited_by": gate.editor or "", "before": gate.arguments}
            )
            self._emit(ToolStarted(call, **edited))
        self._outcomes[call.id] = cancelled(tool)  # the outcome until more is known, whatever interrupts this
        try:
            if tool is None:
                outcome: Outcome = not_found(call.name, self._tools)
            else:
                outcome = await self._settle(tool, call, gate, recovering, cancellation)
        except asyncio.CancelledError:
            if cancellation.requested():
                raise
            outcome = cancelled_itself(tool)
        outcome = within_row(outcome, call.name, self._store)
        self._outcomes[call.id] = outcome
        self.agent_state = self.agent_state.after(outcome)
        if self._state.stops_at(outcome):
            self._stopped_by = failed_for_good(call)
        if self._emit is not None:
            self._tell(self._emit, call, outcome)
        if cancellation.requested():  # a plain function that could not be stopped has ended: raise the cancel now
            raise asyncio.CancelledError

    def _tell(self, emit: Callable[[Event], None], call: ToolCall, outcome: Outcome) -> None:
        result, kind = result_message(call, outcome, self._state.loop.max_message_bytes), type(outcome).__name__.lower()
        if isinstance(outcome, Asked):
            emit(ToolEnded(call, None, "asked", outcome.question))
            emit(QuestionAsked(outcome.question, call))
        else:
            emit(ToolEnded(call, result, cast(ToolOutcome, kind), "" if result is None else result.content))

    async def _settle(
        self, tool: Tool[..., Any], call: ToolCall, gate: Gate | None, recovering: bool, cancellation: Cancellation
    ) -> Outcome:
        is_orphan = recovering and not tool.safe_to_retry
        outcome = None
        if is_orphan:
            last = await self._fence.last(call.id)
            outcome = await self._bounded(tool, call, 1, tool.ask_whether_it_happened)
            if outcome is not None and not isinstance(outcome, Unknown):
                outcome = await self._fence.record(call, last, outcome)
        if outcome is None:
            # Without an approval, the schema that the call was made with is not recorded.
            may_be_another = recovering if gate is None else gate.schema_digest != tool.schema_digest
            if may_be_another:
                refused = await refused_in_time(tool, call.arguments, approved=gate is not None)
                if refused is not None:
                    return refused
            if is_orphan:
                await self._fence.cross(call.id, last)
            self.begun.add(call.id)
            outcome = await self._attempts(tool, call, gate, cancellation)
        if gate is not None and gate.edit is not None and isinstance(call.arguments, dict):
            return with_edit(outcome, gate.editor, call.arguments, self._state.loop.max_message_bytes)
        return outcome

    async def _attempts(
        self, tool: Tool[..., Any], call: ToolCall, gate: Gate | None, cancellation: Cancellation
    ) -> Outcome:
        run, attempt = partial(tool.attempt, approved=None if gate is None else gate.fingerprint), 1
        while True:
            outcome = await self._bounded(tool, call, attempt, run)
            assert outcome is not None
            outcome = await verified(
                tool, outcome, partial(self._bounded, tool, call, attempt, tool.ask_whether_it_happened)
            )
            delay = tool.next_delay(outcome, attempt) if isinstance(outcome, Failed) else None
            if delay is None or cancellation.requested():
                return outcome
            await asyncio.sleep(delay)
            attempt += 1

    async def _bounded(
        self,
        tool: Tool[..., Any],
        call: ToolCall,
        attempt: int,
        ask: Callable[..., Coroutine[Any, Any, Outcome | None]],
    ) -> Outcome | None:
        return await run_bounded(
            ask,
            tool,
            tool,
            call.arguments,
            self._context(call, attempt),
            state=self.agent_state,
            limit=self._state.loop.max_message_bytes,
            seconds=tool.seconds,
        )
