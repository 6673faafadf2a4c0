"""Standing approvals on the page: given on a card, listed for permitted people, and revoked."""

from typing import Any

import pytest
from support.pages import browser, csrf_of, fields
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from integration.web.test_web_bounds import as_, person
from standfast import Agent, Approval, tool
from standfast.stores import StandingFilter
from standfast.testing import ScriptedModel
from standfast.web import Access

paid: list[float] = []


@tool(approval=Approval(message="Pay?", remember="agent"))
async def pay(to: str, amount: float, note: str = "") -> str:
    """Pay somebody."""
    paid.append(amount)
    return "paid"


payer = Agent("payer", tools=[pay])


def pays(*amounts: float) -> ScriptedModel:
    asked = [asks_for(call("pay", f"c{n}", to="<x>", amount=amount)) for n, amount in enumerate(amounts, 1)]
    return ScriptedModel([*asked, "done"])


PEOPLE = [
    person("olga"),
    person("own", only_own=True),
    person("amy", tenants=["other"]),
]


async def test_a_card_approves_later_calls_and_the_list_ends_that(temporal: Temporal) -> None:
    paid.clear()
    async with temporal.worker(payer, llm=pays(5, 80, 101)), browser(temporal) as client:
        run = await temporal.start(payer)
        await pending(run)
        page = (await client.get(f"/runs/{run.id}")).text
        form = fields(page, f"/runs/{run.id}/decide")
        assert 'name="remember_arg.amount"' in page
        chosen = {
            "remember": "session",
            "remember_until": "1d",
            "remember_arg.amount": "most",
            "remember_most.amount": "100",
        }
        sent = {**form, "decision": "approve", "comment": "as agreed", **chosen}
        assert (await client.post(f"/runs/{run.id}/decide", data=sent)).status_code == 303

        async def third() -> bool:
            return any(item["name"] == "c3" for item in await pending(run))

        await until(third)
        assert paid == [5, 80]
        [given] = await temporal.store.standing_approvals(StandingFilter())
        assert given.arguments == {"to": {"const": "<x>"}, "amount": {"maximum": 100}, "note": {"const": ""}}
        listed = (await client.get("/standing")).text
        for words in (given.id, "≤ 100", "= &#34;&lt;x&gt;&#34;", "as agreed", "one session"):
            assert words in listed
        seen = (await client.get(f"/runs/{run.id}")).text
        assert f"approve in advance, by the standing approval {given.id}" in seen
        assert f"and later calls like it by the standing approval {given.id}" in seen
        csrf = await csrf_of(client)
        assert (await client.post(f"/standing/{given.id}/revoke", data={})).status_code in (400, 403)
        assert (await client.post(f"/standing/{given.id}/revoke", data={"csrf": csrf})).status_code == 303
        assert "revoked by" in (await client.get("/standing")).text
        await temporal.people.decide(run.id, "c3", "reject", by="ana")
        assert (await result(run))["status"] == "complete"


async def test_the_list_says_whose_giver_has_left(temporal: Temporal) -> None:
    async with temporal.worker(payer, llm=pays(5)), browser(temporal) as client:
        run = await temporal.start(payer)
        await pending(run)
        await temporal.people.decide(run.id, "c1", "approve", by="ada", remember={"scope": "agent", "until": "1d"})
        assert (await result(run))["status"] == "complete"
        assert "until it is revoked" not in (await client.get("/standing")).text  # this list is empty
    for people, words in (([person("olga")], "ada is no longer one of the page"), ([*PEOPLE, person("ada")], "")):
        async with browser(temporal, access=Access(people=people)) as client:
            listed = (await client.get("/standing", headers=as_("olga"))).text
            assert words in listed
            assert ("until it is revoked" in listed) == bool(words)
            [told] = (await client.get("/api/v1/standing", headers=as_("olga"))).json()["standing"]
            assert words in told.get("outdated", "")
            assert ("outdated" in told) == bool(words)


