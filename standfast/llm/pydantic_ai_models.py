"""An adapter for pydantic-ai's models. pydantic-ai is imported only when an adapter is made.

A call is one request: its `max_retries` is zero. Data that a provider wants back is kept in the form in which
pydantic-ai itself writes messages.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from standfast.errors import DefinitionError, InputError, ModelError
from standfast.events import ReasoningDelta
from standfast.extras import MissingExtraError, install
from standfast.llm.answer_limits import AnswerLimits, in_time, timely
from standfast.llm.chat_completions import sendable_arguments, sendable_id
from standfast.llm.prices import Meter, Price, check_price, priced
from standfast.llm.protocol import ToolDescription
from standfast.llm.provider_errors import hidden, no_answer, refusal
from standfast.llm.reasoning import Part, ThoughtPieces, keeper_of, parts_of, reasoning_of, renamed
from standfast.llm.strict_schemas import held_schema
from standfast.messages import Image, JSONObject, LLMResponse, Message, ToolCall, cut, error_text
from standfast.tools import Duration, seconds

if TYPE_CHECKING:
    from pydantic_ai.models import Model


PROVIDER = "pydantic-ai"
# The fields of a part besides the ones that we store ourselves.
_OURS = frozenset({"part_kind", "content", "tool_name", "args", "tool_call_id"})
_OF_RESPONSE = ("provider_name", "provider_url", "canonical_system", "model_name")
_FINAL = ("ModelRequestRejectedError", "ModelQuotaExceededError", "ContentFilterError", "UserError")


class PydanticAIModel:
    """Calls a pydantic-ai model.

    Args:
        model: its name there, such as "google:gemini-2.5-pro", or a model object of yours, whose client you close.
        timeout: seconds after which a call fails.
        limits: how long an answer may take; pydantic-ai itself decides how much of it is read.
        price: the price of its tokens; by default from the library `genai-prices`, which comes with pydantic-ai.

    Raises:
        DefinitionError: the model is unknown, or the key is missing.
        ImportError: pydantic-ai, or the provider's own package, is not installed.
    """

    provider = PROVIDER

    def __init__(
        self,
        *,
        model: "str | Model",
        timeout: Duration = 600,
        price: Price | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008  # it is frozen
    ) -> None:
        try:
            import httpx2
            from pydantic_ai import exceptions
            from pydantic_ai.models import Model, infer_model
        except ImportError as error:
            raise MissingExtraError(f"Models of pydantic-ai need its package: {install('pydantic-ai')}") from error
        if not isinstance(model, str | Model):
            raise DefinitionError(f"pydantic_ai_model needs a model of pydantic-ai, got {model!r:.80}")
        check_price(price)
        try:
            self._model: Model = infer_model(model)
        except exceptions.UserError as error:
            raise DefinitionError(f"Provider 'pydantic-ai': {error}") from error
        self.model, self._errors = self._model.model_name, exceptions
        self._price, self._limits = price, limits
        self._timeout = seconds(timeout, "Provider 'pydantic-ai': timeout")
        self.native_output = bool(self._model.profile.get("supports_json_schema_output"))
        key = getattr(getattr(self._model, "client", None), "api_key", None)
        self._secrets = (key,) if isinstance(key, str) and key else ()
        address = httpx2.URL(self._model.base_url or "")
        self._keeper = keeper_of(f"{PROVIDER}:{self._model.system}", address, self.model)

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        """Answer a conversation.

        Raises:
            ModelError: the provider could not be reached, refused, or sent something that is not an answer.
            InputError: the conversation cannot be written for it.
        """
        from pydantic_ai.direct import model_request

        request = self._request(messages, tools, settings)
        with self._faults():
            async with self._model, in_time(self._limits):
                answer = await model_request(self._model, **request)
            return self._read(answer)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | ReasoningDelta | LLMResponse]:
        """Yield pieces of thoughts and text, and the whole answer as the last value; raises as `chat` does."""
        from pydantic_ai.direct import model_request_stream

        request, thoughts = self._request(messages, tools, settings), ThoughtPieces()
        with Meter(self._priced) as meter, self._faults():
            async with self._model, AsyncExitStack() as stack:
                async with in_time(self._limits):
                    opened = await stack.enter_async_context(model_request_stream(self._model, **request))
                try:
                    async with aclosing(timely(aiter(opened), self._limits)) as events:
                        async for event in events:
                            for piece in _pieces_of(event, thoughts):
                                yield piece
                finally:
                    meter.note(_usage(opened.get()))
                answer = opened.get()
            if answer.finish_reason is None and answer.state != "complete":
                raise InputError("the stream ended before the answer was complete")
            yield self._read(answer)

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], settings: Mapping[str, Any]
    ) -> JSONObject:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        settings = dict(settings)
        schema, choice = settings.pop("output_schema", None), settings.pop("tool_choice", None)
        if choice is not None and tools:
            settings["tool_choice"] = [choice["name"]] if isinstance(choice, Mapping) else choice
        # Some providers refuse tools beside a schema; the answer is checked against it in any case.
        held = None if schema is None or tools else held_schema(schema, recursive=False)
        defined = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.input_schema))
            for tool in tools
        ]
        parameters = ModelRequestParameters(function_tools=defined)
        if held is not None:
            output = OutputObjectDefinition(json_schema=held, name="output")
            parameters = ModelRequestParameters(function_tools=defined, output_mode="native", output_object=output)
        return {
            # Earlier versions kept thoughts by library alone.
            "messages": _written(renamed(messages, self._keeper, PROVIDER)),
            "model_settings": {"timeout": self._timeout, **settings, "max_retries": 0},
            "model_request_parameters": parameters,
        }

    def _read(self, answer: Any) -> LLMResponse:
        parts, calls = list(answer.parts), [part for part in answer.parts if _is_call(part)]
        response = LLMResponse.read(
            {
                "text": "".join(part.content for part in parts if part.part_kind == "text"),
                "tool_calls": [
                    ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=part.args or {}) for part in calls
                ],
                "usage": _usage(answer),
                "stop_reason": answer.finish_reason,
                "reasoning": reasoning_of(self._keeper, list(_parts(answer))),
            }
        )
        return self._priced(response, answer.provider_name)

    def _priced(self, response: LLMResponse, provider: str | None = None) -> LLMResponse:
        return priced(response, provider=provider or self._model.system, model=self.model, price=self._price)

    @property
    def _who(self) -> str:
        return f"Model '{self.model}' of {self._model.system}, by pydantic-ai,"

    @contextmanager
    def _faults(self) -> Iterator[None]:
        with hidden(self._secrets), no_answer(self._who, OSError):
            try:
                yield
            except (self._errors.AgentRunError, self._errors.UserError) as error:
                raise self._refused(error) from error

    def _refused(self, error: Any) -> ModelError:
        after = getattr(error, "retry_after", None)
        if (status := getattr(error, "status_code", None)) is not None:
            codes = [code for code in (error.provider_error_code, error.provider_error_type) if code]
            waits = None if after is None else str(after)
            return refusal(self._who, status, error_text(error), waits, codes=codes, secrets=self._secrets)
        final = any(kind.__name__ in _FINAL for kind in type(error).__mro__)
        text = cut(error_text(error), 600)
        return ModelError(f"{self._who} gave no answer: {text}", transient=not final, retry_after=after)


def pydantic_ai_model(
    model: "Model",
    *,
    timeout: Duration = 600,
    price: Price | None = None,
    limits: AnswerLimits = AnswerLimits(),  # noqa: B008  # it is frozen
) -> PydanticAIModel:
    """Return an adapter for a pydantic-ai model object of yours; you close its client.

    Args:
        timeout, price, limits: as of `create_adapter(provider="pydantic-ai")`.

    Raises:
        DefinitionError: it is not a pydantic-ai model.
        ImportError: pydantic-ai is not installed.
    """
    return PydanticAIModel(model=model, timeout=timeout, price=price, limits=limits)


def _usage(answer: Any) -> JSONObject:
    usage = answer.usage
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cache_read_tokens or None,
        "cache_write_tokens": usage.cache_write_tokens or None,
        "reasoning_tokens": usage.output_reasoning_tokens or None,
    }


def _is_call(part: Any) -> bool:
    return bool(part.part_kind == "tool-call")


def _pieces_of(event: Any, thoughts: ThoughtPieces) -> Iterator[str | ReasoningDelta]:
    """Yield the thought or the text of a stream's event."""
    match event.event_kind:
        case "part_start" if event.part.part_kind in ("text", "thinking"):
            kind, text = event.part.part_kind, event.part.content
        case "part_delta" if event.delta.part_delta_kind in ("text", "thinking"):
            kind, text = event.delta.part_delta_kind, event.delta.content_delta
        case _:
            return
    if kind == "thinking":
        yield from thoughts.piece(text, event.index)
    elif text:
        yield str(text)


