"""Standing approvals: which calls pass, who may approve them, and their record. In both drivers."""

from datetime import UTC, datetime
from typing import Any

import pytest
from support.drivers import Driver, Ended, OnTemporal
from support.temporal_runs import pending, refusals, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, Tool, tool
from standfast.stores import DecisionRecord, StandingApproval, StandingFilter
from standfast.testing import ScriptedModel

ANA = Approval(message="Pay?", approvers=["ana", "bob"], remember="agent")
SESSION = {"scope": "session", "until": "1d"}


def payer(approval: Any = ANA, name: str = "payer") -> tuple[list[tuple[Any, ...]], Agent]:
    """Return what was paid, and an agent that pays once people let it."""
    paid: list[tuple[Any, ...]] = []

    @tool(approval=approval)
    async def pay(to: str, amount: float, note: Any = None) -> str:
        """Pay somebody."""
        paid.append((to, amount, note) if note is not None else (to, amount))
        return "paid"

    return paid, Agent(name, tools=[pay])


def pays(*calls: dict[str, Any]) -> ScriptedModel:
    """Return a model that asks for one call after the other, and then is done."""
    asked = [asks_for(call("pay", f"c{n}", **arguments)) for n, arguments in enumerate(calls, 1)]
    return ScriptedModel([*asked, "done"])


def x(amount: Any = 5, to: str = "x", **more: Any) -> dict[str, Any]:
    return {"to": to, "amount": amount, **more}


def approve(gate: str = "c1", by: str = "ana", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": "approve", "by": by, **more}


async def given(driver: Driver, wanted: StandingFilter | None = None) -> list[StandingApproval]:
    return await driver.temporal.store.standing_approvals(wanted or StandingFilter())


async def rows(driver: Driver, session: str = "s", agent: str = "payer") -> list[DecisionRecord]:
    """Return the audit trail of all runs of a session."""
    key = driver.temporal.session(session)
    runs = [run.journal_key for run in await driver.temporal.store.find_runs(session_id=key)]
    names = [*runs, f"{agent}/{key}"]
    return [row for name in names for row in await driver.temporal.store.load_decisions(name)]


async def remembered(driver: Driver, agent: Agent, wish: Any, *calls: dict[str, Any], **options: Any) -> Ended:
    """Run an agent whose first call ana approves, and what is like it."""
    model = pays(*(calls or (x(), x())))
    return await driver.run(agent, model, decisions=[approve(remember=wish)], **options)


# --- what passes ---


@pytest.mark.slow(but=2)
async def test_a_later_call_that_fits_passes_and_the_record_says_by_what(driver: Driver) -> None:
    paid, agent = payer()
    wish = {**SESSION, "arguments": {"amount": {"maximum": 10}}}
    ended = await remembered(driver, agent, wish, x(5), x(7), x(10))
    assert (ended.status, paid, ended.refused) == ("complete", [("x", 5.0), ("x", 7.0), ("x", 10.0)], ())
    [standing] = await given(driver)
    assert (standing.given_by, standing.scope, standing.used) == ("ana", "session", 2)
    assert standing.arguments == {"to": {"const": "x"}, "amount": {"maximum": 10}, "note": {"const": None}}
    assert [(row.gate, row.by, row.standing, row.remembered) for row in await rows(driver)] == [
        ("c1", "ana", None, standing.id),
        ("c2", "ana", standing.id, None),
        ("c3", "ana", standing.id, None),
    ]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("arguments", "second"),
    [
        ({}, x(5.5)),
        ({}, x(to="X")),
        ({}, x(to="ｘ")),
        ({}, x(to="x ")),
        ({}, x(note="new")),
        ({}, x(note=0)),
        ({"amount": {"maximum": 10}}, x(10.000001)),
        ({"amount": {"maximum": 10}}, x(1e308)),
        ({"amount": {"minimum": 1, "maximum": 10}}, x(0.5)),
        ({"to": {"enum": ["x", "y"]}}, x(to="z")),
        ({"to": {"enum": ["x", "../x"]}}, x(to="../../x")),
    ],
)
async def test_a_call_that_differs_in_any_argument_waits(
    driver: Driver, arguments: Any, second: dict[str, Any]
) -> None:
    paid, agent = payer()
    ended = await remembered(driver, agent, {**SESSION, "arguments": arguments}, x(), second)
    assert (ended.status, list(ended.waits), paid) == ("waiting", ["c2"], [("x", 5.0)])


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True), (1, 1.0), ("1", 1), ([1], [1.0]), ({"a": 1}, {"a": True}), (0, False), (0, None), ({}, []),
        (10**30, 10**30 + 1), ("\u00e9", "e\u0301"), ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
    ],
)  # fmt: skip
async def test_values_that_are_written_differently_are_different(driver: Driver, first: Any, second: Any) -> None:
    paid, agent = payer()
    ended = await remembered(driver, agent, SESSION, x(note=first), x(note=first), x(note=second))
    assert (ended.status, list(ended.waits), len(paid)) == ("waiting", ["c3"], 2)


