"""Every name that stands in a workflow's history or is typed by a person. Renaming one breaks runs in flight."""

TASK_QUEUE = "holdfast"

# Activity types. Those of tools are the tools' names.
CALL_MODEL = "call_model"
OPEN = "holdfast.open"
START = "holdfast.start"
SETTLE = "holdfast.settle"
COMMIT = "holdfast.commit"
FINISH = "holdfast.finish"
EXPORT = "holdfast.export"
ATTACH = "holdfast.attach"

# Signals, updates and queries.
ANSWER = "answer"
MESSAGE = "message"
RESUME = "resume"
RESOLVE = "resolve"
EXPORT_UPDATE = "export"
STATUS = "status"
PENDING = "pending"

# Search attributes.
STATUS_ATTRIBUTE = "HoldfastStatus"
WAITING_ATTRIBUTE = "HoldfastWaiting"
DEADLINE_ATTRIBUTE = "HoldfastDeadline"
SESSION_ATTRIBUTE = "HoldfastSession"
TENANT_ATTRIBUTE = "HoldfastTenant"
GROUP_ATTRIBUTE = "HoldfastGroup"

SEARCH_ATTRIBUTES = {
    STATUS_ATTRIBUTE: "Keyword",
    WAITING_ATTRIBUTE: "KeywordList",
    DEADLINE_ATTRIBUTE: "Datetime",
    SESSION_ATTRIBUTE: "Keyword",
    TENANT_ATTRIBUTE: "Keyword",
    GROUP_ATTRIBUTE: "KeywordList",
}

# Why an activity failed, as the type of its ApplicationError.
WORKER_DIED = "WorkerDied"
MODEL_UNAVAILABLE = "ModelUnavailable"
CALL_NOT_OURS = "CallNotOurs"
HOOK_ERROR = "HookError"


def child_id(parent: str, name: str) -> str:
    """Return the workflow id of what a run starts: of a tool call by its id, of a pipeline's step by its name."""
    return f"{parent}/{name}"


def workflow_id(agent: str, session_id: str) -> str:
    """Return the workflow id of a session's runs. There is one at a time, so a session has one writer."""
    return f"{agent}/{session_id}"


def session_of(agent: str, workflow: str) -> str | None:
    """Return the session id in a workflow id that `workflow_id` made, else None."""
    return workflow.removeprefix(f"{agent}/") if workflow.startswith(f"{agent}/") else None
