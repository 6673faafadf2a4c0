"""What our own activities return is taken for that, and not for what an operator has put in."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.temporal import names
from holdfast.temporal.arrivals import read_moment
from holdfast.temporal.results import fits

FACTS = {"timeout": 60.0}
WITH = {"make": {"path": "pay", "what": "with"}}


@pytest.mark.parametrize(
    ("activity", "reference", "found"),
    [
        (names.CALL_MODEL, {}, {"seq": 2, "arguments": {"c1": "xx"}, "sizes": {"c1": 20_000}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"tools": {"pay": FACTS}}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"available": ["pay"], "tools": {"pay": FACTS}}}),
        (names.STEP, WITH, {"made": "{}"}),
        (names.STEP, WITH, {"made": {"shown": "{}", "tool": "pay", "facts": FACTS}}),
    ],
)
def test_a_result_of_large_arguments_and_of_changed_tools_is_one(activity: str, reference: Any, found: Any) -> None:
    assert fits(activity, reference, found)


@pytest.mark.parametrize(
    ("activity", "reference", "found"),
    [
        (names.CALL_MODEL, {}, {"seq": 2, "sizes": {"c1": "20,000"}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": ["pay"]}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"tools": {"pay": 1}}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"more": 1}}),
        (names.STEP, WITH, {"made": {"shown": "{}", "tool": "pay"}}),
        (names.STEP, WITH, {"made": {"shown": "{}", "tool": 1, "facts": FACTS}}),
    ],
)
def test_what_no_run_can_use_is_none(activity: str, reference: Any, found: Any) -> None:
    assert not fits(activity, reference, found)


@pytest.mark.parametrize("found", [None, 3, {}, [], "soon", "2026-11-22T10:00:00", ["2026"]])
def test_no_time_of_a_signal_ends_a_run_in_a_loop(found: Any) -> None:
    assert read_moment(found) is None


def test_the_time_of_a_signal_is_read() -> None:
    assert read_moment("2026-11-22T10:00:00+00:00") == datetime(2026, 11, 22, 10, tzinfo=UTC)