async def test_the_order_of_keys_makes_no_difference(driver: Driver) -> None:
    paid, agent = payer()
    ended = await remembered(driver, agent, SESSION, x(note={"a": 1, "b": 2}), x(note={"b": 2, "a": 1}))
    assert (ended.status, len(paid)) == ("complete", 2)


# --- how far ---


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(("scope", "passes"), [("run", False), ("session", False), ("agent", True)])
async def test_only_what_is_for_the_agent_counts_in_another_session(
    driver: Driver, scope: str, *, passes: bool
) -> None:
    paid, agent = payer()
    await remembered(driver, agent, {**SESSION, "scope": scope})
    assert len(paid) == 2
    ended = await driver.run(agent, pays(x()), decisions=[] if passes else [approve("nope")], session="s-1")
    assert (ended.status, len(paid)) == (("complete", 3) if passes else ("waiting", 2))


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(("scope", "passes"), [("run", False), ("session", True)])
async def test_what_is_for_a_run_ends_with_it(driver: Driver, scope: str, *, passes: bool) -> None:
    paid, agent = payer()
    await remembered(driver, agent, {**SESSION, "scope": scope})
    model = ScriptedModel([asks_for(call("pay", "d1", **x())), "done"])
    ended = await driver.run(agent, model, message="again", decisions=[] if passes else [approve("nope")])
    assert (ended.status, len(paid)) == (("complete", 3) if passes else ("waiting", 2))


@pytest.mark.slow(but=2)
async def test_neither_another_agent_nor_another_tenant_has_it(driver: Driver) -> None:
    paid, agent = payer()
    await remembered(driver, agent, {**SESSION, "scope": "agent"}, tenant_id="t")
    assert len(paid) == 2
    others, other = payer(name="other")
    assert (await driver.run(other, pays(x()), decisions=[approve("c9")], tenant_id="t", session="o")).waits
    assert (await driver.run(agent, pays(x()), decisions=[approve("c9")], session="u")).waits
    assert (await driver.run(agent, pays(x()), decisions=[approve("c9")], tenant_id="T", session="v")).waits
    assert (paid[2:], others) == ([], [])


