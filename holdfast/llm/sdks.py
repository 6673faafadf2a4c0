"""Adapters on the providers' own SDKs, which are imported when an adapter is made, and not before.

One request per call: the SDKs' retries are off. Whether a failed one is made again is for the driver to decide, by what
`ModelError` says of it. A request says what our formats say, and an answer is read as the JSON that it is: the SDKs
carry both, and know their streams.
"""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import DefinitionError, InputError, ModelError
from holdfast.llm import anthropic_messages, responses
from holdfast.llm.json_tool_calls import plain_messages, read_reply, reply_schema
from holdfast.llm.prices import Price, check_price, priced
from holdfast.llm.refusals import refusal
from holdfast.messages import LLMResponse, Message, cut, error_text

if TYPE_CHECKING:
    import anthropic
    import openai

    from holdfast.llm import ToolDescription  # the package exports these adapters

ToolMode = Literal["native", "json"]
VERSION = "2023-06-01"  # of Anthropic's API
MAX_TOKENS = 8_192  # of an answer of Anthropic's models, which must be told

# What providers call an error in a stream, or in one that has status 200, as a status.
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 402,
    "api_error": 500, "server_error": 500, "overloaded_error": 529, "context_length_exceeded": 413,
}  # fmt: skip


class _SDKAdapter:
    """What the adapters on SDKs share; each says what a request is, and how it is made."""

    native_output = True
    _provider: str
    _name: str
    _sdk: Any

    def __init__(self, model: str, tool_mode: ToolMode, price: Price | None, client: Any, options: Any) -> None:
        check_tool_mode(tool_mode)
        check_price(price)
        self.model = model
        self._tool_mode, self._price = tool_mode, price
        self._given, self._options = client, options

    async def chat(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", **settings: Any
    ) -> LLMResponse:
        """Answer a conversation.

        Raises:
            ModelError: the provider could not be reached, refused, or sent what is no answer.
            InputError: the conversation cannot be written for it.
        """
        request = self._request(messages, tools, settings)
        with errors_of(self._sdk, self._who):
            answer = self._priced(await self._answer(request))
        return read_reply(answer) if self._in_json(tools) else answer

    async def stream(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", **settings: Any
    ) -> AsyncIterator[str | LLMResponse]:
        """Yield pieces of the text, and the whole answer as the last value; raises as `chat` does.

        An answer that is a JSON object has no pieces worth showing and comes as one.
        """
        if self._in_json(tools):
            answer = await self.chat(messages, tools, **settings)
            if answer.text:
                yield answer.text
            yield answer
            return
        request = self._request(messages, tools, settings)
        with errors_of(self._sdk, self._who):
            async with aclosing(self._parts(request)) as parts:
                async for part in parts:
                    yield self._priced(part) if isinstance(part, LLMResponse) else part

    def _request(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        if not self._in_json(tools):
            return self._body(messages, tools, settings)
        return self._body(as_text(messages, tools), (), {**settings, "output_schema": reply_schema(tools)})

    def _body(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        raise NotImplementedError

    async def _answer(self, request: dict[str, Any]) -> LLMResponse:
        raise NotImplementedError

    def _parts(self, request: dict[str, Any]) -> AsyncGenerator[str | LLMResponse, None]:
        raise NotImplementedError

    def _in_json(self, tools: "Sequence[ToolDescription]") -> bool:
        return self._tool_mode == "json" and bool(tools)

    def _priced(self, answer: LLMResponse) -> LLMResponse:
        return priced(answer, provider=self._provider, model=self.model, price=self._price)

    def _client(self, make: Callable[..., Any]) -> "AbstractAsyncContextManager[Any]":
        return make(**self._options) if self._given is None else nullcontext(self._given)

    @property
    def _who(self) -> str:
        return f"Model '{self.model}' of {self._name}"


class OpenAIResponses(_SDKAdapter):
    """Calls one of OpenAI's models by their Responses, the only form in which they take their thoughts back.

    Args:
        api_key: of `OPENAI_API_KEY` by default.
        base_url: of OpenAI by default, or of `OPENAI_BASE_URL`.
        tool_mode: "native", or "json" for a model that calls tools poorly; see `OpenAICompatible`.
        timeout: seconds of silence after which a call fails.
        price: what its tokens cost; by the library `genai-prices` by default, if that is installed.
        client: makes the requests and is closed by whoever made it; without one every call opens a connection.

    Raises:
        DefinitionError: there is no key, or something else no request could be made with.
        ImportError: the SDK is not installed.
    """

    _provider, _name = responses.PROVIDER, "OpenAI"

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        tool_mode: ToolMode = "native",
        timeout: float = 120.0,
        price: Price | None = None,
        client: "openai.AsyncOpenAI | None" = None,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ImportError("Models of OpenAI need its SDK: pip install 'holdfast[openai]'") from error
        self._sdk = openai
        options = _options("openai", "OPENAI_API_KEY", api_key, base_url, timeout, client)
        super().__init__(model, tool_mode, price, client, options)

    def _body(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        body = responses.request(self.model, messages, tools, settings)
        return {"model": body.pop("model"), "input": body.pop("input"), "extra_body": body}

    async def _answer(self, request: dict[str, Any]) -> LLMResponse:
        async with self._client(self._sdk.AsyncOpenAI) as client:
            raw = await client.responses.with_raw_response.create(**request)
        return responses.response(self._whole(_read(raw.content)))

    async def _parts(self, request: dict[str, Any]) -> AsyncGenerator[str | LLMResponse, None]:
        whole = None
        async with (
            self._client(self._sdk.AsyncOpenAI) as client,
            await client.responses.create(**request, stream=True) as events,
        ):
            async for event in events:
                match event.type:
                    case "response.output_text.delta" | "response.refusal.delta":
                        yield event.delta
                    case "response.completed" | "response.incomplete" | "response.failed":
                        whole = event.response.to_dict(warnings=False)
                    case "error":
                        raise _refused(self._who, {"error": event.to_dict(warnings=False)})
        yield responses.response(self._whole(whole))

    def _whole(self, body: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if body is None:
            raise InputError("the stream ended before the answer was whole")
        if body.get("error"):
            raise _refused(self._who, body)
        return body


class AnthropicMessages(_SDKAdapter):
    """Calls one of Anthropic's models.

    Args:
        api_key: of `ANTHROPIC_API_KEY` by default.
        base_url: of Anthropic by default, or of `ANTHROPIC_BASE_URL`.
        cache: let the provider keep what a request begins with, so that the next turn reads it at a tenth of the price.
        tool_mode, timeout, price, client: as those of `OpenAIResponses`.

    An answer has at most 8,192 tokens, unless the agent's settings have `max_tokens`.

    Raises:
        DefinitionError: there is no key, or something else no request could be made with.
        ImportError: the SDK is not installed.
    """

    _provider, _name = anthropic_messages.PROVIDER, "Anthropic"

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        cache: bool = True,
        tool_mode: ToolMode = "native",
        timeout: float = 120.0,
        price: Price | None = None,
        client: "anthropic.AsyncAnthropic | None" = None,
    ) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise ImportError("Models of Anthropic need its SDK: pip install 'holdfast[anthropic]'") from error
        self._sdk = anthropic
        options = _options("anthropic", "ANTHROPIC_API_KEY", api_key, base_url, timeout, client)
        # The version that our format is of, and the header for keys that it documents: an SDK may have gone on.
        headers = {"anthropic-version": VERSION, "X-Api-Key": options["api_key"], "Authorization": anthropic.Omit()}
        super().__init__(model, tool_mode, price, client, {**options, "default_headers": headers})
        self._cache = cache

    def _body(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        if (schema := settings.get("output_schema")) is not None:  # of what they hold only a part is supported
            settings = {**settings, "output_schema": self._sdk.transform_schema(dict(schema))}
        body = anthropic_messages.request(
            self.model, messages, tools, settings, max_tokens=MAX_TOKENS, cache=self._cache
        )
        own = {name: body.pop(name) for name in ("model", "max_tokens", "messages")}
        return {**own, "extra_body": body}

    async def _answer(self, request: dict[str, Any]) -> LLMResponse:
        async with self._client(self._sdk.AsyncAnthropic) as client:
            raw = await client.messages.with_raw_response.create(**request)
            body = await raw.read()
        return anthropic_messages.response(_read(body))

    async def _parts(self, request: dict[str, Any]) -> AsyncGenerator[str | LLMResponse, None]:
        ended = False
        async with self._client(self._sdk.AsyncAnthropic) as client, client.messages.stream(**request) as events:
            async for event in events:
                if event.type == "text":
                    yield event.text
                ended = ended or event.type == "message_stop"
            if not ended:
                raise InputError("the stream ended before the answer was whole")
            whole = (await events.get_final_message()).to_dict(warnings=False)
        yield anthropic_messages.response(whole)


# --- what both need -----------------------------------------------------------------------------------------------


def check_tool_mode(tool_mode: object) -> None:
    if tool_mode not in ("native", "json"):
        raise DefinitionError(f"tool_mode must be 'native' or 'json', got {tool_mode!r}")


def _options(
    provider: str, variable: str, api_key: str | None, base_url: str | None, timeout: float, client: object
) -> dict[str, Any]:
    key = (api_key or os.environ.get(variable) or "").strip()  # read from a file, it ends with a line break
    if not key and client is None:
        raise DefinitionError(f"Provider '{provider}' has no key: set {variable}, or pass api_key=")
    return {"api_key": key, "base_url": base_url, "timeout": timeout, "max_retries": 0}


def as_text(messages: Sequence[Message], tools: "Sequence[ToolDescription]") -> list[Message]:
    """Return a conversation without tool calls, in which the tools are described."""
    return [Message(**message) for message in plain_messages(messages, tools)]


def _read(body: bytes) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"its answer is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise InputError(f"its answer is no JSON object, but {read!r:.80}")
    return read


@contextmanager
def errors_of(sdk: Any, who: str) -> Iterator[None]:
    """Turn what an SDK raises into a `ModelError`: what happened, what to do, whether calling again may help."""
    import httpx2

    try:
        yield
    except sdk.APIStatusError as error:
        after = error.response.headers.get("Retry-After")
        if error.response.is_success:  # an error in the midst of a stream
            raise _refused(who, error.body, after) from error
        raise refusal(who, error.status_code, _words(error.body) or error.response.text, after) from error
    except sdk.APIConnectionError as error:
        cause = error.__cause__ or error
        text = error_text(cause)
        raise ModelError(f"{who} gave no answer: {type(cause).__name__}: {text}", transient=True) from error
    except sdk.APIError as error:
        raise _refused(who, error.body) from error
    except (httpx2.HTTPError, httpx2.StreamError, InputError) as error:
        raise ModelError(f"{who} gave no answer: {error_text(error)}", transient=True) from error
    except (AttributeError, TypeError, LookupError, ValueError) as error:  # what SDKs, and we, stumble over
        text = f"its answer is not in the provider's format ({type(error).__name__}: {error_text(error)})"
        raise ModelError(f"{who} gave no answer: {cut(text, 600)}", transient=True) from error


def _refused(who: str, body: object, retry_after: str | None = None) -> ModelError:
    """Return the error for a body that tells of one, and has no status."""
    error = body.get("error", body) if isinstance(body, Mapping) else {}
    names = (error.get("code"), error.get("type")) if isinstance(error, Mapping) else ()
    status = next((_STATUS[name] for name in names if name in _STATUS), None)
    return refusal(who, status, _words(body) or str(body), retry_after)


def _words(body: object) -> str | None:
    error = body.get("error", body) if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else None
    return message if isinstance(message, str) else None
