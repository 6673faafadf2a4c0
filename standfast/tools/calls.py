"""One attempt at a tool call: the handler's context, outcomes and their JSON, keys in the ledger, and retries."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, cast, runtime_checkable

from pydantic_core import to_json
from typing_extensions import TypeVar

from standfast.durations import Duration
from standfast.errors import DefinitionError, InputError, StandfastError, TerminalError
from standfast.messages import JSONObject, Message, ToolCall, clean_text, json_problem
from standfast.tools.checks import seconds

DepsT_co = TypeVar("DepsT_co", covariant=True, default=Any)
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
Then = Callable[[ToolCall, Message, str], Awaitable[ToolCall | None]]  # of a call, its result, and the session's key

TOOL_SECONDS = 55.0  # the time limit of an attempt if its tool does not set one


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry rule of a safe tool. Names and meaning are Temporal's; `maximum_attempts` includes the first try.

    Args:
        initial_interval, maximum_interval: seconds, or a text like "30s".
    """

    initial_interval: Duration = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: Duration = 30.0
    maximum_attempts: int = 5

    def __post_init__(self) -> None:
        attempts, factor = self.maximum_attempts, self.backoff_coefficient
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise DefinitionError(f"retry.maximum_attempts must be >= 1, got {self.maximum_attempts!r}")
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < float("inf"):
            raise DefinitionError(f"retry.backoff_coefficient must be >= 1, got {self.backoff_coefficient!r}")
        for name in ("initial_interval", "maximum_interval"):
            object.__setattr__(self, name, seconds(getattr(self, name), f"retry.{name}"))

    @property
    def waits(self) -> tuple[float, float]:
        """The first and the longest interval, in seconds."""
        return cast("tuple[float, float]", (self.initial_interval, self.maximum_interval))

    def delay(self, attempt: int) -> float:
        """Return the seconds between this attempt (from 1) and the next."""
        first, longest = self.waits
        try:
            return min(longest, first * self.backoff_coefficient ** (attempt - 1))
        except OverflowError:
            return longest


class Identity(Enum):
    """Represents a `user_id` or `tenant_id` that is not passed to `invoke`: None is a value."""

    INHERITED = "inherited"

    @staticmethod
    def of(given: "str | Identity | None", own: str | None) -> str | None:
        """Return the given value, or else the caller's own."""
        return own if isinstance(given, Identity) else given


class AgentInvoker(Protocol):
    """The methods that `ctx.agents` offers to a tool."""

    async def invoke(
        self,
        agent: Any,
        *,
        message: str,
        instance_id: str | None = None,
        user_id: str | Identity | None = Identity.INHERITED,
        tenant_id: str | Identity | None = Identity.INHERITED,
        context: Any = None,
    ) -> dict[str, str]:
        """Run another agent to its end and return `{"response": text}`.

        Args:
            user_id, tenant_id: the user for whom it runs; by default the caller's own, and no user if None.
            context: the context of its run, if it declares one; the caller's own is not passed on.

        Raises:
            InputError: the context does not fit.
            StandfastError: the agent ended with a status other than "complete".
            InterruptError: the agent asks a question; if you let it propagate, it reaches the outermost caller.
        """
        ...


@runtime_checkable
class AgentFinder(Protocol):
    """Finds an agent that the model called and that has its own session."""

    async def find(self, agent: Any) -> str | None:
        """Return the answer of this call's agent, letting it finish first if need be; None if it no longer exists."""
        ...


@runtime_checkable
class ModelAsker(Protocol):
    """Asks the model of the calling agent, outside its conversation."""

    async def ask_model(self, message: str, *, max_tokens: int) -> dict[str, str]:
        """Return `{"response": text, "model": name}`: the answer to an untrusted message.

        Args:
            max_tokens: the limit of the answer, where the model's settings support one.

        Raises:
            StandfastError: no answer came, or the run's token budget is spent.
        """
        ...


class _NoAgents:
    async def invoke(self, agent: Any, **options: Any) -> dict[str, str]:
        raise StandfastError(f"Agent {getattr(agent, 'name', agent)!r} cannot be invoked: this context has no run")


def _no_heartbeat(*details: Any) -> None:
    pass


@dataclass(slots=True, kw_only=True, eq=False)
class ToolContext(Generic[DepsT_co]):
    """A handler's view of its call: annotate a parameter with it, and it is passed in.

    Args:
        idempotency_key: the same for every attempt of this call, even after a crash, and unique to it; pass it to
            outside services that accept one.
        attempt: 1 for the first try of this dispatch.
        agents: `await ctx.agents.invoke(agent, message=…)` runs another agent.
        heartbeat: tells the engine that a long call is alive; does nothing in process.
        deps: the result of the agent's `deps` for this run, or its context.
        state: a copy of the agent's state, in the type `Agent(state=…)`; None without one. If a call changes it, or
            assigns another value, the change is stored with the call's result: both, or neither. A tool with
            `parallel=True` can only read it.
    """

    agent_name: str = ""
    agent_id: str = ""
    session_id: str | None = None
    tool_call_id: str = ""
    idempotency_key: str = ""
    user_id: str | None = None
    tenant_id: str | None = None
    attempt: int = 1
    agents: AgentInvoker = field(default_factory=_NoAgents)
    heartbeat: Callable[..., None] = _no_heartbeat
    deps: DepsT_co = None  # type: ignore[assignment]  # no context has been made for a run yet
    state: Any = None


