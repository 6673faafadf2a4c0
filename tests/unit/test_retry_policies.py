"""Durations and retry policies: their forms, refused ones, and the time of a retry."""

import datetime as dt
from typing import Any

import pytest

from standfast import DefinitionError, RetryPolicy, Tool
from standfast.tools import Failed, seconds


@pytest.mark.parametrize(
    ("duration", "result"),
    [
        ("30s", 30),
        ("15m", 900),
        ("2h", 7_200),
        ("7d", 604_800),
        ("1w", 604_800),
        (5, 5),
        (0.5, 0.5),
        (dt.timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_a_text_or_seconds_or_a_timedelta(duration: Any, result: float) -> None:
    assert seconds(duration, "timeout") == result


@pytest.mark.parametrize(
    "duration",
    [
        "", "7", "7days?", "-1s", "0s", "30s\n", " 30s", "1.5h", "30S", "9999999999s", "s", 0, -1, True, None, [],
        b"30s", float("nan"), float("inf"), 10**400, dt.timedelta(0), dt.timedelta(-1),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_anything_else_is_not_a_duration(duration: Any) -> None:
    with pytest.raises(DefinitionError, match=r'timeout must be like "30s", "15m", "2h", "7d", "1w"'):
        seconds(duration, "timeout")


def test_a_wrong_timeout_names_the_tool() -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': timeout must be like"):
        Tool("look", description="d", timeout="soon")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"maximum_attempts": 0}, "maximum_attempts"),
        ({"maximum_attempts": True}, "maximum_attempts"),
        ({"maximum_attempts": 2.5}, "maximum_attempts"),
        ({"maximum_attempts": "5"}, "maximum_attempts"),
        ({"maximum_attempts": None}, "maximum_attempts"),
        ({"backoff_coefficient": 0.5}, "backoff_coefficient"),
        ({"backoff_coefficient": float("nan")}, "backoff_coefficient"),
        ({"backoff_coefficient": "2"}, "backoff_coefficient"),
        ({"initial_interval": 0}, "initial_interval"),
        ({"initial_interval": "soon"}, "initial_interval"),
        ({"maximum_interval": float("inf")}, "maximum_interval"),
    ],
    ids=str,
)
def test_a_wrong_retry_policy_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(DefinitionError, match=rf"retry\.{field} must be"):
        RetryPolicy(**options)


def test_an_unknown_option_of_a_retry_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="attempts"):
        RetryPolicy(attempts=3)  # type: ignore[call-arg]


def test_delays_grow_up_to_the_longest() -> None:
    assert [RetryPolicy().delay(attempt) for attempt in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_intervals_may_be_texts() -> None:
    policy = RetryPolicy(initial_interval="2s", backoff_coefficient=3, maximum_interval="1m")

    assert [policy.delay(attempt) for attempt in range(1, 6)] == [2, 6, 18, 54, 60]


@pytest.mark.parametrize("coefficient", [2, 2.0])
def test_a_delay_too_large_for_a_number_is_the_longest(coefficient: float) -> None:
    assert RetryPolicy(backoff_coefficient=coefficient).delay(100_000) == 30


WRONG = Failed("wrong arguments")
RAISED = Failed("raised", raised=True)
RETRYABLE = Failed("busy", raised=True, retryable=True)
LATER = Failed("busy", raised=True, retryable=True, retry_after=7)
POLICY = RetryPolicy(initial_interval=2, maximum_attempts=3)


@pytest.mark.parametrize(
    ("options", "failed", "attempt_number", "delay"),
    [
        ({}, RAISED, 1, None),
        ({}, RETRYABLE, 1, None),
        ({}, LATER, 1, None),
        ({"safe_to_retry": True}, WRONG, 1, None),
        ({"safe_to_retry": True}, RAISED, 1, None),
        ({"safe_to_retry": True}, RETRYABLE, 1, 1),
        ({"safe_to_retry": True}, RETRYABLE, 4, 8),
        ({"safe_to_retry": True}, RETRYABLE, 5, None),
        ({"safe_to_retry": True}, LATER, 1, 7),
        ({"safe_to_retry": True}, LATER, 5, None),
        ({"safe_to_retry": True, "retry": POLICY}, WRONG, 1, None),
        ({"safe_to_retry": True, "retry": POLICY}, RAISED, 1, 2),
        ({"safe_to_retry": True, "retry": POLICY}, RETRYABLE, 2, 4),
        ({"safe_to_retry": True, "retry": POLICY}, LATER, 2, 7),
        ({"safe_to_retry": True, "retry": POLICY}, RAISED, 3, None),
        ({"safe_to_retry": True, "retry": RetryPolicy(maximum_attempts=1)}, RETRYABLE, 1, None),
    ],
)
def test_when_a_failed_call_is_tried_again(
    options: dict[str, Any], failed: Failed, attempt_number: int, delay: float | None
) -> None:
    assert Tool("look", description="d", **options).next_delay(failed, attempt_number) == delay