async def test_a_card_that_is_left_unchanged_approves_this_call_alone(temporal: Temporal) -> None:
    paid.clear()
    async with temporal.worker(payer, llm=pays(5)), browser(temporal) as client:
        run = await temporal.start(payer)
        await pending(run)
        form = fields((await client.get(f"/runs/{run.id}")).text, f"/runs/{run.id}/decide")
        assert (await client.post(f"/runs/{run.id}/decide", data={**form, "decision": "approve"})).status_code == 303
        assert (await result(run))["status"] == "complete"
    assert await temporal.store.standing_approvals(StandingFilter()) == []


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"remember_arg.amount": "most", "remember_most.amount": "a lot"}, "is not a number"),
        ({"remember_until": "a while"}, "until must be a duration"),
        ({"remember": "world"}, "remember"),
    ],
)
async def test_a_wish_that_cannot_be_read_approves_nothing(
    temporal: Temporal, chosen: dict[str, str], why: str
) -> None:
    paid.clear()
    async with temporal.worker(payer, llm=pays(5)), browser(temporal) as client:
        run = await temporal.start(payer)
        await pending(run)
        form = fields((await client.get(f"/runs/{run.id}")).text, f"/runs/{run.id}/decide")
        answer = await client.post(
            f"/runs/{run.id}/decide", data={**form, "decision": "approve", "remember": "run", **chosen}
        )
        assert answer.status_code >= 400
        assert why in answer.text
        assert paid == []
        await temporal.people.decide(run.id, "c1", "reject", by="ana")


async def test_a_person_who_sees_only_their_own_runs_approves_and_sees_nothing_for_others(temporal: Temporal) -> None:
    paid.clear()
    async with temporal.worker(payer, llm=pays(5)), browser(temporal, Access(people=PEOPLE)) as client:
        run = await temporal.start(payer, user_id="own")
        [item] = await pending(run)

        async def seen() -> bool:
            return (await client.get(f"/runs/{run.id}", headers=as_("own"))).status_code == 200

        await until(seen)
        assert 'value="agent"' not in (await client.get(f"/runs/{run.id}", headers=as_("own"))).text
        sent: dict[str, Any] = {"gate": "c1", "digest": item["digest"], "decision": "approve", "remember_until": "1d"}
        refused = await client.post(f"/runs/{run.id}/decide", data={**sent, "remember": "agent"}, headers=as_("own"))
        assert "which you may not see" in refused.text
        by_api = await client.post(
            f"/api/v1/runs/{run.id.replace('/', '%2F')}/decide",
            json={
                "gate": "c1", "digest": item["digest"], "decision": "approve",
                "remember": {"scope": "agent", "until": "1d"},
            },
            headers=as_("own"),
        )  # fmt: skip
        assert "which you may not see" in by_api.text
        await client.post(f"/runs/{run.id}/decide", data={**sent, "remember": "session"}, headers=as_("olga"))
        assert (await result(run))["status"] == "complete"
        [given] = await temporal.store.standing_approvals(StandingFilter())
        for who, sees in (("olga", True), ("own", True), ("amy", False)):
            assert (given.id in (await client.get("/standing", headers=as_(who))).text) is sees
            told = (await client.get("/api/v1/standing", headers=as_(who))).json()["standing"]
            assert [one["id"] for one in told] == ([given.id] if sees else [])
        hidden = await client.post("/api/v1/standing/revoke", json={"id": given.id}, headers=as_("amy"))
        assert (hidden.status_code, "no standing approval" in hidden.text) == (422, True)
        gone = await client.post(f"/standing/{given.id}/revoke", headers=as_("amy"))
        nothing = await client.post("/standing/sa_nothing/revoke", headers=as_("amy"))
        assert (gone.status_code, nothing.status_code) == (404, 404)
        assert gone.text.replace(given.id, "X") == nothing.text.replace("sa_nothing", "X")
        assert (await client.post(f"/standing/{given.id}/revoke", headers=as_("own"))).status_code == 303
        ended = await client.post("/api/v1/standing/revoke", json={"id": given.id}, headers=as_("olga"))
        assert (ended.status_code, ended.json()["revoked_by"]) == (200, "own")
