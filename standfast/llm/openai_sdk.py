"""An adapter for OpenAI's models, which uses their Responses API and the official SDK."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from standfast.errors import InputError
from standfast.events import ReasoningDelta
from standfast.extras import MissingExtraError, install
from standfast.llm import responses
from standfast.llm.answer_limits import AnswerLimits
from standfast.llm.json_tool_calls import reply_schema
from standfast.llm.prices import Meter, Price
from standfast.llm.protocol import ToolDescription
from standfast.llm.reasoning import ThoughtPieces
from standfast.llm.sdk_adapter import SDKAdapter, ToolMode, options_of, read_body, refused
from standfast.llm.strict_schemas import held_schema
from standfast.messages import JSONObject, LLMResponse, Message
from standfast.tools import Duration, HostedTool

if TYPE_CHECKING:
    import openai


_PLACE = ("output_index", "summary_index")  # of a piece of a thought

# Models without thoughts: they refuse requests for them. For other models, the provider tells.
_WITHOUT_THOUGHTS = re.compile(r"(ft:)?(gpt-3|gpt-4|chatgpt)|gpt-5(\.\d+)?-chat")


class OpenAIResponses(SDKAdapter):
    """Calls one of OpenAI's models through the Responses API, the only one that accepts its thoughts back.

    Args:
        api_key: by default `OPENAI_API_KEY`.
        base_url: by default `OPENAI_BASE_URL`, or else OpenAI's address.
        tool_mode: "native", or "json" for a model that calls tools poorly; see `OpenAICompatible`.
        timeout: seconds after which a call fails; seconds of silence, if its answer is streamed.
        price: the price of its tokens; by default from the library `genai-prices`, if it is installed.
        limits: how much of an answer is read, and for how long.
        client: makes the requests; its creator bounds and closes it. Without one, every call opens a connection.

    Raises:
        DefinitionError: the key is missing, or a setting is unusable.
        ImportError: the SDK is not installed.
    """

    provider, _name = responses.PROVIDER, "OpenAI"
    hosts, _default = responses.PROVIDER, "https://api.openai.com/v1"

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        tool_mode: ToolMode = "native",
        timeout: Duration = 600,
        price: Price | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008  # it is frozen
        client: "openai.AsyncOpenAI | None" = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError(f"Models of OpenAI need its SDK: {install('openai')}") from error
        self._sdk = openai
        options = options_of("openai", "OPENAI_API_KEY", api_key, base_url, timeout, client)
        super().__init__(model, tool_mode, price, limits, client, options)
        self._thinks = _WITHOUT_THOUGHTS.match(model) is None

    def _held(self, schema: Mapping[str, Any]) -> JSONObject | None:
        held = held_schema(schema, recursive=True)
        if held is not None:
            return {"type": "json_schema", "name": "output", "schema": held, "strict": True}
        if schema.get("type") != "object":
            return None
        return {"type": "json_schema", "name": "output", "schema": schema, "strict": False}

    def _reply(self, tools: Sequence[ToolDescription]) -> JSONObject | None:
        return {"type": "json_schema", "name": "reply", "schema": reply_schema(tools), "strict": False}

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDescription],
        settings: Mapping[str, Any],
        output: JSONObject | None,
        hosted: Sequence[HostedTool],
    ) -> JSONObject:
        body = responses.request(
            self.model, messages, tools, settings, output=output, thoughts=self._thinks, hosted=hosted
        )
        return {"model": body.pop("model"), "input": body.pop("input"), "extra_body": body}

    async def _answer(self, request: JSONObject, meter: Meter) -> LLMResponse:
        async with self._client(self._sdk.AsyncOpenAI) as client:
            raw = await self._opened(self._asked(client.responses.with_raw_response.create, request))
        body = read_body(raw.content)
        meter.note(responses.usage_of(body.get("usage")))
        return responses.response(self._whole(body))

    async def _parts(
        self, request: JSONObject, meter: Meter
    ) -> AsyncGenerator[str | ReasoningDelta | LLMResponse, None]:
        whole, thoughts = None, ThoughtPieces()
        async with self._client(self._sdk.AsyncOpenAI) as client, AsyncExitStack() as opened:
            ask = partial(client.responses.with_streaming_response.create, stream=True)
            raw = await self._opened(self._asked(lambda **asked: opened.enter_async_context(ask(**asked)), request))
            async with aclosing(self._events(raw)) as found:
                async for event in found:
                    if isinstance(begun := event.get("response"), dict):
                        meter.note(responses.usage_of(begun.get("usage")))
                    match event:
                        case {"type": "response.output_text.delta" | "response.refusal.delta", "delta": str(text)}:
                            yield text
                        case {
                            "type": "response.reasoning_summary_text.delta" | "response.reasoning_text.delta",
                            "delta": str(text),
                        }:
                            for piece in thoughts.piece(text, [event.get(name) for name in _PLACE]):
                                yield piece
                        case {
                            "type": "response.completed" | "response.incomplete" | "response.failed",
                            "response": dict(body),
                        }:
                            whole = body
        yield responses.response(self._whole(whole))

    async def _asked(self, ask: Callable[..., Awaitable[Any]], request: dict[str, Any]) -> Any:
        """Make a request; if the provider refuses thoughts, which costs nothing, repeat it without them.

        A model without thoughts is not asked for them again. Unreadable thoughts concern only this conversation.
        """
        try:
            return await ask(**request)
        except self._sdk.BadRequestError as error:
            words = error.message.lower()
            if not self._thinks or "encrypted" not in words:
                raise
            self._thinks = "not supported" not in words
        return await ask(**responses.without_thoughts(request))

    def _whole(self, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if body is None:
            raise InputError("the stream ended before the answer was complete")
        if body.get("error"):
            raise refused(self._who, body, secrets=self._secrets)
        return body
