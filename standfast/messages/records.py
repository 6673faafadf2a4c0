"""The vocabulary of a conversation: messages, tool calls, usage, and model answers.

The values are frozen and contain only what JSON can carry, however malformed the model's output was: a call whose
arguments are not a JSON object keeps them as text, and is answered with an error instead of being run.
"""

import base64
import copy
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from standfast.errors import InputError, ModelError
from standfast.messages.texts import (
    JSONObject,
    check_whole,
    clean_text,
    explain,
    json_problem,
    read_object,
    with_article,
)

CleanText = Annotated[str, AfterValidator(clean_text)]
Role = Literal["system", "user", "assistant", "tool"]
StopReason = Literal["max-tokens", "refusal", "content-filter", "empty"]

# The providers' words for an incomplete answer, in lower case. All other words mean a complete one. A broken answer is
# useless, and the model is called again. docs/models.md also has this table.
_NOT_WHOLE: dict[str, StopReason | Literal["broken"]] = {
    **dict.fromkeys(
        (
            "length",  # Chat Completions
            "max_tokens",  # Anthropic, Gemini
            "max_output_tokens",  # Responses
            "model_length",  # Mistral
            "model_context_window_exceeded",  # Anthropic, GLM
            "pause_turn",  # Anthropic, after the last continuation
            "incomplete",  # Responses, without details
            "max-tokens",
        ),
        "max-tokens",
    ),
    "refusal": "refusal",
    **dict.fromkeys(
        (
            "content_filter",  # Chat Completions, Responses
            "content_filtered",  # Bedrock
            "guardrail_intervened",
            "safety",  # Gemini
            "recitation",
            "blocklist",
            "prohibited_content",
            "spii",
            "sensitive",  # GLM
            "content-filter",
        ),
        "content-filter",
    ),
    **dict.fromkeys(
        (
            "error",  # Mistral, OpenRouter
            "failed",  # Responses
            "cancelled",
            "abort",  # vLLM
            "network_error",  # GLM
            "insufficient_system_resource",  # DeepSeek
            "malformed_function_call",  # Gemini
            "unexpected_tool_call",
        ),
        "broken",
    ),
    "empty": "empty",
}


