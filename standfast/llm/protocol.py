"""The adapter protocol: anything with an async `chat`, and the descriptions of tools that it gets."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from standfast.events import ReasoningDelta
from standfast.messages import LLMResponse, Message, Record
from standfast.tools import Tool


class ToolDescription(Record):
    """A tool's description for a model: `input_schema` is the JSON schema of its arguments."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class LLMAdapter(Protocol):
    """Calls one model.

    An adapter with `may_answer_nothing = True` is not called again if its answer has neither text nor calls.
    """

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> LLMResponse | Mapping[str, Any]:
        """Answer a conversation. Raise any exception if the model could not be called."""
        ...


@runtime_checkable
class StreamingLLMAdapter(Protocol):
    """An adapter that can also answer piece by piece."""

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any
    ) -> AsyncIterator[str | ReasoningDelta | LLMResponse | Mapping[str, Any]]:
        """Yield pieces of the text, of the readable thoughts if there are any, and the whole answer as the last value.

        Without pieces, the thoughts are taken from the whole answer.
        """
        ...


LLM = LLMAdapter | Callable[[str | None], LLMAdapter | None]


def tools_to_descriptions(tools: Mapping[str, Tool[..., Any]]) -> list[ToolDescription]:
    """Describe tools to a model: name, description, JSON schema of the input."""
    return [
        ToolDescription(name=tool.name, description=tool.description, input_schema=tool.input_schema)
        for tool in tools.values()
    ]
