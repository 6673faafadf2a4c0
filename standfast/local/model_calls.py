"""Calls the model of a run: selects the visible part of the transcript, and streams the answer."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from standfast.agent_loop import CallModel, in_call_order, with_notices, withholds
from standfast.agents import Agent
from standfast.errors import ModelError
from standfast.events import Event, ModelFailed, ModelRetried, ReasoningDelta, TextDelta, TurnEnded, TurnStarted
from standfast.llm import LLM, LLMAdapter, ToolDescription
from standfast.llm.provider_errors import retry_delay
from standfast.llm.providers import named, settings_for
from standfast.messages import LLMResponse, Message, Usage, error_text
from standfast.runtime.model_answers import CANCELLED_WITHIN, answer, compressed, note_cost, noting_cut
from standfast.runtime.tasks import OwnCancels

_LOG = logging.getLogger("standfast")


class ModelCalls:
    """The model calls of a run.

    Notices and compression change only the view. The stored transcript stays whole.
    """

    def __init__(
        self,
        agent: Agent,
        llm: LLM | None,
        tools: Sequence[ToolDescription],
        emit: Callable[[Event], None] | None,
        max_answer_tokens: int | None = None,
    ) -> None:
        self.compressions = 0
        self._max_answer_tokens = max_answer_tokens
        self._llm, self._agent = llm, agent
        self._tools, self._adapters = tools, self._adapters_of(agent)
        self._view: list[Message] = []
        self._unpriced: set[tuple[str, str]] = set()
        self._emit = emit
        self._cut_off: Usage | None = None  # usage of answers that were cut off, until the next one has it

    def let_speak(self, agent: Agent, tools: Sequence[ToolDescription]) -> None:
        """From now on, call the model of this agent with these tools."""
        if agent is not self._agent:
            self._agent, self._adapters = agent, self._adapters_of(agent)
        self._tools = tools

    def _adapters_of(self, agent: Agent) -> dict[str | None, LLMAdapter]:
        return {model: named(self._llm, agent, model) for model in (None, *agent.fallback_models)}

    def prompt(self, text: str) -> None:
        """Replace the system prompt."""
        self._view[0] = Message(role="system", content=text)

    def show(self, messages: list[Message]) -> None:
        """Start with these messages: the system prompt, then the transcript."""
        self._view = messages

    def put_in_order(self) -> None:
        """Move late results to their calls."""
        self._view = in_call_order(self._view)

    def add(self, messages: Sequence[Message]) -> None:
        self._view.extend(messages)

    def begin(self, action: CallModel, turn: int) -> None:
        """Announce that a turn begins."""
        if self._emit is not None:
            model = action.model or self._agent.model
            self._emit(TurnStarted(turn, model if isinstance(model, str) else None, action.agent or None))

    async def ask(self, action: CallModel) -> LLMResponse:
        """Return the model's answer, or raise the error that prevents it."""
        budget = self._agent.loop.budget
        warning = None if budget is None or action.warning is None else budget.warning(action.warning)
        self._view = with_notices(self._view, warning, action.nudge)
        with OwnCancels(ModelError, CANCELLED_WITHIN):
            await self._compress()
            has_fallback = self._agent.model_after(action.model) is not None
            response = await self._call_with_retries(self._adapters[action.model], has_fallback)
        note_cost(self._agent, action.model, response, self._unpriced)
        return response

    def ended(self, turn: int, message: Message) -> None:
        """Emit an answer once its calls have their ids."""
        if self._emit is not None:
            thoughts = None if message.reasoning is None else message.reasoning.text or None
            if withholds(self._agent):
                if thoughts is not None:
                    self._emit(ReasoningDelta(thoughts))
                if message.content:
                    self._emit(TextDelta(message.content))
            self._emit(
                TurnEnded(
                    turn,
                    message.content,
                    message.tool_calls or (),
                    message.usage,
                    thoughts=thoughts,
                    hosted=message.hosted,
                    citations=message.citations,
                )
            )

    def failed(self, turn: int, error: Exception) -> None:
        if self._emit is not None:
            self._emit(ModelFailed(turn, error_text(error)))

    async def _call_with_retries(self, adapter: LLMAdapter, has_fallback: bool) -> LLMResponse:
        """Call the model, and retry if that may help."""
        attempt = 1
        while True:
            try:
                return await self._call(adapter, list(self._view))  # the adapter may keep or change its list
            except Exception as error:
                delay = retry_delay(error, self._agent.loop.model_retry, attempt, has_alternative=has_fallback)
                if delay is None:
                    raise
                _LOG.warning("Agent %s: the model is called again in %g s: %s", self._agent.name, delay, error)
                if self._emit is not None:
                    self._emit(ModelRetried(error_text(error), delay))
            await asyncio.sleep(delay)
            attempt += 1

    async def _call(self, adapter: LLMAdapter, view: list[Message]) -> LLMResponse:
        settings = settings_for(adapter, self._agent, self._max_answer_tokens)
        tell = None if withholds(self._agent) else self._emit
        asking = answer(adapter, view, self._tools, settings, tell, self._agent.loop.max_message_bytes)
        return (await noting_cut(asking, self._note_cut)).after(self.take_cut_off())

    def _note_cut(self, used: Usage) -> None:
        self._cut_off = used + self._cut_off

    def take_cut_off(self) -> Usage | None:
        """Return the usage of answers that were cut off and that no answer followed; it is counted once."""
        used, self._cut_off = self._cut_off, None
        return used

    async def _compress(self) -> None:
        shorter = await compressed(self._agent.loop.context_compression, self._view[1:])
        if shorter is not None:
            self._view = [self._view[0], *shorter]
            self.compressions += 1
