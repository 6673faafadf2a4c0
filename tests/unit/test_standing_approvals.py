"""Patterns of arguments, and for which calls a standing approval is a decision in advance."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from standfast.agent_loop import (
    CallPlace,
    Decision,
    Gate,
    GateRule,
    Remember,
    StandingApproval,
    in_advance,
    pattern_in_words,
    standing_of,
    standing_problem,
)
from standfast.agent_loop.argument_patterns import fits, pattern_of
from standfast.agent_loop.standing_approvals import policy_of
from standfast.errors import DefinitionError, InputError
from standfast.pipelines import Step
from standfast.tools import Approval, tool

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PLACE = CallPlace(agent="a", tool="pay", run="r", session="s", session_key="s@1", tenant_id=None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=3)


def gate(rule: GateRule | None = None, **fields: Any) -> Gate:
    rule = rule or GateRule(users=("ana", "bob"), remember="agent")
    known: dict[str, Any] = {"name": "c1", "digest": "d", "since": NOW, "is_call": True, "policy": "p"}
    return Gate(**{**known, "rule": rule, "arguments": {"amount": 5}, **fields})


def standing(by: str = "ana", scope: Any = "session", **wish: Any) -> StandingApproval:
    decision = Decision(
        gate="c1", decision="approve", by=by, digest="d", remember=Remember(scope=scope, until="1d", **wish)
    )
    return standing_of(decision, gate(), PLACE, {"amount": 5}, NOW)


@given(ARGUMENTS, ARGUMENTS)
def test_only_the_same_arguments_fit_what_was_approved_exactly(one: dict[str, Any], other: dict[str, Any]) -> None:
    pattern = json.loads(json.dumps(pattern_of(one, {})))  # as a store gives it back
    assert fits(pattern, one)
    assert fits(pattern, other) is (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


@given(ARGUMENTS, st.text(max_size=5), VALUES)
def test_an_argument_that_is_added_or_missing_does_not_fit(arguments: dict[str, Any], name: str, value: Any) -> None:
    pattern: dict[str, Any] = {key: {} for key in arguments}
    assert fits(pattern, arguments)
    assert fits(pattern, {**arguments, name: value}) is (name in arguments)
    assert not any(fits(pattern, {key: one for key, one in arguments.items() if key != left}) for left in arguments)


@pytest.mark.parametrize(
    ("pattern", "value", "is_fit"),
    [
        ({"maximum": 10}, 10, True), ({"maximum": 10}, 10.0, True), ({"maximum": 10}, 10**400, False),
        ({"maximum": 10}, True, False), ({"maximum": 10}, "5", False), ({"maximum": 10}, None, False),
        ({"maximum": 10}, float("nan"), False), ({"maximum": 10}, float("-inf"), False), ({"maximum": 10}, [5], False),
        ({"minimum": 0, "maximum": 10}, -1, False), ({"minimum": 0}, 10**400, True),
        ({"maximum": 2**53}, 2**53 + 1, False), ({"maximum": float(2**53)}, 2**53 + 1, False),
        ({"enum": [1, "a"]}, 1, True), ({"enum": [1, "a"]}, 1.0, False), ({"enum": [1, "a"]}, True, False),
    ],
)  # fmt: skip
def test_numbers_and_choices_fit_or_not(pattern: dict[str, Any], value: Any, *, is_fit: bool) -> None:
    assert fits({"x": pattern}, {"x": value}) is is_fit


@pytest.mark.parametrize(
    "arguments",
    [{"x": {"pattern": ".*"}}, {"x": {"const": 1, "maximum": 2}}, {"x": {"enum": 1}}, {"x": 1}, {"x": {"maximum": "1"}},
     {"x": {"minimum": True}}, {"x": {"type": "string"}}, {"x": None}, {"x": {"const": float("nan")}}],
)  # fmt: skip
def test_a_value_that_is_not_a_pattern_is_refused(arguments: Any) -> None:
    with pytest.raises(ValidationError):
        Remember(scope="run", until="1d", arguments=arguments)


def test_what_is_too_large_cannot_be_remembered() -> None:
    decision = Decision(gate="c1", decision="approve", by="ana", remember=Remember(scope="run", until="1d"))
    with pytest.raises(InputError, match=r"more than 65,536 bytes"):
        standing_of(decision, gate(), PLACE, {"amount": "x" * 70_000}, NOW)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({}, None),
        ({"agent": "b"}, "is not for this call"),
        ({"tool": "pay2"}, "is not for this call"),
        ({"session_key": "s@2"}, "is not for this call"),
        ({"tenant_id": "t"}, "is not for this call"),
        ({"run": "r2"}, None),
    ],
)
def test_a_standing_approval_is_for_calls_in_its_place(place: dict[str, Any], why: str | None) -> None:
    one = standing()
    decision = Decision(gate="c1", decision="approve", by="Ana", digest="d", standing=one.id)
    here = CallPlace(**{**{name: getattr(PLACE, name) for name in PLACE.__dataclass_fields__}, **place})
    found = standing_problem(one, decision, gate(), here)
    assert found == why or (why is not None and why in str(found))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rule": GateRule(users=("ana",), remember="run")}, "is not for this call"),
        ({"rule": GateRule(users=("ana",))}, "is not for this call"),
        ({"policy": "q"}, "for an earlier version of the tool"),
        ({"arguments": {"amount": 6}}, "is not for these arguments"),
        ({"since": NOW + timedelta(days=1)}, "had expired"),
    ],
)
def test_a_standing_approval_is_not_for_another_gate(changes: dict[str, Any], why: str) -> None:
    one = standing()
    decision = Decision(gate="c1", decision="approve", by="ana", digest="d", standing=one.id)
    assert why in str(standing_problem(one, decision, gate(**changes), PLACE))
    assert in_advance(gate(**changes), [one], PLACE).advance == ()


def test_another_person_does_not_decide_by_it() -> None:
    decision = Decision(gate="c1", decision="approve", by="bob", digest="d", standing="sa")
    assert "is not for this call" in str(standing_problem(standing(), decision, gate(), PLACE))
    assert "is not in the store" in str(standing_problem(None, decision, gate(), PLACE))


def test_a_gate_is_given_no_more_decisions_than_it_needs_and_one_of_each_person() -> None:
    two = gate(GateRule(users=("ana", "bob", "cem"), quorum=2, remember="agent"))
    found = [standing("ana"), standing("Ana", "agent"), standing("bob"), standing("cem"), standing("eve")]
    asked = in_advance(two, found, PLACE)
    assert len(asked.advance) == 2
    assert Gate.read(asked.plain()) == asked
    assert asked.unjudged == asked.advance
    assert asked.asking() == two


def test_the_policy_changes_with_the_tool_and_its_approval_and_not_with_the_people() -> None:
    async def pay(to: str) -> str:
        """Pay."""
        return to

    def policy(approval: Approval) -> str:
        return policy_of(tool(pay, approval=approval), GateRule.of(approval))

    usual = policy(Approval(approvers=["ana"], remember="run"))
    assert usual == policy(Approval(approvers=["bob", "cem"], remember="session", message="Another?"))
    others = [Approval(remember="run"), Approval(approvers=["a", "b"], quorum=2, remember="run"),
              Approval(approvers=["ana"], timeout="1d", remember="run"),
              Approval(approvers=["x"], groups={"x": ["ana"]}, remember="run")]  # fmt: skip
    assert usual not in map(policy, others)
    assert policy(Approval(approvers=["ana"])) == ""


def test_remember_is_a_scope_of_a_tools_approval() -> None:
    with pytest.raises(DefinitionError, match=r"approval\.remember must be one of run, session, agent, got 'all'"):
        Approval(remember="all")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"approval\.remember is for a tool's calls"):
        Step("ask", approval=Approval(remember="run"))
    later = Approval(remember="run", timeout="1d", on_timeout="escalate", escalate_to=Approval(approvers=["ana"]))
    assert [one.remember for one in later.chain] == ["run", "run"]


def test_a_pattern_is_told_in_words() -> None:
    patterns = [{}, {"const": "é"}, {"enum": [1, 2]}, {"minimum": 0, "maximum": 5.5}]
    assert [pattern_in_words(one) for one in patterns] == ["anything", '= "é"', "one of [1, 2]", "≥ 0 and ≤ 5.5"]
