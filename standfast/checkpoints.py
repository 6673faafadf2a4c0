"""The results of a run, and the JSON from which another process continues it."""

import hmac
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, cast

from pydantic import Field
from typing_extensions import TypeIs, TypeVar

from standfast.errors import InputError, StandfastError
from standfast.messages import Citation, JSONObject, Message, Record, Tripped, Usage

T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", covariant=True, default=Any)

EndStatus = Literal[
    "complete",
    "max-iterations",
    "stuck",
    "error",
    "token-budget-exhausted",
    "cost-budget-exhausted",
    "diminishing-returns",
    "max-tokens",
    "refused",
    "empty",
    "guardrail-tripped",
    "cancelled",
]
RunStatus = EndStatus | Literal["interrupted"]


class Question(Record):
    """Something that only a person can answer.

    Args:
        tool_call_id: the call whose result the answer becomes. None if the loop itself asks; the answer then becomes a
            user message. The name of the gate, if that does not hold a call.
        gate: the question is whether the call may run, and its answer a `Decision`: who may decide, until when, and the
            decisions so far. It is kept until the call has a result.
        usage: of the agents that the call ran before it asked, or of the held answer.
        held: the answer that a gate holds; an empty one if it holds the user's messages, on which no model has acted.
        unknown: why the outcome of a call is unknown, if the question is about that; the call is this one, or one of an
            agent that this one ran. None for any other question.
    """

    question: str
    tool_call_id: str | None = None
    gate: JSONObject | None = None
    usage: Usage | None = None
    held: Message | None = None
    unknown: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether it still waits for a person."""
        return self.gate is None or "status" not in self.gate

    def with_gate(self, **changes: Any) -> "Question":
        """Return it with a changed gate."""
        return self.model_copy(update={"gate": {**(self.gate or {}), **changes}})

    @property
    def is_held(self) -> bool:
        """Whether it is a gate that does not hold a call."""
        rule = (self.gate or {}).get("rule")  # it may come from an untrusted checkpoint
        return isinstance(rule, Mapping) and bool(rule.get("holds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval:
    """An item that waits for people's approval: a tool call, or a value that a guardrail has stopped.

    Args:
        gate: its name in a decision: the id of the call, or `answer-<number>` or `message-<number>`.
        tool, arguments: the waiting call; "" and None if it is not a call.
        shown: the visible part of a message or an answer that a guardrail has stopped, as JSON.
        message: the question to people.
        digest: of all of these; a decision with this digest counts for nothing else.
        since, deadline: UTC; without a deadline it waits for ever.
        approvers: the people who may decide; anyone if empty.
        quorum, approved_by: the required number of approvals, and the people who have approved.
        edited_by, changes: of an edit that other people must approve: the editor, and the changes as text.
    """

    gate: str
    tool: str
    arguments: Any
    message: str
    digest: str
    since: datetime
    deadline: datetime | None = None
    approvers: tuple[str, ...] = ()
    quorum: int = 1
    approved_by: tuple[str, ...] = ()
    shown: tuple[Mapping[str, Any], ...] = ()
    edited_by: str | None = None
    changes: str | None = None


class Checkpoint(Record):
    """A run as plain JSON: `model_dump_json()` writes it, `run(checkpoint=…)` and `resume(…)` continue it.

    Args:
        iterations: model calls so far, counted against `max_iterations` when the run continues.
        pending_tool_use_id: the call that waits for an answer, the first of `questions`.
        questions: all open questions of the turn, in call order; and decided gates, until the turn is over.
        session_id: the session that holds the same messages, if there is one.
        exported_from: the session whose Temporal run was exported, and its creation time; if a store has that session,
            the checkpoint continues in it.
        signature: proves that it was written with the `checkpoint_key` with which it is read; None without one.
    """

    messages: tuple[Message, ...] = ()
    iterations: Annotated[int, Field(ge=0)] = 0
    usage: Usage = Usage()
    pending_tool_use_id: str | None = None
    questions: tuple[Question, ...] | None = None
    session_id: str | None = None
    exported_from: str | None = None
    signature: str | None = None


def show_checkpoint(error: Exception, checkpoint: Checkpoint) -> None:
    """Let an error that ends a run report what ran before it; of nested runs the outermost has the last word."""
    with suppress(Exception):  # an error without attributes is raised unchanged
        error.checkpoint = checkpoint  # type: ignore[attr-defined]  # of any kind: users' hooks raise what they like


def show_step_results(error: Exception, results: Mapping[str, "StepResult"], run_key: str | None) -> None:
    """Let an error that ends a pipeline report what ran before it, and the key with which the run continues."""
    with suppress(Exception):
        error.step_results = results  # type: ignore[attr-defined]
        error.run_key = run_key  # type: ignore[attr-defined]


CheckpointKey = bytes | str
_SHORTEST_KEY = 16  # bytes


def check_key(key: object) -> bytes | None:
    """Return the key for signing checkpoints, as bytes.

    Raises:
        InputError: it is missing or can be guessed.
    """
    if key is None:
        return None
    if not isinstance(key, str | bytes):
        raise InputError(f"checkpoint_key must be text or bytes, got {type(key).__name__}")
    plain = key.encode() if isinstance(key, str) else key
    if len(plain) < _SHORTEST_KEY:
        raise InputError(f"checkpoint_key must have at least {_SHORTEST_KEY} bytes, got {len(plain)}")
    return plain


def signed(checkpoint: Checkpoint, agent: str, key: bytes | None) -> Checkpoint:
    """Return a checkpoint of an agent signed with a key; unchanged without a key."""
    if key is None:
        return checkpoint
    return checkpoint.model_copy(update={"signature": _signature(checkpoint, agent, key)})


def check_signature(checkpoint: Checkpoint, agent: str, key: bytes) -> None:
    """Refuse a checkpoint that was not signed with this key for this agent, or was changed since.

    Raises:
        InputError: with the reason.
    """
    if checkpoint.signature is None:
        raise InputError("the checkpoint is not signed, and checkpoint_key= takes none that is not")
    if not hmac.compare_digest(checkpoint.signature.encode(), _signature(checkpoint, agent, key).encode()):
        raise InputError(f"the checkpoint was changed, or signed with another key or for another agent than '{agent}'")


def _signature(checkpoint: Checkpoint, agent: str, key: bytes) -> str:
    plain = checkpoint.model_copy(update={"signature": None}).model_dump(mode="json")
    text = json.dumps([agent, plain], sort_keys=True, separators=(",", ":"))
    return hmac.digest(key, text.encode(), "sha256").hex()


@dataclass(frozen=True, slots=True)
class RunResult(Generic[T_co]):
    """The result of running an agent with an `output` of type T.

    Args:
        status: "complete", "interrupted" if it waits for a person, or the reason why it ended early.
        response: the text of the last answer; if the model could not be called, its last text.
        error: the error text, with status "error".
        messages: the whole transcript, without the system prompt.
        iterations: model calls of this run.
        session_id: the session it was written to; None without a store.
        usage: tokens of this run, including nested agents; None if no adapter reported any.
        budget_percent: the used percentage of `Loop(token_budget=…)`; None without a budget or without usage.
        output: the response parsed as the agent's `output` type; None unless complete.
        tool_call_summary: how often each tool was requested, including failed calls; None if none was.
        compression_count: how often the context was compressed; None if the loop does not compress.
        checkpoint: the run as plain JSON.
        question: the question to a person, with status "interrupted": `resume(agent, checkpoint, answer)`.
        approvals: the items that wait for approval: `resume(agent, checkpoint, decisions=[…])`.
        tripped: the guardrail that ended the run, and the reason, with status "guardrail-tripped".
    """

    status: RunStatus
    response: str
    messages: tuple[Message, ...]
    iterations: int
    checkpoint: Checkpoint
    session_id: str | None = None
    usage: Usage | None = None
    budget_percent: float | None = None
    output: T_co = cast(Any, None)  # noqa: RUF009
    error: str | None = None
    tool_call_summary: Mapping[str, int] | None = None
    compression_count: int | None = None
    question: str = ""
    approvals: tuple[PendingApproval, ...] = ()
    tripped: Tripped | None = None

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources that the last answer names."""
        last = self.messages[-1] if self.messages else None
        return () if last is None or last.role != "assistant" else last.citations or ()

    @property
    def interrupted(self) -> bool:
        """Whether it waits for a person."""
        return self.status == "interrupted"