class Record(BaseModel):
    """A frozen value whose JSON and repr omit absent fields."""

    model_config = ConfigDict(frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return ((name, value) for name, value in super().__repr_args__() if value is not None)

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> JSONObject:
        return {name: value for name, value in handler(self).items() if value is not None}


_MOST = 2**63 - 1  # the largest integer that databases store
_Tokens = Annotated[int, Field(ge=0, le=_MOST)]


class Usage(Record):
    """The usage of one model call, or of several together.

    Args:
        input_tokens, output_tokens: all tokens, including those below.
        cached_tokens, cache_write_tokens: of the input, read from the provider's cache or written to it.
        reasoning_tokens: of the output, thoughts instead of text.
        cost: in US dollars.
    """

    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    cached_tokens: _Tokens | None = None
    cache_write_tokens: _Tokens | None = None
    reasoning_tokens: _Tokens | None = None
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage | None") -> "Usage":
        if other is None:
            return self
        both = zip_longest(self.plain(), other.plain())
        # A server may report any numbers; their sums must stay numbers.
        return Usage.of([one if two is None else two if one is None else min(one + two, _MOST) for one, two in both])

    @property
    def in_words(self) -> str:
        """The usage, for people."""
        cost = "" if self.cost is None else f", {self.cost:.4f} US dollars"
        return f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out{cost}"

    def plain(self) -> list[Any]:
        """Return the numbers in the order of declaration, without absent ones at the end."""
        numbers = [getattr(self, name) for name in type(self).model_fields]
        while numbers[-1] is None:
            numbers.pop()
        return numbers

    @classmethod
    def of(cls, numbers: Sequence[Any]) -> Self:
        """Read the value that `plain` returned; absent numbers at its end may be missing."""
        return cls(**dict(zip(cls.model_fields, numbers, strict=False)))


def read_usage(numbers: Sequence[Any] | None) -> Usage | None:
    return None if numbers is None else Usage.of(numbers)


class Image(Record):
    """A picture for a model: its address, or its data.

    Args:
        url: an https URL, or any other that the provider fetches.
        data: the file's content, as bytes or in base64, with its `media_type`, such as "image/png".
    """

    url: str | None = None
    data: str | None = None
    media_type: str | None = None

    @field_validator("data", mode="before")
    @classmethod
    def _in_base64(cls, value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview):
            return base64.b64encode(value).decode()
        if isinstance(value, str):
            base64.b64decode(value, validate=True)  # raises a ValueError with the reason
        return value

    @field_validator("url", "data", "media_type")
    @classmethod
    def _clean(cls, value: str | None) -> str | None:
        if value is not None and (not value or clean_text(value) != value):
            raise ValueError("it is empty, or has NUL or half a character")
        return value

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if self.media_type is not None and not self.media_type.startswith("image/"):
            raise ValueError(f"media_type must be like 'image/png', got {self.media_type!r}")
        if (self.url is None) == (self.data is None) or (self.data is None) != (self.media_type is None):
            raise ValueError("an image has either a url, or data in base64 and a media_type")
        return self

    @property
    def address(self) -> str:
        """Its url, or its data as a data URL."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


class Reasoning(Record):
    """A model's thoughts in its provider's form: they may be sent back only to that provider, and unchanged."""

    provider: str
    blocks: tuple[JSONObject, ...]

    @property
    def text(self) -> str:
        """The part of it that is text for people; "" if the provider hides it."""
        return BREAK.join(filter(None, map(thought_text, self.blocks)))


BREAK = "\n\n"  # between two thoughts
_TEXT_OF_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "summary", "reasoning_details", "text", "content")


def thought_text(block: Mapping[str, Any]) -> str:
    """Return the readable text of a thought in any provider's form; "" if it has none."""
    match block:
        case {"message": Mapping() as fields}:
            return _text_of(fields)
        case {"type": "thinking" | "reasoning"} | {"reasoning": str()}:
            return _text_of(block)
        case {"part": {"type": "thinking"} as part}:
            return _text_of(part)
        case {"part": {"part_kind": "thinking", "content": str(text)}}:
            return text
    return ""


def _text_of(value: Any, between: str = "") -> str:
    match value:
        case str():
            return value
        case list():
            return between.join(filter(None, map(_text_of, value)))
        case Mapping():
            for name in _TEXT_OF_THOUGHTS:
                if name in value and (text := _text_of(value[name], BREAK if name == "summary" else "")):
                    return text
    return ""


class HostedCall(Record):
    """A call that a model's provider made itself, during its answer.

    Args:
        name: the provider's name for it, such as "web_search".
        input: the call's input, up to 1,000 characters.
        outcome: "unknown" if the answer lacks its result; the call may have run.
        error: the provider's text about the failure.
    """

    name: CleanText
    input: CleanText = ""
    outcome: Literal["ran", "failed", "unknown"] = "ran"
    error: CleanText | None = None


class Citation(Record):
    """A source that a model names for its answer.

    Args:
        text: the quoted text, if the provider returns it.
    """

    url: CleanText | None = None
    title: CleanText | None = None
    text: CleanText | None = None


class ToolCall(Record):
    """A tool call requested by a model.

    Args:
        id: the provider's id; "" without one (the loop then makes one).
        arguments: a JSON object. Text that contains one is parsed; anything else is kept as text, for the error.
    """

    id: CleanText = ""
    name: CleanText = ""
    arguments: JSONObject | str = {}

    @model_validator(mode="before")
    @classmethod
    def _read_other_forms(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return {"arguments": str(data)}
        # A call with its arguments under another key must not pass as one without arguments.
        if "arguments" not in data and (unknown := data.keys() - cls.model_fields.keys()):
            raise ValueError(f"unknown key {min(map(str, unknown))!r}; a tool call has id, name, arguments")
        return data

    @field_validator("id", "name", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> str:
        return value if isinstance(value, str) else "" if value is None else str(value)

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_object_or_text(cls, value: Any) -> JSONObject | str:
        if value is None or (isinstance(value, str) and not value.strip()):
            return {}  # providers send this for a call without arguments
        if isinstance(value, dict) and json_problem(value) is None:
            # A private copy protects the original arguments from changes.
            nested = any(isinstance(item, dict | list) for item in value.values())
            return copy.deepcopy(value) if nested else value
        try:
            text = value if isinstance(value, str) else json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            return f"({with_article(type(value).__name__)} that is not JSON)"
        try:
            return read_object(text)
        except InputError:
            # Text that had to be cleaned is kept as a JSON string: read again, it must not become an object.
            return text if clean_text(text) == text else json.dumps(text)


@dataclass(frozen=True, slots=True)
class Tripped:
    """A guardrail's refusal of a message, an answer or a call.

    Args:
        reason: text for people, and for the model if a call is refused.
        metadata: further plain JSON about it, for programs.
        guardrail, tool_call_id: the guardrail that refused, and the call, if it was one; set when the refusal is
            stored.
        asks: people decide whether the refusal is upheld, since the guardrail has an approval; also set then.
    """

    reason: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    guardrail: str = ""
    tool_call_id: str | None = None
    asks: bool = False


class Message(Record):
    """One message of a transcript. A stored transcript never contains the system prompt.

    Args:
        status: of a tool result: "completed", "failed" or "cancelled".
        usage, cost: of the model call that wrote the message, or of the agents that a tool's call ran; cost in US
            dollars.
        images: beside a user's text.
        reasoning: before an answer; some providers want it back.
        stop_reason: of an incomplete answer: "max-tokens", "refusal", "content-filter" or "empty".
        model: the model that answered, if not the agent's own.
        agent: the agent that answered, if the session's agent hands over to others.
        by: the person who wrote the message or answer.
        id: under which a message waits in the store until a run reads it.
        message_id: given by its sender: the same message, sent again, counts once.
        context: as JSON, the context of the run that has read a user's message.
        hosted: calls that the provider made itself for this answer; none of them ran here.
        citations: the sources that the answer names.
        tripped: guardrails' refusals: of the answer that this message replaces, or of its calls that do not run.
        unfit: the reason why an output validator rejects this final answer.
    """

    role: Role
    content: CleanText = ""
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_call_id: CleanText | None = None
    tool_name: CleanText | None = None
    status: Literal["completed", "failed", "cancelled"] | None = None
    usage: Usage | None = None
    cost: float | None = None
    images: tuple[Image, ...] | None = None
    reasoning: Reasoning | None = None
    stop_reason: StopReason | None = None
    model: str | None = None
    agent: CleanText | None = None
    by: Annotated[str, AfterValidator(lambda value: check_whole(value, "by"))] | None = None
    id: CleanText | None = None
    message_id: CleanText | None = None
    context: CleanText | None = None
    hosted: tuple[HostedCall, ...] | None = None
    citations: tuple[Citation, ...] | None = None
    tripped: tuple[Tripped, ...] | None = None
    unfit: CleanText | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_other_forms(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "is_error" in data:  # older transcripts have this instead of `status`
            data = dict(data)
            data.setdefault("status", "failed" if data.pop("is_error") else "completed")
        if data.get("content", "") is None:  # OpenAI's format has this beside tool calls
            data = {**data, "content": ""}
        return data


def content_digest(message: Message) -> str:
    """Return a digest of the text and images of a message."""
    plain = [message.content, [image.model_dump() for image in message.images or ()]]
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_same(said: Message, digest: str, by: str | None) -> None:
    """Refuse a message that differs from the one with the same id, by that one's digest and sender.

    Raises:
        InputError: it has other content, or another sender.
    """
    if content_digest(said) != digest or (None not in (by, said.by) and by != said.by):
        raise InputError(
            f"message_id {said.message_id!r} was already used for another message in this session: give each message "
            "its own id"
        )


def _is_cost(value: Any) -> bool:
    """Whether it is a sum of dollars; absurdly large ones are not, since sums must stay finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_number(name: str, value: Any) -> bool:
    if name == "cost":
        return _is_cost(value)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST and name in Usage.model_fields


def usage_of(messages: Iterable[Message]) -> Usage | None:
    """Return the total usage of messages; None if none reports any."""
    total = None
    for message in messages:
        if message.usage is not None:
            total = message.usage + total
    return total


def read_images(given: Any, limit: int) -> tuple[Image, ...] | None:
    """Read a user message's images; None if there are none.

    Raises:
        InputError: naming the invalid one; or they are longer than `limit` bytes.
    """
    if not isinstance(given, list | tuple):
        raise InputError(f"images must be a list, got {type(given).__name__}")
    if not given:
        return None
    images = []
    for index, item in enumerate(given):
        try:
            images.append(Image.model_validate(item))
        except ValidationError as error:
            raise InputError(f"images[{index}] is not an image: {explain(error)}") from error
    if (size := sum(len(image.address) for image in images)) > limit:
        raise InputError(f"images: {size:,} bytes, more than {limit:,}; give their urls, or make them smaller")
    return tuple(images)


class LLMResponse(Record):
    """A model's answer: text, tool calls, or both. A plain dict of the same keys is accepted instead.

    Args:
        stop_reason: the provider's own word; see `not_whole`.
        reasoning: data that the provider wants back with the next call.
        hosted: calls that the provider made itself.
        citations: the sources that it names.
    """

    model_config = ConfigDict(extra="forbid")

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    stop_reason: str | None = None
    cost: float | None = None
    reasoning: Reasoning | None = None
    hosted: tuple[HostedCall, ...] | None = None
    citations: tuple[Citation, ...] | None = None

    @property
    def used(self) -> Usage | None:
        """The usage, with the cost."""
        if self.cost is None or (self.usage is not None and self.usage.cost is not None):
            return self.usage
        return (self.usage or Usage()).model_copy(update={"cost": self.cost})

    def after(self, used: Usage | None) -> Self:
        """Return this answer with an earlier usage added, such as that of attempts that were cut off."""
        if used is None:
            return self
        total = used + self.used
        return self.model_copy(update={"usage": total, "cost": total.cost})

    @property
    def not_whole(self) -> StopReason | None:
        """Why the answer is incomplete, in one word for all providers; None if it is complete."""
        why = _NOT_WHOLE.get((self.stop_reason or "").lower())
        return None if why == "broken" else why

    @property
    def is_broken(self) -> bool:
        """Whether the provider reports that it failed in the middle of the answer."""
        return _NOT_WHOLE.get((self.stop_reason or "").lower()) == "broken"

    @property
    def is_empty(self) -> bool:
        """Whether it has neither text nor calls, and the provider gives no reason."""
        return not self.tool_calls and not self.text.strip() and self.not_whole is None

    @field_validator("text", mode="before")
    @classmethod
    def _no_text(cls, value: Any) -> Any:
        return "" if value is None else value

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _no_calls(cls, value: Any) -> Any:
        return () if value is None else value

    @field_validator("cost", mode="before")
    @classmethod
    def _cost_needs_a_number(cls, value: Any) -> float | None:
        return value if _is_cost(value) else None

    @field_validator("usage", mode="before")
    @classmethod
    def _usage_needs_numbers(cls, value: Any) -> Any:
        if isinstance(value, dict) and value and not value.keys() & Usage.model_fields.keys():
            # If it were ignored silently, a budget would never act.
            raise ValueError(f"unknown key {min(map(str, value))!r}; usage has {', '.join(Usage.model_fields)}")
        if not isinstance(value, dict):
            return value if isinstance(value, Usage) else None
        counts = {name: value[name] for name in ("input_tokens", "output_tokens") if name in value}
        if not value or not all(_is_number(name, number) for name, number in counts.items()):
            return None
        # A detail that is not a number must not discard the others: budgets act on them.
        return Usage.model_validate({name: number for name, number in value.items() if _is_number(name, number)})

    @classmethod
    def read(cls, answer: object) -> Self:
        """Read the value that an adapter returned.

        Raises:
            ModelError: it is neither an `LLMResponse` nor a dict of its keys.
        """
        if isinstance(answer, cls):
            return answer
        try:
            return cls.model_validate(answer)
        except ValidationError as error:
            what = f"{answer!r:.80}" if not isinstance(answer, dict) else f"a dict, but {explain(error)}"
            raise ModelError(
                f"The adapter returned {what}: that is neither an LLMResponse nor a dict of its keys "
                "(text, tool_calls, usage, stop_reason, cost, reasoning, hosted, citations)"
            ) from error
