"""Events of a run, in one vocabulary for in-process runs and Temporal runs.

Events of a Temporal run have an `id`, which is the same whenever the run is read, and a time. The words that a model is
currently producing (`TextDelta`, `ReasoningDelta`) have neither; the answer that contains them has both.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

from standfast.agent_loop import Decision, Gate
from standfast.checkpoints import Checkpoint, RunResult
from standfast.errors import InputError
from standfast.messages import Citation, HostedCall, JSONObject, Message, ToolCall, Usage

ToolOutcome = Literal["returned", "failed", "asked", "terminated", "unknown", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The common fields of all events.

    Args:
        id: for a Temporal run: `<run id>/<number in its history>.<place>`; see docs/events.md.
        at: the time of the event, UTC, by the clock of the Temporal server.
    """

    id: str | None = None
    at: datetime | None = None


def _type(name: str) -> Any:
    return field(default=name, init=False, repr=False)


# --- the run ---


@dataclass(frozen=True, slots=True)
class RunStarted(_Event):
    """A run of the agent or pipeline of this `name` begins; `message` is the agent's input."""

    name: str
    message: str | None = None
    input: Any = None
    user_id: str | None = None
    type: Literal["run-started"] = _type("run-started")


@dataclass(frozen=True, slots=True)
class RunReset(_Event):
    """An operator has reset the run to an earlier event; later events happen again, except for effects."""

    reason: str
    type: Literal["run-reset"] = _type("run-reset")


@dataclass(frozen=True, slots=True)
class StatusChanged(_Event):
    """The run begins or stops waiting; `waits_for` has kinds: "approval", "question", "pause", "worker", …"""

    status: str
    waits_for: tuple[str, ...] = ()
    deadline: datetime | None = None
    why: str | None = None
    type: Literal["status-changed"] = _type("status-changed")


@dataclass(frozen=True, slots=True)
class CancelRequested(_Event):
    """A cancel of the run was requested; `reason` may name the person."""

    reason: str = ""
    type: Literal["cancel-requested"] = _type("cancel-requested")


@dataclass(frozen=True, slots=True)
class CheckpointReached(_Event):
    """Another `checkpoint_interval` iterations are done; only for in-process runs."""

    checkpoint: Checkpoint
    type: Literal["checkpoint-reached"] = _type("checkpoint-reached")


@dataclass(frozen=True, slots=True)
class RunEnded(_Event):
    """The last event.

    Args:
        result: the return value of `run`; for a Temporal run, its result as plain JSON.
        status: the result's status, or "failed", "cancelled", "terminated" or "timed-out".
        usage: of the whole run, with its cost where known.
    """

    result: RunResult | JSONObject | None = None
    status: str = ""
    response: str = ""
    error: str | None = None
    usage: Usage | None = None
    type: Literal["run-ended"] = _type("run-ended")


# --- the model ---


@dataclass(frozen=True, slots=True)
class TurnStarted(_Event):
    """The model is called for its next answer; again for the same turn if it could not be called before.

    Args:
        agent: the agent that answers, if the run's agent hands over to others.
    """

    turn: int
    model: str | None = None
    agent: str | None = None
    type: Literal["turn-started"] = _type("turn-started")


@dataclass(frozen=True, slots=True)
class TextDelta(_Event):
    """A piece of the model's text. An adapter that cannot stream gives the whole text as one piece.

    Args:
        turn, offset: for a Temporal run, the turn of the answer, and the position in it. An offset of 0 again belongs
            to another attempt: the earlier text is void. In process, only an empty piece has an offset: 0, after an
            empty answer, whose thoughts and text are void.
    """

    text: str
    turn: int | None = None
    offset: int | None = None
    type: Literal["text-delta"] = _type("text-delta")


@dataclass(frozen=True, slots=True)
class ReasoningDelta(_Event):
    """A piece of the model's readable thoughts, usually before its text. An adapter's `stream` yields it beside text.

    Thoughts that are not streamed are one piece. Encrypted thoughts are never shown.

    Args:
        turn, offset: for a Temporal run, as in `TextDelta`; the position in the thoughts.
    """

    text: str
    turn: int | None = None
    offset: int | None = None
    type: Literal["reasoning-delta"] = _type("reasoning-delta")


AnswerDelta = TextDelta | ReasoningDelta


