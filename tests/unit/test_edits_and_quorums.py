"""Approvals and edits in any order: a gate's count, its message, and its opening agree."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from standfast import Approval, Decision
from standfast.agent_loop import Gate, GateRule, digest_of
from standfast.cli.outputs import Output
from standfast.cli.waiting import write_waiting
from standfast.errors import DefinitionError
from standfast.messages import person
from standfast.notices.chat_messages import Shown
from standfast.runtime.stored_gates import AskedGate, _item
from standfast.temporal.wire.shown_gates import shown_changed
from standfast.temporal.wire.turn_records import edit_reference, let_through
from standfast.web.api import ag_ui, ai_sdk

PEOPLE = ("ada", "bob", "cy", "dan")
SHOWN = {"amount": 129.9, "to": "shop"}
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Act:
    """What someone does `after` the last: approve, edit (to an amount) or reject, on what they see or saw before."""

    by: str
    what: str
    amount: int
    after: timedelta
    is_stale: bool


@st.composite
def approvals(draw: st.DrawFn) -> Approval:
    named = st.lists(st.sampled_from([*PEOPLE, "team"]), min_size=1, max_size=4, unique=True)
    options: dict[str, Any] = {
        "groups": {"team": draw(st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=3, unique=True))},
        "exclude_requester": draw(st.booleans()),
    }
    first = {"approvers": draw(named), "quorum": draw(st.integers(1, 3)), **options}
    how = draw(st.sampled_from(["fail", "approve", "reject", "escalate"]))
    try:
        to = Approval(approvers=draw(named), quorum=draw(st.integers(1, 2)), **options) if how == "escalate" else None
        return Approval(timeout="3h", on_timeout=how, escalate_to=to, **first)
    except DefinitionError:  # a quorum of more than there are
        return Approval(approvers=list(PEOPLE), quorum=2, exclude_requester=options["exclude_requester"])


acts = st.lists(
    st.builds(
        Act,
        by=st.sampled_from([*PEOPLE, "ADA"]),
        what=st.sampled_from(["approve"] * 4 + ["edit"] * 3 + ["reject"]),
        amount=st.integers(1, 2),
        after=st.sampled_from([timedelta(0), HOUR]),
        is_stale=st.sampled_from([False, False, False, True]),
    ),
    max_size=8,
)
requesters = st.lists(st.sampled_from(PEOPLE), max_size=2, unique=True).map(tuple)


def opened(approval: Approval, who: tuple[str, ...], **options: Any) -> Gate:
    later = [{"message": "please", "digest": digest_of("c1", "please", number)} for number in range(3)]
    rule = GateRule.of(approval).asking(later)
    shown: dict[str, Any] = {"arguments": SHOWN, "edits": True, "is_call": True, **options}
    return Gate(name="c1", rule=rule, digest=digest_of("c1", "pay?"), since=BEGIN, requesters=who, **shown)


def decided(gate: Gate, act: Act, seen: str, kept: Callable[[Decision], Decision]) -> tuple[Gate, Decision | None]:
    """Return the gate after someone's act, and the decision if it counts."""
    edit = {**SHOWN, "amount": act.amount} if act.what == "edit" else None
    what: Any = "reject" if act.what == "reject" else "approve"
    decision = Decision(gate="c1", decision=what, by=act.by, digest=seen, edit=edit)
    if gate.problem(kept(decision)) is not None:
        return gate, None
    return gate.decided(kept(decision)), decision


def played(gate: Gate, does: list[Act], kept: Callable[[Decision], Decision] = lambda one: one) -> list[Gate]:
    """Return the gate at first and after each act."""
    found, now, digests = [gate], BEGIN, [gate.digest]
    for act in does:
        now += act.after
        gate, _ = decided(gate.at(now), act, digests[0] if act.is_stale else gate.at(now).shown_digest, kept)
        digests = [gate.shown_digest] if gate.rule is not found[-1].rule else [*digests, gate.shown_digest]
        found.append(gate)
    return found


@given(approvals(), requesters, acts)
def test_a_gate_opens_when_as_many_have_approved_as_it_says(
    approval: Approval, who: tuple[str, ...], does: list[Act]
) -> None:
    for gate in played(opened(approval, who), does):
        by = {person(name) for name in gate.approved_by}
        assert len(by) == len(gate.approved_by)
        if gate.rule.exclude_requester:
            assert not by & {person(name) for name in gate.barred}
        if gate.status == "open":
            assert len(by) < gate.rule.quorum
        elif gate.status == "approved" and gate.last is not None:
            assert len(by) >= gate.rule.quorum
            assert gate.edit == gate.changed
        elif gate.status == "approved":
            assert gate.edit is None  # time alone approves no edit


@given(approvals(), requesters, acts)
def test_what_people_are_shown_says_what_opens_the_gate(
    approval: Approval, who: tuple[str, ...], does: list[Act]
) -> None:
    for gate in played(opened(approval, who), does):
        item = _item("a/s", AskedGate(gate, "pay?", "pay"))
        assert item["digest"] == gate.shown_digest
        assert item["arguments"] == (SHOWN if gate.changed is None else gate.changed)
        assert item.get("edited_by") == gate.editor
        assert item.get("changes") == gate.changes
        if gate.rule.quorum > 1:
            assert (item["quorum"], item["approved_by"]) == (gate.rule.quorum, [*gate.approved_by])
        if gate.changed is not None and gate.rule.on_timeout in ("approve", "escalate"):
            assert item["then"].endswith(", without the edit")


