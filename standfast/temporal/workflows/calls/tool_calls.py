"""Runs the tool calls of a turn: dispatches each call, and determines its outcome when its worker is lost.

The outcome of a lost call is read from the ledger, never from Temporal's error. Without a claim, the handler never ran.
With a result, the handler ran. With a claim but no result, the outcome is unknown.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import cast

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState

from standfast.agent_loop import CallTools, Settled, cancelled, failed_for_good, not_found, not_started
from standfast.errors import TerminalError
from standfast.messages import Usage, cut
from standfast.runtime.child_agents import session_of_call
from standfast.temporal.wire import activity_types as types
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import AgentInput
from standfast.temporal.wire.outcomes import is_reported, put_in, read_outcome, source_of
from standfast.temporal.wire.run_state import Call, RunLoop, Turn
from standfast.temporal.wire.snapshots import ToolFacts
from standfast.temporal.workflows.calls.child_agents import run_agent
from standfast.temporal.workflows.run.activity_options import settle_options, tool_options
from standfast.temporal.workflows.run.activity_results import (
    SkippedError,
    fail,
    is_for_good,
    is_missing,
    is_store_away,
    why,
)
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.run_parts import RunParts
from standfast.tools import Failed, Outcome, Terminated, Unknown
from standfast.tools.calls import call_key

REDISPATCHES = 8  # of a call that never started, before asking a person to check the workers

# After an operator's pause, unpause or reset, or after a workflow reset, the first attempt may still be running.
_STILL_RUNNING = (names.CALL_NOT_OURS, "ActivityReset", "ActivityPaused")


class Calls:
    """Runs the calls of a run."""

    def __init__(self, run: RunState, parts: RunParts) -> None:
        self.terminal: TerminalError | None = None  # the first of the turn, in call order
        self._run, self._running, self._workers, self._pauses = run, parts.running, parts.workers, parts.pauses
        self._board = parts.board

    async def run_all(self, action: CallTools[Call], state: RunLoop) -> list[Settled[Call]]:
        """Run the action, and return the outcome of every open call, in call order."""
        turn = self._run.progress.turn
        taken, self._run.taken = self._run.taken or types.TurnTaken(reply={"seq": 0}), None
        outcomes = self._already_run(taken, state, turn)
        lost_by = {position: why for position, why, _ in taken.get("lost", ())}
        lost: list[tuple[Call, ...]] = []
        for settled, outcome in action.settled:
            tool = state.tools.get(settled.name)
            if action.recovering and isinstance(outcome, Unknown) and tool is not None and not tool.agent:
                lost.append((settled,))  # the transcript does not say, but the ledger may
            else:
                outcomes[settled.id] = self._inline(settled, turn, outcome)
        failed = (call for call in state.open_calls if call.id in outcomes and state.stops_at(outcomes[call.id]))
        why_not = next(map(failed_for_good, failed), "")
        slots = asyncio.Semaphore(state.loop.max_tool_concurrency)

        async def run(call: Call) -> None:
            nonlocal why_not
            async with slots:
                tool = state.tools.get(call.name)
                why_lost = None if tool is None or tool.agent else lost_by.get(call.position)
                if call.id in outcomes or (why_lost is None and (why_not or self._running.cancelled)):
                    return
                outcome = outcomes[call.id] = await (
                    self.run(call, state, recovering=action.recovering)
                    if why_lost is None
                    else self._run_lost(call, state, why_lost)
                )
                if state.stops_at(outcome):
                    why_not = failed_for_good(call)

        batches = (*lost, *action.batches)
        in_order = sorted(batches, key=lambda batch: batch[0].position)
        if batches != tuple(in_order) and workflow.patched(names.RECOVERED_IN_ORDER):
            batches = tuple(in_order)
        for batch in batches:
            await asyncio.gather(*(run(call) for call in batch))
        for call in state.open_calls:
            if call.id not in outcomes:
                outcome = not_started(state.tools.get(call.name), recovering=action.recovering, why=why_not)
                outcomes[call.id] = self._inline(call, turn, outcome)
        errors = (outcomes[call.id] for call in state.open_calls)
        self.terminal = next((outcome.error for outcome in errors if isinstance(outcome, Terminated)), None)
        return [(call, outcomes[call.id]) for call in state.open_calls]

    def _already_run(self, taken: types.TurnTaken, state: RunLoop, turn: Turn) -> dict[str, Outcome]:
        """Return the outcomes of calls that a stretch has run."""
        outcomes = dict[str, Outcome]()
        reported = {position: outcome for position, outcome, _ in taken.get("outcomes", ())}
        for call in state.open_calls:
            if call.position in reported:
                found = reported[call.position]
                dispatch = turn.dispatches[call.position] = found.get("dispatch", 1)
                if dispatch > 1:
                    turn.sources[call.position] = {"dispatch": dispatch}
                outcomes[call.id] = self._outcome(call, turn, found)
        return outcomes

    async def _run_lost(self, call: Call, state: RunLoop, why: str | types.Verdict) -> Outcome:
        """Return the outcome of a call that a stretch has begun and not ended, or run it if it has not happened."""
        tool, turn = state.tools[call.name], self._run.progress.turn
        has_tried_all = tool.safe_to_retry and why == names.WORKER_DIED
        if tool.safe_to_retry and why not in (names.WORKER_DIED, names.CALL_NOT_OURS) and not self._running.cancelled:
            return await self._dispatch(call, turn, tool)
        kind = why if isinstance(why, str) else names.WORKER_DIED
        cause = ActivityError(
            kind,
            scheduled_event_id=0,
            started_event_id=0,
            identity="",
            activity_type=names.STRETCH,
            activity_id="",
            retry_state=RetryState.MAXIMUM_ATTEMPTS_REACHED if has_tried_all else None,
        )
        cause.__cause__ = ApplicationError(kind, type=kind)
        if isinstance(why, str):
            outcome = await self._settle(call, turn, tool, cause=cause, recovering=True)
        else:
            outcome = self._judged(call, turn, tool, why, cause)
        if outcome is None and self._running.cancelled:
            return self._inline(call, turn, not_started(tool))
        return await self._dispatch(call, turn, tool) if outcome is None else outcome

    async def run_again(self, call: Call, state: RunLoop, recorded: Callable[[], None]) -> Outcome:
        """Run a call that did not happen according to a person; return its outcome.

        Args:
            recorded: called when the ledger has the person's statement, which may be long before the call ends.
        """
        tool = state.tools.get(call.name)
        if tool is not None and (not tool.agent or workflow.patched(names.AGENTS_SETTLED)):
            known = await self._settle(call, self._run.progress.turn, tool, said={"not_happened": True})
            recorded()
            if known is not None:
                return known
        return await self.run(call, state)

    async def run(self, call: Call, state: RunLoop, *, recovering: bool = False) -> Outcome:
        """Return the outcome of a call, and note in the turn where its result is."""
        turn, tool = self._run.progress.turn, state.tools.get(call.name)
        if tool is None:
            return self._inline(call, turn, not_found(call.name, state.tools))
        if tool.agent:
            given = self._child_input(call, state)
            lost, asked = self._reference(call, turn) if recovering else None, self._asked(call)
            with self._board.calling(call.id):
                return await run_agent(call, turn, given, self._running, self._pauses, asked=asked, lost=lost)
        if recovering and not tool.safe_to_retry:
            verdict = await self._settle(call, turn, tool, recovering=True)
            if verdict is not None:
                return verdict
        return await self._dispatch(call, turn, tool)

    def _inline(self, call: Call, turn: Turn, outcome: Outcome) -> Outcome:
        turn.sources[call.position] = source_of(outcome)
        return outcome

    def _child_input(self, call: Call, state: RunLoop) -> AgentInput:
        budget, usage = state.loop.budget, state.usage
        used = 0 if usage is None else usage.total_tokens
        turn = self._run.progress.turn
        asked = {"run": self._run.progress.run, "turn": turn.number, "position": call.position}
        approved = turn.approved.get(call.position)
        if approved is not None and "edit" in approved:
            asked["approved"] = approved
        return AgentInput(
            call=asked,
            session_id=session_of_call(self._run.progress.session_id, call.id, self._asked(call)),
            user_id=self._run.given.user_id,
            tenant_id=self._run.given.tenant_id,
            depth=(self._run.given.depth or 0) + 1,
            max_tokens=None if budget is None else max(1, budget.max - used),
            asks_caller=True,
        )

    def _asked(self, call: Call) -> str:
        """Return the identity of a call among the calls of all sessions, the same in a later run of this session."""
        return f"{self._run.progress.opened.get('key')}/{self._run.progress.turn.seq}.{call.position}"

    # --- one tool ---

    async def _dispatch(self, call: Call, turn: Turn, tool: ToolFacts) -> Outcome:
        tries = lacking = 0
        waits, reference = self._workers.store_waits, self._reference(call, turn)
        holder = names.holder(call.name, reference)
        while True:
            outcome, error = await waits.holding(holder, self._try(call, turn, tool, reference))
            if outcome is not None:
                return outcome
            # The call never started, and the fence proves it. The call is dispatched again without asking a person.
            if self._running.cancelled:
                return self._inline(call, turn, not_started(tool))
            if error is not None and is_missing(error):
                lacking += 1
                if lacking > 1:  # once may be chance: other workers may have it
                    try:
                        await self._workers.await_worker(error, call.name)
                    except SkippedError as skipped:
                        return self._inline(call, turn, Failed(f"Not run: {skipped}"))
            elif error is None or not is_store_away(error):  # a worker that has lost its store does not count
                tries += 1
            if tries == REDISPATCHES:
                tries = 0
                why = f"no worker could start it {REDISPATCHES} times: {_reason(error)}"
                if not await self._pauses.pause(call.name, why):
                    return self._inline(call, turn, Failed("Not run: no worker could start it"))
            await workflow.sleep(timedelta(seconds=0.1 * 2**tries), summary=f"until {call.name} is dispatched again")

    async def _try(
        self, call: Call, turn: Turn, tool: ToolFacts, reference: types.CallReference
    ) -> tuple[Outcome | None, ActivityError | None]:
        """Dispatch a call once; return its outcome, or None and the reason why it never started."""
        dispatch = turn.dispatches[call.position] = turn.dispatches.get(call.position, 0) + 1
        if dispatch > 1:
            turn.sources[call.position] = {"dispatch": dispatch}
            reference = {**reference, "dispatch": dispatch}
        approved = turn.approved.get(call.position)
        runs = call.shown if approved is None else approved.get("shown", call.shown)
        asks = " · ".join([runs, *_conditions(tool, approved)])
        handle = workflow.start_activity(call.name, reference, **tool_options(tool, asks))
        try:
            found = await self._running.add(handle)
            if not is_reported(found, call_key(call.position, call.id, dispatch)):
                # An operator completed the activity by hand: its result becomes the call's result once the ledger has
                # it.
                return await self._settle(call, turn, tool, said={"given": put_in(found)}), None
            return self._outcome(call, turn, found), None
        except ActivityError as error:
            return await self._settle(call, turn, tool, cause=error), error
        except asyncio.CancelledError:
            if not self._running.cancelled:
                raise
            # The activity had ended when the cancel arrived. The SDK then does not return its result, but the ledger
            # has it.
            return await self._settle(call, turn, tool), None

    def _outcome(self, call: Call, turn: Turn, written: types.WrittenOutcome) -> Outcome:
        if "spent" in written:
            turn.spend(call.id, Usage.of(written["spent"]))
        return read_outcome(written)

    def _reference(self, call: Call, turn: Turn) -> types.CallReference:
        reference = cast(types.CallReference, self._run.run_reference())
        if turn.path:
            reference["path"] = turn.path
        else:
            reference["turn"] = turn.number
        if call.position:
            reference["position"] = call.position
        if (dispatch := turn.dispatches.get(call.position, 1)) > 1:
            reference["dispatch"] = dispatch
        if self._run.given.depth:
            reference["depth"] = self._run.given.depth
        if (left := self._run.loop.tokens_left(turn.spent)) is not None:
            reference["tokens_left"] = left
        if (state := self._run.progress.opened.get("agent_state")) is not None:
            reference["agent_state"] = state
        if call.position in turn.approved:
            reference["approved"] = turn.approved[call.position]
        return reference

    async def _settle(
        self,
        call: Call,
        turn: Turn,
        tool: ToolFacts,
        *,
        cause: ActivityError | None = None,
        recovering: bool = False,
        said: types.SettleReference | None = None,
    ) -> Outcome | None:
        """Ask the ledger, then the tool's `verify` if the outcome is unknown; None means that the call must be run.

        Args:
            said: a person's statement on the outcome, for the ledger: `{"given": …}`, or `{"not_happened": True}`.
        """
        asked = cast(types.SettleReference, {**self._reference(call, turn), **(said or {})})
        if recovering:
            asked["recovering"] = True
        if said is None and tool.verify:
            asked["verify"] = True
        if cause is not None and isinstance(cause.cause, ApplicationError):
            if cause.cause.type in _STILL_RUNNING:
                asked["wait"] = True
            if cause.cause.type == names.TIMED_OUT:
                asked["timed_out"] = True
        return self._judged(call, turn, tool, await self._looked_up(call, turn, tool, asked), cause)

    def _judged(
        self, call: Call, turn: Turn, tool: ToolFacts, found: types.Verdict, cause: ActivityError | None
    ) -> Outcome | None:
        """Return the outcome that a verdict means, and note where it is; None means that the call must be run."""
        # Another run of the session may be further ahead: the next dispatch gets the number after the last of all.
        dispatch = turn.dispatches[call.position] = found["dispatch"]
        if found.keys() == {"dispatch"}:
            return None
        if "claimed" not in found:
            turn.sources.pop(call.position, None)
            if dispatch > 1:
                turn.sources[call.position] = {"dispatch": dispatch}
            return self._outcome(call, turn, found)
        lost = self._inline(call, turn, self._lost(call, tool, found, cause))
        turn.sources[call.position]["settled"] = True
        if "spent" in found:  # by agents that the call ran before it was lost
            turn.sources[call.position]["spent"] = found["spent"]
            turn.spend(call.id, Usage.of(found["spent"]))
        return lost

    async def _looked_up(self, call: Call, turn: Turn, tool: ToolFacts, asked: types.SettleReference) -> types.Verdict:
        """Return the ledger's entry for a call. A person can skip `verify`, but cannot know the result."""
        nobody_knows: types.Verdict = {"claimed": True, "dispatch": turn.dispatches.get(call.position, 1)}
        options = settle_options(tool, f"what became of {call.name}")
        while True:
            try:
                # If the run is cancelled, nothing was looked up.
                return await self._workers.execute(names.SETTLE, asked, options, tool=call.name, otherwise=nobody_knows)
            except SkippedError as skipped:
                return {**nobody_knows, "reason": f"whether it happened was not looked up, {skipped}"}
            except ActivityError as error:  # for example, an operator has failed it by hand
                if is_for_good(error) or not await self._pauses.pause(names.SETTLE, why(error)):
                    fail(error)

    def _lost(self, call: Call, tool: ToolFacts, found: types.Verdict, cause: ActivityError | None) -> Outcome:
        """Return the outcome of a call for which the ledger has only a claim."""
        is_safe = tool.safe_to_retry and "at_most_once" not in found  # by the tool's old and current declaration
        if (cause is None and self._running.cancelled) or (
            cause is not None and isinstance(cause.cause, CancelledError)
        ):
            return cancelled(replace(tool, safe_to_retry=is_safe))
        if is_safe:
            text = f'Tool "{call.name}": it was cut off{_times(cause, tool)}: {found.get("reason") or _reason(cause)}'
            return Failed(text)
        return Unknown(found.get("reason") or _reason(cause))


