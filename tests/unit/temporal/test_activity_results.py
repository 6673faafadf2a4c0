"""Results of our own activities are recognised, and distinguished from an operator's."""

from datetime import UTC, datetime
from typing import Any

import pytest

from standfast.temporal.wire import names
from standfast.temporal.wire.results import fits, receipted
from standfast.temporal.workflows.inbox.arrivals import read_moment

FACTS = {"timeout": 60.0}
OPENING = {"run": "r", "input": {"message": "hi"}}
PLAN = {"pipeline": "w", "plan": [], "gates": {}, "tools": {"pay": FACTS}, "search": True}
WHEN = "2026-11-22T10:00:00+00:00"
RULE = {"guardrail": "look", "holds": "answer"}
HELD: dict[str, Any] = {
    "question": "May it?",
    "tool_call_id": "answer-2",
    "gate": {"name": "answer-2", "rule": RULE, "digest": "d", "approvals": []},
}


def asked_by(rule: dict[str, Any]) -> Any:
    return {"seq": 2, "gates": [{**HELD, "gate": {**HELD["gate"], "rule": rule}}], "arguments": {"answer-2": {}}}


ASKED = {"message": "Ship it?", "digest": "d"}


def making(what: str) -> Any:
    return {"make": {"path": "pay", "what": what}}


WITH = making("with")


@pytest.mark.parametrize(
    ("activity", "reference", "found"),
    [
        (names.CALL_MODEL, {}, {"seq": 2, "arguments": {"c1": "xx"}, "sizes": {"c1": 20_000}}),
        (names.CALL_MODEL, {}, {"seq": 2, "gates": [HELD], "arguments": {"answer-2": {"shown": []}}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"tools": {"pay": FACTS}}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"available": ["pay"], "tools": {"pay": FACTS}}}),
        (names.STEP, WITH, {"made": "{}"}),
        (names.STEP, WITH, {"made": {"shown": "{}", "tool": "pay", "facts": FACTS}}),
        (names.CALL_MODEL, {}, asked_by({**RULE, "users": ["ada"], "timeout": 60, "escalate_to": {"quorum": 2}})),
        (names.STEP, making("over"), {"made": 3}),
        (names.STEP, making("until"), {"made": False}),
        (names.STEP, making("on"), {"made": "red"}),
        (names.STEP, making("input"), {"made": None}),
        (names.STEP, making("gate"), {"made": {**ASKED, "shown": [{"kind": "left-out", "size": 5}, {"kind": "text"}]}}),
        (names.OPEN, OPENING, {"session": "s", "facts": {}, "seq": 0, "message": "hi", "unheard": [{"text": "x"}]}),
        (names.OPEN, {"run": "r"}, {}),
        (names.OPEN_PIPELINE, OPENING, PLAN),
        (names.RECALL, {}, {"decisions": [[{"gate": "c1", "decision": "approve"}, WHEN]], "has_run": True}),
        (names.ANSWERED, {}, {"c1": {"returned": "yes"}}),
        (names.KEEP, {}, ["hi", {"text": "and", "by": "ada"}]),
    ],
)
def test_what_an_activity_returns_is_its_result(activity: str, reference: Any, found: Any) -> None:
    assert fits(activity, reference, found)


