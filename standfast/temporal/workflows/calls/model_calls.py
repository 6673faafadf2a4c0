"""Calls the model for an agent's next answer, until there is one or the run's state has another action."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Unpack, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from standfast.agent_loop import CallModel
from standfast.messages import read_usage
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import ModelReference, ModelReply, Stretched, StretchReference
from standfast.temporal.wire.results import fits
from standfast.temporal.wire.run_state import Down
from standfast.temporal.workflows.board.visibility import shown_usage
from standfast.temporal.workflows.run.activity_options import (
    OUTAGE_WAITS,
    model_options,
    stretch_options,
    summary,
    until_the_outage_is_over,
)
from standfast.temporal.workflows.run.activity_results import (
    details_of,
    fail,
    is_for_good,
    is_missing,
    is_unavailable,
    is_users_fault,
    put_in_by_hand,
    text_in,
    was_cancelled,
    was_lost,
    why,
)
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.run_parts import Retries, RunParts


class ModelCalls:
    """The model calls of a run."""

    def __init__(self, run: RunState, parts: RunParts) -> None:
        self._again: asyncio.Future[ModelReply] | None = None  # a call that has outlasted an outage
        self._has_given_up = False  # a person has given up on an error in user code
        self._again_after: datetime | None = None  # the model asks to wait until then
        self._is_denied = False  # a person has refused to let the run exceed its budget
        self._run, self._running, self._workers, self._pauses = run, parts.running, parts.workers, parts.pauses

    async def ask(self, number: int, action: CallModel) -> ModelReply | None:
        """Return the model's answer; None if there is none, and the run's state has the next action."""
        run = self._run
        run.has_asked = True
        again = False
        while True:
            progress = run.progress
            other = progress.model or self._fallback(action)
            model = self._shown_model(action.agent, other)
            reference = self._reference(number, other, action, again)
            asks = f"{model} · turn {number}" if model else f"turn {number}"
            options = model_options(run.facts.loop.model_retry, asks)
            has_waited = self._again is not None
            asking = self._again or self._call(reference, options)
            self._again = None
            try:
                reply = await asking
            except asyncio.CancelledError:
                if not self._running.cancelled:
                    raise
                return await self._known(reference)
            except ActivityError as error:
                if self._running.cancelled:
                    return await self._known(reference)
                again = _will_ask_again(reference)
                if await self._may_ask_again(error, reference, options):
                    continue
                if not self._running.cancelled:
                    self._failed(f"The model could not be called: {why(error)}")
                return None
            is_read = fits(names.CALL_MODEL, reference, reply)
            if is_read and "error" not in reply:
                return self._answered(reply)
            again = workflow.patched(names.CUT_COUNTS)
            if not await self._asks_again(
                reply if is_read else None, has_waited, partial(self._reference, number, other, action, again), options
            ):
                return None

    def next_taken(self) -> ModelReply:
        """Return the answer of the next turn that a stretch has taken."""
        self._run.taken = self._run.ahead.pop(0)
        return self._run.taken["reply"]

    async def _call(self, reference: ModelReference, options: dict[str, Any]) -> ModelReply:
        """Call the model, unless a stretch has: in an activity of its own, or as the first turn of a stretch."""
        if self._run.ahead:
            return self.next_taken()
        if self._run.facts.lane == "each":
            return await self._workers.execute_until_cancelled(names.CALL_MODEL, reference, options)
        until, self._again_after = self._again_after, None
        if until is not None:
            await self._running.until(lambda: False, until, "until the model is called again")
        stretch = self._stretch(reference)
        try:
            found = await self._workers.execute_until_cancelled(names.STRETCH, stretch, stretch_options(options))
        except ActivityError as error:
            # Attempts of a stretch count as attempts at the model, unless one has had an answer before it was lost.
            if self._running.cancelled or not was_lost(error) or (reply := await self._known(reference)) is None:
                raise
            return reply
        if not fits(names.STRETCH, stretch, found):
            return cast(ModelReply, found)  # which is no answer either
        if (wait := found.get("wait")) is not None:
            self._again_after = workflow.now() + timedelta(seconds=wait)
        return self._first_of(found)

    def _stretch(self, reference: ModelReference) -> StretchReference:
        run, given = self._run, self._run.given
        progress = run.progress.carried(run.loop)
        progress["opened"] = {name: value for name, value in progress["opened"].items() if name != "facts"}
        stretch: StretchReference = {"ask": reference, "progress": progress}
        if (limits := (given.max_iterations, given.max_tokens)) != (None, None):
            stretch["limits"] = limits
        if given.depth:
            stretch["depth"] = given.depth
        return stretch

    def _first_of(self, found: Stretched) -> ModelReply:
        self._run.taken, *self._run.ahead = found["turns"]
        return self._run.taken["reply"]

    async def _known(self, reference: ModelReference) -> ModelReply | None:
        """Take in the turns that a cancelled or lost stretch has left in the store; return the first answer."""
        if self._run.facts.lane == "each":
            return None
        stretch: StretchReference = {**self._stretch(reference), "known": True}
        found = await self._workers.execute(names.STRETCH, stretch)
        if found is None or not found["turns"]:
            return None
        self._pauses.over("model")
        return self._first_of(found)

    def _fallback(self, action: CallModel) -> str | None:
        """Return the fallback to call; None if a person has let all models be called again in the meantime."""
        return action.model if self._run.loop.fallback else None

    def _shown_model(self, agent: str, other: str | None) -> str:
        """Return the model that people see: a fallback, or the agent's own."""
        named = self._run.progress.named
        return other or (self._run.facts.model_of(agent) if named is None else named)

    def _reference(self, number: int, model: str | None, action: CallModel, again: bool) -> ModelReference:
        progress = self._run.progress
        reference = self._run.reference(ModelReference)
        reference["turn"] = number
        if again:
            reference["again"] = True
        if action.decided is not None:
            reference["decided"] = dict(action.decided.gate or {})
        if self._run.given.max_answer_tokens is not None:
            reference["max_tokens"] = self._run.given.max_answer_tokens
        return progress.asking(reference, action, model)

    def _answered(self, reply: ModelReply) -> ModelReply:
        """Keep the model that answered, if several were called in an outage."""
        self._pauses.over("model")
        if "answered_by" in reply:
            model = reply.pop("answered_by")
            if model in self._run.loop.fallbacks:
                self._run.progress.model = None
            self._run.loop = self._run.loop.goes_on_with(model)
        if not self._run.loop.fallback:
            self._run.progress.down = None
        return reply

    async def ask_for_more(self) -> None:
        """If the run has spent its budget, wait until a person lets it continue; the calls of its turn also wait."""
        if self._is_denied or self._run.given.asks_caller:
            self._run.loop = self._run.loop.unattended("Not run: the budget is spent")
            return
        used = [shown_usage("this run", self._run.loop.used)]
        if self._run.loop.session_usage is not None:
            used.append(shown_usage("its session", self._run.loop.session_usage))
        message = f"The budget is spent: {', '.join(used)}. Retry grants the same amount again"
        if await self._pauses.pause("budget", message):
            self._run.loop = self._run.loop.granted()
        else:
            self._is_denied = True

    async def _asks_again(
        self, reply: ModelReply | None, has_waited: bool, refer: Callable[[], ModelReference], options: dict[str, Any]
    ) -> bool:
        """Take in that the model refused, or that an operator completed the activity with an invalid result.

        Wait for a person who can fix that, or for an earlier model.
        """
        if has_waited:
            self._run.progress.down = None  # all models were called just now
        if reply is None:
            problem = put_in_by_hand(names.CALL_MODEL)
            asks_again = await self._pauses.pause("model", problem)
        else:
            self._run.progress.wrote(reply["seq"])
            down = self._may_be_back(reply["error"])
            problem = reply["error"] if down is None else down.why
            asks_again = down is not None and await self._outlast(down, refer(), options)
        if not (asks_again or self._running.cancelled):
            self._failed(problem)
        return asks_again

    def _may_be_back(self, refusal: str) -> Down | None:
        """Return what to wait for if the last model has refused: an earlier model that may be back."""
        loop, down = self._run.loop, self._run.progress.down
        if loop.has_fallback or not loop.fallback or down is None or not workflow.patched(names.OUTAGES_OUTLAST):
            return None
        return Down(f"{down.why}; {refusal}", down.until)

    def _failed(self, why: str) -> None:
        self._pauses.over("model")
        if self._run.loop.has_fallback:
            self._run.progress.model = None  # the model that a person chose could not be called either
        self._run.loop = self._run.loop.failed(why, for_good=self._has_given_up)

    async def _may_ask_again(self, error: ActivityError, reference: ModelReference, options: dict[str, Any]) -> bool:
        """Wait for a person who can fix what blocks the model, or until it passes automatically."""
        if is_for_good(error):
            fail(error)
        changed = isinstance(error.cause, ApplicationError) and error.cause.type == names.MODEL_CHANGED
        if changed and (model := text_in(error, "model")) is not None:
            # People see with each call which model is called.
            self._run.progress.named = model
            return True
        if is_missing(error):
            await self._workers.await_worker(error)
            return True
        if self._passes(error):
            may_go_on = await self._outlast(Down(why(error), workflow.now()), reference, options)
            self._has_given_up = not may_go_on
            return may_go_on
        if self._run.loop.has_fallback and is_users_fault(error) and workflow.patched(names.FAULTS_PAUSE):
            self._has_given_up = not await self._pauses.pause("model", why(error))
            return not self._has_given_up
        if is_unavailable(error) and not self._run.facts.limits_retries:
            down, before = _down(error), self._run.progress.down
            self._run.progress.down = down if before is None else Down(down.why, min(down.until, before.until))
            if not self._run.loop.has_fallback:
                return await self._outlast(self._run.progress.down, reference, options)
        if self._run.loop.has_fallback or is_unavailable(error):
            return False
        return await self._pause(why(error))

    def _passes(self, error: ActivityError) -> bool:
        """Whether to wait out an error from a user function: the model that it calls may also be down."""
        passes = is_users_fault(error) and bool(details_of(error).get(names.PASSES))
        return passes and not self._run.facts.limits_retries and workflow.patched(names.OUTAGES_OUTLAST)

    async def _outlast(self, down: Down, reference: ModelReference, options: dict[str, Any]) -> bool:
        """Call the models again, at growing intervals, until one can be called or a person decides.

        Each run has different intervals, so thousands of runs in the same outage do not all call at once.
        """
        if self._run.facts.loop.on_model_outage == "pause":
            return await self._pause(down.why)
        first, longest = (workflow.random().uniform(0.5, 1.5) * wait for wait in OUTAGE_WAITS)
        first = max(first, down.until - workflow.now())
        patient = until_the_outage_is_over(options, first, longest)
        asked, fallbacks = reference, self._run.loop.fallbacks
        if fallbacks:
            asked = {**reference, "models": [self._run.progress.model, *fallbacks]}
            own = self._shown_model(reference.get("agent", ""), self._run.progress.model)
            patient["summary"] = summary(f"{', '.join([own, *fallbacks])} · turn {reference['turn']}")

        async def call() -> ModelReply:
            await workflow.sleep(first, summary="until the model is called again")
            return await self._workers.execute_until_cancelled(names.CALL_MODEL, asked, patient)

        again = asyncio.ensure_future(call())
        shown: Retries = {"retry_at": workflow.now() + first, "retry_every": longest.total_seconds()}
        may_go_on = await self._pause(down.why, again, **shown)
        if may_go_on and not was_cancelled(again):
            self._again = again
        elif not may_go_on and not was_cancelled(again) and again.exception() is None:
            # The answer arrived after the run had given up. The end of the run answers its calls; it was billed all the
            # same.
            self._count(asked, again.result())
        return may_go_on

    async def _pause(self, message: str, again: "asyncio.Future[Any] | None" = None, **shown: Unpack[Retries]) -> bool:
        """Wait for a person, or until the models can be called; a person may have fixed any of the models."""
        if not await self._pauses.pause("model", message, again, **shown):
            return False
        has_resumed = again is None or was_cancelled(again)
        if has_resumed:
            self._run.progress.down = None
        has_fallen_back = self._run.loop.fallback and self._run.progress.model is None
        if has_resumed and has_fallen_back and workflow.patched(names.MODELS_ANEW):
            self._run.loop = self._run.loop.goes_on_with(None)
        return True

    def _count(self, asked: ModelReference, reply: ModelReply) -> None:
        if fits(names.CALL_MODEL, asked, reply) and (usage := read_usage(reply.get("usage"))) is not None:
            self._run.loop = self._run.loop.spent(usage)


def _will_ask_again(reference: ModelReference) -> bool:
    """Let the next activity for this answer know that another one has failed; older histories do not have this."""
    if again := workflow.patched(names.CUT_COUNTS):
        reference["again"] = True
    return again


def _down(error: ActivityError) -> Down:
    """Return why a model could not be called, and the time until which its provider asks to wait."""
    cause = error.cause
    after = cause.next_retry_delay if isinstance(cause, ApplicationError) else None
    return Down(why(error), workflow.now() + (after or timedelta()))
