"""Types of the inputs and results of standfast's activities, which are JSON in a history.

`names` assigns them to activities.
"""

from collections.abc import Mapping
from typing import Any, Generic, Literal, NotRequired, Required, TypedDict, TypeVar, final

from standfast.messages import JSONObject, StopReason
from standfast.temporal.wire.inputs import Said
from standfast.temporal.wire.snapshots import BegunState, Surroundings
from standfast.tools.calls import WrittenOutcome as WrittenOutcome

TakenT = TypeVar("TakenT", bound=Mapping[str, object])
FoundT = TypeVar("FoundT")


class ActivityName(str, Generic[TakenT, FoundT]):
    """The name of an activity, which carries its input and result types for a type checker."""

    __slots__ = ()


class Located(TypedDict, total=False):
    """The keys of a run and its session in the store; omitted where the workflow has them (`AgentHost.located`)."""

    run: str
    session: str


class OpenReference(Located, total=False):
    """A run to be opened, with its `input`; without an input, a search for a worker with an agent, a tool or a step."""

    input: JSONObject
    agent: str
    tool: str
    path: str


class RunReference(Located, total=False):
    """The progress of an agent's run, for activities that read or write its transcript.

    Args:
        turn: the number of the model's last answer; of the next one, for `call_model`.
        seq: the number of the last message in the session that the run knows.
        part: how often results of the turn were written.
        sources: `[position, source]` each: the place of a call's result, if not in the ledger under its first dispatch.
        created: the creation time of the session, if it is new.
        say: the user's messages that are not in the transcript yet.
        questions: the open questions, as JSON.
        receipt: the word that a result must repeat if it reports that something was recorded; see `receipted`.
    """

    receipt: int
    turn: Required[int]
    seq: Required[int]
    user_id: str
    tenant_id: str
    agent_id: str
    model: str
    part: int
    sources: "list[tuple[int, Source]]"
    created: str
    agent_state: BegunState
    say: list[Said]
    questions: list[JSONObject]


class ModelReference(RunReference, total=False):
    """A call of an `agent`'s model, `named` if a deploy has changed it; in an outage of one of `models`.

    For `decided`, see `CallModel`. `max_tokens` limits the answer. `again` if other activities may have asked before.
    """

    agent: str
    decided: JSONObject
    models: list[str | None]
    notices: list[list[Any]]
    view: int
    named: str
    max_tokens: int
    again: bool


class StretchReference(TypedDict, total=False):
    """Several turns in one activity: the reference of the first model call, and the run's progress as JSON.

    Args:
        limits: the run's own `max_iterations` and `max_tokens`.
        known: only return the turns that an earlier attempt has left in the store; begin nothing.
    """

    ask: Required[ModelReference]
    progress: Required[JSONObject]
    limits: tuple[int | None, int | None]
    depth: int
    known: bool


class TurnTaken(TypedDict, total=False):
    """A turn of a stretch.

    Args:
        took: seconds of the model's answer.
        outcomes: `[position, outcome, seconds]` each, of its calls that have ended.
        lost: `[position, why, is_safe]` each, of calls that may have begun, and whose outcome is not known: the type of
            a failure, or the verdict of the ledger and of `verify`.
        retried: `[position, error, attempts]` each, of calls that were attempted several times.
        sources: of its other calls, which were not run.
    """

    reply: "Required[ModelReply]"
    took: float
    outcomes: "list[tuple[int, Source, float]]"
    lost: "list[tuple[int, str | Verdict, bool]]"
    retried: list[tuple[int, str, int]]
    sources: "list[tuple[int, Source]]"


class Stretched(TypedDict, total=False):
    """The turns of a stretch, in order; `wait` is the number of seconds after which the model may be called again."""

    turns: Required[list[TurnTaken]]
    wait: float


class FinishReference(RunReference, total=False):
    status: Required[str]
    hook: str


class KeepReference(RunReference, total=False):
    """Messages to be kept; after a reset, `again` asks for the messages that the model has not read."""

    messages: Required[list[Said]]
    again: bool


class Kept(TypedDict, total=False):
    """Messages that were not kept: the session `has` them, by their senders' ids, or they are `refused`."""

    has: list[str]
    refused: dict[str, str]


class AnsweredReference(RunReference):
    after: int


