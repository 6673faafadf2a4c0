"""An adapter for the models of any-llm, a library that knows many providers and speaks one format: Chat Completions.

A call is one request, where the provider's SDK lets us say so. any-llm is imported only when an adapter is made.
"""

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from standfast.errors import DefinitionError, InputError, ModelError
from standfast.extras import install, install_package
from standfast.llm.answer_limits import ENCODINGS, AnswerLimits, PastLimitError, in_time, timely
from standfast.llm.chat_completions import (
    Answer,
    AnswerSoFar,
    request_messages,
    request_tools,
    sendable_id,
    with_tool_choice,
)
from standfast.llm.prices import Price, check_price, priced
from standfast.llm.provider_errors import hidden, no_answer, refusal
from standfast.llm.strict_schemas import held_schema
from standfast.messages import LLMResponse, Message, Reasoning, cut, error_text, explain
from standfast.tools import Duration, seconds

if TYPE_CHECKING:
    from standfast.llm import ToolDescription  # the package exports this adapter

# Providers that hold an answer to a JSON schema; others refuse the request.
_HOLD_SCHEMAS = frozenset({"anthropic", "azureopenai", "gemini", "mistral", "openai", "vertexai"})
# Under these names the library `genai-prices` knows providers.
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
    """Calls one model of a provider that any-llm knows.

    Args:
        model: the provider and its model, as any-llm writes them, such as "gemini:gemini-2.5-pro".
        api_key: by default that of the provider's own environment variable, as any-llm reads it.
        base_url: the provider's address, if not the usual one.
        timeout: seconds after which a call fails, if the provider's SDK takes such a limit.
        limits: how long an answer may take; with any-llm's providers that use OpenAI's client, also how much of it is
            read.
        price: the price of its tokens; by default that of the library `genai-prices`, if it is installed.

    Raises:
        DefinitionError: there is no such provider, or no key.
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
        except ImportError as error:
            raise ImportError(f"Models of any-llm need its package: {install('providers')}") from error
        name, separator, self.model = model.partition(":")
        if not separator or not name or not self.model:
            raise DefinitionError(
                f"Provider 'any-llm': model must be like 'gemini:gemini-2.5-pro', a provider of any-llm and a model "
                f"of it, got {model!r}"
            )
        check_price(price)
        self.provider, self._name, self._price, self._limits = "any-llm", name, price, limits
        self.native_output = name in _HOLD_SCHEMAS
        self._errors = any_llm.exceptions
        self._timeout: float | None = seconds(timeout, "Provider 'any-llm': timeout")
        self._options: dict[str, Any] = {"api_key": api_key, "api_base": base_url, "unified_exceptions": True}
        try:
            self._kind: Any = any_llm.AnyLLM.get_provider_class(name)
            if self._kind.MAX_RETRIES_SUPPORT != "unsupported":
                self._options["max_retries"] = 0
            if self._kind.TIMEOUT_SUPPORT == "unsupported":
                self._timeout = None
            made = self._kind(**self._options)  # it says what is missing
        except ImportError as error:
            more = install_package(f"any-llm-sdk[{name}]")
            raise ImportError(
                f"Models of any-llm's provider '{name}' need more: {more} ({error_text(error)})"
            ) from error
        except self._errors.AnyLLMError as error:
            raise DefinitionError(f"Provider 'any-llm': {error}") from error
        self._is_openai = issubclass(self._kind, _openai_kind())
        key = api_key or getattr(getattr(made, "client", None), "api_key", None)
        self._secrets = (key,) if isinstance(key, str) and key else ()

    async def chat(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", **settings: Any
    ) -> LLMResponse:
        """Answer a conversation.

        Raises:
            ModelError: the provider could not be reached, refused, or sent something that is not an answer.
            InputError: the conversation cannot be written for it.
        """
        request, answer = self._request(messages, tools, settings), _AnswerSoFar()
        with self._faults():
            async with self._client() as client, in_time(self._limits):
                answer.add((await client.acompletion(**request)).model_dump())
            return self._whole(answer)

    async def stream(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", **settings: Any
    ) -> AsyncIterator[str | LLMResponse]:
        """Yield pieces of the text, and the whole answer as the last value; raises as `chat` does."""
        request, answer = {**self._request(messages, tools, settings), "stream": True}, _AnswerSoFar()
        with self._faults():
            async with self._client() as client, AsyncExitStack() as opened:
                if self._is_openai:
                    request.setdefault("stream_options", {"include_usage": True})
                async with in_time(self._limits):
                    chunks = await client.acompletion(**request)
                if close := getattr(chunks, "aclose", None):
                    opened.push_async_callback(close)
                async with aclosing(timely(chunks, self._limits)) as found:
                    async for chunk in found:
                        if text := answer.add(chunk.model_dump()):
                            yield text
            if not answer.stop_reason:
                raise InputError("the stream ended before the answer was whole")
            yield self._whole(answer)

    def _request(
        self, messages: Sequence[Message], tools: "Sequence[ToolDescription]", settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings = with_tool_choice(settings, has_tools=bool(tools))
        schema = settings.pop("output_schema", None)
        # Some providers refuse tools beside a schema; the answer is checked by it in any case.
        held = None if schema is None or tools else held_schema(schema, recursive=False)
        if held is not None:
            form = {"name": "output", "schema": held, "strict": True}
            settings.setdefault("response_format", {"type": "json_schema", "json_schema": form})
        if self._timeout is not None:
            settings.setdefault("timeout", self._timeout)
        written = _written(messages, self._keeper)
        return {"model": self.model, **settings, "messages": written, **request_tools(tools)}

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Any]:
        """Make a client for one call, so that an adapter may be used in any event loop and needs no closing."""
        options = dict(self._options)
        if self._is_openai:
            import openai

            from standfast.llm.bounded_clients import bounding

            # A key in a header would follow a redirect anywhere.
            options["http_client"] = openai.DefaultAsyncHttpxClient(
                follow_redirects=False,
                headers={"Accept-Encoding": ENCODINGS},
                event_hooks={"response": [bounding(self._limits)]},
            )
        made = self._kind(**options)
        try:
            yield made
        finally:
            await _close(getattr(made, "client", None))

    def _whole(self, answer: "_AnswerSoFar") -> LLMResponse:
        provider = _PRICED_AS.get(self._name, self._name)
        return priced(answer.response(self._keeper), provider=provider, model=self.model, price=self._price)

    @property
    def _keeper(self) -> str:
        """The name under which thoughts are kept: they go back to this provider only."""
        return f"any-llm:{self._name}"

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


class _AnswerSoFar:
    """Assembles an answer, and what its provider wants to have back with it."""

    def __init__(self) -> None:
        self._answer = AnswerSoFar()
        self._thoughts: list[str] = []
        self._extra: dict[str, Any] = {}
        self._of_calls: dict[str, Any] = {}  # by id

    @property
    def stop_reason(self) -> str | None:
        return self._answer.stop_reason

    def add(self, body: dict[str, Any]) -> str:
        """Add an answer, or a piece of one; return the text that it brings."""
        for choice in (body.get("choices") or ())[:1]:
            said = choice.get("message") or choice.get("delta") or {}
            if isinstance(thought := said.get("reasoning"), str):
                self._thoughts.append(thought)
            for name, extra in (said.get("extra_content") or {}).items():
                self._extra[name] = {**self._extra.get(name, {}), **extra} if isinstance(extra, dict) else extra
            for call in said.get("tool_calls") or ():
                if call.get("id") and call.get("extra_content"):
                    self._of_calls[call["id"]] = call["extra_content"]
        try:
            return self._answer.add(Answer.model_validate(body))
        except ValidationError as error:
            raise InputError(f"its answer is not in the format of Chat Completions: {explain(error)}") from error

    def response(self, keeper: str) -> LLMResponse:
        answer = self._answer.response()
        calls = [self._of_calls.get(call.id) for call in answer.tool_calls]
        # Without a signature thoughts are for readers: no provider wants them back.
        if not self._extra and not any(calls):
            return answer
        kept = {"reasoning": "".join(self._thoughts), "extra_content": self._extra, "tool_calls": calls}
        return answer.model_copy(update={"reasoning": Reasoning(provider=keeper, blocks=(kept,))})


def _openai_kind() -> type:
    """Return the class of providers whose clients are of OpenAI's SDK."""
    from any_llm.providers.openai.base import BaseOpenAIProvider

    return BaseOpenAIProvider  # type: ignore[no-any-return]