@dataclass(frozen=True, slots=True)
class ModelRetried(_Event):
    """The model could not be called and is called again after a delay; its partial answer is void."""

    error: str
    delay: float | None = None
    attempt: int | None = None
    type: Literal["model-retried"] = _type("model-retried")


@dataclass(frozen=True, slots=True)
class ModelFailed(_Event):
    """The model could not be called, or its worker was lost, and no automatic attempt follows."""

    turn: int
    error: str
    type: Literal["model-failed"] = _type("model-failed")


@dataclass(frozen=True, slots=True)
class TurnEnded(_Event):
    """The model has answered; `calls` are the requested tools, none in a last answer.

    Args:
        seconds: the duration of the attempt that gave the answer.
        thoughts: the readable part of the model's thoughts; for a Temporal run, its beginning.
        hosted, citations: the provider's own calls, and the sources that the answer names.
    """

    turn: int
    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    seconds: float | None = None
    thoughts: str | None = None
    hosted: tuple[HostedCall, ...] | None = None
    citations: tuple[Citation, ...] | None = None
    type: Literal["turn-ended"] = _type("turn-ended")


@dataclass(frozen=True, slots=True)
class MessageAdded(_Event):
    """A message was added to the transcript, at `index`; with a durable store it is written. Only in process."""

    index: int
    message: Message
    type: Literal["message-added"] = _type("message-added")


# --- tools ---


@dataclass(frozen=True, slots=True)
class ToolStarted(_Event):
    """A tool call starts; on Temporal, it is passed to the workers. `run` is the run of a called agent.

    Args:
        call: with the arguments with which it runs.
        edited_by, before: of an edited call, the editor, "" if unnamed, and the model's arguments.
        step: of a pipeline's tool step, its path.
    """

    call: ToolCall
    run: str | None = None
    edited_by: str | None = None
    before: JSONObject | str | None = None
    step: str | None = None
    type: Literal["tool-started"] = _type("tool-started")


@dataclass(frozen=True, slots=True)
class ToolRetried(_Event):
    """A call of a tool that is safe to retry has failed and was started again."""

    call: ToolCall
    error: str
    attempt: int
    type: Literal["tool-retried"] = _type("tool-retried")


@dataclass(frozen=True, slots=True)
class ToolLost(_Event):
    """The end of a call was not reported, for example because its worker died; the ledger is checked first."""

    call: ToolCall
    reason: str
    type: Literal["tool-lost"] = _type("tool-lost")


@dataclass(frozen=True, slots=True)
class ToolEnded(_Event):
    """A tool call ended; `result` is the text for the model, None if it asked a question or on Temporal.

    Args:
        outcome: "unknown" if it may have happened; it was not run again.
        text: the result, error or question; only its beginning if it is long, and `size` its full size in bytes.
        seconds: the duration of the last attempt.
        recovered: the call was lost, and its outcome was found; `found_by` is the "ledger", the tool's "verify" or a
            "person".
        usage: of the called agent.
    """

    call: ToolCall
    result: Message | None = None
    outcome: ToolOutcome = "returned"
    text: str = ""
    size: int | None = None
    seconds: float | None = None
    recovered: bool = False
    found_by: Literal["ledger", "verify", "person"] | None = None
    usage: Usage | None = None
    type: Literal["tool-ended"] = _type("tool-ended")


# --- people ---


@dataclass(frozen=True, slots=True)
class GateOpened(_Event):
    """People are asked whether a call may run or a pipeline may continue; again after an edit.

    Args:
        gate: the id of the call, or the path of the step.
        digest: of the shown contents; a decision includes it.
    """

    gate: str
    message: str
    digest: str
    call: ToolCall | None = None
    approvers: tuple[str, ...] = ()
    quorum: int = 1
    deadline: datetime | None = None
    type: Literal["gate-opened"] = _type("gate-opened")


@dataclass(frozen=True, slots=True)
class GateDecided(_Event):
    """A person has decided at a gate.

    Args:
        refused: the reason why that did not count.
        standing: the standing approval that decided in advance; None for a live decision.
        remember: if later calls are approved with it, the scope, the end and the permitted arguments.
        edit: the approved value or arguments, if they differ from the shown ones.
        waits: the gate is still open, for more or other people. False if that is unknown.
    """

    gate: str
    decision: str
    by: str | None = None
    comment: str | None = None
    refused: str | None = None
    standing: str | None = None
    remember: JSONObject | None = None
    edit: Any = None
    waits: bool = False
    type: Literal["gate-decided"] = _type("gate-decided")


