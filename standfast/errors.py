"""Every error that standfast raises on purpose, in one tree.

A class exists where a caller would catch it by name. Texts for the model are tool messages, and values for callers to
branch on are results; neither is an exception.

    StandfastError
    ├── DefinitionError              an agent, tool or loop is declared wrongly (also a ValueError)
    ├── InputError                   what a caller passed in cannot be used (also a ValueError)
    ├── SessionNotFoundError         no such session, and none may be created
    ├── SessionAccessDeniedError     the session belongs to someone else; reads like "not found"
    ├── SessionConflictError         another run writes, or wrote, to the session
    ├── MemoryStoreNotDurableError   a memory store was asked to keep what only a durable store can
    ├── StoreError                   the database refused: locked, full, read-only, not ours, newer
    │   ├── SessionStoreError        a worker has a different store from its sessions
    │   └── StoreBehindError         the store is older than a run: it was restored from a backup
    ├── NotConfirmedError            a message to a run was not confirmed in time by a worker
    ├── ModelError                   the model could not be called (`transient`: another attempt may help)
    ├── ToolDurabilityError          a call with effects whose outcome is unknown
    ├── EffectFailedError            an effect has failed before, and is not run again
    ├── RetryableError               raised by a tool: try again later
    ├── TerminalError                raised by a tool: trying again is useless
    └── InterruptError               raised by a tool: a person must answer first
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from standfast.durations import WAYS, Duration, to_seconds


class StandfastError(Exception):
    """The root of the tree. `code` is stable and meant for programs; the text is meant for people.

    `checkpoint` is the `Checkpoint` of the in-process run that the error ended, with everything that ran before; None
    without one. `step_results` and `run_key` belong to the `run_pipeline` that it ended, as in `PipelineResult`.
    """

    code: ClassVar[str] = "STANDFAST_ERROR"
    checkpoint: Any = None
    step_results: Any = None
    run_key: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take more than the text; an error that comes back from another process must not need them.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[StandfastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> StandfastError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class DefinitionError(StandfastError, ValueError):
    """An agent, tool or loop is declared wrongly. Raised when it is declared, never when it runs."""

    code = "DEFINITION_ERROR"


class InputError(StandfastError, ValueError):
    """A message, session id, transcript or answer is invalid. Nothing was written."""

    code = "INPUT_ERROR"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a question with the known word closest to a mistyped one, to append to an error; "" without one."""
    import difflib  # it takes milliseconds, which only an error needs

    close = difflib.get_close_matches(given[:100], list(known), 1)
    return f". Did you mean '{close[0]}'?" if close else ""


def _seconds_to_wait(error: str, retry_after: Duration | None) -> float | None:
    wait = to_seconds(retry_after)
    if wait is None and retry_after is not None:
        raise InputError(f"{error}: retry_after must be like {WAYS}, got {retry_after!r}")
    return wait


class _SessionError(StandfastError):
    def __init__(self, session_id: str, what: str = "Session") -> None:
        # One text for both, so that an answer does not tell a stranger that the session exists.
        super().__init__(f"{what} not found or access denied: {session_id}")
        self.session_id = session_id


class SessionNotFoundError(_SessionError):
    """The session does not exist and `create_session=False` forbids creating it."""

    code = "SESSION_NOT_FOUND"


class SessionAccessDeniedError(_SessionError):
    """The session belongs to another user or tenant."""

    code = "SESSION_ACCESS_DENIED"


class SessionConflictError(StandfastError):
    """Another run is writing to the session, or has written since it was loaded. Nothing was interleaved."""

    code = "SESSION_CONFLICT"


class MemoryStoreNotDurableError(StandfastError):
    """A memory store was asked to keep data beyond its own lifetime."""

    code = "MEMORY_STORE_NOT_DURABLE"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: a memory store forgets everything with its process. "
            "Use a durable store, such as sqlite_store('standfast.db')."
        )


class StoreError(StandfastError):
    """The database behind a store refused. Acknowledged writes are still there; nothing was overwritten."""

    code = "STORE_ERROR"


class SessionStoreError(StoreError):
    """A worker has another store than the runs of its task queue. It has not written anything for them."""

    code = "SESSION_STORE"


class StoreBehindError(StoreError):
    """The store lacks data that a run has seen in it: it was restored from a backup, or has lost writes."""

    code = "STORE_BEHIND"


