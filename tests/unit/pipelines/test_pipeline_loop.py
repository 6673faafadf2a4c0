"""The next actions of a pipeline, as tables; and its gates over time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from standfast import Agent, Approval, Decision, Step, pipeline
from standfast.agent_loop import Gate, GateRule
from standfast.pipeline_loop import Done, Ended, PipelineState, Todo, plan

agent = Agent("a")
inner = pipeline("inner").step("x", agent=agent).step("y", agent=agent).build()
flow = (
    pipeline("w")
    .step("first", agent=agent)
    .parallel("both", Step("left", agent=agent), Step("right", agent=agent))
    .branch("route", on=lambda ctx: "", cases={"hot": Step("call", agent=agent)}, default=Step("log", agent=agent))
    .map("each", Step("one", agent=agent), over=lambda ctx: [], concurrency=2)
    .loop("refine", Step("draft", pipeline=inner), until=lambda ctx: True, max=2)
    .build()
)
FAILED = Done(reason="agent-failed", error="it failed")


def next_keys(*done: str | tuple[str, Any], running: tuple[str, ...] = ()) -> list[str] | Ended:
    """Return the keys of the steps that may run once some are done."""
    state = PipelineState(plan(flow))
    for item in done:
        key, value = (item, None) if isinstance(item, str) else item
        state = state.ended(key, value if isinstance(value, Done) else Done(value))
    found = state.next_actions(running)
    return [action.key for action in found.actions] if isinstance(found, Todo) else found


BOTH = ("first", "both/left", "both/right")
ROUTED = (*BOTH, ("route?on", "hot"), "route/call")
MAPPED = (*ROUTED, ("each?over", 0))
ROUND = ("refine/0?input", "refine/0/x", "refine/0/y", "refine/0?output")


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ((), ["first"]),
        (("first",), ["both/left", "both/right"]),
        (("first", "both/right"), ["both/left"]),
        (BOTH, ["route?on"]),
        ((*BOTH, ("route?on", "hot")), ["route/call"]),
        ((*BOTH, ("route?on", "else")), ["route/log"]),
        (ROUTED, ["each?over"]),
        ((*ROUTED, ("each?over", 3)), ["each/0", "each/1"]),
        ((*ROUTED, ("each?over", 3), "each/1"), ["each/0", "each/2"]),
        (MAPPED, ["refine/0?input"]),
        ((*MAPPED, "refine/0?input"), ["refine/0/x"]),
        ((*MAPPED, *ROUND), ["refine/0?until"]),
        ((*MAPPED, *ROUND, ("refine/0?until", False)), ["refine/1?input"]),
        ((*MAPPED, *ROUND, ("refine/0?until", True)), Ended()),
        ((("first", FAILED),), Ended("first", "agent-failed", "it failed")),
        (("first", ("both/left", FAILED), "both/right"), Ended("both/left", "agent-failed", "it failed")),
    ],
)
def test_what_is_next_follows_from_what_is_done(done: Any, expected: Any) -> None:
    assert next_keys(*done) == expected


def test_a_stage_that_failed_waits_for_what_runs_of_it_and_starts_nothing_more() -> None:
    assert next_keys("first", ("both/left", FAILED), running=("both/right",)) == ["both/right"]
    done = (*ROUTED, ("each?over", 5), ("each/0", FAILED))
    assert next_keys(*done, running=("each/1",)) == ["each/1"]
    assert next_keys(*done) == Ended("each/0", "agent-failed", "it failed")


# --- gates ---

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEADS = GateRule(timeout=60, users=("eve",))


def gate(**rule: Any) -> Gate:
    return Gate(name="ok", rule=GateRule(**rule), digest="d", since=NOW)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_time_has_its_effect_at_the_deadline_and_not_before() -> None:
    assert gate(timeout=60).at(later(59.9)).status == "open"
    assert gate(timeout=60).at(later(60)).status == "timed-out"
    assert gate(timeout=60, on_timeout="approve").at(later(60)).status == "approved"
    assert gate(timeout=60, on_timeout="reject").at(later(60)).status == "rejected"
    assert gate().at(later(10**9)).status == "open"


def test_an_escalation_has_its_own_time_from_when_it_began() -> None:
    first = gate(timeout=60, on_timeout="escalate", escalate_to=LEADS)
    asked = first.at(later(60))
    assert (asked.status, asked.rule, asked.deadline) == ("open", LEADS, later(120))
    assert first.at(later(120)).status == "timed-out"  # both have passed, even for a late look


def test_reminders_come_at_their_times_until_the_deadline() -> None:
    reminded = gate(timeout=60, remind_every=25)
    assert [reminded.next_reminder(later(at)) for at in (0, 24, 25, 49, 50)] == [
        later(25), later(25), later(50), later(50), None]  # fmt: skip
    assert gate(timeout=60).next_reminder(NOW) is None


def test_a_rule_survives_its_way_through_json() -> None:
    approval = Approval(
        timeout="7d", on_timeout="escalate", remind_every="1d", approvers=["ops", "zoe"], groups={"ops": ["ada"]},
        quorum=2, exclude_requester=True, escalate_to=Approval(approvers=["eve"], quorum=1, timeout="1d"),
    )  # fmt: skip
    rule = GateRule.of(approval)
    assert GateRule.read(rule.plain()) == rule
    assert GateRule().plain() == {}


def test_a_closed_gate_takes_no_decision() -> None:
    approve = Decision(gate="ok", decision="approve", by="ada")
    closed = gate().decided(approve)
    assert closed.status == "approved"
    assert closed.problem(approve) == "gate ok was approved already"
    assert gate(timeout=1).at(later(1)).problem(approve) == "gate ok was timed out already"
