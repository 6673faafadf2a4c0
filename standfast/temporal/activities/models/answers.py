"""Gets the next answer of a run from its model, or from the gate that has held it; guardrails check each answer.

While an answer arrives, its pieces are published through the store, never in a history. Nothing depends on them: the
complete answer is kept as a whole, and its pieces are then deleted.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.agent_loop import Held, answer_message, with_dropped, with_notices, withholds
from standfast.agents import Agent, AgentContext
from standfast.agents.limits import MODEL_RETRY
from standfast.checkpoints import Question
from standfast.errors import ModelError, StandfastError
from standfast.events import AnswerDelta, TextDelta
from standfast.llm import LLMAdapter, ToolDescription
from standfast.llm.provider_errors import asked_to_wait, may_pass, retry_delay
from standfast.llm.providers import settings_for
from standfast.messages import LLMResponse, Message, Usage, cut, error_text
from standfast.runtime.model_answers import (
    CANCELLED_WITHIN,
    UsageNotes,
    answer,
    compressed,
    cut_answers,
    following_calls,
    note_cost,
    note_failure,
    noted_usage,
    noting_cut,
)
from standfast.runtime.tasks import OwnCancels
from standfast.stores.partial_answers import PartialAnswer, PartialAnswers, reasoning_key
from standfast.temporal.activities.sessions.transcripts import Transcript
from standfast.temporal.activities.tools.dependencies import guardrails_in, run_with_deps
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.activities.worker.run_records import Recent
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import ModelReference
from standfast.temporal.wire.inputs import user_message
from standfast.temporal.wire.turn_records import KeptView, held_in

EVERY = 0.25  # seconds between two pieces; a quicker answer costs nothing


MOST_WORDS = 400_000  # characters of a row: a row of D1 has 2 MB; the complete answer has the rest


class ModelRefusedError(Exception):
    """The model cannot be called with this request, and another attempt would not help."""


async def call_adapter(
    agent: Agent,
    adapter: LLMAdapter,
    context: AgentContext,
    messages: list[Message],
    tools: Sequence[ToolDescription],
    tell: Callable[[AnswerDelta], None] | None,
    compress: Callable[[list[Message]], Awaitable[list[Message] | None]],
    max_tokens: int | None = None,
) -> tuple[LLMResponse, list[Message] | None]:
    """Run the user's part: instructions, compression, the adapter. Runs on the handlers' loop."""
    prompt = await run_with_deps(agent, agent.system_prompt, context)
    with OwnCancels(ModelError, CANCELLED_WITHIN):
        shorter = await compress(messages)
        seen = [Message(role="system", content=prompt), *(messages if shorter is None else shorter)]
        settings = settings_for(adapter, agent, max_tokens)
        return await answer(adapter, seen, tools, settings, tell, agent.loop.max_message_bytes), shorter


def failure_of(
    error: Exception, agent: Agent, model: str | None, *, may_pause: bool, is_paid: bool = False
) -> Exception:
    """Return a failure that tells whether another attempt may help, and when; see `retry_delay`.

    Temporal's policy limits the attempts.

    A long wait is the run's: while an activity waits, people cannot see the wait, and no deadline ends it. In an outage
    the run's own waits grow, and a shorter wait requested by the provider does not change that.

    Args:
        may_pause: whether the run pauses, rather than ends, when no attempt is left.
        is_paid: whether the model was called before a user function raised: each attempt would call it again.
    """
    waits = _wait_in_outage()
    if isinstance(error, ApplicationError) and error.type == names.HOOK_ERROR and error.details:
        details = () if is_paid else error.details
        return ApplicationError(error.message, *details, type=error.type, non_retryable=waits is None or is_paid)
    if isinstance(error, ModelRefusedError | ApplicationError) or (
        isinstance(error, StandfastError) and not isinstance(error, ModelError)
    ):
        return error
    text = cut(error_text(error), 8_192)
    if not may_pass(error):
        return ModelRefusedError(text)
    policy, after = agent.loop.model_retry, asked_to_wait(error)
    endless = replace(policy, maximum_attempts=2)
    has_alternative = may_pause or agent.model_after(model) is not None
    too_long = retry_delay(error, endless, 1, has_alternative=has_alternative) is None
    if waits is not None:
        too_long, after = False, None if after is None or after <= waits else after
    return ApplicationError(
        text,
        type=names.MODEL_UNAVAILABLE,
        non_retryable=too_long,
        next_retry_delay=None if after is None else timedelta(seconds=after),
        category=ApplicationErrorCategory.BENIGN,  # already logged, on one line
    )


def soonest(failures: Sequence[Exception]) -> Exception:
    """Return the failure of the model that may be called again first; the others may not be callable at all."""
    passing = [one for one in failures if isinstance(one, ApplicationError)]
    if not passing:
        return failures[-1]
    return min(passing, key=lambda one: one.next_retry_delay or timedelta())


def _wait_in_outage() -> float | None:
    """Return the seconds until the next attempt of an activity that waits out an outage; None for other activities."""
    info = activity.info()
    policy = info.retry_policy
    if policy is None or policy.maximum_attempts:
        return None
    longest = (policy.maximum_interval or policy.initial_interval * 100).total_seconds()
    doubled = min(info.attempt - 1, 60)  # a larger power overflows a float; the wait has its maximum by then
    return min(longest, policy.initial_interval.total_seconds() * policy.backoff_coefficient**doubled)


def with_shown_notices(
    agent: Agent, messages: list[Message], transcript: Transcript, reference: ModelReference, covered: int
) -> list[Message]:
    """Show the run's warnings and nudges in their places, except those that a compressed view has absorbed."""
    result = messages
    said = len(reference.get("say", ()))
    for after, kind, what in reversed(reference.get("notices", ())):
        if after <= covered and covered:
            continue
        # Messages after this notice's answer, and after that answer's results, came later.
        at = max(0, len(messages) - said - (transcript.seq - after))
        while at < len(messages) and messages[at].role == "tool":
            at += 1
        budget = agent.loop.budget if kind == "warning" else None
        warning = None if budget is None else budget.warning(what)
        shown = with_notices(result[:at], warning, what if kind == "nudge" else None)
        result = [*shown, *result[at:]]
    return result