class ExportReference(RunReference, total=False):
    iterations: Required[int]
    usage: JSONObject
    at_gate: bool


class LetThrough(TypedDict):
    """The approvers of a call.

    For edited arguments, it also has the digest of the `edit`, its editor, and the beginning of the arguments for
    people.
    """

    by: list[str]
    edit: NotRequired[str]
    editor: NotRequired[str]
    shown: NotRequired[str]


class CallReference(Located, total=False):
    """A tool call: by turn and position, or by the path of a pipeline's step; `agent_state` is not written yet.

    `tokens_left` is the remaining number of tokens for the run, if its budget limits them.
    """

    turn: int
    path: str
    position: int
    dispatch: int
    depth: int
    agent_state: BegunState
    approved: LetThrough
    tokens_left: int


class SettleReference(CallReference, total=False):
    """A call to look up in the ledger; according to a person, its outcome is `given`, or it has `not_happened`.

    `timed_out` means that its handler has not ended in time, and may still run.
    """

    recovering: bool
    given: "WrittenOutcome"
    not_happened: bool
    verify: bool
    wait: bool
    timed_out: bool


class LostReference(CallReference):
    """An agent that was called by a lost run."""

    child: str
    asked: str


@final
class AttachReference(TypedDict):
    """An agent that an earlier attempt has started."""

    workflow_id: str
    asked: str


class AtGate(TypedDict, total=False):
    """A gate: the turn and position of its `call`, or the agent, the guardrail and the content that `stopped` it.

    If `access` is true, rules limit who may decide.
    """

    call: list[int]
    access: bool
    stopped: list[str]
    stage: str
    proposed: str


class RecallReference(AtGate):
    run: str
    gate: str


class DecideReference(RecallReference, total=False):
    """A person's decision, unchanged; `receipt` as in `RunReference`. `sent` is the id of its signal."""

    receipt: int
    sent: str
    at: Required[str]
    refused: Required[str | None]
    decision: Required[str]
    digest: str
    by: str
    comment: str
    edit: Any
    remember: JSONObject
    standing: str


class SentReference(TypedDict):
    name: str
    digest: str
    number: int


class RefusedReference(TypedDict):
    """The id of a signal, as a run remembers it."""

    sent: str


class NotifyReference(Located, total=False):
    item: Required[JSONObject]
    reminder: int


class Source(WrittenOutcome, total=False):
    """The place of a call's result: under a `dispatch` in the ledger, as the `answer_of` a session, or here.

    If the result is here, `settled` means that the ledger was asked: it knows only that the call was started. `edited`
    describes people's edit of an agent call's arguments, for a note to the model.
    """

    dispatch: int
    answer_of: str
    settled: bool
    edited: LetThrough


class Verdict(WrittenOutcome, total=False):
    """The ledger's entry for a call: its outcome, `claimed` if that is unknown, or neither if the call must be run.

    Args:
        found_by: of an outcome, its source: the "ledger", `verify`, or a "person".
    """

    dispatch: Required[int]
    found_by: Literal["ledger", "verify", "person"]
    claimed: bool
    at_most_once: bool
    reason: str


class OpenedRun(TypedDict, total=False):
    """The facts that steer an agent's run, once it is open, and its initial data."""

    session: str
    facts: JSONObject
    again: bool
    key: str
    created: str
    message: Said
    context: str  # as JSON; the store keeps it
    context_before: str  # the epoch of calls that an earlier run has left, if it differs
    unheard: list[Said]
    answered: "AnsweredBefore"
    empty: bool
    state: JSONObject
    agent_state: BegunState


class AnsweredBefore(TypedDict, total=False):
    """The result of a message that its session has already answered."""

    status: Required[str]
    response: Required[str]
    size: int
    output: Any
    error: str
    tripped: JSONObject


class Opened(OpenedRun, total=False):
    """The same, and the state of its session: the last message and the calls of the last turn.

    Args:
        unknown: ids of the calls of unknown outcome about which an earlier run, possibly in process, has asked a
            person.
    """

    seq: Required[int]
    number: int
    calls: list[list[Any]]
    approved: list[tuple[int, LetThrough]]
    arguments: JSONObject
    sizes: dict[str, int]
    gates_of: int
    declared: "Declared"
    unknown: list[str]


