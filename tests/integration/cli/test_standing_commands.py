"""`approve --remember` and `standing`: later calls are approved in advance, listed, and revoked."""

from pathlib import Path
from typing import Any

import pytest
from support.commands import data, done, refused, standfast
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel

paid: list[float] = []


@tool(approval=Approval(message="Pay?", approvers=["ada"], remember="session"))
async def pay(to: str, amount: float) -> str:
    """Pay somebody."""
    paid.append(amount)
    return "paid"


payer = Agent("payer", tools=[pay])


def pays(*amounts: float) -> ScriptedModel:
    asked = [asks_for(call("pay", f"c{n}", to="x", amount=amount)) for n, amount in enumerate(amounts, 1)]
    return ScriptedModel([*asked, "done"])


async def test_later_calls_are_approved_listed_and_no_more(temporal: Temporal) -> None:
    paid.clear()
    async with temporal.worker(payer, llm=pays(5, 9, 5, 11)):
        run = await temporal.start(payer)
        await pending(run)
        wide = await refused(temporal, "approve", run.id, "--yes", "--remember", "agent")
        assert 'the scope "agent" is wider than "session"' in wide
        wish = ("--remember", "session", "--until", "7d", "--at-most", "amount=10")
        await done(temporal, "approve", run.id, "--yes", *wish)

        async def fourth() -> bool:
            return any(item["name"] == "c4" for item in await pending(run))

        await until(fourth)
        assert paid == [5, 9, 5]
        kept = ("--store", temporal.store._path)
        [listed] = await data(None, "standing", "list", *kept)
        assert (listed["given_by"], listed["used"], listed["scope"]) == ("ada", 2, "session")
        shown = await done(None, "standing", "list", *kept)
        assert "amount ≤ 10" in shown
        trail = await done(temporal, "show", run.id, "--audit", *kept)
        assert f"approve in advance, by the standing approval {listed['id']}" in trail
        assert "revoked by ada" in await done(None, "standing", "revoke", listed["id"], *kept)
        assert await data(None, "standing", "list", *kept) == []
        [ended] = await data(None, "standing", "list", "--all", *kept)
        assert ended["revoked_by"] == "ada"
        assert "There is no standing approval 'sa_0'" in await refused(None, "standing", "revoke", "sa_0", *kept)
        await done(temporal, "reject", run.id)
        assert (await result(run))["status"] == "complete"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--any", "to"), "--any and --at-most go with --remember"),
        (("--remember", "session", "--at-most", "amount"), "--at-most must be like amount=100"),
        (("--remember", "session", "--at-most", "amount=true"), "--at-most must be like amount=100"),
        (("--remember", "everywhere"), "is not one of"),
    ],
)
async def test_wrong_options_are_named(temporal: Temporal, options: tuple[str, ...], why: str) -> None:
    wrong = await standfast(temporal, "approve", "payer/s", "--yes", *options)
    assert (wrong.exit_code, why in wrong.stderr) == (2, True)


async def test_what_people_have_given_who_left_is_listed_and_ended(temporal: Temporal, tmp_path: Path) -> None:
    paid.clear()
    people, kept = tmp_path / "people.toml", ("--store", temporal.store._path)
    async with temporal.worker(payer, llm=pays(5, 5)):
        run = await temporal.start(payer)
        await pending(run)
        await done(temporal, "approve", run.id, "--yes", "--remember", "session")
        assert (await result(run))["status"] == "complete"
    for rules, why in (
        ('[people.bob]\nrole = "approver"', "ada is no longer one of the page's people"),
        ('[people.ada]\nrole = "viewer"', "ada may no longer approve"),
        ('[people.ada]\nrole = "approver"\nexpires = 2020-01-01T00:00:00Z', "ada may no longer approve"),
        ('[people.ada]\nrole = "approver"\ntenants = ["acme"]', "ada may no longer see these runs"),
        ('[people.ada]\nrole = "approver"', None),
    ):
        people.write_text(rules)
        [listed] = await data(None, "standing", "list", "--people", str(people), *kept)
        assert listed["outdated"] == why
    left = ("standing", "revoke", "--outdated", "--people", str(people))
    assert await data(None, *left, *kept) == []
    people.write_text('[people.bob]\nrole = "operator"')
    assert f"{listed['id']} was revoked by bob" in await done(None, *left, "--by", "bob", *kept)
    assert await data(None, "standing", "list", *kept) == []


@pytest.mark.parametrize("options", [(), ("--outdated",), ("sa_0", "--outdated"), ("--people", "people.toml")])
async def test_what_is_to_be_ended_is_named(options: tuple[str, ...], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people.toml").write_text("[people]")
    assert "Give ID, or --outdated" in await refused(None, "standing", "revoke", *options, code=2)
    empty = await refused(None, "standing", "revoke", "--outdated", "--people", "people.toml")
    assert "people.toml: has no people" in empty