@given(approvals(), requesters, acts)
def test_an_edit_that_counts_can_be_approved(approval: Approval, who: tuple[str, ...], does: list[Act]) -> None:
    for gate in played(opened(approval, who), does):
        if gate.status != "open" or gate.changed is None:
            continue
        edited = gate.edit, gate.changed
        for by in PEOPLE:
            act = Act(by, "approve", 0, timedelta(0), is_stale=False)
            gate, _ = decided(gate, act, gate.shown_digest, lambda one: one)
        assert (gate.status, gate.edit) == ("approved", edited[1])


@given(approvals(), requesters, acts)
def test_nobody_approves_what_they_did_not_see(approval: Approval, who: tuple[str, ...], does: list[Act]) -> None:
    for gate in played(opened(approval, who), does):
        first = 1 if gate.changed is not None else 0  # whose edit it is has seen what was shown before
        assert {one.digest for one in gate.approvals[first:]} <= {gate.shown_digest}


@given(approvals(), requesters, acts)
def test_what_was_recorded_makes_the_same_gate(approval: Approval, who: tuple[str, ...], does: list[Act]) -> None:
    fresh = opened(approval, who)
    gate, now, recorded = fresh, BEGIN, []
    for act in does:
        now += act.after
        gate, decision = decided(gate.at(now), act, gate.at(now).shown_digest, lambda one: one)
        recorded += [(decision, now)] if decision is not None else []
    for known in (fresh, gate, Gate.read(gate.plain())):
        after = known.after(recorded).at(now)
        assert (after.status, after.approvals, after.shown_digest) == (gate.status, gate.approvals, gate.shown_digest)


def by_reference(decision: Decision) -> Decision:
    if decision.edit is None:
        return decision
    return decision.model_copy(update={"edit": edit_reference(decision.edit)})


@given(approvals(), requesters, acts)
def test_a_history_that_has_no_arguments_counts_and_shows_the_same(
    approval: Approval, who: tuple[str, ...], does: list[Act]
) -> None:
    here = played(opened(approval, who), does)
    there = played(opened(approval, who, arguments=None), does, by_reference)
    seen = {"tool": "pay", "arguments": SHOWN, "reference": {"journal_key": "r", "turn": 1, "position": 0}}
    for one, other in zip(here, there, strict=True):
        assert (one.status, one.shown_digest, one.approved_by) == (other.status, other.shown_digest, other.approved_by)
        card = shown_changed(seen, other)
        assert card["arguments"] == (SHOWN if one.changed is None else one.changed)
        assert card.get("changes") == one.changes
        if other.status == "approved":
            assert ("edit" in let_through(other)) == (one.edit is not None)


def test_a_gate_of_an_earlier_version_continues_as_it_began() -> None:
    """It shows the arguments as they were, and who approves them repeats the edit."""
    gate = opened(Approval(approvers=PEOPLE, quorum=2), (), edits=False)
    edit = {**SHOWN, "amount": 80}
    first = gate.decided(Decision(gate="c1", decision="approve", by="ada", digest=gate.digest, edit=edit))
    plain = Decision(gate="c1", decision="approve", by="bob", digest=gate.digest)
    assert first.shown_digest == gate.digest
    assert "with another edit" in str(first.problem(plain))
    same = plain.model_copy(update={"edit": edit})
    assert first.problem(same) is None
    assert (first.decided(same).status, first.decided(same).edit) == ("approved", edit)


def test_a_large_edit_is_shown_by_its_beginning_and_where_all_of_it_is() -> None:
    gate = replace(opened(Approval(approvers=PEOPLE, quorum=2), ()), arguments=None)
    edit = {**SHOWN, "why": "x" * 5_000}
    decision = Decision(gate="c1", decision="approve", by="ada", digest=gate.digest, edit=edit)
    seen = {"tool": "pay", "arguments": SHOWN, "reference": {"journal_key": "r", "turn": 1, "position": 0}}
    card = shown_changed(seen, gate.decided(by_reference(decision)))
    assert (card["edited_by"], card["size"] > 5_000, len(card["arguments"]) < 100) == ("ada", True, True)
    assert card["reference"]["edit"] == edit_reference(edit)["digest"]


def test_every_door_shows_an_edit_to_those_who_decide_after_it() -> None:
    gate = opened(Approval(approvers=PEOPLE, quorum=2), ())
    decision = Decision(gate="c1", decision="approve", by="ada", digest=gate.digest, edit={**SHOWN, "amount": 80})
    item = _item("a/s", AskedGate(gate.decided(decision), "pay?", "pay"))
    said = "by ada: amount: 129.9 → 80. The message was written before the edit."
    interrupt = ag_ui._interrupt("a/s", item, None)
    assert interrupt["metadata"]["arguments"] == {**SHOWN, "amount": 80}
    assert (interrupt["metadata"]["edited_by"], interrupt["metadata"]["changes"]) == ("ada", "amount: 129.9 → 80")
    begun, request = ai_sdk._requests("a/s", item, None)
    assert (begun["input"]["amount"], request["reason"]) == (80, f"pay?\nEdited {said}")
    shown = Shown.of("a/s", item)
    assert (shown.facts["Edited"], shown.facts["Approved by"]) == (said, "ada of 2")
    assert '"amount": 80' in "".join(part.text for part in shown.parts)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        write_waiting(Output("text"), {**item, "workflow_id": "a/s"})
    assert said in out.getvalue()
    assert "1 of 4" not in out.getvalue()
    assert "1 of 2: ada" in out.getvalue()
