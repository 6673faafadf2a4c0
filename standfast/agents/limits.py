"""The limits of a run: its number of turns, its usage, and when it counts as stuck."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, cast

from pydantic_core import to_json

from standfast.errors import DefinitionError
from standfast.messages import Message
from standfast.tools import Duration, RetryPolicy, check_choice, check_count, seconds
from standfast.tools.checks import suggesting

MODEL_RETRY = RetryPolicy(initial_interval=1, maximum_interval=60, maximum_attempts=8)
CONTEXT_BYTES = 64 * 1024  # of a run's context, as JSON
STATE_BYTES = 256 * 1024  # of an agent's state after a tool call, as JSON text
MAX_DEPTH = 16  # stops agents that invoke each other for ever

OnStuck = Literal["stop", "retry", "escalate"]
OnUnknown = Literal["tell", "ask"]
OnBudget = Literal["end", "ask"]
OnModelOutage = Literal["retry", "pause"]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens a run may use, counted after every model call.

    Args:
        max: input and output tokens of the run, including nested agents.
        stop_threshold: share of `max` at which the run ends with "token-budget-exhausted".
        warning_threshold: share at which the model is warned, once.
        warning_message: the text, or a function of (percent, used, max) that returns it.
    """

    max: int
    _: KW_ONLY
    stop_threshold: float = 0.9
    warning_threshold: float = 0.8
    warning_message: str | Callable[[int, int, int], str] | None = None

    def __post_init__(self) -> None:
        check_count("token_budget.max", self.max, 1)
        for name in ("stop_threshold", "warning_threshold"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise DefinitionError(f"token_budget.{name} must be a share above 0, got {value!r}")
        message = self.warning_message
        if message is not None and not isinstance(message, str) and not callable(message):
            raise DefinitionError(f"token_budget.warning_message must be text or a function, got {message!r}")

    def warning(self, used: int) -> str:
        percent = round(used / self.max * 100)
        if callable(self.warning_message):
            return str(self.warning_message(percent, used, self.max))
        return self.warning_message or (
            f"Warning: You have used {percent}% of your token budget ({used}/{self.max} tokens). "
            "Please wrap up your current task."
        )


@dataclass(frozen=True, slots=True)
class DiminishingReturns:
    """End a run whose model calls have become short: `calls` in a row below `min_tokens` tokens each."""

    calls: int = 3
    min_tokens: int = 500

    def __post_init__(self) -> None:
        check_count("diminishing_returns.calls", self.calls, 1)
        check_count("diminishing_returns.min_tokens", self.min_tokens, 1)


@dataclass(frozen=True, slots=True)
class ContextCompression:
    """Shorten the messages that the model sees; the stored transcript stays whole.

    Args:
        compress: gets the messages without the leading system prompt, and returns the messages to continue with.
        max_messages, max_token_estimate: compress above either. A token is estimated as four characters of text,
            arguments and thoughts, a picture as 1,500 tokens.
    """

    compress: Callable[[Sequence[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
    _: KW_ONLY
    max_messages: int | None = None
    max_token_estimate: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.compress):
            raise DefinitionError(f"context_compression.compress must be callable, got {self.compress!r}")
        if self.max_messages is None and self.max_token_estimate is None:
            raise DefinitionError("context_compression needs max_messages or max_token_estimate")
        for name in ("max_messages", "max_token_estimate"):
            if getattr(self, name) is not None:
                check_count(f"context_compression.{name}", getattr(self, name), 1)

    def applies_to(self, messages: Sequence[Message]) -> bool:
        if self.max_messages is not None and len(messages) > self.max_messages:
            return True
        limit = self.max_token_estimate
        return limit is not None and sum(map(_characters, messages)) / 4 > limit


_IMAGE = 6_000  # a picture counts as this many characters, some 1,500 tokens


def _characters(message: Message) -> int:
    """Return the size of a message in a model's context, in characters."""
    calls = sum(len(call.name) + len(to_json(call.arguments)) for call in message.tool_calls or ())
    thoughts = 0 if message.reasoning is None else len(to_json(message.reasoning.blocks))
    return len(message.content) + calls + thoughts + _IMAGE * len(message.images or ())


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The limits of a run.

    Args:
        max_iterations: model calls per run.
        on_stuck: what to do when `stuck_threshold` iterations in a row lacked a successful tool call: "stop" ends the
            run, "retry" nudges the model `stuck_retries` times first, "escalate" asks a person.
        stuck_threshold: 0 turns stuck detection off.
        on_unknown: what to do when it is unknown whether a call with effects happened: "tell" informs the model, "ask"
            asks a person first; the answer becomes the result of the call.
        answer_timeout: how long a question or a pause waits for a person on Temporal, and in both drivers a call that
            needs approval, unless its approval has its own timeout: seconds, a text like "30d", or None for ever. Then
            a question is answered with an error that the model reads (the durability error for a call of unknown
            outcome), and a paused run ends.
        checkpoint_interval: `run_streaming` yields a checkpoint every so many iterations.
        max_tool_concurrency: parallel tool calls at once.
        max_tool_calls: per turn; the model reads that further calls were refused.
        output_retries: how often a model whose answer does not fit the agent's `output`, or is refused by a validator,
            gets the reason and answers again; each time is an iteration. With 0 the run ends with "error" at once.
        max_message_bytes: size of one message: a longer answer of the model is cut, a longer tool result is lost with
            an error, a longer user message is refused.
        token_budget: a `TokenBudget`, or its `max`.
        cost_budget: US dollars that a run may cost, including nested agents, counted after every model call. It applies
            where adapters know their cost (`Usage.cost`).
        session_cost_budget, session_token_budget: the same for all runs of a session together, as in `Session.usage`.
            In process, an agent that another agent runs has no session, so they limit its run.
        on_budget: what to do when a budget is spent: "end" ends the run, "ask" pauses it on Temporal, until a person
            grants the same amount again. In process, and in an agent that another agent runs, the run always ends.
        model_retry: how a model call is retried after a transient error, such as status 429, 5xx, or no connection; a
            provider's `Retry-After` takes precedence. By default there are eight attempts, 1 s apart, then 2 s, up to
            60 s; then a run on Temporal pauses. With a policy given here, the run ends with an error after its last
            attempt, as in process.
        on_model_outage: how such a pause ends: "retry" calls the model again automatically, first after about a minute
            and then at growing intervals, up to some 15 minutes, until `answer_timeout` has passed; before that, a
            person can resume the run or let it give up. "pause" waits only for a person.
    """

    max_iterations: int = 20
    on_stuck: OnStuck = "stop"
    stuck_threshold: int = 3
    stuck_retries: int = 1
    on_unknown: OnUnknown = "tell"
    answer_timeout: Duration | None = "30d"
    checkpoint_interval: int = 5
    max_tool_concurrency: int = 5
    max_tool_calls: int = 64
    output_retries: int = 1
    max_message_bytes: int = 10 * 1024 * 1024
    token_budget: TokenBudget | int | None = None
    cost_budget: float | None = None
    session_token_budget: int | None = None
    session_cost_budget: float | None = None
    on_budget: OnBudget = "end"
    diminishing_returns: DiminishingReturns | None = None
    context_compression: ContextCompression | None = None
    model_retry: RetryPolicy = MODEL_RETRY
    on_model_outage: OnModelOutage = "retry"

    def __post_init__(self) -> None:
        for name, least in (
            ("max_iterations", 1),
            ("stuck_threshold", 0),
            ("stuck_retries", 0),
            ("checkpoint_interval", 1),
            ("max_tool_concurrency", 1),
            ("max_tool_calls", 1),
            ("output_retries", 0),
            ("max_message_bytes", 1_024),
        ):
            check_count(f"loop.{name}", getattr(self, name), least)
        check_choice("loop.on_stuck", self.on_stuck, ("stop", "retry", "escalate"))
        check_choice("loop.on_budget", self.on_budget, ("end", "ask"))
        check_choice("loop.on_model_outage", self.on_model_outage, ("retry", "pause"))
        check_choice("loop.on_unknown", self.on_unknown, ("tell", "ask"))
        if self.answer_timeout is not None:
            object.__setattr__(self, "answer_timeout", seconds(self.answer_timeout, "loop.answer_timeout"))
        for name in ("cost_budget", "session_cost_budget"):
            cost = getattr(self, name)
            if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not cost > 0):
                raise DefinitionError(f"loop.{name} must be US dollars above 0, got {cost!r}")
        if self.session_token_budget is not None:
            check_count("loop.session_token_budget", self.session_token_budget, 1)
        if isinstance(self.token_budget, int):
            object.__setattr__(self, "token_budget", TokenBudget(self.token_budget))
        for name, kind in (
            ("token_budget", TokenBudget),
            ("diminishing_returns", DiminishingReturns),
            ("context_compression", ContextCompression),
            ("model_retry", RetryPolicy),
        ):
            if getattr(self, name) is None and name != "model_retry":
                continue
            if not isinstance(getattr(self, name), kind):
                raise DefinitionError(f"loop.{name} must be a {kind.__name__}, got {getattr(self, name)!r}")

    @property
    def answer_seconds(self) -> float | None:
        """The `answer_timeout` in seconds; None for ever."""
        return cast("float | None", self.answer_timeout)

    @property
    def has_budget(self) -> bool:
        """Whether anything limits the usage of a run."""
        return self.token_budget is not None or self.cost_budget is not None or self.has_session_budget

    @property
    def has_session_budget(self) -> bool:
        return self.session_token_budget is not None or self.session_cost_budget is not None

    @property
    def budget(self) -> TokenBudget | None:
        return cast("TokenBudget | None", self.token_budget)
