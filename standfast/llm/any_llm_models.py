"""An adapter for the models of any-llm, a library that knows many providers and speaks one format: Chat Completions.

A call is one request, if the provider's SDK allows setting that. any-llm is imported only when an adapter is made.
"""

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any

from pydantic import ValidationError

from standfast.errors import DefinitionError, InputError, ModelError
from standfast.events import ReasoningDelta
from standfast.extras import MissingExtraError, install, install_package
from standfast.llm.answer_limits import ENCODINGS, AnswerLimits, PastLimitError, in_time, timely
from standfast.llm.chat_completions import (
    Answer,
    AnswerSoFar,
    mended,
    request_messages,
    request_tools,
    sendable_id,
    with_tool_choice,
)
from standfast.llm.prices import Meter, Price, check_price, priced
from standfast.llm.protocol import ToolDescription
from standfast.llm.provider_errors import hidden, no_answer, refusal
from standfast.llm.reasoning import keeper_of, renamed
from standfast.llm.strict_schemas import held_schema
from standfast.messages import JSONObject, LLMResponse, Message, Reasoning, cut, error_text, explain
from standfast.tools import Duration, seconds

# Providers that enforce a JSON schema on an answer; others refuse the request.
_HOLD_SCHEMAS = frozenset({"anthropic", "azureopenai", "gemini", "mistral", "openai", "vertexai"})
# The names of these providers in the library `genai-prices`.
_PRICED_AS = {"gemini": "google", "vertexai": "google", "azureopenai": "azure", "bedrock": "aws"}
_FINAL = (
    "AuthenticationError",
    "ContentFilterError",
    "ContextLengthExceededError",
    "InsufficientFundsError",
    "InvalidRequestError",
    "MissingApiKeyError",
    "ModelNotFoundError",
    "UnsupportedParameterError",
)


