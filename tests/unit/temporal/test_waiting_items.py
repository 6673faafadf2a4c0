"""Runs' reports are read strictly: for any other program's answer, people see one card with the reason."""

from datetime import UTC, datetime
from typing import Any, get_args

import pytest

from standfast.errors import InputError
from standfast.temporal.client.board.waiting_items import Item, read_items, read_result, read_state
from standfast.temporal.workflows.board import visibility
from standfast.temporal.workflows.board.waiting_items import Waiting

NOW = datetime(2026, 11, 22, tzinfo=UTC)
GOOD: dict[str, Any] = {"kind": "question", "name": "c1", "message": "Who?", "since": "2026-11-22T00:00:00+00:00"}
APPROVAL = {**GOOD, "kind": "approval", "digest": "d", "approvers": []}


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


ODD: dict[str, Any] = {
    "nothing": None,
    "a text": "approve me",
    "a number": 5,
    "an object": {"items": [GOOD]},
    "a list of texts": ["pay"],
    "a list of lists": [[GOOD]],
    "an empty object": [{}],
    "no message": [{name: value for name, value in GOOD.items() if name != "message"}],
    "no name": [{name: value for name, value in GOOD.items() if name != "name"}],
    "another run's id": [{**GOOD, "workflow_id": "payments/1"}],
    "an unknown key": [{**GOOD, "colour": "red"}],
    "an unknown kind": [{**GOOD, "kind": "pizza"}],
    "a kind that is not a text": [{**GOOD, "kind": ["approval"]}],
    "a message that is not a text": [{**GOOD, "message": {"text": "x"}}],
    "a huge message": [{**GOOD, "message": "x" * 300_000}],
    "a huge name": [{**GOOD, "name": "x" * 3_000}],
    "no time": [{**GOOD, "since": "yesterday"}],
    "a time without a zone": [{**GOOD, "since": "2026-11-22T00:00:00"}],
    "a deadline that is a number": [{**GOOD, "deadline": 5}],
    "an approval without digest": [{**GOOD, "kind": "approval"}],
    "approvers that are a text": [{**APPROVAL, "approvers": "ada"}],
    "approvers that are numbers": [{**APPROVAL, "approvers": [1]}],
    "too many approvers": [{**APPROVAL, "approvers": ["ada"] * 30_000}],
    "a quorum of true": [{**APPROVAL, "quorum": True, "approved_by": []}],
    "a quorum of nobody": [{**APPROVAL, "quorum": 2}],
    "NaN": [{**APPROVAL, "tool": "pay", "arguments": {"amount": float("nan")}}],
    "deep arguments": [{**APPROVAL, "tool": "pay", "arguments": nested(100)}],
    "a tool without arguments": [{**APPROVAL, "tool": "pay"}],
    "keys that are not texts": [{**APPROVAL, "tool": "pay", "arguments": {1: 2}}],
    "a lone surrogate": [{**GOOD, "message": "\ud800"}],
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_is_odd_becomes_one_card_that_says_so(odd: Any) -> None:
    (card,) = read_items(odd)
    assert card["kind"] == "unreadable"
    assert card["message"].startswith("the waiting items of this run cannot be read: ")
    assert len(card["message"]) < 600


def test_what_is_odd_hides_nothing_beside_it() -> None:
    assert [item["kind"] for item in read_items([{}, GOOD, "x", APPROVAL])] == ["question", "approval", "unreadable"]
    assert len(read_items([GOOD] * 1_200)) == 1_001


def test_a_gate_for_a_large_group_is_read() -> None:
    people = [f"person-{number}@example.com" for number in range(3_000)]
    item = {**APPROVAL, "approvers": people, "quorum": 1_500, "approved_by": people[:1_200]}
    assert read_items([item]) == [item]


@pytest.mark.parametrize("kind", visibility._WHAT)
def test_whatever_a_run_shows_is_read(kind: str) -> None:
    full = Waiting(
        kind, "c1", "Pay?", NOW, NOW, "digest", ("ada",), ("team",), 2, ("bob",), "pay", {"amount": 5, "note": None},
        can_skip=True, size=99_000, reference={"journal_key": "r", "turn": 1, "position": 0},
    )  # fmt: skip
    bare = Waiting(kind, "", "", NOW, digest="digest")
    assert read_items([full.plain(), bare.plain()]) == [full.plain(), bare.plain()]


def test_every_kind_that_can_be_shown_can_be_read() -> None:
    assert set(get_args(Item.model_fields["kind"].annotation)) == set(visibility._WHAT)


@pytest.mark.parametrize(
    "odd", [None, "ok", 5, [], {}, {"status": 5}, {"status": "x", "usage": "lots"}, {"status": "x", "running": [5]}]
)
def test_a_state_that_is_none_of_ours_is_refused_in_words(odd: Any) -> None:
    with pytest.raises(InputError, match="its status cannot be read"):
        read_state(odd)


def test_a_state_is_read_with_what_waits_in_it() -> None:
    assert read_state({"status": "waiting", "waiting": [GOOD], "more": 1}) == {
        "status": "waiting", "waiting": [GOOD], "more": 1
    }  # fmt: skip
    assert read_state({"status": "waiting", "waiting": 5})["waiting"][0]["kind"] == "unreadable"


@pytest.mark.parametrize("odd", [None, "paid", [], {"status": 5}, {"status": "x", "usage": {"input_tokens": "many"}}])
def test_a_result_of_another_program_is_shown_as_none_of_ours(odd: Any) -> None:
    assert read_result(odd) == {}
