"""Any JSON from a provider is an answer or a clear error: streamed or not, in every format."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standfast.errors import InputError, ModelError
from standfast.llm import anthropic_messages, responses
from standfast.llm.chat_completions import Answer, AnswerSoFar, mended, request_messages
from standfast.messages import LLMResponse, Message

WORDS = ["choices", "message", "delta", "content", "refusal", "tool_calls", "index", "id", "type", "function", "name",
         "arguments", "usage", "prompt_tokens", "prompt_tokens_details", "finish_reason", "error", "output", "text",
         "input", "input_tokens", "output_tokens", "content_block", "content_block_start", "content_block_delta",
         "input_json_delta", "partial_json", "message_start", "message_delta", "message_stop", "stop_reason",
         "tool_use",
         "thinking", "reasoning", "encrypted_content", "call_id", "function_call", "incomplete_details", "reason",
         "status", "input_tokens_details", "text_delta", "tool", "answer", "citations", "annotations",
         "citations_delta", "server_tool_use", "web_search_tool_result", "tool_use_id", "container", "web_search_call",
         "url", "caller"]  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS)
    | st.text(st.characters(categories=None), max_size=8)
    | st.sampled_from(["\0", "\ud800", '{"a":1}', '{"a":"\\', "[" * 500])
)  # fmt: skip
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6)
)
CHAT_CALL = st.fixed_dictionaries(
    {},
    optional={
        "index": LEAVES, "id": LEAVES, "type": LEAVES,
        "function": LEAVES | st.fixed_dictionaries({}, optional={"name": LEAVES, "arguments": JSON}),
        "extra_content": JSON,
    },
)  # fmt: skip
SAID = st.fixed_dictionaries(
    {},
    optional={
        "content": LEAVES | st.lists(JSON), "refusal": LEAVES, "tool_calls": st.lists(CHAT_CALL),
        "reasoning_content": JSON, "reasoning_details": JSON, "annotations": JSON,
    },
)  # fmt: skip
CHOICE = st.fixed_dictionaries({}, optional={"message": SAID, "delta": SAID, "finish_reason": LEAVES})
CHAT = JSON | st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries({}, optional={"message": SAID, "delta": SAID, "finish_reason": LEAVES})
        )
    },
    optional={"usage": JSON},
)
EVENTS = JSON | st.fixed_dictionaries(
    {"type": st.sampled_from([word for word in WORDS if "_start" in word or "_delta" in word or "_stop" in word])},
    optional={
        "index": st.integers(0, 2) | LEAVES,
        "content_block": JSON,
        "delta": JSON,
        "message": JSON,
        "usage": JSON,
    },
)
often = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def is_answer_or_refused(read: Callable[[], Any], refusals: tuple[type[Exception], ...]) -> None:
    try:
        answer = read()
    except refusals:
        return
    assert isinstance(answer, LLMResponse)


def said(answer: LLMResponse) -> Message:
    return Message(
        role="assistant", content=answer.text, tool_calls=answer.tool_calls or None, reasoning=answer.reasoning
    )


@pytest.mark.slow
@often
@given(st.lists(CHAT, max_size=4))
def test_chat_completions(pieces: Sequence[Any]) -> None:
    def read() -> LLMResponse:
        answer = AnswerSoFar()
        for piece in pieces:
            answer.add(Answer.read(json.dumps(piece).encode()))
        found = answer.response("k")
        written = request_messages([said(found)], "k")
        json.dumps(
            [written, mended(written, "thinking is not permitted"), mended(written, "reasoning_content: missing")]
        )
        return found

    is_answer_or_refused(read, (InputError, ModelError))


# What the adapters on SDKs put into words; see `errors_of`.
OF_SDKS = (InputError, AttributeError, TypeError, LookupError, ValueError)


@pytest.mark.slow
@often
@given(st.lists(EVENTS.filter(lambda event: isinstance(event, dict)), max_size=6))
def test_messages(events: Sequence[Any]) -> None:
    def read() -> LLMResponse:
        answer = anthropic_messages.AnswerSoFar()
        for event in [*events, {"type": "message_stop"}]:
            answer.add(event)
        found = anthropic_messages.response(answer.body())
        anthropic_messages.request("m", [said(found)], [], {}, output=None, max_tokens=1, cache=False)
        return found

    is_answer_or_refused(read, OF_SDKS)


@often
@given(
    st.fixed_dictionaries(
        {"output": st.lists(JSON.filter(lambda item: isinstance(item, dict)))}, optional={"usage": JSON}
    )
)
def test_responses(body: Any) -> None:
    def read() -> LLMResponse:
        found = responses.response(body)
        responses.request("m", [said(found)], [], {}, output=None, thoughts=True)
        return found

    is_answer_or_refused(read, OF_SDKS)
