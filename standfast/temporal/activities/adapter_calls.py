"""Calls the adapter of a model, and turns its errors into failures of the activity."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.agent_loop import with_notices
from standfast.agents import Agent, AgentContext
from standfast.errors import ModelError, StandfastError
from standfast.events import AnswerDelta
from standfast.llm import LLMAdapter, ToolDescription
from standfast.llm.provider_errors import asked_to_wait, may_pass, retry_delay
from standfast.llm.providers import settings_for
from standfast.messages import LLMResponse, Message, cut, error_text
from standfast.runtime.cancellation import cancelled_within
from standfast.runtime.model_answers import CANCELLED_WITHIN, answer
from standfast.temporal.activities.dependencies import run_with_deps
from standfast.temporal.activities.transcripts import Transcript
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import ModelReference


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
    with cancelled_within(ModelError(CANCELLED_WITHIN)):
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
