"""The limits of a loop: their defaults, refused values, and effects."""

import dataclasses
from typing import Any

import pytest

from standfast import (
    ContextCompression,
    DefinitionError,
    DiminishingReturns,
    Image,
    Loop,
    Message,
    TokenBudget,
    ToolCall,
)
from standfast.messages import Reasoning


def test_the_limits_of_a_loop_have_defaults() -> None:
    assert dataclasses.asdict(Loop()) == {
        "max_iterations": 20,
        "on_stuck": "stop",
        "on_unknown": "tell",
        "answer_timeout": 2_592_000.0,
        "stuck_threshold": 3,
        "stuck_retries": 1,
        "checkpoint_interval": 5,
        "max_tool_concurrency": 5,
        "max_tool_calls": 64,
        "output_retries": 1,
        "max_message_bytes": 10 * 1024 * 1024,
        "token_budget": None,
        "cost_budget": None,
        "session_token_budget": None,
        "session_cost_budget": None,
        "on_budget": "end",
        "diminishing_returns": None,
        "model_retry": {
            "initial_interval": 1.0,
            "backoff_coefficient": 2.0,
            "maximum_interval": 60.0,
            "maximum_attempts": 8,
        },
        "context_compression": None,
        "on_model_outage": "retry",
    }


def test_one_limit_leaves_the_other_defaults_alone() -> None:
    assert Loop(max_iterations=50) == dataclasses.replace(Loop(), max_iterations=50)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("max_iterations", 0, 1),
        ("max_iterations", -5, 1),
        ("max_iterations", 1.5, 1),
        ("max_iterations", "5", 1),
        ("max_iterations", True, 1),
        ("max_iterations", None, 1),
        ("stuck_threshold", -1, 0),
        ("stuck_retries", -1, 0),
        ("checkpoint_interval", 0, 1),
        ("max_tool_concurrency", 0, 1),
        ("max_tool_calls", 0, 1),
        ("max_message_bytes", 1_023, 1_024),
    ],
)
def test_a_limit_that_is_not_a_count_is_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(DefinitionError) as caught:
        Loop(**{name: value})
    assert str(caught.value) == f"loop.{name} must be >= {least}, got {value!r}"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"on_stuck": "panic"}, "loop.on_stuck must be one of stop, retry, escalate, got 'panic'"),
        ({"on_stuck": None}, "loop.on_stuck must be one of stop, retry, escalate, got None"),
        ({"token_budget": "many"}, "loop.token_budget must be a TokenBudget, got 'many'"),
        ({"token_budget": 1.5}, "loop.token_budget must be a TokenBudget, got 1.5"),
        ({"token_budget": 0}, "token_budget.max must be >= 1, got 0"),
        ({"token_budget": True}, "token_budget.max must be >= 1, got True"),
        ({"diminishing_returns": 3}, "loop.diminishing_returns must be a DiminishingReturns, got 3"),
        ({"context_compression": len}, "loop.context_compression must be a ContextCompression, got <built-in"),
    ],
    ids=str,
)
def test_a_wrong_rule_of_a_loop_is_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Loop(**options)
    assert str(caught.value).startswith(rule)


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(TypeError, match="max_turns"):
        Loop(max_turns=3)  # type: ignore[call-arg]


def test_a_token_budget_may_be_a_number() -> None:
    assert Loop(token_budget=1_000) == Loop(token_budget=TokenBudget(1_000))


@pytest.mark.parametrize("name", ["stop_threshold", "warning_threshold"])
@pytest.mark.parametrize("value", [0, -0.5, "0.9", None, True, float("nan")])
def test_a_threshold_that_is_not_a_share_is_refused(name: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"token_budget.{name} must be a share above 0, got {value!r}"):
        TokenBudget(1_000, **{name: value})


@pytest.mark.parametrize("message", [5, ["a"], b"a"])
def test_a_warning_that_is_not_a_text_is_refused(message: Any) -> None:
    with pytest.raises(DefinitionError, match=r"token_budget\.warning_message must be"):
        TokenBudget(1_000, warning_message=message)


@pytest.mark.parametrize(
    ("message", "warning"),
    [
        (
            None,
            "Warning: You have used 81% of your token budget (810/1000 tokens). Please wrap up your current task.",
        ),
        ("Hurry.", "Hurry."),
        (lambda percent, used, most: f"{percent}|{used}|{most}", "81|810|1000"),
    ],
    ids=["default", "text", "function"],
)
def test_a_budget_warns_in_words(message: Any, warning: str) -> None:
    assert TokenBudget(1_000, warning_message=message).warning(810) == warning


@pytest.mark.parametrize("options", [{"calls": 0}, {"min_tokens": 0}, {"calls": "3"}, {"min_tokens": None}], ids=str)
def test_diminishing_returns_need_counts(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=rf"diminishing_returns\.{next(iter(options))} must be >= 1"):
        DiminishingReturns(**options)


@pytest.mark.parametrize(
    ("compress", "options", "rule"),
    [
        (5, {"max_messages": 3}, "context_compression.compress must be callable, got 5"),
        (len, {}, "context_compression needs max_messages or max_token_estimate"),
        (len, {"max_messages": 0}, "context_compression.max_messages must be >= 1, got 0"),
        (len, {"max_token_estimate": "3"}, "context_compression.max_token_estimate must be >= 1, got '3'"),
    ],
)
def test_a_wrong_compression_is_refused(compress: Any, options: dict[str, Any], rule: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        ContextCompression(compress, **options)
    assert str(caught.value) == rule


@pytest.mark.parametrize(
    ("options", "lengths", "applies"),
    [
        ({"max_messages": 2}, [9, 9], False),
        ({"max_messages": 2}, [9, 9, 9], True),
        ({"max_token_estimate": 10}, [20, 20], False),
        ({"max_token_estimate": 10}, [20, 21], True),
        ({"max_messages": 2, "max_token_estimate": 10}, [41], True),
        ({"max_messages": 2, "max_token_estimate": 10}, [0, 0, 0], True),
        ({"max_messages": 2, "max_token_estimate": 10}, [], False),
    ],
    ids=str,
)
def test_compression_applies_above_either_limit(options: dict[str, Any], lengths: list[int], applies: bool) -> None:
    messages = [Message(role="user", content="x" * length) for length in lengths]

    assert ContextCompression(list, **options).applies_to(messages) is applies


@pytest.mark.parametrize(
    "message",
    [
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="post", arguments={"text": "x" * 400}),)),
        Message(role="assistant", reasoning=Reasoning(provider="p", blocks=({"thinking": "x" * 400},))),
        Message(role="user", images=(Image(url="u"),)),
    ],
    ids=["arguments", "thoughts", "an image"],
)
def test_all_that_a_model_is_shown_counts(message: Message) -> None:
    assert ContextCompression(list, max_token_estimate=100).applies_to([message])
    assert not ContextCompression(list, max_token_estimate=2_000).applies_to([message])
