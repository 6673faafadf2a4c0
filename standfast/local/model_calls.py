"""Calls the model of a run: what it sees of the transcript, how its answer is streamed, when the view is shortened."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from standfast.agent_loop import CallModel, in_call_order, with_notices
from standfast.agents import Agent, ContextCompression
from standfast.errors import ModelError, StandfastError
from standfast.extras import install
from standfast.llm import LLM, LLMAdapter, StreamingLLMAdapter, ToolDescription, named, settings_for
from standfast.llm.provider_errors import retry_delay
from standfast.local.cancellation import Cancellation
from standfast.local.events import Event, ModelRetried, TextDelta
from standfast.messages import LLMResponse, Message, clean_text, error_text

_LOG = logging.getLogger("standfast")


class ModelCalls:
    """The model's side of a run.

    Notices and compression change the view alone: what is
    stored stays whole.
    """

    def __init__(
        self,
        agent: Agent,
        llm: LLM | None,
        tools: Sequence[ToolDescription],
        emit: Callable[[Event], None] | None,
    ) -> None:
        self.compressions = 0
        self._agent = agent
        self._adapters = {model: named(llm, agent, model) for model in (None, *agent.fallback_models)}
        self._tools = tools
        self._view: list[Message] = []
        self._unpriced: set[tuple[str, str]] = set()
        self._emit = emit

    def show(self, messages: list[Message]) -> None:
        """Begin with these: the system prompt, then the transcript."""
        self._view = messages

    def put_in_order(self) -> None:
        """Results that came late stand where their calls do."""
        self._view = in_call_order(self._view)

    def add(self, messages: Sequence[Message]) -> None:
        self._view.extend(messages)

    async def ask(self, action: CallModel) -> LLMResponse:
        """Return the model's answer; raises whatever keeps it from answering."""
        budget = self._agent.loop.budget
        warning = None if budget is None or action.warning is None else budget.warning(action.warning)
        self._view = with_notices(self._view, warning, action.nudge)
        cancellation = Cancellation()
        try:
            await self._compress()
            has_fallback = self._agent.model_after(action.model) is not None
            answer = await self._patiently(self._adapters[action.model], has_fallback)
        except asyncio.CancelledError as error:
            if cancellation.requested():
                raise
            raise ModelError("The model call was cancelled from within") from error
        note_cost(self._agent, action.model, answer, self._unpriced)
        return answer

    async def _patiently(self, adapter: LLMAdapter, has_fallback: bool) -> LLMResponse:
        """Ask, and ask again where that may help."""
        attempt = 1
        while True:
            try:
                return await self._call(adapter, list(self._view))  # the adapter's own list: it may keep or change it
            except Exception as error:
                delay = retry_delay(error, self._agent.loop.model_retry, attempt, has_fallback=has_fallback)
                if delay is None:
                    raise
                _LOG.warning("Agent %s: the model is asked again in %g s: %s", self._agent.name, delay, error)
                if self._emit is not None:
                    self._emit(ModelRetried(error_text(error), delay))
            await asyncio.sleep(delay)
            attempt += 1

    async def _call(self, adapter: LLMAdapter, view: list[Message]) -> LLMResponse:
        settings = settings_for(adapter, self._agent)
        if (emit := self._emit) is None:
            return await chat(adapter, view, self._tools, settings)
        return await streamed(adapter, view, self._tools, settings, lambda text: emit(TextDelta(text)))

    async def _compress(self) -> None:
        shorter = await compressed(self._agent.loop.context_compression, self._view[1:])
        if shorter is not None:
            self._view = [self._view[0], *shorter]
            self.compressions += 1


def note_failure(agent: Agent, model: str | None, error: Exception) -> None:
    """Log why a model could not be called; with a traceback where it is no provider's fault."""
    after, trace = agent.model_after(model), None if isinstance(error, ModelError | OSError) else error
    which = model or agent.model or "its model"
    then = "" if after is None else f"; next is {after}"
    _LOG.warning("Agent %s: %s could not be called: %s%s", agent.name, which, error_text(error), then, exc_info=trace)


def note_cost(agent: Agent, model: str | None, response: LLMResponse, noted: set[tuple[str, str]]) -> None:
    """Log, once, that a budget in dollars does not act, since nobody knows what the model costs."""
    loop, usage = agent.loop, response.usage
    if (loop.cost_budget, loop.session_cost_budget) == (None, None) or response.cost is not None:
        return
    which = model or agent.model or "its model"
    if (usage is None or usage.cost is None) and (agent.name, which) not in noted:
        noted.add((agent.name, which))
        text = f"Agent %s has a cost budget, but what %s costs is not known: {install('prices')} or give price="
        _LOG.warning(text, agent.name, which)


async def chat(
    adapter: LLMAdapter, view: list[Message], tools: Sequence[ToolDescription], settings: Mapping[str, Any]
) -> LLMResponse:
    """Return an adapter's answer.

    Raises:
        ModelError: its `chat` is not async, or returns no answer.
    """
    answer: Any = adapter.chat(view, tools, **settings)
    if not isinstance(answer, Awaitable):
        raise ModelError(f"{type(adapter).__name__}.chat must be async: write `async def chat`")
    return LLMResponse.read(await answer)


async def streamed(
    adapter: LLMAdapter,
    view: list[Message],
    tools: Sequence[ToolDescription],
    settings: Mapping[str, Any],
    tell: Callable[[str], None],
) -> LLMResponse:
    """Return an adapter's answer as `chat` does, and tell its text as it comes; at its end, if the adapter cannot."""
    if not isinstance(adapter, StreamingLLMAdapter):
        response = await chat(adapter, view, tools, settings)
        if response.text:
            tell(clean_text(response.text))
        return response
    answer: LLMResponse | Mapping[str, Any] | None = None
    parts = adapter.stream(view, tools, **settings)
    try:
        async for part in parts:
            if isinstance(part, str):
                tell(clean_text(part))
            else:
                answer = part
    finally:
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()
    if answer is None:
        raise StandfastError("The adapter's stream ended without the whole answer as its last value")
    return LLMResponse.read(answer)


async def compressed(rule: ContextCompression | None, messages: Sequence[Message]) -> list[Message] | None:
    """Return what is shown in the place of `messages`; None where they are not too many.

    Raises:
        ModelError: the rule returned something that cannot be shown.
    """
    if rule is None or not rule.applies_to(messages):
        return None
    result = rule.compress(tuple(messages))
    shorter = await result if isinstance(result, Awaitable) else result
    if not shorter:
        raise ModelError("Context compression returned empty message array")
    if not all(isinstance(message, Message) for message in shorter):
        raise ModelError("Context compression must return messages")
    return list(shorter)
