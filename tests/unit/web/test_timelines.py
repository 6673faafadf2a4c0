"""Events of a run become entries of its timeline."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from standfast import (
    CancelRequested,
    Citation,
    Event,
    GateDecided,
    GateEscalated,
    GateOpened,
    GateReminded,
    HostedCall,
    Message,
    ModelFailed,
    ModelRetried,
    Reasoning,
    RunEnded,
    RunStarted,
    StatusChanged,
    StepFailed,
    StepStarted,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolRetried,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
)
from standfast.web.page.rendering import templates
from standfast.web.page.timelines import Entry, complete, fold

CALL = ToolCall(id="c1", name="charge", arguments={"amount": 5})
USED = Usage(input_tokens=3, output_tokens=2, cost=0.5)


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def folded(*happened: Event) -> list[Entry]:
    return fold(happened)


def brief(entries: Sequence[Entry]) -> list[tuple[Any, ...]]:
    return [(entry.title, entry.state, entry.seconds) for entry in entries]


def test_a_turn_and_its_call_say_how_long_they_took_and_the_outcome_of_them() -> None:
    turn, tool = folded(
        TurnStarted(1, "m", at=at(0)),
        TurnEnded(1, "Look", (CALL,), USED, 1.5, at=at(2)),
        ToolStarted(CALL, at=at(2)),
        ToolEnded(CALL, outcome="returned", text='{"paid": true}', seconds=0.2, at=at(3)),
    )
    assert brief([turn, tool]) == [("Model, turn 1", "done", 1.5), ("charge", "done", 0.2)]
    assert (turn.text, turn.usage, turn.notes) == ("Look", USED, ["model m", "asks for charge"])
    assert (tool.data, tool.result) == ({"amount": 5}, {"paid": True})


def test_a_call_whose_worker_died_says_that_it_was_not_run_again() -> None:
    (entry,) = folded(
        ToolStarted(CALL, at=at(0)),
        ToolLost(CALL, "its worker died while it ran", at=at(1)),
        ToolEnded(CALL, outcome="unknown", text="unknown", at=at(2)),
    )
    assert entry.state == "unknown"
    assert entry.troubles == [
        "Its worker died while it ran.",
        "It may have happened, which is unknown; it was not run again.",
    ]


def test_a_call_that_is_lost_and_found_says_that_the_ledger_had_it() -> None:
    (entry,) = folded(
        ToolStarted(CALL, at=at(0)),
        ToolLost(CALL, "it was not heard", at=at(1)),
        ToolEnded(CALL, outcome="returned", text="paid", recovered=True, found_by="ledger", at=at(2)),
    )
    assert (entry.state, entry.notes) == ("done", ["Its outcome was found in the ledger; it was not run again."])


def test_a_call_that_had_never_begun_is_started_again_in_its_own_entry() -> None:
    (entry,) = folded(
        ToolStarted(CALL, at=at(0)),
        ToolLost(CALL, "no worker had it", at=at(1)),
        ToolStarted(CALL, at=at(2)),
        ToolRetried(CALL, "busy", 2, at=at(3)),
        ToolEnded(CALL, outcome="returned", text="paid", at=at(4)),
    )
    assert (entry.state, entry.notes) == ("done", ["It was started again."])
    assert entry.troubles == ["No worker had it.", "busy. It was retried: attempt 2."]


def test_calls_with_the_same_id_one_after_the_other_are_two() -> None:
    entries = folded(
        *(event for _ in range(2) for event in (ToolStarted(CALL), ToolEnded(CALL, outcome="failed", text="no")))
    )
    assert brief(entries) == [("charge", "failed", None)] * 2


def test_a_model_that_is_called_again_and_then_given_up_says_why() -> None:
    turn, wait = folded(
        TurnStarted(1, at=at(0)),
        ModelRetried("overloaded", 2.0, 2, at=at(1)),
        ModelFailed(1, "overloaded", at=at(5)),
        StatusChanged("paused", ("pause",), why="overloaded", at=at(5)),
        StatusChanged("running", at=at(65)),
        TurnStarted(1, at=at(65)),
        TurnEnded(1, "Done", at=at(66), seconds=1.0),
    )
    assert turn.troubles == ["overloaded. It was called again after 2 s.", "overloaded"]
    assert brief([turn, wait]) == [("Model, turn 1", "done", 1.0), ("Waits: pause", "done", 60.0)]


def test_a_gate_says_who_was_asked_who_decided_and_how_long_that_took() -> None:
    (gate,) = folded(
        GateOpened("c1", "Charge?", "0f", CALL, ("ada", "bob"), 2, at=at(0)),
        StatusChanged("waiting", ("approval",), at=at(0)),
        GateDecided("c1", "approve", "eve", refused="eve may not", at=at(1)),
        GateDecided("c1", "reject", "ada", "too much", at=at(60)),
        StatusChanged("running", at=at(60)),
    )
    assert brief([gate]) == [("Approval of ada, bob", "rejected", 60.0)]
    assert gate.notes == ["2 must approve", "approve of eve did not count: eve may not", "reject by ada: too much"]


def test_a_gate_says_when_people_were_reminded_and_when_it_was_escalated() -> None:
    (gate,) = folded(
        GateOpened("ok", "Fine?", "0f", at=at(0)),
        GateReminded("ok", at=at(3_600)),
        GateEscalated("ok", at=at(7_200)),
        GateDecided("ok", "approve", "eve", at=at(7_260)),
    )
    assert brief([gate]) == [("Approval", "done", 7_260.0)]
    assert gate.notes == [
        "reminded, 2026-01-01 01:00 UTC",
        "the deadline passed; other people are asked, 2026-01-01 02:00 UTC",
        "approve by eve",
    ]


def test_an_item_that_was_open_when_a_run_ended_does_not_continue() -> None:
    step, *_, cancel, end = folded(
        StepStarted("write", "line/1/write", at=at(0)),
        CancelRequested("cancelled by ada", at=at(2)),
        RunEnded(status="cancelled", error="Cancelled", usage=USED, at=at(3)),
    )
    assert brief([step, end]) == [("write", "cancelled", 3.0), ("Ended: cancelled", "cancelled", None)]
    assert (cancel.notes, end.troubles, step.run) == (["cancelled by ada"], ["Cancelled"], "line/1/write")


def test_a_step_that_failed_says_why() -> None:
    start, step = folded(
        RunStarted("line", input={"n": 1}, user_id="ada", at=at(0)),
        StepFailed("write", "agent-failed", "no model", at=at(1)),
    )
    assert (start.title, start.data) == ("Started by ada", {"n": 1})
    assert (step.state, step.troubles, step.step) == ("failed", ["agent-failed: no model"], "write")


def test_a_timeline_may_begin_anywhere() -> None:
    entries = folded(
        TurnEnded(7, "x", at=at(0)), GateDecided("ok", "approve", at=at(1)), ToolLost(CALL, "gone", at=at(2))
    )
    assert [entry.title for entry in entries] == ["Model, turn 7", "Approval ok", "charge"]


def test_what_events_have_the_beginning_of_is_whole_if_the_transcript_has_it() -> None:
    cut = ToolCall(id="c1", name="charge", arguments='{"amount": 5, …')
    gate, tool, other = entries = folded(
        GateOpened("c1", "Charge?", "0f", cut),
        ToolEnded(cut, outcome="returned", text='{"paid": [1, …', size=9_000),
        ToolEnded(ToolCall(id="c2", name="look", arguments={}), outcome="returned", text="xx…", size=9_000),
    )
    said = Message(role="assistant", content="", tool_calls=[CALL])
    complete(entries, [said, Message(role="tool", content='{"paid": [1, 2]}', tool_call_id="c1")])
    assert (gate.data, tool.data, tool.result, tool.size) == ({"amount": 5}, {"amount": 5}, {"paid": [1, 2]}, None)
    assert (other.result, other.size) == ("xx…", 9_000)


def test_a_gate_that_asks_others_now_still_waits_though_the_run_did_not_wait_for_a_moment() -> None:
    first, second = folded(
        GateOpened("c1", "Pay?", "0f", CALL, ("bob",), at=at(0)),
        StatusChanged("waiting", ("approval",), at=at(0)),
        GateDecided("c1", "approve", "bob", at=at(60)),
        GateOpened("c1", "Really?", "1f", CALL, ("ada",), at=at(60)),
        StatusChanged("running", at=at(60.1)),
        StatusChanged("waiting", ("approval",), at=at(60.2)),
    )
    assert brief([first, second]) == [("Approval of bob", "done", 60), ("Approval of ada", "waits", None)]


def test_messages_show_thoughts_calls_of_the_provider_and_sources() -> None:
    answer = Message(
        role="assistant",
        content="It rains.",
        reasoning=Reasoning(provider="p", blocks=({"message": {"reasoning_content": "Let me look."}},)),
        hosted=(HostedCall(name="web_search", input="Oslo"), HostedCall(name="code_execution", outcome="unknown")),
        citations=(Citation(url="https://yr.no", title="Yr"),),
    )
    shown = templates().get_template("turns.html").module.last_turns([answer])  # type: ignore[attr-defined]
    text = " ".join(re.sub("<[^>]*>", " ", str(shown)).split())
    assert "thoughts Let me look." in text
    assert "web_search Oslo at the provider code_execution at the provider: it may have run" in text
    assert "source: Yr https://yr.no" in text