class AnyLLMModel:
    """Calls one model of an any-llm provider.

    Args:
        model: the provider and its model in any-llm's form, such as "gemini:gemini-2.5-pro".
        api_key: by default the provider's own environment variable, as any-llm reads it.
        base_url: the provider's address, if not the usual one.
        timeout: seconds after which a call fails, if the provider's SDK supports such a limit.
        limits: how long an answer may take; for providers with OpenAI's client, also how much of it is read.
        price: the price of its tokens; by default from the library `genai-prices`, if it is installed.

    Raises:
        DefinitionError: the provider is unknown, or the key is missing.
        ImportError: any-llm, or the provider's own package, is not installed.
    """

    def __init__(
        self,
        *,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: Duration = 600,
        price: Price | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008  # it is frozen
    ) -> None:
        try:
            import any_llm
            import httpx2
        except ImportError as error:
            raise MissingExtraError(f"Models of any-llm need its package: {install('providers')}") from error
        name, separator, self.model = model.partition(":")
        if not separator or not name or not self.model:
            raise DefinitionError(
                f"Provider 'any-llm': model must be like 'gemini:gemini-2.5-pro', a provider of any-llm and a model "
                f"of it, got {model!r}"
            )
        check_price(price)
        self.provider, self._name, self._price, self._limits = "any-llm", name, price, limits
        self.native_output = name in _HOLD_SCHEMAS
        self._kept_before = f"any-llm:{name}"  # earlier versions kept thoughts under this name
        self._errors = any_llm.exceptions
        self._timeout: float | None = seconds(timeout, "Provider 'any-llm': timeout")
        self._options: dict[str, Any] = {"api_key": api_key, "api_base": base_url, "unified_exceptions": True}
        try:
            self._kind: Any = any_llm.AnyLLM.get_provider_class(name)
            if self._kind.MAX_RETRIES_SUPPORT != "unsupported":
                self._options["max_retries"] = 0
            if self._kind.TIMEOUT_SUPPORT == "unsupported":
                self._timeout = None
            made = self._kind(**self._options)  # its error names what is missing
        except ImportError as error:
            more = install_package(f"any-llm-sdk[{name}]")
            raise MissingExtraError(
                f"Models of any-llm's provider '{name}' need more: {more} ({error_text(error)})"
            ) from error
        except self._errors.AnyLLMError as error:
            raise DefinitionError(f"Provider 'any-llm': {error}") from error
        self._is_openai = issubclass(self._kind, _openai_kind())
        key = api_key or getattr(getattr(made, "client", None), "api_key", None)
        self._secrets = (key,) if isinstance(key, str) and key else ()
        address = base_url or getattr(getattr(made, "client", None), "base_url", None) or self._kind.API_BASE or ""
        self._keeper = keeper_of(self._kept_before, httpx2.URL(str(address)), self.model)

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        """Answer a conversation.

        Raises:
            ModelError: the provider could not be reached, refused, or sent something that is not an answer.
            InputError: the conversation cannot be written for it.
        """
        request, answer = self._request(messages, tools, settings), AnswerSoFar()
        with self._faults():
            async with self._client() as client, in_time(self._limits):
                answer.add(_piece((await self._asked(client, request)).model_dump()))
            return self._priced(answer.response(self._keeper))

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | ReasoningDelta | LLMResponse]:
        """Yield pieces of thoughts and text, and the whole answer as the last value; raises as `chat` does."""
        request, answer = {**self._request(messages, tools, settings), "stream": True}, AnswerSoFar()
        with Meter(self._priced) as meter, self._faults():
            async with self._client() as client, AsyncExitStack() as opened:
                if self._is_openai:
                    request.setdefault("stream_options", {"include_usage": True})
                async with in_time(self._limits):
                    chunks = await self._asked(client, request)
                if close := getattr(chunks, "aclose", None):
                    opened.push_async_callback(close)
                async with aclosing(timely(chunks, self._limits)) as found:
                    async for chunk in found:
                        said = answer.add(_piece(chunk.model_dump()))
                        meter.note(answer.usage)
                        for part in said:
                            yield part
            if not answer.stop_reason:
                raise InputError("the stream ended before the answer was complete")
            yield self._priced(answer.response(self._keeper))

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], settings: Mapping[str, Any]
    ) -> JSONObject:
        settings = with_tool_choice(settings, has_tools=bool(tools))
        schema = settings.pop("output_schema", None)
        # Some providers refuse tools beside a schema; the answer is checked against it in any case.
        held = None if schema is None or tools else held_schema(schema, recursive=False)
        if held is not None:
            form = {"name": "output", "schema": held, "strict": True}
            settings.setdefault("response_format", {"type": "json_schema", "json_schema": form})
        if self._timeout is not None:
            settings.setdefault("timeout", self._timeout)
        messages = renamed(messages, self._kept_before, self._keeper)
        written = _written(messages, self._keeper, self._thoughts)
        return {"model": self.model, **settings, "messages": written, **request_tools(tools)}

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """Make a client for one call, so that an adapter works in any event loop and does not need closing."""
        made = self._kind(**self._options)
        if self._is_openai:
            import openai

            from standfast.llm.bounded_clients import bounding

            # Not through an option of the provider, which may have a client of another SDK beside this one.
            first = made.client
            made.client = first.with_options(
                # A key in a header would follow a redirect anywhere.
                http_client=openai.DefaultAsyncHttpxClient(
                    follow_redirects=False,
                    headers={"Accept-Encoding": ENCODINGS},
                    event_hooks={"response": [bounding(self._limits)]},
                )
            )
            await first.close()
        try:
            yield made
        finally:
            await _close(getattr(made, "client", None))

    async def _asked(self, client: Any, request: JSONObject) -> Any:
        """Make a request. If the provider refuses data from earlier answers, repeat it once, changed."""
        try:
            return await client.acompletion(**request)
        except self._errors.AnyLLMError as error:
            messages = mended(request["messages"], error_text(error)) if error.status_code in (400, 422) else None
            if messages is None:
                raise
        return await client.acompletion(**{**request, "messages": messages})

    @property
    def _thoughts(self) -> str:
        """The field of a request for thoughts; any-llm translates it for other formats."""
        return "reasoning_content" if self._is_openai and self._name != "openrouter" else "reasoning"

    def _priced(self, answer: LLMResponse) -> LLMResponse:
        provider = _PRICED_AS.get(self._name, self._name)
        return priced(answer, provider=provider, model=self.model, price=self._price)

    @property
    def _who(self) -> str:
        return f"Model '{self.model}' of {self._name}, by any-llm,"

    @contextmanager
    def _faults(self) -> Iterator[None]:
        with hidden(self._secrets), no_answer(self._who, OSError):
            try:
                yield
            except self._errors.AnyLLMError as error:
                raise self._refused(error) from error

    def _refused(self, error: Any) -> ModelError:
        cause = error.original_exception
        if past := _in_chain(cause, PastLimitError):
            return ModelError(f"{self._who} gave no answer: {past}")
        status = error.status_code
        if status is not None and not 200 <= status < 300:
            headers = getattr(getattr(cause, "response", None), "headers", None)
            after = getattr(error, "retry_after", None) or (headers.get("retry-after") if headers else None)
            codes = [code for code in (error.code, error.error_type) if code]
            return refusal(self._who, status, error.message, after, codes=codes, secrets=self._secrets)
        text = cut(error_text(error), 600)
        return ModelError(f"{self._who} gave no answer: {text}", transient=type(error).__name__ not in _FINAL)


