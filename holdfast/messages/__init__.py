"""The vocabulary of a conversation: messages, what a model answers, and texts that can be stored and sent anywhere."""

from holdfast.messages.records import (
    Image,
    LLMResponse,
    Message,
    Reasoning,
    Record,
    StopReason,
    ToolCall,
    Usage,
)
from holdfast.messages.texts import (
    MAX_DEPTH,
    MAX_DIGITS,
    clean_text,
    cut,
    error_text,
    explain,
    is_cut,
    json_problem,
    read_json,
    read_object,
    size_over,
)

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "Image",
    "LLMResponse",
    "Message",
    "Reasoning",
    "Record",
    "StopReason",
    "ToolCall",
    "Usage",
    "clean_text",
    "cut",
    "error_text",
    "explain",
    "is_cut",
    "json_problem",
    "read_json",
    "read_object",
    "size_over",
]
