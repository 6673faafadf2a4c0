"""The common part of the adapters for providers' own SDKs, which are imported only when an adapter is made.

One request per call: the SDKs' retries are off. The driver decides, by the `ModelError`, whether a failed request is
made again. Requests use our own formats, and answers are read as plain JSON: the SDKs only transport both, and handle
their streams.
"""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

from standfast.errors import DefinitionError, InputError, ModelError
from standfast.events import ReasoningDelta
from standfast.llm.answer_limits import ENCODINGS, AnswerLimits, PastLimitError, events, in_time
from standfast.llm.json_tool_calls import plain_messages, read_reply
from standfast.llm.prices import Meter, Price, check_price, priced
from standfast.llm.protocol import ToolDescription
from standfast.llm.provider_errors import check_key, check_url, connection_advice, hidden, no_answer, refusal
from standfast.llm.reasoning import keeper_of, renamed, spoken
from standfast.messages import JSONObject, LLMResponse, Message, error_text
from standfast.tools import Duration, HostedTool, seconds

ToolMode = Literal["native", "json"]
T = TypeVar("T")

# The status for each of the providers' error names in a stream, or in an answer with status 200.
_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 402,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
    "context_length_exceeded": 413,
}


class SDKAdapter:
    """An adapter that uses an SDK. Subclasses define the requests and how they are made."""

    native_output = True
    provider: str
    hosts: str
    _default: str
    _name: str
    _sdk: Any

    def __init__(
        self, model: str, tool_mode: ToolMode, price: Price | None, limits: AnswerLimits, client: Any, options: Any
    ) -> None:
        import httpx2

        check_tool_mode(tool_mode)
        check_price(price)
        self.model = model
        self._tool_mode, self._price = tool_mode, price
        self._limits, self._given, self._options = limits, client, options
        address = options["base_url"] or self._default if client is None else client.base_url
        self._keeper = keeper_of(self.provider, httpx2.URL(str(address)), model)

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        """Answer a conversation.

        Raises:
            ModelError: the provider could not be reached, refused, or sent something that is not an answer.
            InputError: the conversation cannot be written for it.
        """
        request = self._request(messages, tools, settings)
        with Meter(self._priced) as meter, self._errors(settings):
            answer = self._kept(await self._answer(request, meter))
        return read_reply(answer) if self._in_json(tools) else answer

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | ReasoningDelta | LLMResponse]:
        """Yield pieces of thoughts and text, and the whole answer as the last value; raises as `chat` does.

        An answer that is a JSON object is not worth showing in pieces and is yielded whole.
        """
        if self._in_json(tools):
            answer = await self.chat(messages, tools, **settings)
            for piece in spoken(answer):
                yield piece
            yield answer
            return
        request = self._request(messages, tools, settings)
        with Meter(self._priced) as meter, self._errors(settings):
            async with aclosing(self._parts(request, meter)) as parts:
                async for part in parts:
                    yield self._kept(part) if isinstance(part, LLMResponse) else part

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], settings: Mapping[str, Any]
    ) -> JSONObject:
        # Earlier versions kept thoughts by provider alone, as the formats do.
        messages = renamed(messages, self._keeper, self.provider)
        settings = dict(settings)
        schema, hosted = settings.pop("output_schema", None), settings.pop("hosted_tools", ())
        if not self._in_json(tools):
            return self._body(messages, tools, settings, None if schema is None else self._held(schema), hosted)
        return self._body(plain_messages(messages, tools), (), settings, self._reply(tools), hosted)

    def _held(self, schema: Mapping[str, Any]) -> JSONObject | None:
        """Return the setting with which the provider enforces a schema; None if it cannot."""
        raise NotImplementedError

    def _reply(self, tools: Sequence[ToolDescription]) -> JSONObject | None:
        """Return the setting with which the provider enforces the form of a JSON reply; None if it cannot."""
        raise NotImplementedError

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDescription],
        settings: Mapping[str, Any],
        output: JSONObject | None,
        hosted: Sequence[HostedTool],
    ) -> JSONObject:
        raise NotImplementedError

    async def _answer(self, request: JSONObject, meter: Meter) -> LLMResponse:
        raise NotImplementedError

    def _parts(self, request: JSONObject, meter: Meter) -> AsyncGenerator[str | ReasoningDelta | LLMResponse, None]:
        raise NotImplementedError

    def _in_json(self, tools: Sequence[ToolDescription]) -> bool:
        return self._tool_mode == "json" and bool(tools)

    def _kept(self, answer: LLMResponse) -> LLMResponse:
        """Return an answer with its price, and its thoughts under the name of this address."""
        if answer.reasoning is not None:
            thoughts = answer.reasoning.model_copy(update={"provider": self._keeper})
            answer = answer.model_copy(update={"reasoning": thoughts})
        return self._priced(answer)

    def _priced(self, answer: LLMResponse) -> LLMResponse:
        return priced(answer, provider=self.provider, model=self.model, price=self._price)

    def _client(self, make: Callable[..., Any]) -> "AbstractAsyncContextManager[Any]":
        if self._given is not None:
            return nullcontext(self._given)
        # A key in a header would follow a redirect anywhere.
        from standfast.llm.bounded_clients import bounding

        hooks = {"response": [bounding(self._limits)]}
        http = self._sdk.DefaultAsyncHttpxClient(
            follow_redirects=False, headers={"Accept-Encoding": ENCODINGS}, event_hooks=hooks
        )
        return make(**self._options, http_client=http)  # type: ignore[no-any-return]

    async def _events(self, response: Any) -> AsyncGenerator[JSONObject, None]:
        """Yield the events of a streamed answer as plain JSON.

        Not the SDKs' own events: accumulating those takes time that grows with the square of the answer.
        """
        async with aclosing(response.iter_bytes()) as pieces, aclosing(events(pieces, self._limits)) as found:
            async for data in found:
                if data == b"[DONE]":
                    return
                event = read_body(data)
                if event.get("type") == "error" or event.get("error"):
                    raise refused(self._who, event, secrets=self._secrets)
                yield event

    async def _opened(self, asked: Awaitable[T]) -> T:
        """Make a request and return its answer, whose head may take no longer than a whole answer."""
        async with in_time(self._limits):
            return await asked

    @property
    def _who(self) -> str:
        return f"Model '{self.model}' of {self._name}"

    @contextmanager
    def _errors(self, settings: Mapping[str, Any]) -> Iterator[None]:
        hosted = ", ".join(tool.name for tool in settings.get("hosted_tools", ()))
        with hidden(self._secrets):
            try:
                with errors_of(self._sdk, self._who, self._secrets):
                    yield
            except ModelError as error:
                if not hosted or f"{self._who} gave no answer" not in str(error):
                    raise
                text = f"{error}. Its tools at {self._name} ({hosted}) may have run, and may run again"
                raise ModelError(text, transient=error.transient, retry_after=error.retry_after) from error

    @property
    def _secrets(self) -> tuple[str, ...]:
        """Keys that an error must not show: ours, or a given client's."""
        return tuple(key for key in (self._options["api_key"], getattr(self._given, "api_key", None)) if key)