def _parts(answer: Any) -> Iterator[Part]:
    """Yield the parts of an answer; before one of ours, the data that its provider wants back with it."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    (written,) = ModelMessagesTypeAdapter.dump_python([answer], mode="json")
    kept, calls = list[Part](), 0
    for part in written["parts"]:
        match part["part_kind"]:
            case "text" | "tool-call" as kind:
                more = {name: value for name, value in part.items() if name not in _OURS and value is not None}
                if more.keys() - {"provider_name", "tool_kind"}:
                    kept.append(("thought", {"with": kind, "details": more}))
                kept.append(("text", part["content"]) if kind == "text" else ("call", calls))
                calls += kind == "tool-call"
            case _:
                kept.append(("thought", {"part": part}))
    if any(kind == "thought" for kind, _ in kept):
        yield "thought", {"response": {name: written.get(name) for name in _OF_RESPONSE}}
    yield from kept


def _written(messages: Sequence[Message]) -> list[Any]:
    """Write a conversation: all messages between two answers are one request."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest

    written: list[Any] = []
    for message in messages:
        if message.role == "assistant":
            if (answer := _answer(message))["parts"]:
                written += ModelMessagesTypeAdapter.validate_python([answer])
            continue
        if message.role == "system" and not message.content:
            continue
        if not written or not isinstance(written[-1], ModelRequest):
            written.append(ModelRequest(parts=[]))
        written[-1].parts.append(_asked(message))
    return written