class KeptState(NamedTuple):
    """An agent's state as JSON, after a number of changes by calls of the turn."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned; the model reads `content`, and `state`, if given, is the agent's state from then on."""

    content: str
    state: KeptState | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed, and the model may read the reason.

    Args:
        raised: whether the handler raised, so that a retry policy applies; otherwise the call itself was wrong.
        retryable: whether the handler raised `RetryableError`.
    """

    error: str
    raised: bool = False
    retryable: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The handler asked a person.

    Args:
        unknown: the question is about a call of unknown outcome, for example of an agent that the handler ran.
    """

    question: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Terminated:
    """The handler raised `TerminalError`."""

    error: TerminalError


@dataclass(frozen=True, slots=True)
class Unknown:
    """The handler started, and how it ended is unknown.

    Args:
        cut_off: it was cut off by its time limit, a cancel or its dependencies, and `verify` has not run yet.
        still_runs: it was cut off and could not be stopped.
    """

    reason: str = ""
    cut_off: bool = field(default=False, compare=False)
    still_runs: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The call was abandoned before it started or, if that is harmless, while it ran."""

    reason: str


Outcome = Returned | Failed | Asked | Terminated | Unknown | Cancelled


@dataclass(frozen=True, slots=True)
class Happened:
    """The answer of a `verify` handler if the effect exists: `result` becomes the result of the call."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """The answer of a `verify` handler if the effect certainly does not exist: the call is run."""


Verdict = Happened | NotHappened | None


def call_key(position: int, call_id: str, dispatch: int = 1) -> str:
    """Return the key of a call under its message; it includes the position, since providers' ids repeat."""
    again = f"#{dispatch}" if dispatch > 1 else ""
    return f"{position}/{call_id}{again}"


def turn_scope(key: str, number: int) -> str:
    """Return the prefix of the keys of a turn's calls: the key of its session, and the number of its message."""
    return f"{key}/{number}"


def idempotency_key(scope: str, position: int, call_id: str) -> str:
    """Return the key of a call for outside systems; it is the same at every dispatch."""
    return f"{scope}.{call_key(position, call_id)}"


async def call_handler(handler: Callable[..., Any], call: Callable[[], Any], in_thread: InThread) -> Any:
    """Return the result of a handler: an async one runs on the loop, a plain one in a thread.

    Args:
        call: the handler with its arguments.
    """
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    value = call() if is_async else await in_thread(call)
    return await value if inspect.isawaitable(value) else value


_METADATA_BYTES = 16 * 1024  # of a terminal error


class WrittenOutcome(TypedDict, total=False):
    """The outcome of a call, as `write_outcome` writes it: one of the first six keys, and its further fields.

    Only the ledger has a `state`.
    """

    returned: str
    failed: str
    asked: str
    terminated: str
    unknown: str
    cancelled: str
    about_unknown: bool
    status_code: int
    metadata: JSONObject | None
    state: KeptState
    size: int
    spent: Any
    by: str
    call: str


def write_outcome(outcome: Outcome) -> WrittenOutcome:
    """Return an outcome as JSON: one key for its kind, and the fields of that kind."""
    match outcome:
        case Returned(content, state):
            return {"returned": content} if state is None else {"returned": content, "state": state}
        case Failed(error):
            return {"failed": error}
        case Asked(question, unknown):
            return {"asked": question, "about_unknown": True} if unknown else {"asked": question}
        case Terminated(error):
            return {
                "terminated": clean_text(str(error)),
                "status_code": error.status_code,
                "metadata": _plain_metadata(error),
            }
        case Unknown(reason):
            return {"unknown": reason}
        case Cancelled(reason):
            return {"cancelled": reason}


def _plain_metadata(error: TerminalError) -> JSONObject:
    if problem := json_problem(error.metadata, _METADATA_BYTES // 2):
        return {"left_out": f"metadata: {problem}"}
    if (size := len(to_json(error.metadata))) > _METADATA_BYTES:
        too_large = f"metadata: {size:,} bytes, more than {_METADATA_BYTES:,}"
        return {"left_out": f"{too_large}; keep large data elsewhere and send its location"}
    return error.metadata


def read_outcome(data: Mapping[str, Any]) -> Outcome:
    """Read the value that `write_outcome` wrote."""
    match data:
        case {"returned": content}:
            return Returned(content)
        case {"failed": error}:
            return Failed(error)
        case {"asked": question}:
            return Asked(question, data.get("about_unknown") is True)
        case {"terminated": text}:
            return Terminated(TerminalError(text, data.get("status_code", 500), data.get("metadata")))
        case {"unknown": reason}:
            return Unknown(reason)
        case {"cancelled": reason}:
            return Cancelled(reason)
    raise InputError(f"No outcome: {data!r:.80}")