def check_tool_mode(tool_mode: object) -> None:
    if tool_mode not in ("native", "json"):
        raise DefinitionError(f"tool_mode must be 'native' or 'json', got {tool_mode!r}")


def options_of(
    provider: str, variable: str, api_key: str | None, base_url: str | None, timeout: Duration, client: object
) -> JSONObject:
    """Return the options of an SDK's client; without a given key and address, they come from the environment."""
    address = check_url(f"Provider '{provider}'", base_url or os.environ.get(f"{provider.upper()}_BASE_URL"))
    key = check_key(f"Provider '{provider}'", api_key or os.environ.get(variable))
    if not key and client is None:
        raise DefinitionError(f"Provider '{provider}' has no key: set {variable}, or pass api_key=")
    patience = seconds(timeout, f"Provider '{provider}': timeout")
    return {"api_key": key, "base_url": address, "timeout": patience, "max_retries": 0}


def read_body(body: bytes) -> JSONObject:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"its answer is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise InputError(f"its answer is not a JSON object, but {read!r:.80}")
    return read


@contextmanager
def errors_of(sdk: Any, who: str, secrets: Sequence[str]) -> Iterator[None]:
    """Turn an SDK's exception into a `ModelError`: what happened, what to do, and whether another attempt may help."""
    import httpx2

    try:
        with no_answer(who, httpx2.HTTPError, httpx2.StreamError):
            yield
    except sdk.APIStatusError as error:
        after = error.response.headers.get("Retry-After")
        if error.response.is_success:  # an error in the middle of a stream
            raise refused(who, error.body, after, secrets=secrets) from error
        text = _words(error.body) or error.response.text
        raise refusal(who, error.status_code, text, after, codes=_codes(error.body), secrets=secrets) from error
    except sdk.APIConnectionError as error:
        cause = error.__cause__ or error
        if isinstance(cause, PastLimitError):
            raise ModelError(f"{who} gave no answer: {cause}") from error
        where = error.request.url.netloc.decode()
        text = f"{type(cause).__name__} at {where} ({connection_advice(str(cause))}): {error_text(cause)}"
        raise ModelError(f"{who} gave no answer: {text}", transient=True) from error
    except sdk.APIError as error:
        raise refused(who, error.body, secrets=secrets) from error


def refused(who: str, body: object, retry_after: str | None = None, *, secrets: Sequence[str] = ()) -> ModelError:
    """Return the error for a body that reports one without a status."""
    status = next((_STATUS[name] for name in _codes(body) if name in _STATUS), None)
    return refusal(who, status, _words(body) or str(body), retry_after, codes=_codes(body), secrets=secrets)


def _codes(body: object) -> tuple[str, ...]:
    """Return a provider's names for an error."""
    error = body.get("error", body) if isinstance(body, Mapping) else {}
    names = (error.get("code"), error.get("type")) if isinstance(error, Mapping) else ()
    return tuple(name for name in names if isinstance(name, str))


def _words(body: object) -> str | None:
    error = body.get("error", body) if isinstance(body, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else None
    return message if isinstance(message, str) else None