class _Row:
    """A row of the store, with the text or the thoughts of an answer so far."""

    def __init__(self, key: str, attempt: str) -> None:
        self.key, self.attempt = key, attempt
        self.told: list[str] = []  # and not yet written
        self.left = MOST_WORDS  # characters that it may still take
        self.written = 0  # characters
        self.is_there = False  # the store may have some of it


class PartialAnswerWriter:
    """Writes the pieces of an answer during a block, and deletes them at its end."""

    def __init__(self, store: PartialAnswers, run: str, turn: int) -> None:
        self._store, self._turn = store, turn
        info = activity.info()
        # By the server's clock, so that an attempt after a reset, which again has number 1, is also later.
        self._attempt = f"{info.started_time:%Y-%m-%dT%H:%M:%S.%f}.{info.attempt:03}"
        self._run, self._rows = run, list[_Row]()
        self._thoughts, self._text = self._begin()
        self._writing: asyncio.Task[None] | None = None

    def tell(self, piece: AnswerDelta) -> None:
        """Take the next words, from any thread. With an offset of 0, another attempt begins."""
        if piece.offset == 0:
            if any(row.told or row.is_there for row in (self._thoughts, self._text)):
                self._attempt += "+"  # later than this one, and earlier than that of another activity
                self._thoughts, self._text = self._begin()
            return
        row = self._text if isinstance(piece, TextDelta) else self._thoughts
        row.told.append(piece.text[: row.left])
        row.left -= len(row.told[-1])

    def _begin(self) -> tuple[_Row, _Row]:
        rows = _Row(reasoning_key(self._run), self._attempt), _Row(self._run, self._attempt)
        self._rows += rows
        return rows

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writing is not None
        self._writing.cancel()
        await asyncio.wait({self._writing})
        for row in self._rows:
            if row.is_there:
                with contextlib.suppress(Exception):
                    await self._store.drop_partial(row.key, turn=self._turn, attempt=row.attempt)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            for row in (self._thoughts, self._text):
                await self._extend(row)

    async def _extend(self, row: _Row) -> None:
        count = len(row.told)
        text = "".join(row.told[:count])
        if not text:
            return
        part = PartialAnswer(turn=self._turn, attempt=row.attempt, offset=row.written, text=text)
        row.is_there = True
        with contextlib.suppress(Exception):  # retried with the next piece
            await self._store.add_partial(row.key, part)
            row.written = part.end
            del row.told[:count]


@dataclass(frozen=True, slots=True)
class Answered:
    """The next messages of a transcript.

    Args:
        checked: the answer, or the gate that people decide on first.
        context: the context in which the agent has answered.
        said: the user's messages that the model has read and the transcript does not have yet.
        shorter: the compressed context, if it was compressed for this answer.
    """

    checked: Message | Held
    context: AgentContext
    said: Sequence[Message] = ()
    shorter: Sequence[Message] | None = None

    @property
    def held(self) -> Held | None:
        return self.checked if isinstance(self.checked, Held) else None

    @property
    def answer(self) -> Message:
        return self.checked.answer if isinstance(self.checked, Held) else self.checked


