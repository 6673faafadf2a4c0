"""Gates of in-process runs, without a server: on the page, in the API and in commands, within permissions."""

import html
import re
from pathlib import Path
from typing import Any

import pytest
from support.commands import data as data_of
from support.commands import done, refused
from support.pages import LOCAL, TOKENS, XSS, browser, fields, send, shows
from support.temporal_runs import Temporal
from support.transcripts import asks_for, call

from standfast import Agent, Approval, is_interrupted, run, sqlite_store, tool
from standfast.temporal.client.board.boards import kept_mark
from standfast.testing import ScriptedModel
from standfast.web import Access, Person

RUN = "in-process:shop/s"
CHARGED = list[int]()


@tool(approval=Approval(message=lambda call: f"Charge {call.arguments['note']}?", approvers=["ada"]))
async def charge(cents: int, note: str = "eve") -> str:
    CHARGED.append(cents)
    return f"charged {cents}"


def model(note: str) -> ScriptedModel:
    asks = asks_for(call("charge", "c1", cents=5, note=note))
    return ScriptedModel(lambda messages, tools: "done" if messages[-1].role == "tool" else asks)


async def wait(store: Any, session: str = "s", *, note: str = "eve", **whose: Any) -> Any:
    """Run an agent in this process, until it waits or is done."""
    has_begun = await store.load_session(session) is not None
    message = None if has_begun else "Charge me."
    agent = Agent("shop", tools=[charge])
    return await run(agent, message=message, llm=model(note), store=store, session_id=session, **whose)


@pytest.mark.parametrize("has_workers", [False, True])
async def test_a_run_in_process_is_decided_on_by_the_page_and_continues_later(
    temporal: Temporal, has_workers: bool
) -> None:
    CHARGED.clear()
    if has_workers:  # whose runs are on the same board
        await temporal.store.save_reply(kept_mark(temporal.client.namespace), 0, "true")
    assert is_interrupted(await wait(temporal.store, note=XSS))
    async with browser(temporal, LOCAL) as client:
        inbox = (await client.get("/")).text
        assert RUN in inbox
        assert XSS not in inbox
        assert await shows(
            client, f"/runs/{RUN}", "A decision is recorded here, and takes effect when the run continues."
        )
        assert await shows(client, f"/items/{RUN}?name=c1", "Charge me.")
        after = await send(client, f"/runs/{RUN}", RUN, "decide", decision="approve", edit='{"cents": 4}')
        assert "Approved. It is recorded, and takes effect when the run continues." in after.text
        assert "Nothing is waiting for people here." in after.text
        assert not await shows(client, "/", "c1</code>")
    assert CHARGED == []
    assert (await wait(temporal.store)).response == "done"
    assert CHARGED == [4]


async def test_programs_see_it_and_decide_and_are_told_that_it_takes_effect_later(temporal: Temporal) -> None:
    await wait(temporal.store)
    person = Person(name="ada", role="approver", token=TOKENS["ada"])
    async with browser(temporal, Access(people=[person])) as client:
        client.headers["Authorization"] = f"Bearer {TOKENS['ada']}"
        found = (await client.get("/api/v1/pending")).json()
        (item,) = found["items"]
        assert (item["workflow_id"], found["counts"]) == (RUN, {"approval": 1})
        where = "/api/v1/runs/in-process%3Ashop%2Fs"
        assert (await client.get(f"{where}/pending")).json()["items"][0]["digest"] == item["digest"]
        wrong = {"gate": "c1", "decision": "approve", "digest": "of something else"}
        said = await client.post(f"{where}/decide", json=wrong)
        assert "has changed" in said.text
        said = await client.post(f"{where}/decide", json={**wrong, "digest": item["digest"]})
        assert said.json() == {"done": True, "note": "It is recorded, and takes effect when the run continues"}
        several = {"decision": "reject", "gates": [{"run": RUN, "gate": "c1", "digest": item["digest"]}]}
        (one,) = (await client.post("/api/v1/decide", json=several)).json()["gates"]
        assert (one["outcome"], "ada has approved it" in one["why"]) == ("refused", True)


async def test_a_person_who_may_not_see_a_run_does_not_see_that_it_waits(temporal: Temporal) -> None:
    await wait(temporal.store, user_id="eve", tenant_id="acme")
    mine = {"token": TOKENS["ada"], "role": "approver"}
    for person, sees in (
        (Person(name="ada", tenants=["acme"], **mine), True),
        (Person(name="ada", tenants=["other"], **mine), False),
        (Person(name="ada", only_own=True, **mine), False),
        (Person(name="eve", only_own=True, **mine), True),
    ):
        async with browser(temporal, Access(people=[person])) as client:
            client.headers["Authorization"] = f"Bearer {TOKENS['ada']}"
            run_id = "in-process:shop/@acme/s"
            found = (await client.get("/api/v1/pending")).json()["items"]
            assert [one["workflow_id"] for one in found] == ([run_id] if sees else [])
            assert (await client.get(f"/runs/{run_id}")).status_code == (200 if sees else 404)
            where = f"/api/v1/runs/{run_id.replace('/', '%2F')}/decide"
            if not sees:
                said = await client.post(where, json={"gate": "c1", "decision": "approve", "digest": "d"})
                assert "There is no run" in said.text
    assert await temporal.store.load_decisions("shop/@acme/s") == []


async def test_several_in_process_are_decided_at_once(temporal: Temporal) -> None:
    for session in ("a", "b"):
        await wait(temporal.store, session)
    async with browser(temporal, LOCAL) as client:
        page = (await client.get("/")).text
        found = fields(page, "/decide")
        choices = {f"gate:{n}": value for n, value in enumerate(_values(page), 1)}
        after = await client.post("/decide", data={**found, **choices, "decision": "approve"})
        assert "Approved: 2 of 2" in after.text
        assert after.text.count("takes effect when the run continues") == 2


def _values(page: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'name="gate:\d+" value="([^"]*)"', page)]


async def test_commands_need_no_server_for_a_store_that_only_runs_in_process_have(tmp_path: Path) -> None:
    CHARGED.clear()
    nowhere = ("--address", "127.0.0.1:1")
    path = str(tmp_path / "shop.db")
    async with sqlite_store(path) as store:
        await wait(store)
        (item,) = await data_of(None, "pending", "--store", path, *nowhere)
        assert (item["workflow_id"], item["name"], item["message"]) == (RUN, "c1", "Charge eve?")
        shown = await done(None, "pending", RUN, "--store", path, *nowhere)
        assert "Charge eve?" in shown
        assert f"standfast approve {RUN} c1 --store {path}  or: standfast reject {RUN} c1 --store {path}" in shown
        for command in ("show", "watch"):
            assert "is in a store, and not on Temporal: `standfast pending" in await refused(None, command, RUN)
        decide = (RUN, "c1", "--store", path, *nowhere)
        assert "mallory may not decide it" in await refused(None, "approve", *decide, "--yes", "--by", "mallory")
        assert "There is no run" in await refused(None, "approve", "in-process:shop/x", "--yes", "--store", path)
        said = await done(None, "approve", *decide, "--digest", item["digest"], "--edit", '{"cents": 3}')
        assert said == (f"Approved c1 of {RUN}, by ada. It is recorded, and takes effect when the run continues\n")
        assert CHARGED == []
        await wait(store)
        assert CHARGED == [3]