@pytest.mark.parametrize(
    ("activity", "reference", "found"),
    [
        (names.CALL_MODEL, {}, {"seq": 2, "sizes": {"c1": "20,000"}}),
        (names.CALL_MODEL, {}, {"seq": 2, "gates": [HELD]}),
        (names.CALL_MODEL, {}, {"seq": 2, "gates": [HELD, HELD], "arguments": {"answer-2": {"shown": []}}}),
        (names.CALL_MODEL, {}, {"seq": 2, "gates": [{**HELD, "gate": {}}], "arguments": {"answer-2": {}}}),
        *(
            (names.CALL_MODEL, {}, asked_by({**RULE, name: value}))
            for name, value in (
                ("users", [["ada"]]),
                ("users", "ada"),
                ("groups", [5]),
                ("timeout", "1d"),
                ("timeout", 1e300),
                ("remind_every", [1]),
                ("remind_every", -1),
                ("quorum", "2"),
                ("escalate_to", {"users": [5]}),
                ("later", [{"timeout": "1d"}]),
            )
        ),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": ["pay"]}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"tools": {"pay": 1}}}),
        (names.CALL_MODEL, {}, {"seq": 2, "declared": {"more": 1}}),
        (names.CALL_MODEL, {}, {"seq": 2, "gates": [HELD], "arguments": {"answer-2": {"shown": [{"label": "x"}]}}}),
        *(
            (names.STEP, making("over"), {"made": made})
            for made in list[Any]([None, -1, 1.5, True, "3", [], 1_001, 10**30])
        ),
        *((names.STEP, making("until"), {"made": made}) for made in (None, 1, "yes")),
        *((names.STEP, making("on"), {"made": made}) for made in (None, 1, ["red"])),
        *(
            (names.STEP, making("gate"), {"made": {**ASKED, "shown": [shown]}})
            for shown in (
                5,
                {},
                {"kind": 5},
                {"kind": "left-out"},
                {"kind": "left-out", "size": "5"},
                {"kind": "image"},
            )
        ),
        (names.STEP, WITH, {"made": {"shown": "{}", "tool": "pay"}}),
        (names.STEP, WITH, {"made": {"shown": "{}", "tool": 1, "facts": FACTS}}),
        *(
            (names.OPEN, OPENING, found)
            for found in (None, 7, {}, {"facts": {}, "seq": 0}, {"session": "s", "facts": 5})
        ),
        (names.OPEN, OPENING, {"session": "s", "facts": {"loop": {"max_iterations": -1}}, "seq": 0}),
        (names.OPEN, OPENING, {"session": "s", "facts": {}, "seq": 0, "unheard": [{}]}),
        (names.OPEN, OPENING, {"session": "s", "facts": {}, "seq": 0, "state": {"open_calls": [1]}}),
        (names.OPEN, {"run": "r"}, None),
        (names.OPEN_PIPELINE, OPENING, {**PLAN, "gates": {"ok": {"timeout": "1d"}}}),
        *((names.OPEN_PIPELINE, OPENING, {**PLAN, name: 5}) for name in ("plan", "gates", "tools", "search")),
        (names.OPEN_PIPELINE, OPENING, {}),
        (names.RECALL, {}, {"decisions": 5}),
        (names.RECALL, {}, {"decisions": [[{"gate": "c1"}, WHEN]]}),
        (names.RECALL, {}, {"decisions": [[{"gate": "c1", "decision": "approve"}, "soon"]]}),
        (names.RECALL, {}, {"decisions": [[{"gate": "c1", "decision": "approve"}, "2026-11-22T10:00:00"]]}),
        (names.ANSWERED, {}, {"c1": 5}),
        (names.ANSWERED, {}, {"c1": {"by": "ada"}}),
        (names.KEEP, {}, [{}]),
    ],
)
def test_what_no_run_can_use_is_none(activity: str, reference: Any, found: Any) -> None:
    assert not fits(activity, reference, found)


@pytest.mark.parametrize("found", [None, 3, {}, [], "soon", "2026-11-22T10:00:00", ["2026"]])
def test_no_time_of_a_signal_ends_a_run_in_a_loop(found: Any) -> None:
    assert read_moment(found) is None


def test_the_time_of_a_signal_is_read() -> None:
    assert read_moment("2026-11-22T10:00:00+00:00") == datetime(2026, 11, 22, 10, tzinfo=UTC)


RECEIPT = {"receipt": 3}


@pytest.mark.parametrize(
    ("activity", "found"),
    [(names.DECIDE, None), (names.DECIDE, "no"), (names.KEEP, None), (names.KEEP, ["hi"]), (names.COMMIT, 5)],
)
def test_what_is_to_be_acknowledged_has_the_receipt_that_was_asked_for(activity: str, found: Any) -> None:
    assert fits(activity, {}, found)  # as it once was
    assert fits(activity, RECEIPT, receipted(RECEIPT, found))
    for other in (found, {"of": found}, {"receipt": 3}, {"receipt": 2, "of": found}, [found], {"receipt": 3, "of": {}}):
        assert not fits(activity, RECEIPT, other)