class Looked(TypedDict):
    """Empty: the worker has the tool or step that an open run searched for."""


class Declared(TypedDict, total=False):
    """Facts that a turn's calls need and that have changed since the start; see `tools_of`."""

    tools: dict[str, JSONObject]
    available: list[str]


class LastReply(TypedDict, total=False):
    """The text of an answer, with its whole `size` in bytes if it is cut, and the output that is parsed from it.

    Or the reason why it does not fit the output type, or `unfit`, the reason of an output validator. Or the text that
    replaces it, and the guardrail that has `tripped`; see `write_tripped`.
    """

    text: str
    size: int
    output: Any
    output_error: str
    unfit: str
    tripped: JSONObject


class Asked(LastReply, total=False):
    """The requests of a turn: its calls, `[id, name, position, arguments as shown]` each, and the gates before them.

    Args:
        refused: by id, the reason why a call does not run.
        arguments, sizes: of calls with gates, by id; see `Turn`.
    """

    calls: list[tuple[str, str, int, str]]
    refused: dict[str, str]
    gates: list[JSONObject]
    arguments: JSONObject
    sizes: dict[str, int]


class ModelReply(Asked, total=False):
    """The model's answer as a workflow needs it, or a lasting `error`.

    `untold` are the indexes in `say` of the unread messages. `answered_by` is the one of the reference's `models` that
    has answered; None means the agent's own model.
    """

    seq: Required[int]
    answered_by: str | None
    view: int
    untold: list[int]
    usage: Any
    stop_reason: StopReason
    thoughts: str
    hosted: list[JSONObject]
    citations: list[JSONObject]
    error: str
    declared: Declared


class Finished(TypedDict):
    """The end of a run; `spent` was used by answers that were cut off and that no answer followed."""

    seq: int
    response: str
    spent: NotRequired[list[Any]]


class Exported(TypedDict, total=False):
    checkpoint: JSONObject
    error: str
    seq: int


AgentEnd = JSONObject
"""An `AgentResult`; or `LOST` or `OTHER`, for an agent that is looked for."""


class AgentResult(TypedDict):
    """The part of an agent run's result that its caller reads."""

    status: str
    iterations: int
    response: NotRequired[str | None]
    error: NotRequired[str | None]
    usage: NotRequired[Any]


class Recalled(TypedDict, total=False):
    """The decisions at a gate, `[decision, time]` each, and whether its call has run, or was answered instead."""

    decisions: list[tuple[JSONObject, str]]
    has_run: bool
    not_run: bool


class Making(TypedDict):
    path: str
    what: str


class CameTo(TypedDict, total=False):
    """The result of a step; see `Work.keep`."""

    path: Required[str]
    status: str
    response: str
    iterations: int
    session: str
    outcome: WrittenOutcome
    ran: int
    output: Any


class Ending(TypedDict):
    done: list[str]
    failed: NotRequired[list[str]]


class StepReference(TypedDict, total=False):
    """A pipeline's step, to be kept, made, or ended; `raised` are the versions that have been tried."""

    run: Required[str]
    done: CameTo
    make: Making
    end: Ending
    known: JSONObject
    raised: list[str]


class OpenedPipeline(Surroundings):
    """The facts that steer a pipeline's run; `done` has the results of the earlier run that it restarts."""

    pipeline: str
    plan: list[JSONObject]
    gates: JSONObject
    tools: dict[str, JSONObject]
    again: NotRequired[bool]
    done: NotRequired[JSONObject]


class Stepped(TypedDict, total=False):
    """The result of a step's activity; `failed` is a reason and its text."""

    kept: str
    failed: tuple[str, str]
    made: Any
    result: JSONObject


class ShownValue(TypedDict, total=False):
    """A value that people see at a gate, by its `kind`; it may have further fields."""

    kind: Required[str]
    size: int
    media_type: str


class Shown(TypedDict, total=False):
    """The contents that people see at a gate beside the message. If they are large, `shown` has sizes."""

    shown: list[ShownValue]
    size: int
    reference: JSONObject


class AskedAtGate(Shown):
    """The data that a step's activity has made for a gate; see `StepRecords.asked_at`."""

    message: Required[str]
    digest: Required[str]
    later: NotRequired[list["AskedAtGate"]]
    edits: NotRequired[bool]