def _piece(body: JSONObject) -> Answer:
    """Read an any-llm answer, or a piece of one.

    Raises:
        InputError: it does not have the format.
    """
    try:
        return Answer.model_validate(body)
    except ValidationError as error:
        raise InputError(f"its answer is not in the format of Chat Completions: {explain(error)}") from error


def _openai_kind() -> type:
    """Return the class of providers whose clients come from OpenAI's SDK."""
    from any_llm.providers.openai.base import BaseOpenAIProvider

    return BaseOpenAIProvider  # type: ignore[no-any-return]


def _written(messages: Sequence[Message], keeper: str, thoughts: str) -> list[JSONObject]:
    """Write a conversation, with the thoughts of this provider's own answers.

    Args:
        thoughts: the field in which its thoughts go back; any-llm reads them as "reasoning", whatever its name was.
    """
    written = request_messages([_as_kept_now(message, keeper) for message in messages], keeper)
    for body in written:
        if body.get("tool_call_id"):
            body["tool_call_id"] = sendable_id(body["tool_call_id"])
        for call in body.get("tool_calls") or ():
            call["id"] = sendable_id(call["id"])
        if "reasoning" in body:
            body[thoughts] = body.pop("reasoning")
    return written


def _as_kept_now(message: Message, keeper: str) -> Message:
    """Return a message with its thoughts in today's form: older transcripts have them in one block."""
    kept = message.reasoning
    if kept is None or kept.provider != keeper or "tool_calls" not in (kept.blocks or ({},))[0]:
        return message
    before = kept.blocks[0]
    signed = before.get("extra_content")
    fields = {"reasoning": before.get("reasoning") or "", "extra_content": signed} if signed else {}
    calls = [extra and {"extra_content": extra} for extra in before["tool_calls"]]
    return message.model_copy(
        update={"reasoning": Reasoning(provider=keeper, blocks=({"message": fields}, {"calls": calls}))}
    )


def _in_chain(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Return the error of a given kind from an error and its causes."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


async def _close(client: Any) -> None:
    """Close a provider's client, whatever its SDK names that."""
    for part in (getattr(client, "aio", None), client):
        close = getattr(part, "aclose", None) or getattr(part, "close", None)
        if callable(close) and inspect.isawaitable(closing := close()):
            await closing