def _conditions(tool: ToolFacts, approved: types.LetThrough | None) -> list[str]:
    """Describe to people the conditions under which a call runs."""
    how = "safe to retry" if tool.safe_to_retry else "at most once"
    if approved is None:
        return [how]
    who = f" by {', '.join(approved['by'])}" if approved["by"] else ""
    if "edit" in approved and "editor" not in approved:  # of a gate that an earlier version opened
        return [how, f"approved with an edit{who}"]
    edited = [f"edited by {approved['editor'] or 'somebody'}"] if "editor" in approved else []
    return [how, *edited, f"approved{who}"]


def _times(error: ActivityError | None, tool: ToolFacts) -> str:
    """Say how often a call was tried, if Temporal's error has the number."""
    has_tried_all = error is not None and error.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED
    return f" {tool.attempts} times" if has_tried_all else ""


def _reason(error: ActivityError | None) -> str:
    """Explain Temporal's error for a call to the model."""
    cause = None if error is None else error.cause
    match cause:
        case None:
            return ""
        case exceptions.TimeoutError():
            lost = cause.type is exceptions.TimeoutType.HEARTBEAT
            return f"{'its worker was lost' if lost else 'its timeout passed'} while it ran"
        case ApplicationError(type=names.TIMED_OUT):
            return "its timeout passed while it ran"
        case ApplicationError(type=names.CALL_NOT_OURS):
            return "an earlier attempt at it was lost"
        case ApplicationError(type=names.WORKER_DIED):
            return "its worker died while it ran"
        case ApplicationError(type="WorkerShutdown"):
            return "its worker was shut down while it ran"
        case CancelledError():
            return "it was cancelled while it ran"
        case _:
            return cut(str(cause), 500)
