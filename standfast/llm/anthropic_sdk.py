"""An adapter for Anthropic's models, which uses their Messages API and the official SDK."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

from standfast.events import ReasoningDelta
from standfast.extras import MissingExtraError, install
from standfast.llm import anthropic_messages
from standfast.llm.answer_limits import AnswerLimits
from standfast.llm.json_tool_calls import reply_schema
from standfast.llm.prices import Meter, Price
from standfast.llm.protocol import ToolDescription
from standfast.llm.reasoning import ThoughtPieces
from standfast.llm.sdk_adapter import SDKAdapter, ToolMode, options_of
from standfast.llm.strict_schemas import held_schema
from standfast.messages import JSONObject, LLMResponse, Message
from standfast.tools import Duration, HostedTool

if TYPE_CHECKING:
    import anthropic


VERSION = "2023-06-01"  # of the API
_PAUSES = 10  # of the provider, after which the answer is not continued
MAX_TOKENS = 8_192  # of an answer; the API requires a limit


class AnthropicMessages(SDKAdapter):
    """Calls one of Anthropic's models.

    Args:
        api_key: by default `ANTHROPIC_API_KEY`.
        base_url: by default `ANTHROPIC_BASE_URL`, or else Anthropic's address.
        cache: let the provider keep the beginning of a request, so that the next turn reads it at a tenth of the price.
        timeout: seconds of silence after which a call fails.
        tool_mode, price, limits, client: as in `OpenAIResponses`.

    An answer has at most 8,192 tokens, not counting thinking tokens, unless the agent's settings have `max_tokens`.
    Answers are always streamed: a long answer is then not silent, and its cost is known even after a timeout.

    Raises:
        DefinitionError: the key is missing, or a setting is unusable.
        ImportError: the SDK is not installed.
    """

    provider, _name = anthropic_messages.PROVIDER, "Anthropic"
    hosts, _default = anthropic_messages.PROVIDER, "https://api.anthropic.com"

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        cache: bool = True,
        tool_mode: ToolMode = "native",
        timeout: Duration = 120,
        price: Price | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008  # it is frozen
        client: "anthropic.AsyncAnthropic | None" = None,
    ) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise MissingExtraError(f"Models of Anthropic need its SDK: {install('anthropic')}") from error
        self._sdk = anthropic
        options = options_of("anthropic", "ANTHROPIC_API_KEY", api_key, base_url, timeout, client)
        # The version of our format, and its documented header for keys: an SDK may have moved on.
        headers = {"anthropic-version": VERSION, "X-Api-Key": options["api_key"], "Authorization": anthropic.Omit()}
        super().__init__(model, tool_mode, price, limits, client, {**options, "default_headers": headers})
        self._cache = cache

    def _held(self, schema: Mapping[str, Any]) -> JSONObject | None:
        held = held_schema(schema, recursive=False)
        # Anthropic's models know only some of a schema's limits; the SDK puts the rest into words.
        return None if held is None else {"type": "json_schema", "schema": self._sdk.transform_schema(held)}

    def _reply(self, tools: Sequence[ToolDescription]) -> JSONObject | None:
        if any(held_schema(tool.input_schema, recursive=False) is None for tool in tools):
            return None
        return {"type": "json_schema", "schema": self._sdk.transform_schema(reply_schema(tools))}

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDescription],
        settings: Mapping[str, Any],
        output: JSONObject | None,
        hosted: Sequence[HostedTool],
    ) -> JSONObject:
        body = anthropic_messages.request(
            self.model,
            messages,
            tools,
            settings,
            output=output,
            max_tokens=MAX_TOKENS,
            cache=self._cache,
            hosted=hosted,
        )
        own = {name: body.pop(name) for name in ("model", "max_tokens", "messages")}
        return {**own, "extra_body": body}

    async def _answer(self, request: JSONObject, meter: Meter) -> LLMResponse:
        async with aclosing(self._parts(request, meter)) as parts:
            (answer,) = [part async for part in parts if isinstance(part, LLMResponse)]
        return answer

    async def _parts(
        self, request: JSONObject, meter: Meter
    ) -> AsyncGenerator[str | ReasoningDelta | LLMResponse, None]:
        clock = asyncio.get_running_loop().time
        late, whole, pauses, thoughts = clock() + self._limits.max_seconds / 2, None, 0, ThoughtPieces()
        async with self._client(self._sdk.AsyncAnthropic) as client:
            while True:
                answer = anthropic_messages.AnswerSoFar(thoughts)
                async with AsyncExitStack() as opened:
                    asked = client.messages.with_streaming_response.create(stream=True, **request)
                    raw = await self._opened(opened.enter_async_context(asked))
                    async with aclosing(self._events(raw)) as found:
                        async for event in found:
                            pieces = answer.add(event)
                            meter.note(anthropic_messages.usage_of(whole, answer))
                            for piece in pieces:
                                yield piece
                body = answer.body()
                whole = anthropic_messages.together(whole, body)
                if body.get("stop_reason") != "pause_turn" or pauses == _PAUSES or clock() > late:
                    break
                pauses += 1
                request = _going_on(request, body)
        yield anthropic_messages.response(whole)


def _going_on(request: Mapping[str, Any], body: Mapping[str, Any]) -> JSONObject:
    """Return the request that continues a paused answer; the provider pauses when its own tools take long."""
    container = (body.get("container") or {}).get("id")
    extra = {**request["extra_body"], **({"container": container} if container else {})}
    return {
        **request,
        "messages": anthropic_messages.continued(request["messages"], body),
        "extra_body": extra,
    }
