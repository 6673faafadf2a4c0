"""The changes of an edit, part by part."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.temporal.client.history.audits import changes_between


def words(before: Any, after: Any) -> list[str]:
    return [one.in_words for one in changes_between(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"amount": 120}, {"amount": 80}, ["amount: 120 → 80"]),
        ({"a": 1}, {"a": 1.0}, ["a: 1 → 1.0"]),
        ({"a": 1}, {"a": True}, ["a: 1 → true"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": None}, {}, ["a: null → (not given)"]),
        ({}, {"a": None}, ["a: (not given) → null"]),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, ["a.b.1.c: 2 → 3"]),
        ({"a": [1, 2]}, {"a": [2]}, ["a: [1, 2] → [2]"]),
        ({"a.b": 1, "": 2}, {"a.b": 2, "": 3}, ['"a.b": 1 → 2', '"": 2 → 3']),
        ("x", ["x"], ['value: "x" → ["x"]']),
        ({"to": "ada"}, {"to": "ada\u202e"}, ['to: "ada" → "ada\\u202e"']),
    ],
    ids=str,
)
def test_each_part_that_differs_is_said_once(before: Any, after: Any, said: list[str]) -> None:
    assert words(before, after) == said


def test_a_long_text_is_compared_by_lines() -> None:
    before = "".join(f"line {number}\n" for number in range(50))
    (change,) = changes_between({"text": before}, {"text": before.replace("line 7\n", "").replace("line 40", "40")})
    assert change.in_words == "text:"
    assert change.lines == ["  line 6", "- line 7", "  line 8", "  …", "  line 39", "- line 40", "+ 40", "  line 41"]


def test_texts_of_many_lines_are_said_whole_and_at_once() -> None:
    (change,) = changes_between("a\nb\n" * 20_000, "b\na\n" * 20_000)
    assert len(change.lines or ()) == 80_001  # the end of both is the same


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, _JSON)
def test_values_differ_exactly_if_a_change_is_said(before: Any, after: Any) -> None:
    is_same = json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert bool(words(before, after)) is not is_same
    assert words(before, before) == []
