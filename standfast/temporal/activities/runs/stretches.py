"""The activity of the fast lane: it takes turn after turn, until something needs the workflow.

Each turn is made of the same parts as in the other lane, the model's activity and the tools' activities, without an
event of the history between them. The store has each answer and each outcome before the next part begins. So an attempt
that follows a lost one reads what was done, and begins nothing that may have been begun; the workflow settles that.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from standfast.agent_loop import CallModel, CallTools, next_action, not_found
from standfast.errors import StandfastError
from standfast.messages import read_usage
from standfast.temporal.activities.models.model_activities import ModelActivities
from standfast.temporal.activities.sessions.stored_outcomes import started_facts
from standfast.temporal.activities.tools.tool_activities import ToolActivities
from standfast.temporal.activities.worker.activity_guards import Guard, json_activity, log_raised, log_returned
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import (
    CallReference,
    ModelReference,
    SettleReference,
    Source,
    Stretched,
    StretchReference,
    TurnTaken,
    Verdict,
    WrittenOutcome,
)
from standfast.temporal.wire.outcomes import read_outcome, reported, source_of
from standfast.temporal.wire.run_state import Call, Progress, RunLoop, read_state
from standfast.temporal.wire.snapshots import TIMEOUT, Facts
from standfast.time_limits import time_limit
from standfast.tools import Asked, Outcome, Unknown
from standfast.tools.calls import call_key

LONGEST = 8.0  # seconds in which new work begins: less than the time in which the server misses a worker's heartbeats
LONGEST_ANSWER = 900.0  # seconds, as for an activity that calls a model
TURNS, BYTES = 200, 256 * 1024  # of one stretch, whose result is an event of the history; it exceeds these once


class Stretches:
    """Takes several turns of a run in one activity."""

    def __init__(self, host: AgentHost, models: ModelActivities, tools: ToolActivities) -> None:
        self._host, self._models, self._tools = host, models, tools

    def all(self) -> list[Any]:
        return [self.stretch]

    @json_activity(names.STRETCH)
    async def stretch(self, reference: StretchReference) -> Stretched:
        """Call the model and run its calls, again and again; return what the workflow needs to know of each turn."""
        with Guard(self._host):
            ask = await self._host.records.located(reference["ask"])
            facts = await started_facts(self._host, ask["run"])
            return await _Stretch(self._host, self._models, self._tools, reference, facts).take()


class _Stretch:
    """One stretch: the loop's state as the workflow will have it."""

    def __init__(
        self,
        host: AgentHost,
        models: ModelActivities,
        tools: ToolActivities,
        reference: StretchReference,
        facts: Mapping[str, Any],
    ) -> None:
        self._host, self._models, self._tools = host, models, tools
        self._until = time.monotonic() + LONGEST
        self._depth, self._only_known = reference.get("depth", 0), reference.get("known", False)
        max_iterations, max_tokens = reference.get("limits", (None, None))
        self._facts = Facts.read(facts, max_iterations=max_iterations, max_tokens=max_tokens)
        progress = reference["progress"]
        self._progress = Progress.read({**progress, "opened": {**progress["opened"], "facts": facts}})
        self._loop: RunLoop = read_state(progress.get("state", {}), self._facts)
        ask = self._ask = reference["ask"]
        always = ("session", "user_id", "tenant_id", "agent_id", "max_tokens")
        self._usual = {name: value for name, value in ask.items() if name in always}
        self._may_have_begun = True  # by a stretch that was lost or undone, until the store lacks an answer
        self._turns: list[TurnTaken] = []
        self._size = 0

    async def take(self) -> Stretched:
        """Take turns until something needs the workflow.

        Raises:
            Exception: the first call of the model has failed; a later failure is left to the next stretch, which has it
                first.
        """
        taken: Stretched = {"turns": self._turns}
        try:
            while await self._turn():
                pass
        except (ApplicationError, StandfastError, asyncio.CancelledError) as error:
            if self._only_known or not self._turns:
                raise
            if isinstance(error, ApplicationError) and error.next_retry_delay is not None:
                taken["wait"] = error.next_retry_delay.total_seconds()
        return taken

    async def _turn(self) -> bool:
        """Take a turn; return whether another one may follow."""
        ask = self._ask
        if self._may_have_begun:
            located = await self._host.records.located(ask)
            self._may_have_begun = await self._host.store.load_reply(located["run"], ask["turn"]) is not None
            if self._only_known and not self._may_have_begun:
                return False
        begun = time.monotonic()
        try:
            async with time_limit(LONGEST_ANSWER):
                reply = await self._models.answer(ask, looks=self._may_have_begun)
        except TimeoutError as error:
            log_raised(names.CALL_MODEL, ask, begun, error)
            why = f"The model has not answered within {LONGEST_ANSWER:g} s"
            raise ApplicationError(why, type=names.MODEL_UNAVAILABLE) from None
        except BaseException as error:
            log_raised(names.CALL_MODEL, ask, begun, error)
            raise
        log_returned(names.CALL_MODEL, ask, begun, reply)
        taken: TurnTaken = {"reply": reply, "took": _since(begun)}
        self._turns.append(taken)
        if reply.keys() & {"error", "gates", "untold"}:
            return False
        # The workflow takes in the same reply; this changes it.
        self._loop = self._progress.answered({**reply}, self._loop, self._facts, activity.info().started_time)
        action = next_action(self._loop)
        if isinstance(action, CallTools):
            is_left = action.recovering or any(map(self._is_apart, self._loop.open_calls))
            if is_left or self._loop.asks_for_more or (self._is_over() and not self._may_have_begun):
                return False
            if not await self._call_tools(action, taken):
                return False
        if self._only_known:
            return self._next_ask()
        self._size += len(to_json(taken))
        has_room = len(self._turns) < TURNS and self._size < BYTES
        return has_room and not self._is_over() and self._next_ask()

    def _next_ask(self) -> bool:
        """Prepare the next call of the model; return whether that is the next action."""
        action = next_action(self._loop)
        if not isinstance(action, CallModel) or action.decided is not None or self._loop.asks_for_more:
            return False
        if action.agent != self._ask.get("agent", ""):
            return False  # people see which agent and model an activity is of
        progress = self._progress
        progress.noted(action)
        ask = self._ask = cast(ModelReference, {**self._usual, "turn": progress.turn.number + 1, "seq": progress.seq})
        if progress.turn.sources:
            ask["sources"] = sorted(progress.turn.sources.items())
        progress.asking(ask, action, progress.model or action.model)
        return True

    def _is_over(self) -> bool:
        return time.monotonic() > self._until or activity.is_worker_shutdown() or _is_cancelled()

    # --- tools ---

    async def _call_tools(self, action: CallTools[Call], taken: TurnTaken) -> bool:
        """Run the calls of a turn; return whether all have an outcome that the loop can go on with."""
        calls = self._loop.open_calls
        outcomes = {call.id: self._inline(call, outcome, taken) for call, outcome in action.settled}
        await self._run_batches(action, taken, outcomes)
        if len(outcomes) < len(calls) or any(isinstance(one, Asked | Unknown) for one in outcomes.values()):
            return False  # people may be asked
        self._loop = self._progress.settled([(call, outcomes[call.id]) for call in calls], self._loop)
        return True

    async def _run_batches(self, action: CallTools[Call], taken: TurnTaken, outcomes: dict[str, Outcome]) -> None:
        """Run the calls; note each outcome, and why that of a call is not known, as soon as it is over."""
        slots = asyncio.Semaphore(self._loop.loop.max_tool_concurrency)

        async def run(call: Call) -> None:
            async with slots:
                stops = "lost" in taken or any(map(self._loop.stops_at, outcomes.values()))
                if call.id in outcomes or stops or (self._is_over() and not self._only_known):
                    return  # the workflow runs the rest
                if call.name not in self._loop.tools:
                    outcomes[call.id] = self._inline(call, not_found(call.name, self._loop.tools), taken)
                    return
                begun = time.monotonic()
                try:
                    found = await self._run(call, taken)
                except _LostError as error:
                    is_safe = self._loop.tools[call.name].safe_to_retry
                    taken.setdefault("lost", []).append((call.position, error.why, is_safe))
                    return
                taken.setdefault("outcomes", []).append((call.position, found, _since(begun)))
                outcomes[call.id] = read_outcome(found)
                self._progress.turn.spend(call.id, read_usage(found.get("spent")))

        for batch in action.batches:
            # Even if one of them is cancelled or fails, the others end first: what they have done must be told.
            ended = await asyncio.gather(*(run(call) for call in batch), return_exceptions=True)
            for error in ended:
                if error is not None:
                    raise error

    def _inline(self, call: Call, outcome: Outcome, taken: TurnTaken) -> Outcome:
        """Note the outcome of a call that does not run."""
        source = self._progress.turn.sources[call.position] = source_of(outcome)
        taken.setdefault("sources", []).append((call.position, source))
        return outcome

    def _is_apart(self, call: Call) -> bool:
        """Whether a call is the workflow's: an agent, or a tool that may take so long that people look for it."""
        tool = self._loop.tools.get(call.name)
        return tool is not None and (bool(tool.agent) or tool.timeout > TIMEOUT)

    async def _run(self, call: Call, taken: TurnTaken) -> Source:
        """Return the report on a call.

        Raises:
            _LostError: its outcome is not known.
        """
        reference, tool, number = self._reference(call), self._loop.tools[call.name], 1
        if self._may_have_begun:
            number = activity.info().attempt  # as if each attempt at the stretch had been one at the call
            if self._only_known or not tool.safe_to_retry or number > tool.attempts:
                known = await self._look_up(call, reference)
                if known is not None:
                    return known
                number = 1
        dispatch = reference.get("dispatch", 1)
        self._note(call, dispatch)
        try:
            return {**await self._attempts(call, reference, number, taken), **_dispatched(dispatch)}
        except ApplicationError as error:
            raise _LostError(error.type or "") from None
        except (StandfastError, asyncio.CancelledError) as error:
            raise _LostError(type(error).__name__) from None

    def _reference(self, call: Call) -> CallReference:
        reference: CallReference = {"turn": self._progress.turn.number}
        if call.position:
            reference["position"] = call.position
        if self._depth:
            reference["depth"] = self._depth
        if (left := self._loop.tokens_left(self._progress.turn.spent)) is not None:
            reference["tokens_left"] = left
        return reference

    async def _look_up(self, call: Call, reference: CallReference) -> Source | None:
        """Return the report on a call that an earlier attempt may have begun; None if it has not, and cannot any more.

        Raises:
            _LostError: it has begun, and its outcome is not known.
        """
        asked: SettleReference = cast(SettleReference, {**reference, "recovering": True})
        found = await self._tools.look_up(asked)
        dispatch = found["dispatch"]
        if "claimed" in found:
            has_tried_all = self._loop.tools[call.name].safe_to_retry and not self._only_known
            raise _LostError(names.WORKER_DIED if has_tried_all else found)
        if found.keys() != {"dispatch"}:
            self._note(call, dispatch)
            outcome = cast(WrittenOutcome, {name: value for name, value in found.items() if name not in _VERDICT})
            return {**reported(outcome, call_key(call.position, call.id, dispatch)), **_dispatched(dispatch)}
        if self._only_known:
            raise _LostError(names.CALL_NOT_OURS)
        reference["dispatch"] = dispatch + 1
        return None

    def _note(self, call: Call, dispatch: int) -> None:
        if dispatch > 1:
            self._progress.turn.sources[call.position] = {"dispatch": dispatch}

    async def _attempts(self, call: Call, reference: CallReference, number: int, taken: TurnTaken) -> WrittenOutcome:
        """Run a call, and again if that is safe and may help, as the server does in the other lane."""
        failure = ""
        while True:
            begun = time.monotonic()
            try:
                found = await self._tools.run(reference, number)
            except BaseException as error:
                log_raised(call.name, reference, begun, error)
                if not isinstance(error, ApplicationError) or error.type != names.RETRYABLE:
                    raise
                delay = error.next_retry_delay
                assert delay is not None
                await asyncio.sleep(delay.total_seconds())
                failure, number = error.message, number + 1
                continue
            log_returned(call.name, reference, begun, found)
            if failure:
                taken.setdefault("retried", []).append((call.position, failure, number))
            return found


class _LostError(Exception):
    """The outcome of a call is not known: why, as in `TurnTaken.lost`."""

    def __init__(self, why: str | Verdict) -> None:
        super().__init__(why)
        self.why = why


_VERDICT = ("dispatch", "found_by")


def _dispatched(dispatch: int) -> Source:
    """Return the number of a dispatch after the first."""
    return {"dispatch": dispatch} if dispatch > 1 else {}


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 3)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