class InterruptedResponse(RunResult[T_co]):
    """The result of a run that waits for a person; its `status` is "interrupted"."""

    __slots__ = ()

    def __init__(
        self,
        question: str,
        checkpoint: Checkpoint,
        session_id: str | None = None,
        approvals: tuple[PendingApproval, ...] = (),
    ) -> None:
        super().__init__(
            "interrupted",
            "",
            checkpoint.messages,
            checkpoint.iterations,
            checkpoint,
            session_id,
            checkpoint.usage,
            question=question,
            approvals=approvals,
        )


class StepResult(Record):
    """The outcome of a pipeline step's agent or tool; plain JSON, from which another process can continue.

    Args:
        status: of the agent's run, even if its answer then did not fit the step; "complete" or "error" for a tool.
        response: the agent's answer, or the tool's result.
        iterations: model calls.
    """

    status: EndStatus
    response: str = ""
    iterations: int = 0


PipelineStatus = Literal["complete", "error", "pending", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """The progress of a pipeline.

    Args:
        step_results: of the agents and tools that ran, by the path of their step.
        outputs: by the name of the step or stage, in its type.
        failed_step, error_reason, error: only with status "error": the step, the reason in one word, and the text.
        pending_step, approval_message: only with status "pending": the waiting gate, and its question.
        digest, shown: of that gate: the digest of its full contents, by which people decide on it, and the contents
            beside the message, as JSON.
        deadline: of that gate, if it has one.
        approved_by: the people who have approved it so far, if more must.
        pending_steps: all waiting gates, `pending_step` the first of them.
        approvals: the waiting gates that belong to calls of its agents.
        run_key: the key with which a durable pipeline continues or is restarted; None without a store.
        journal_key: the key of the run's records in the store: `await store.load_decisions(result.journal_key)` is its
            audit trail. None without a store.
    """

    status: PipelineStatus
    step_results: Mapping[str, StepResult]
    outputs: Mapping[str, Any]
    failed_step: str | None = None
    error_reason: str | None = None
    error: str | None = None
    pending_step: str | None = None
    approval_message: str | None = None
    digest: str | None = None
    shown: Sequence[Mapping[str, Any]] = ()
    deadline: datetime | None = None
    approved_by: tuple[str, ...] = ()
    pending_steps: tuple[str, ...] = ()
    approvals: tuple[PendingApproval, ...] = ()
    run_key: str | None = None
    journal_key: str | None = None


def is_interrupted(result: RunResult[T]) -> TypeIs[InterruptedResponse[T]]:
    """Tell whether a run waits for an answer."""
    return result.interrupted


def assert_complete(result: RunResult[T]) -> RunResult[T]:
    """Return the result of a run that never asks.

    Raises:
        StandfastError: the run was interrupted by a question.
    """
    if result.interrupted:
        raise StandfastError(f"Agent interrupted: {result.question}")
    return result