@dataclass(frozen=True, slots=True)
class GateReminded(_Event):
    """People are reminded of a waiting gate (`remind_every`)."""

    gate: str
    type: Literal["gate-reminded"] = _type("gate-reminded")


@dataclass(frozen=True, slots=True)
class GateEscalated(_Event):
    """The deadline of the people at a gate has passed, and it asks others (`escalate_to`)."""

    gate: str
    type: Literal["gate-escalated"] = _type("gate-escalated")


@dataclass(frozen=True, slots=True)
class QuestionAsked(_Event):
    """A call asks a person."""

    question: str
    call: ToolCall
    type: Literal["question-asked"] = _type("question-asked")


@dataclass(frozen=True, slots=True)
class MessageReceived(_Event):
    """A person has sent the run a message, an answer, a resume or the outcome of a call.

    The run, and the audit trail, report whether it counts.
    """

    kind: Literal["message", "answer", "resume", "resolve"]
    text: str = ""
    of: str | None = None
    by: str | None = None
    type: Literal["message-received"] = _type("message-received")


# --- steps of pipelines ---


@dataclass(frozen=True, slots=True)
class StepStarted(_Event):
    """A step of a pipeline starts; `step` is its path, `run` the run of its agent on Temporal."""

    step: str
    run: str | None = None
    type: Literal["step-started"] = _type("step-started")


@dataclass(frozen=True, slots=True)
class StepCompleted(_Event):
    """A step of a pipeline is done, and its output is valid."""

    step: str
    iterations: int
    response: str
    type: Literal["step-completed"] = _type("step-completed")


@dataclass(frozen=True, slots=True)
class StepFailed(_Event):
    """A step of a pipeline failed; `reason` is one word, `error` a sentence."""

    step: str
    reason: str
    error: str
    type: Literal["step-failed"] = _type("step-failed")


PipelineEvent = StepStarted | StepCompleted | StepFailed
Event = (
    RunStarted
    | RunReset
    | StatusChanged
    | CancelRequested
    | CheckpointReached
    | RunEnded
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | ModelRetried
    | ModelFailed
    | TurnEnded
    | MessageAdded
    | ToolStarted
    | ToolRetried
    | ToolLost
    | ToolEnded
    | GateOpened
    | GateDecided
    | GateReminded
    | GateEscalated
    | QuestionAsked
    | MessageReceived
    | PipelineEvent
)
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])
EVENT_TYPES: tuple[type, ...] = get_args(Event)


def gate_opened(gate: Gate, message: str, call: ToolCall | None) -> GateOpened:
    """Return the event of a gate that asks people: at first, and whenever its contents change.

    Args:
        message: its question, if its rule does not set one.
        call: with the arguments that people see now.
    """
    rule = gate.rule
    return GateOpened(
        gate.name, rule.message or message, gate.shown_digest, call, rule.users, rule.quorum, gate.deadline
    )


def gate_escalations(gate: Gate, at: datetime) -> list[tuple[Gate, GateEscalated]]:
    """Return the escalations of a gate until a time, each with the gate after it."""
    return [(one, GateEscalated(gate.name)) for one in gate.passing(at) if one.status == "open"]


def gate_decided(decision: Decision, refused: str | None, after: Gate | None) -> GateDecided:
    """Return the event of a decision.

    Args:
        refused: the reason why it does not count.
        after: the gate after a decision that counts; None if unknown.
    """
    return GateDecided(
        decision.gate,
        decision.decision,
        decision.by,
        decision.comment,
        refused,
        decision.standing,
        None if decision.remember is None else decision.remember.model_dump(mode="json"),
        decision.edit,
        waits=refused is None and after is not None and after.status == "open",
    )


def event_json(event: Event) -> JSONObject:
    """Return an event as plain JSON data, without absent values; `type` names the event."""
    plain: JSONObject = EVENTS.dump_python(event, mode="json", exclude_none=True)
    return plain


def read_event(data: object) -> Event:
    """Return the event that `event_json` wrote.

    Raises:
        InputError: it is not an event.
    """
    try:
        return EVENTS.validate_python(data)
    except ValueError as error:
        raise InputError(f"That is not an event of a run: {error}") from error
