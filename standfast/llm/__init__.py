"""Models: anything with an async `chat` is an adapter."""

from standfast.llm.answer_limits import AnswerLimits
from standfast.llm.anthropic_sdk import AnthropicMessages
from standfast.llm.openai_compatible import OpenAICompatible
from standfast.llm.openai_sdk import OpenAIResponses
from standfast.llm.prices import Price
from standfast.llm.protocol import LLM, LLMAdapter, StreamingLLMAdapter, ToolDescription, tools_to_descriptions
from standfast.llm.providers import adapter_for, create_adapter
from standfast.llm.pydantic_ai_models import pydantic_ai_model

__all__ = [
    "LLM",
    "AnswerLimits",
    "AnthropicMessages",
    "LLMAdapter",
    "OpenAICompatible",
    "OpenAIResponses",
    "Price",
    "StreamingLLMAdapter",
    "ToolDescription",
    "adapter_for",
    "create_adapter",
    "pydantic_ai_model",
    "tools_to_descriptions",
]
