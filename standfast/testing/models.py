"""A model with scripted answers."""

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from standfast.events import ReasoningDelta
from standfast.llm import ToolDescription
from standfast.llm.reasoning import spoken
from standfast.messages import LLMResponse, Message

Answer = LLMResponse | Mapping[str, Any] | str | BaseException


class ModelCall(NamedTuple):
    """One call of the model."""

    messages: list[Message]
    tools: list[ToolDescription]
    settings: dict[str, Any]


class ScriptedModel:
    """An adapter that answers by script and records its calls in `calls`.

    Args:
        script: answers in order, or a function of (messages, tools), plain or async. An answer is an `LLMResponse`, a
            dict of its keys, a text, or an exception, which is raised. A function is called every time, so it can
            answer a resumed run based on its transcript.
    """

    def __init__(
        self,
        script: Iterable[Answer] | Callable[[list[Message], list[ToolDescription]], Answer | Awaitable[Answer]],
    ) -> None:
        if isinstance(script, str | Mapping | LLMResponse):
            raise TypeError(f"ScriptedModel needs a list of answers or a function, got {script!r}")
        self.calls: list[ModelCall] = []
        self._answer = script if callable(script) else None
        self._answers = [] if callable(script) else list(script)

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        call = ModelCall(list(messages), list(tools), settings)
        self.calls.append(call)
        answer = await self._next(call)
        if isinstance(answer, BaseException):
            raise answer
        return LLMResponse(text=answer) if isinstance(answer, str) else LLMResponse.read(answer)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | ReasoningDelta | LLMResponse]:
        """Yield the thoughts and the text word by word, then the whole answer."""
        answer = await self.chat(messages, tools, **settings)
        for part in spoken(answer):
            for piece in re.findall(r"\S+\s*|\s+", part if isinstance(part, str) else part.text):
                yield piece if isinstance(part, str) else ReasoningDelta(piece)
        yield answer

    async def _next(self, call: ModelCall) -> Answer:
        if self._answer is not None:
            answer = self._answer(call.messages, call.tools)
            return await answer if inspect.isawaitable(answer) else answer
        if len(self.calls) > len(self._answers):
            raise AssertionError(f"ScriptedModel has {len(self._answers)} answers and was asked for another one")
        return self._answers[len(self.calls) - 1]
