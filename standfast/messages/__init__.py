"""The vocabulary of a conversation: messages, what a model answers, and texts that can be stored and sent anywhere."""

from standfast.messages.appearances import visible, visible_json
from standfast.messages.people import distinct_people, person
from standfast.messages.records import (
    Image,
    LLMResponse,
    Message,
    Reasoning,
    Record,
    StopReason,
    ToolCall,
    Usage,
    read_images,
    usage_of,
)
from standfast.messages.texts import (
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
    unfenced,
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
    "distinct_people",
    "error_text",
    "explain",
    "is_cut",
    "json_problem",
    "person",
    "read_images",
    "read_json",
    "read_object",
    "size_over",
    "unfenced",
    "usage_of",
    "visible",
    "visible_json",
]
