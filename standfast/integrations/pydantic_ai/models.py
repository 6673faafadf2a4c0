"""Asks a pydantic-ai model for each answer of a turn once: an answer is stored before the run continues."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.durable_exec import record_durable_unit
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from standfast.integrations.pydantic_ai.conversations import Turn

Keep = Callable[[ModelResponse], Awaitable[None]]


class JournaledModel(WrapperModel):
    """A model whose answers are stored in the journal of a turn, and come from there when the turn is repeated."""

    def __init__(self, wrapped: Model, turn: Turn, ctx: RunContext[Any]) -> None:
        super().__init__(wrapped)
        self._turn, self._ctx = turn, ctx

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        keep, response = await self._begin()
        if response is None:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            await keep(response)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        keep, response = await self._begin()
        if response is not None:
            yield CompletedStreamedResponse(
                response, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        async with self.wrapped.request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            yield KeptStream(model_request_parameters, stream, keep)

    async def _begin(self) -> tuple[Keep, ModelResponse | None]:
        """Return the function that stores the turn's next answer, and the answer, if it is already stored."""
        place, said = self._turn.next_request(self._ctx.run_step), self._ctx.messages
        response = await self._turn.load_answer(place, said)
        record_durable_unit(executed=response is None)
        return partial(self._turn.keep_answer, place, messages=said), response


class KeptStream(StreamedResponse):
    """A stream that ends only when its response is stored: calls in it must not run earlier."""

    def __init__(self, parameters: ModelRequestParameters, stream: StreamedResponse, keep: Keep) -> None:
        super().__init__(parameters)
        self._stream, self._keep = stream, keep
        self._events: AsyncIterator[ModelResponseStreamEvent] | None = None

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        if self._events is None:
            self._events = self._get_event_iterator()
        return self._events

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in self._stream:
            self.final_result_event = self._stream.final_result_event
            yield event
        response = self._stream.get()
        if response.state in ("complete", "suspended"):
            await self._keep(response)

    def get(self) -> ModelResponse:
        return self._stream.get()

    async def cancel(self) -> None:
        await self._stream.cancel()

    async def close_stream(self) -> None:
        await self._stream.close_stream()

    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        found: tuple[type[BaseException], ...] = self._stream.get_stream_cancel_errors()
        return found

    @property
    def cancelled(self) -> bool:
        found: bool = self._stream.cancelled
        return found

    @property
    def usage(self) -> RequestUsage:
        return self._stream.usage

    @property
    def model_name(self) -> str:
        found: str = self._stream.model_name
        return found

    @property
    def provider_name(self) -> str | None:
        found: str | None = self._stream.provider_name
        return found

    @property
    def provider_url(self) -> str | None:
        found: str | None = self._stream.provider_url
        return found

    @property
    def timestamp(self) -> datetime:
        found: datetime = self._stream.timestamp
        return found