def _written(messages: Sequence[Message], keeper: str) -> list[dict[str, Any]]:
    """Write a conversation, with the thoughts of this provider's own answers."""
    sent = [message for message in messages if message.role != "system" or message.content]
    written = request_messages(sent)
    for message, body in zip(sent, written, strict=True):
        if body.get("tool_call_id"):
            body["tool_call_id"] = sendable_id(body["tool_call_id"])
        for call in body.get("tool_calls") or ():
            call["id"] = sendable_id(call["id"])
        thoughts = message.reasoning
        if thoughts is None or thoughts.provider != keeper or not thoughts.blocks:
            continue
        kept = thoughts.blocks[0]
        if kept.get("extra_content"):
            body |= {"reasoning": kept.get("reasoning") or "", "extra_content": kept["extra_content"]}
        for call, extra in zip(body.get("tool_calls") or (), kept.get("tool_calls") or (), strict=False):
            if extra:
                call["extra_content"] = extra
    return written


def _in_chain(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Return the error of a kind among an error and its causes."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


async def _close(client: Any) -> None:
    """Close a provider's client, whatever its SDK calls that."""
    for part in (getattr(client, "aio", None), client):
        close = getattr(part, "aclose", None) or getattr(part, "close", None)
        if callable(close) and inspect.isawaitable(closing := close()):
            await closing
