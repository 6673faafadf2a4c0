"""All names that are in a workflow's history or that people type. Renaming one breaks runs in flight."""

import hashlib
from collections.abc import Mapping
from typing import Any

from standfast.temporal.wire import activity_types as types
from standfast.temporal.wire.activity_types import ActivityName
from standfast.temporal.wire.boards import ShowReference
from standfast.temporal.wire.inputs import Said
from standfast.temporal.wire.snapshots import BegunState, GateSurroundings

TASK_QUEUE = "standfast"
_LONGEST_ID = 900  # characters; a server's limit is 1,000

# Activity types, each with its input and result types. Activity types of tools are the tools' names.
CALL_MODEL: ActivityName[types.ModelReference, types.ModelReply] = ActivityName("call_model")
STRETCH: ActivityName[types.StretchReference, types.Stretched] = ActivityName("standfast.stretch")
OPEN: ActivityName[types.OpenReference, types.Opened] = ActivityName("standfast.open")
START: ActivityName[types.RunReference, BegunState | None] = ActivityName("standfast.start")
SETTLE: ActivityName[types.SettleReference, types.Verdict] = ActivityName("standfast.settle")
COMMIT: ActivityName[types.RunReference, int] = ActivityName("standfast.commit")
FINISH: ActivityName[types.FinishReference, types.Finished] = ActivityName("standfast.finish")
KEEP: ActivityName[types.KeepReference, list[Said] | types.Kept | None] = ActivityName("standfast.keep")
EXPORT: ActivityName[types.ExportReference, types.Exported] = ActivityName("standfast.export")
ATTACH: ActivityName[types.AttachReference | types.LostReference, types.AgentEnd | None] = ActivityName(
    "standfast.attach"
)
OPEN_PIPELINE: ActivityName[types.OpenReference, types.OpenedPipeline] = ActivityName("standfast.open_pipeline")
STEP: ActivityName[types.StepReference, types.Stepped] = ActivityName("standfast.step")
DECIDE: ActivityName[types.DecideReference, str | None] = ActivityName("standfast.decide")
RECALL: ActivityName[types.RecallReference, types.Recalled] = ActivityName("standfast.recall")
ANSWERED: ActivityName[types.AnsweredReference, dict[str, types.WrittenOutcome]] = ActivityName("standfast.answered")
SENT: ActivityName[types.SentReference, str | None] = ActivityName("standfast.sent")
REFUSED: ActivityName[types.RefusedReference, bool | None] = ActivityName("standfast.refused")
SEARCHABLE: ActivityName[types.OpenReference, GateSurroundings] = ActivityName("standfast.searchable")
SHOW: ActivityName[ShowReference, list[str]] = ActivityName("standfast.show")
NOTIFY: ActivityName[types.NotifyReference, None] = ActivityName("standfast.notify")

# Signals, updates and queries.
ANSWER = "answer"
MESSAGE = "message"
RESUME = "resume"
RESOLVE = "resolve"
EXPORT_UPDATE = "export"
APPROVE = "approve"
REJECT = "reject"
DECIDE_UPDATE = "decide"
STATUS = "status"
PENDING = "pending"
CALLED_STATUS = "standfast.called_status"  # a signal of a called agent's run: whether it waits
STORE_WAITS = "standfast.store_waits"  # a signal of an activity that holds data that the store refuses
OUTCOME = "standfast.outcome"  # a query for the outcome of a signal with an id; only standfast runs answer it

UNREADABLE = "unreadable: "  # begins the result of SENT if it is not a time; the reason follows
TERMINAL_ERROR = "TerminalError"  # the type of a run's failure after a tool's terminal error

QUEUE_STORE = "standfast-store"  # the type of the workflow that records a queue's store, and its separate queue

# Summaries of timers, before the gate's name: a run's events are read from them.
REMINDER = "reminder at "
ESCALATION = "escalation at "
DECISION = "decision at "

