"""No JSON that a provider may send is more than an answer, or an error in words: streamed or not, in every format."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standfast.errors import InputError, ModelError
from standfast.llm import anthropic_messages, responses
from standfast.llm.chat_completions import Answer, AnswerSoFar
from standfast.messages import LLMResponse

WORDS = ["choices", "message", "delta", "content", "refusal", "tool_calls", "index", "id", "type", "function", "name",
         "arguments", "usage", "prompt_tokens", "prompt_tokens_details", "finish_reason", "error", "output", "text",
         "input", "input_tokens", "output_tokens", "content_block", "content_block_start", "content_block_delta",
         "input_json_delta", "partial_json", "message_start", "message_delta", "message_stop", "stop_reason",
         "tool_use",
         "thinking", "reasoning", "encrypted_content", "call_id", "function_call", "incomplete_details", "reason",
         "status", "input_tokens_details", "text_delta", "tool", "answer"]  # fmt: skip
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
    },
)  # fmt: skip
SAID = st.fixed_dictionaries({}, optional={"content": LEAVES, "refusal": LEAVES, "tool_calls": st.lists(CHAT_CALL)})
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


@often
@given(st.lists(CHAT, max_size=4))
def test_chat_completions(pieces: Sequence[Any]) -> None:
    def read() -> LLMResponse:
        answer = AnswerSoFar()
        for piece in pieces:
            answer.add(Answer.read(json.dumps(piece).encode()))
        return answer.response()

    is_answer_or_refused(read, (InputError, ModelError))


# What the adapters on SDKs put into words; see `errors_of`.
OF_SDKS = (InputError, AttributeError, TypeError, LookupError, ValueError)


@often
@given(st.lists(EVENTS.filter(lambda event: isinstance(event, dict)), max_size=6))
def test_messages(events: Sequence[Any]) -> None:
    def read() -> LLMResponse:
        answer = anthropic_messages.AnswerSoFar()
        for event in [*events, {"type": "message_stop"}]:
            answer.add(event)
        return anthropic_messages.response(answer.body())

    is_answer_or_refused(read, OF_SDKS)


@often
@given(
    st.fixed_dictionaries(
        {"output": st.lists(JSON.filter(lambda item: isinstance(item, dict)))}, optional={"usage": JSON}
    )
)
def test_responses(body: Any) -> None:
    is_answer_or_refused(lambda: responses.response(body), OF_SDKS)