class NotConfirmedError(StandfastError):
    """A message or decision was sent to a run, and no worker has confirmed it in time: it may count later.

    Args:
        id: of the message or decision; if it is sent again with this id, it counts once.
    """

    code = "NOT_CONFIRMED"

    def __init__(self, message: str, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(message)
        self.id = id


class ModelError(StandfastError):
    """The model could not be called, or its reply was not an answer.

    Args:
        transient: another attempt, unchanged, may help.
        retry_after: how long the provider asked to wait before the next call; None if it gave no time.
        usage: the `Usage` that the provider had reported when its answer was cut off; the run counts it.
    """

    code = "MODEL_ERROR"

    def __init__(
        self, message: str, *, transient: bool = False, retry_after: Duration | None = None, usage: object = None
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.retry_after = _seconds_to_wait("ModelError", retry_after)
        self.usage = usage


_ADVICE = " (If running it twice is harmless, declare the tool with safe_to_retry=True.)"  # only in stored results


class ToolDurabilityError(StandfastError):
    """A call with effects was requested, and it is unknown whether it happened.

    The model reads it as a tool result; `payload()` is that result, with the documented keys. If running the tool twice
    is harmless, declare it with `safe_to_retry=True`: it then runs again instead.
    """

    code = "TOOL_DURABILITY_ERROR"
    kind: ClassVar[str] = "tool-durability-error"

    def __init__(self, tool_name: str, tool_call_id: str, *, reason: str = "") -> None:
        super().__init__(
            f"{self.sentence(tool_name, tool_call_id, reason)} It may or may not have taken effect, so it was not run "
            "again. Check the external state before you call it again."
        )
        self.reason = reason
        self.tool_name = tool_name
        self.tool_call_id = tool_call_id

    @staticmethod
    def sentence(tool_name: str, tool_call_id: str, reason: str = "") -> str:
        """Return what happened, without the advice."""
        return (
            f"Tool '{tool_name}' (call {tool_call_id}) was requested but its execution did not complete durably"
            f"{': ' + reason.removesuffix('.') if reason else ''}."
        )

    def payload(self) -> dict[str, str]:
        """Return the tool result `{"error", "kind", "toolName", "toolCallId"}`."""
        return {"error": str(self), "kind": self.kind, "toolName": self.tool_name, "toolCallId": self.tool_call_id}

    @classmethod
    def read_reason(cls, payload: Mapping[str, Any]) -> str:
        """Return the reason in a tool result made by `payload`; "" if it has none."""
        tool, call, text = (str(payload.get(key)) for key in ("toolName", "toolCallId", "error"))
        begin, _, end = str(cls(tool, call, reason="\0")).partition("\0")
        text = text.removesuffix(_ADVICE)
        return text[len(begin) : -len(end)] if text.startswith(begin) and text.endswith(end) else ""


class EffectFailedError(StandfastError):
    """An effect failed at an earlier attempt, or its result was lost, and it is not run again.

    Args:
        name: of the effect.
        key: of the call.
        reason: the text of its error.
        kind: the class name of that error; "" if it has run and its result was lost.
    """

    code = "EFFECT_FAILED"

    def __init__(self, name: str, key: str, *, reason: str, kind: str = "") -> None:
        said = f"has failed before and is not run again: {kind}: {reason}" if kind else reason
        super().__init__(f"Effect '{name}' ({key}) {said}")
        self.name, self.key, self.reason, self.kind = name, key, reason, kind


class RetryableError(StandfastError):
    """Raise it in a tool for a transient fault, such as a busy service.

    A tool with `safe_to_retry=True` is retried by its retry policy before the model sees the error; any other tool is
    not retried, and the model reads the message.

    Args:
        retry_after: how long to wait before the next attempt; the policy's own delay if None.
    """

    code = "RETRYABLE"

    def __init__(self, message: str = "Try again later", *, retry_after: Duration | None = None) -> None:
        super().__init__(message)
        self.retry_after = _seconds_to_wait("RetryableError", retry_after)


class TerminalError(StandfastError):
    """Raise it in a tool for a fault that another attempt cannot fix. Never retried.

    The agent's `on_terminal_tool_error` decides what follows: the model reads it, the run stops, or the run fails with
    this error. `status_code` and `metadata` are kept through nested agents.
    """

    code = "TERMINAL"

    def __init__(self, message: str, status_code: int = 500, metadata: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.metadata = dict(metadata or {})


class InterruptError(StandfastError):
    """Raise it in a tool to ask a person. The answer becomes the result of that tool call.

    Args:
        unknown: the question is about an effect of unknown outcome. Without an answer, the model reads a durability
            error.
    """

    code = "INTERRUPT"

    def __init__(self, question: str, *, unknown: bool = False) -> None:
        super().__init__(question)
        self.question, self.unknown = str(question), unknown