class Answers:
    """The answers of the runs of a worker's agents."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host
        self._unpriced: set[tuple[str, str]] = set()  # models for which a warning was logged
        self._shorter: Recent[tuple[str, int], tuple[bytes, list[Message]]] = Recent()  # of turns without an answer yet

    async def decided(self, reference: ModelReference) -> Question | None:
        """Return the decided gate that has held the next answer, with the held content; None if there is none."""
        if (gate := reference.get("decided")) is None:
            return None
        record = await self._host.records.load_record(reference["run"], reference["turn"] - 1)
        return held_in(record, gate)

    async def release(self, agent: Agent, transcript: Transcript, answer: Message) -> Answered:
        """Return an answer that people have decided on, once the agent's output validators have checked it."""
        context = await transcript.context(agent)
        validated = await self._host.thread.run(guardrails_in(agent, context).validated(answer))
        return Answered(validated, context)

    async def ask(
        self,
        agent: Agent,
        reference: ModelReference,
        transcript: Transcript,
        view: KeptView | None,
        tell: Callable[[AnswerDelta], None] | None,
        decided: Question | None,
    ) -> Answered:
        """Call the model, and have the guardrails check the user's messages and the answer.

        Args:
            tell: takes the words of the answer as they arrive.
            decided: the user's messages were held, and people have approved the model call.
        """
        context, host = await transcript.context(agent), self._host
        # Messages that arrived after people looked wait for another answer.
        said = [] if decided is not None else [user_message(one) for one in reference.get("say", ())]
        messages = [*(() if view is None else view.messages), *transcript.messages, *said]
        messages = with_shown_notices(agent, messages, transcript, reference, 0 if view is None else view.seq)
        adapter = host.catalogue.adapter(agent, reference.get("model"))
        guardrails = guardrails_in(agent, context, decided)
        described, heard = host.catalogue.descriptions[agent], [*transcript.messages, *said]
        tell = None if withholds(agent) else tell
        compress = partial(self._compressed, agent, (reference["run"], reference["turn"]))
        answered: tuple[LLMResponse, list[Message] | None] | None = None
        cut_off: list[Usage] = []
        try:
            following = await following_calls(agent.tool_map, heard, transcript.session.key)
            if following is None:
                most = reference.get("max_tokens")
                asking = guardrails.around(
                    heard, lambda: call_adapter(agent, adapter, context, messages, described, tell, compress, most)
                )
                answered = await host.thread.run(noting_cut(asking, cut_off.append))
        except asyncio.CancelledError:
            await self._note_cut(reference, cut_off)
            raise
        except Exception as error:
            await self._note_cut(reference, cut_off)
            may_pause = host.catalogue.agent().loop.model_retry == MODEL_RETRY
            is_paid = error is guardrails.raised and guardrails.have_let_pass
            failure = failure_of(error, agent, reference.get("model"), may_pause=may_pause, is_paid=is_paid)
            if failure is error:
                raise
            if not isinstance(error, ApplicationError):  # an error in a user function is already logged
                # The traceback goes to the log, not into the history: the server keeps 4 KB of a failure.
                note_failure(agent, reference.get("model"), error)
            raise failure from None
        self._shorter.pop((reference["run"], reference["turn"]), None)
        response, shorter = answered or (following or LLMResponse(), None)
        if answered is not None:
            note_cost(agent, reference.get("model"), response, self._unpriced)
            response = response.after(await self._cut_before(reference))
        message = answer_message(
            response,
            turn=transcript.seq + len(said),
            taken=transcript.call_ids,
            tools=agent.tool_map.keys(),
            limit=agent.loop.max_message_bytes,
            model=reference.get("model"),
            agent=reference.get("agent"),
        )
        message = message if decided is None else with_dropped(message, decided)
        checked = await host.thread.run(guardrails.checked(message)) if guardrails.checks(message) else message
        return Answered(checked, context, said, shorter)

    async def _note_cut(self, reference: ModelReference, used: Sequence[Usage]) -> None:
        """Note what was used by an answer that was cut off; the turn's next answer, or the run's end, counts it."""
        for one in used:
            with contextlib.suppress(Exception):  # it must not replace the reason why there is no answer
                await UsageNotes(self._host.store, cut_answers(reference["run"], reference["turn"])).usage(one)

    async def _cut_before(self, reference: ModelReference) -> Usage | None:
        if activity.info().attempt == 1 and not reference.keys() & {"again", "model", "models"}:
            return None  # the usual first attempt needs no look
        return await noted_usage(self._host.store, cut_answers(reference["run"], reference["turn"]))

    async def _compressed(self, agent: Agent, turn: tuple[str, int], messages: list[Message]) -> list[Message] | None:
        """Return the compressed context; an attempt that finds the same messages again reuses it.

        Compression may have cost money, and an outage has many attempts.
        """
        rule = agent.loop.context_compression
        if rule is None or not rule.applies_to(messages):
            return None
        digest = hashlib.blake2b(b"\0".join(one.model_dump_json().encode() for one in messages)).digest()
        before, shorter = self._shorter.get(turn, (b"", []))
        if before != digest:
            shorter = await compressed(rule, messages) or []
            self._shorter[turn] = digest, shorter
        return list(shorter)