# Patches: behaviour that a run has only if it had it from the start.
ANSWERS_WRITTEN = "standfast.answers-written"  # before their senders are notified
SENDERS_HEAR = "standfast.senders-hear"  # senders of signals learn their outcome before the run ends
TELLING_ENDS = "standfast.telling-ends"  # a run that has ended waits a minute for that, not for ever
REFUSALS_STAY = "standfast.refusals-stay"  # after a reset, repeated messages have not been refused before
LOOKED_AGAIN = "standfast.looked-again"  # an activity that only looks is retried if an operator fails it
AGENTS_SETTLED = "standfast.agents-settled"  # the ledger reports that an agent was not run, as for other calls
OTHERS_SAID = "standfast.others-said"  # an agent of another call is reported as `OTHER`, never as an empty result
TERMINAL_KEPT = "standfast.terminal-kept"  # an agent's terminal error is also its caller's, and not only a text
FAULTS_PAUSE = "standfast.faults-pause"  # a user function that raises is no reason for a fallback model
STAYS_SHOWN = "standfast.stays-shown"  # a gate stays on the board while its run continues as new
MODELS_ANEW = "standfast.models-anew"  # a resume without a model calls the agent's own first, not its last fallback
CUT_COUNTS = "standfast.cut-counts"  # after a failure, the next model call looks for the usage of answers cut off
OUTAGES_OUTLAST = "standfast.outages-outlast"  # a refused fallback does not end the wait for a model that is down
DEADLINES_STAY = "standfast.deadlines-stay"  # a pause that begins again, for example after a deploy, keeps its deadline
RESETS_ANSWER = "standfast.resets-answer"  # at a cancel, a run that was reset answers its earlier calls
EACH_TURN_LOOKS = "standfast.each-turn-looks"  # after a reset, each turn that asks looks for its answers
OWN_HANDLERS = "standfast.own-handlers"  # a workflow's own handler is not replaced by one of `approval`
WHOLE_UNSEEN = "standfast.whole-unseen"  # gates of `approval` are shown whole, whatever the worker could not look up
ANSWERS_HELD = (
    "standfast.answers-held"  # an answer without an id waits while a run that was reset looks for earlier ones
)
RESETS_FIRST = "standfast.resets-first"  # a gate finds earlier decisions before it judges what a reset has sent again
RESETS_FIRST_AT = "standfast.resets-first-"  # the same in users' workflows, with the number of the decision
NO_ACTIVITIES = "standfast.no-activities"  # a worker without our activities has opened the first gate of `approval`
RECOVERED_IN_ORDER = "standfast.recovered-in-order"  # calls that an earlier run has left run in the model's order
READ_FIRST = "standfast.read-first"  # people see arguments as the activity reads them, if it changes them

# Search attributes.
STATUS_ATTRIBUTE = "StandfastStatus"
WAITING_ATTRIBUTE = "StandfastWaiting"
DEADLINE_ATTRIBUTE = "StandfastDeadline"
SESSION_ATTRIBUTE = "StandfastSession"
TENANT_ATTRIBUTE = "StandfastTenant"
GROUP_ATTRIBUTE = "StandfastGroup"

SEARCH_ATTRIBUTES = {
    STATUS_ATTRIBUTE: "Keyword",
    WAITING_ATTRIBUTE: "KeywordList",
    DEADLINE_ATTRIBUTE: "Datetime",
    SESSION_ATTRIBUTE: "Keyword",
    TENANT_ATTRIBUTE: "Keyword",
    GROUP_ATTRIBUTE: "KeywordList",
}

# Memo of a run that standfast starts: the agent, and the act that starts it; for an agent's agent, also a digest.
AGENT_MEMO = "standfast.agent"
PIPELINE_MEMO = "standfast.pipeline"
ASKED_MEMO = "standfast.asked"
CALLER_MEMO = "standfast.caller"  # of a called agent's run: the call or step by which its caller knows it
START_MEMO = "standfast.start"

# The reason why an activity failed, as the type of its ApplicationError.
WORKER_DIED = "WorkerDied"
TIMED_OUT = "HandlerTimedOut"  # and the handler ignores the cancel; it may still run
MODEL_UNAVAILABLE = "ModelUnavailable"
CALL_NOT_OURS = "CallNotOurs"
RETRYABLE = "RetryableError"  # a tool has asked for another attempt
HOOK_ERROR = "HookError"
PASSES = "passes"  # in the details: automatically, as an outage does; `OUTAGES_OUTLAST`
STEP_ERROR = "StepError"
SAME_VERSION = "SameVersion"  # of a pipeline's step: the version that this worker declares has already raised
MODEL_CHANGED = "ModelChanged"
NOT_HERE = "NotOnThisWorker"
STORE_ERROR = "StoreError"
STORE_AWAY = "StoreAway"  # the same, for so long that people should know
STORE_BEHIND = "StoreBehindError"  # the store lacks data that the run has seen in it
OTHER_STORE = "other_store"  # in the details of both: the worker has another store than the run


def holder(activity: str, reference: Mapping[str, Any]) -> str:
    """Return a name that distinguishes an activity of a run from its other concurrent activities."""
    if activity == STRETCH:
        return activity  # whichever of its turns is meant
    return f"{activity} {reference.get('path', reference.get('turn'))}.{reference.get('position', 0)}"


def child_id(parent: str, name: str) -> str:
    """Return the workflow id of a run's child, by the id of a tool call, or the name of a pipeline's step."""
    whole = f"{parent}/{name}"
    if len(whole) <= _LONGEST_ID:
        return whole
    return f"{whole[:_LONGEST_ID]}~{hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()}"


def workflow_id(agent: str, session: str) -> str:
    """Return the workflow id of a session's runs, by its key.

    Only one run exists at a time, so a session has one writer.
    """
    return f"{agent}/{session}"


def queue_store_id(task_queue: str) -> str:
    """Return the workflow id of the note that records the store of a task queue's workers."""
    return child_id(QUEUE_STORE, task_queue)


def session_of(agent: str, workflow: str) -> str | None:
    """Return the key of the session in a workflow id that `workflow_id` made, otherwise None."""
    return workflow.removeprefix(f"{agent}/") if workflow.startswith(f"{agent}/") else None