# --- who may, and what is refused ---


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("approval", "decision", "refused"),
    [
        (Approval(approvers=["ana"]), {}, "later calls cannot be approved in advance here"),
        (Approval(approvers=["ana"], remember="run"), {}, 'the scope "session" is wider than "run"'),
        (Approval(remember="agent"), {"by": None}, "name the person who approves later calls"),
        (ANA, {"by": "eve"}, "eve may not decide it"),
        (ANA, {"decision": "reject"}, "remember goes with approve"),
        (ANA, {"remember": {**SESSION, "until": "91d"}}, "at most 90 days away, got 91d"),
        (ANA, {"remember": {**SESSION, "until": "2020-01-01T00:00:00+00:00"}}, "until must be a time to come"),
        (ANA, {"remember": {**SESSION, "until": "2030-01-01T00:00:00"}}, "a time with its zone"),
        (ANA, {"remember": {**SESSION, "until": "soon"}}, "until must be a duration"),
        (ANA, {"remember": {**SESSION, "arguments": {"too": {}}}}, "the call has no argument 'too'"),
        (ANA, {"remember": {**SESSION, "arguments": {"amount": {"maximum": 4}}}}, "amount of this call does not fit"),
        (ANA, {"remember": {**SESSION, "arguments": {"to": {"maximum": 4}}}}, "to of this call does not fit"),
    ],
)
async def test_what_cannot_be_remembered_is_not_approved_either(
    driver: Driver, approval: Any, decision: dict[str, Any], refused: str
) -> None:
    paid, agent = payer(approval)
    wish = {**approve(remember=SESSION), **decision}
    ended = await driver.run(agent, pays(x()), decisions=[wish])
    assert (ended.status, paid, await given(driver)) == ("waiting", [], [])
    assert refused in ended.refused[0]


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    "arguments", [{"to": {"pattern": "x"}}, {"to": {"const": "x", "enum": ["x"]}}, {"to": "x"}, {"to": {"enum": []}},
                  {"amount": {"maximum": True}}, {"amount": {"maximum": "5"}}]
)  # fmt: skip
async def test_a_pattern_that_is_none_is_refused(driver: Driver, arguments: Any) -> None:
    paid, agent = payer()
    ended = await driver.run(agent, pays(x()), decisions=[approve(remember={**SESSION, "arguments": arguments})])
    assert "remember" in ended.refused[0]
    assert (paid, await given(driver)) == ([], [])


@pytest.mark.slow(but=2)
async def test_nobody_says_of_a_decision_that_it_was_made_in_advance(driver: Driver) -> None:
    paid, agent = payer()
    await remembered(driver, agent, SESSION)
    [standing] = await given(driver)
    forged = approve("d1", standing=standing.id)
    model = ScriptedModel([asks_for(call("pay", "d1", **x(to="eve"))), "done"])
    if isinstance(driver, OnTemporal):
        async with driver.temporal.worker(agent, llm=model):
            handle = await driver.temporal.start(agent, "more")
            [item] = await pending(handle)
            signal = {"gate": "d1", "by": "ana", "standing": standing.id, "digest": item["digest"]}
            await handle.signal("approve", signal)
            assert "unknown key 'standing'" in (await until(lambda: refusals(handle)))[0]
            await driver.temporal.people.decide(handle.id, "d1", "reject", by="ana", digest=item["digest"])
    else:
        ended = await driver.run(agent, model, message="more", decisions=[forged])
        assert "leave out standing" in ended.refused[0]
    assert len(paid) == 2


@pytest.mark.slow(but=2)
async def test_two_must_approve_in_advance_where_two_must_approve(driver: Driver) -> None:
    both = Approval(approvers=["ana", "bob", "cem"], quorum=2, remember="agent")
    paid, agent = payer(both)
    agents = {**SESSION, "scope": "agent"}
    first = [approve(remember=agents), approve(by="bob")]
    await driver.run(agent, pays(x()), decisions=first)
    one = await driver.run(
        agent, pays(x()), decisions=[approve(by="Ana"), approve("c1", by="bob", remember=agents)], session="two"
    )
    assert "Ana has approved it already" in one.refused[0]
    assert (one.status, len(paid)) == ("complete", 2)
    assert (await driver.run(agent, pays(x()), session="three")).status == "complete"
    last = await rows(driver, "three")
    assert [(row.by, row.standing is not None) for row in last] == [("ana", True), ("bob", True)]


async def test_a_person_who_has_asked_for_a_call_does_not_approve_it_in_advance(driver: Driver) -> None:
    own = Approval(approvers=["ana", "bob"], exclude_requester=True, remember="agent")
    paid, agent = payer(own)
    agents = {**SESSION, "scope": "agent"}
    await driver.run(agent, pays(x()), decisions=[approve(remember=agents)], user_id="bob")
    ended = await driver.run(agent, pays(x()), decisions=[approve("nope")], user_id="ANA", session="own")
    assert (ended.status, len(paid)) == ("waiting", 1)