def _asked(message: Message) -> Any:
    from pydantic_ai.messages import SystemPromptPart, ToolReturnPart, UserPromptPart

    match message.role:
        case "system":
            return SystemPromptPart(content=message.content)
        case "tool":
            if not message.tool_call_id:
                raise InputError("a tool message has no tool_call_id: the model cannot tell which call it answers")
            return ToolReturnPart(
                tool_name=message.tool_name or "",
                content=message.content,
                tool_call_id=sendable_id(message.tool_call_id),
                outcome="success" if message.status in (None, "completed") else "failed",
            )
        case _ if message.images:
            text = [message.content] if message.content else []
            return UserPromptPart(content=[*map(_image, message.images), *text])
        case _:
            return UserPromptPart(content=message.content)


def _image(image: Image) -> Any:
    from pydantic_ai.messages import BinaryContent, ImageUrl

    return ImageUrl(url=image.url) if image.url is not None else BinaryContent.from_data_uri(image.address)


def _answer(message: Message) -> JSONObject:
    """Return an answer in pydantic-ai's form, with its thoughts."""
    parts: list[JSONObject] = []
    answer: JSONObject = {"kind": "response", "parts": parts}
    before: JSONObject = {}
    for kind, part in parts_of(message, PROVIDER):
        match kind, part:
            case "thought", {"response": dict(facts)}:
                answer |= facts
            case "thought", {"part": dict(thought)}:
                parts.append(thought)
            case "thought", dict(details):
                before = details
            case "text", "":
                pass
            case "text", str(text):
                parts.append({**_details(before, "text"), "part_kind": "text", "content": text})
                before = {}
            case "call", int(index):
                call = (message.tool_calls or ())[index]
                own = {"tool_name": call.name, "args": sendable_arguments(call), "tool_call_id": sendable_id(call.id)}
                parts.append({**_details(before, "tool-call"), "part_kind": "tool-call", **own})
                before = {}
    return answer


def _details(before: Mapping[str, Any], kind: str) -> JSONObject:
    details = before.get("details") if before.get("with") == kind else None
    return dict(details) if isinstance(details, dict) else {}
