"""Checks of a store that keeps standing approvals."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from standfast.stores import DecisionRecord, StandingApproval, StandingFilter
from standfast.testing.expectations import expect

_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ALL = StandingFilter()


def standing_of(key: str = "sa_1", at: float = 0, **fields: Any) -> StandingApproval:
    known: dict[str, Any] = {"agent": "payer", "tool": "pay", "scope": "session", "scope_key": "s1@1", "session": "s1"}
    known |= {"policy": "p", "arguments": {"to": {"const": "x"}}, "given_by": "Ana", "run": "r1", "gate": "c1"}
    begun = _AT + timedelta(seconds=at)
    known |= {"id": key, "digest": "d", "created_at": begun, "expires_at": begun + timedelta(days=1)}
    return StandingApproval(**{**known, **fields})


def record_of(approval: StandingApproval, **fields: Any) -> DecisionRecord:
    known: dict[str, Any] = {"journal_key": approval.run, "gate": approval.gate, "at": approval.created_at}
    known |= {"decision": "approve", "by": approval.given_by, "key": approval.id, "remembered": approval.id}
    return DecisionRecord(**{**known, **fields})


async def give(store: Any, *approvals: StandingApproval) -> None:
    for one in approvals:
        await store.give_standing_approval(one, record_of(one))


async def ids(store: Any, wanted: StandingFilter = ALL, **options: Any) -> list[str]:
    return [one.id for one in await store.standing_approvals(wanted, **options)]


async def a_standing_approval_is_read_as_it_was_given(store: Any) -> None:
    odd = {"to": {"const": {"a": [1, 1.0, True, None, "naïve 🙂"]}}, "n": {"maximum": 10**30}, "any": {}}
    whole = standing_of(tenant_id="t", user_id="bob", groups=("leads", "'; --"), comment='"so" \n', arguments=odd)
    await give(store, whole)
    found = await store.standing_approvals(ALL)
    expect(found, [whole], "standing_approvals")
    told = [type(one) for one in found[0].arguments["to"]["const"]["a"]]
    expect(told, [int, float, bool, type(None), str], "the types of an argument")


async def a_standing_approval_is_given_once(store: Any) -> None:
    first, again = standing_of(), standing_of(comment="another")
    await asyncio.gather(*(store.give_standing_approval(one, record_of(one)) for one in [first] * 3))
    await give(store, again)
    expect(await store.standing_approvals(ALL), [first], "standing_approvals")


async def a_revoked_standing_approval_stays_revoked(store: Any) -> None:
    one, ended = standing_of(), _AT + timedelta(hours=1)
    await give(store, one, standing_of("sa_2", 1))
    await store.revoke_standing_approval("sa_1", at=ended, by="bob")
    await store.revoke_standing_approval("sa_1", at=ended + timedelta(hours=1), by="eve")
    await store.revoke_standing_approval("nobody's", at=ended, by="bob")
    await give(store, one)
    revoked = one.model_copy(update={"revoked_at": ended, "revoked_by": "bob"})
    expect(await store.standing_approvals(StandingFilter(ids=("sa_1",))), [revoked], "standing_approvals, revoked")
    expect(await ids(store, StandingFilter(in_force_at=_AT)), ["sa_2"], "approvals in force")


async def standing_approvals_are_found_by_what_they_are_for(store: Any) -> None:
    await give(
        store,
        standing_of("sa_1", 1),
        standing_of("sa_2", 2, scope="agent", scope_key=""),
        standing_of("sa_3", 3, tenant_id="t", user_id="BOB"),
        standing_of("sa_4", 4, tool="pay_", given_by="bob"),
        standing_of("sa_5", 5, agent="payer2", scope_key="s1@12"),
        standing_of("sa_6", 6, run="r2"),
    )
    for found, filters in (
        (["sa_6", "sa_5", "sa_4", "sa_3", "sa_2", "sa_1"], {}),
        (["sa_6", "sa_4", "sa_3", "sa_2", "sa_1"], {"agent": "payer"}),
        (["sa_4"], {"tool": "pay_"}),
        (["sa_6", "sa_2", "sa_1"], {"agent": "payer", "tool": "pay", "tenant_id": "", "scope_keys": ("s1@1", "")}),
        (["sa_3"], {"tenant_id": "t"}),
        (["sa_3"], {"tenants": ("t", "u")}),
        ([], {"tenants": ()}),
        ([], {"tenants": ("", "%")}),
        (["sa_4", "sa_3"], {"person": "bob"}),
        ([], {"scope_keys": ("s1@", "S1@1")}),
        ([], {"ids": ()}),
        (["sa_5", "sa_1"], {"ids": ("sa_1", "sa_5", "sa_9")}),
        (["sa_6"], {"run": "r2"}),
        (["sa_6", "sa_5"], {"in_force_at": _AT + timedelta(days=1, seconds=4)}),
    ):
        expect(await ids(store, StandingFilter(**filters)), found, f"standing_approvals with {filters}")
    expect(await ids(store, limit=2), ["sa_6", "sa_5"], "standing_approvals, two of them")


async def standing_approvals_are_forgotten_when_they_have_ended(store: Any) -> None:
    await give(store, standing_of("old"), standing_of("new", 5))
    end = _AT + timedelta(days=1, seconds=1)
    expect(await store.forget_standing_approvals(end, dry_run=True), 1, "forget_standing_approvals, dry_run")
    expect(await ids(store), ["new", "old"], "after a dry run")
    expect(await store.forget_standing_approvals(end), 1, "forget_standing_approvals")
    expect(await ids(store), ["new"], "standing_approvals")


async def those_of_a_deleted_session_are_gone(store: Any) -> None:
    await give(
        store,
        standing_of("mine"),
        standing_of("run", 1, scope="run", scope_key="r1"),
        standing_of("agent", 2, scope="agent", scope_key=""),
        standing_of("other", 3, session="s10", scope_key="s10@1"),
    )
    await store.delete_session("s1")
    expect(await ids(store), ["other", "agent"], "standing_approvals")


async def a_standing_approval_comes_with_its_decision(store: Any) -> None:
    one = standing_of()
    await give(store, one, one)
    [row] = await store.load_decisions("r1")
    expect((row.decision, row.by, row.remembered, row.standing), ("approve", "Ana", "sa_1", None), "the decision")
    for number, refused in enumerate([None, None, "too late"]):
        used = record_of(one, key=f"u{number}", remembered=None, standing="sa_1", refused=refused, gate=f"c{number}")
        await store.record_decision(used)
    expect([one.used for one in await store.standing_approvals(ALL)], [2], "its number of uses")
    expect([row.standing for row in await store.load_decisions("r1")], [None, *["sa_1"] * 3], "the decisions")


STANDING_APPROVALS = [
    a_standing_approval_is_read_as_it_was_given,
    a_standing_approval_is_given_once,
    a_revoked_standing_approval_stays_revoked,
    standing_approvals_are_found_by_what_they_are_for,
    standing_approvals_are_forgotten_when_they_have_ended,
    those_of_a_deleted_session_are_gone,
]
ON_RECORD = [a_standing_approval_comes_with_its_decision]