async def test_a_person_who_may_not_approve_any_more_does_not_approve_in_advance(driver: Driver) -> None:
    paid, agent = payer(Approval(approvers=["pay"], groups={"pay": ["ana", "bob"]}, remember="agent"))
    await remembered(driver, agent, {**SESSION, "scope": "agent"})
    _, later = payer(Approval(approvers=["pay"], groups={"pay": ["bob", "cem"]}, remember="agent"))
    assert (await driver.run(later, pays(x()), decisions=[approve("nope")], session="later")).status == "waiting"
    fine, more = payer(Approval(approvers=["pay"], groups={"pay": ["ana", "bob", "cem"]}, remember="agent"))
    assert (await driver.run(more, pays(x()), session="more")).status == "complete"
    assert (len(paid), len(fine)) == (2, 1)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    "changed",
    [
        Approval(approvers=["ana", "bob"], remember="session"),
        Approval(approvers=["ana", "bob"]),
        Approval(approvers=["ana", "bob"], quorum=2, remember="agent"),
        Approval(approvers=["ana", "bob"], timeout="1d", remember="agent"),
        Approval(remember="agent"),
    ],
)
async def test_an_approval_that_was_changed_is_asked_for_again(driver: Driver, changed: Approval) -> None:
    _, agent = payer()
    await remembered(driver, agent, {**SESSION, "scope": "agent"})
    paid, later = payer(changed)
    ended = await driver.run(later, pays(x()), decisions=[approve("nope")], session="later")
    assert (ended.status, paid) == ("waiting", [])


@pytest.mark.slow(but=2)
async def test_a_tool_that_was_changed_or_renamed_is_asked_for_again(driver: Driver) -> None:
    _, agent = payer()
    await remembered(driver, agent, {**SESSION, "scope": "agent"})
    paid: list[str] = []

    async def pay(to: str, amount: float, note: Any = None, urgent: bool = False) -> str:
        """Pay somebody."""
        paid.append(to)
        return "paid"

    async def renamed(to: str, amount: float, note: Any = None) -> str:
        """Pay somebody."""
        paid.append(to)
        return "paid"

    for made, name in ((pay, "pay"), (renamed, "pay2")):
        changed: Tool[..., Any] = tool(made, name=name, approval=ANA)
        model = ScriptedModel([asks_for(call(name, "c1", **x())), "done"])
        ended = await driver.run(Agent("payer", tools=[changed]), model, decisions=[approve("nope")], session=name)
        assert (ended.status, paid) == ("waiting", [])


async def test_what_was_edited_is_remembered_as_it_was_edited(driver: Driver) -> None:
    paid, agent = payer()
    wish = approve(remember=SESSION, edit={"to": "x", "amount": 3})
    ended = await driver.run(agent, pays(x(5), x(3), x(5)), decisions=[wish])
    assert (ended.status, list(ended.waits), paid) == ("waiting", ["c3"], [("x", 3.0), ("x", 3.0)])


# --- its end ---


@pytest.mark.slow(but=2)
async def test_what_was_revoked_or_has_expired_lets_nothing_pass(driver: Driver) -> None:
    paid, agent = payer()
    await remembered(driver, agent, {**SESSION, "scope": "agent"})
    await remembered(driver, agent, {"scope": "agent", "until": "1s"}, x(9), session="short")
    [short, long] = await given(driver)
    await driver.temporal.store.revoke_standing_approval(long.id, at=long.created_at, by="bob")
    await until(lambda: datetime.now(UTC) > short.expires_at)
    before = len(paid)
    for session, arguments in (("a", x()), ("b", x(9))):
        ended = await driver.run(agent, pays(arguments), decisions=[approve("nope")], session=session)
        assert ended.status == "waiting"
    assert len(paid) == before


async def test_a_deleted_session_takes_its_standing_approvals_with_it(driver: Driver) -> None:
    _, agent = payer()
    await remembered(driver, agent, SESSION)
    await driver.temporal.store.delete_session(driver.temporal.session())
    assert await given(driver) == []
