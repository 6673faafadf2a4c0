"""Several approvals are decided at once, on the page and in the API: separately, each with its outcome."""

import asyncio
import html
import json
import re
from typing import Any

import httpx
import pytest
from support.pages import BOB, PEOPLE, TOKENS, browser
from support.temporal_runs import Run, Temporal, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel
from standfast.web import Access, Person

CARL = Person(name="carl", role="approver", token="carl-token-that-is-long-enough")
ACCESS = Access(people=[*PEOPLE, BOB, CARL])


def as_(name: str) -> dict[str, str]:
    known = {person.name: person.token for person in ACCESS.people}
    return {"Authorization": f"Bearer {known[name]}", "Accept": "text/html"}


@tool(approval=Approval(message="Charge the customer?", approvers=["ada", "carl"]))
async def charge(amount: int) -> str:
    return f"charged {amount}"


@tool(approval=Approval(message="Only bob?", approvers=["bob"]))
async def for_bob(amount: int) -> str:
    return f"charged {amount}"


@tool(approval=Approval(message="All of this?", approvers=["ada"]))
async def write(text: str) -> str:
    return "written"


MANY = 10
clerk = Agent("clerk", tools=[charge, for_bob, write])


def asking(*calls: Any) -> ScriptedModel:
    return ScriptedModel(lambda messages, tools: asks_for(*calls) if messages[-1].content == "go" else "done")


async def runs_of(temporal: Temporal, number: int) -> list[tuple[Run, dict[str, Any]]]:
    """Start runs, and return each with its waiting item."""
    runs = [await temporal.start(clerk, session=f"s{at}") for at in range(number)]
    return [(run, (await pending(run))[0]) for run in runs]


def offers(page: str) -> dict[str, str]:
    """Return the checkboxes of an inbox, by their names, as a browser would send them."""
    return {name: html.unescape(value) for name, value in re.findall(r'name="(gate:\d+)" value="([^"]*)"', page)}


def form_of(page: str, *runs: Run, decision: str = "approve", **typed: str) -> dict[str, str]:
    """Return the form below an inbox with the checkboxes of these runs ticked."""
    ids = {run.id for run in runs}
    below = page.split('id="several"')[1].split("</form>")[0]
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="(\w+)"', below))
    ticked = {name: value for name, value in offers(page).items() if json.loads(value)[0] in ids}
    assert len(ticked) == len(ids)
    return {**hidden, **ticked, "decision": decision, **typed}


def told(page: httpx.Response) -> dict[str, str]:
    """Return what a page says came of each decision, by run."""
    assert page.status_code == 200, page.text
    rows = re.findall(r'<td class="id"><a href="/runs/([^"]*)">(.*?)</tr>', page.text, re.DOTALL)
    return {run: " ".join(html.unescape(re.sub("<[^>]*>", " ", row)).split()[1:]) for run, row in rows}


async def inbox(client: httpx.AsyncClient, *runs: Run, by: str = "ada") -> str:
    async def shows_all() -> str | None:
        page = (await client.get("/", headers=as_(by))).text
        return page if all(run.id in page for run in runs) else None

    return await until(shows_all)


async def test_several_are_approved_with_one_comment_each_on_its_own_digest(temporal: Temporal) -> None:
    async with (
        temporal.worker(clerk, llm=asking(call("charge", "c1", amount=5))),
        browser(temporal, ACCESS) as client,
    ):
        runs = [run for run, _ in await runs_of(temporal, 3)]
        page = await inbox(client, *runs)
        form = form_of(page, *runs[:2], comment="as agreed")
        outcomes = told(await client.post("/decide", data=form, headers=as_("ada")))
        assert outcomes == {run.id: "c1 counted" for run in runs[:2]}
        for run in runs[:2]:
            assert (await result(run))["status"] == "complete"
            (row,) = await temporal.store.load_decisions((await run.describe()).raw_info.first_run_id)
            assert (row.decision, row.by, row.comment) == ("approve", "ada", "as agreed")
        assert len(await pending(runs[2])) == 1


@pytest.mark.slow
async def test_two_people_who_decide_the_same_ten_at_once_are_told_of_each_that_it_counted_once(
    temporal: Temporal,
) -> None:
    async with (
        temporal.worker(clerk, llm=asking(call("charge", "c1", amount=5))),
        browser(temporal, ACCESS) as client,
    ):
        runs = [run for run, _ in await runs_of(temporal, MANY)]
        forms = {who: form_of(await inbox(client, *runs, by=who), *runs) for who in ("ada", "carl")}
        answers = await asyncio.gather(
            *(client.post("/decide", data=form, headers=as_(who), timeout=60) for who, form in forms.items())
        )
        ada, carl = map(told, answers)
        for run in runs:
            both = sorted((ada[run.id], carl[run.id]))
            assert [one.startswith("c1 counted") for one in both] == [True, False], both
            other = "carl" if ada[run.id] != "c1 counted" else "ada"
            assert both[1].startswith("c1 did not count"), both
            assert both[1].endswith(f"{other} has approved it"), both
            await result(run)
            rows = await temporal.store.load_decisions((await run.describe()).raw_info.first_run_id)
            assert len([row for row in rows if row.refused is None]) == 1


async def test_a_form_that_is_sent_twice_at_once_decides_once(temporal: Temporal) -> None:
    async with (
        temporal.worker(clerk, llm=asking(call("charge", "c1", amount=5))),
        browser(temporal, ACCESS) as client,
    ):
        runs = [run for run, _ in await runs_of(temporal, 2)]
        form = form_of(await inbox(client, *runs), *runs, decision="reject", comment="no")
        sends = [client.post("/decide", data=form, headers=as_("ada"), timeout=60) for _ in range(2)]
        answers = [*await asyncio.gather(*sends), await client.post("/decide", data=form, headers=as_("ada"))]
        for answer in answers:
            assert told(answer) == {run.id: "c1 counted" for run in runs}
        for run in runs:
            await result(run)
            rows = await temporal.store.load_decisions((await run.describe()).raw_info.first_run_id)
            assert [(row.decision, row.refused) for row in rows] == [("reject", None)]


async def test_what_does_not_count_does_not_keep_the_others_and_says_why(temporal: Temporal) -> None:
    line = pipeline("line").step("ok", approval=Approval(approvers=["ada", "carl"])).build()
    async with (
        temporal.worker(clerk, pipelines=[line], llm=asking(call("charge", "c1", amount=5))),
        browser(temporal, ACCESS) as client,
    ):
        (good, _), (changed, _), (gone, _) = await runs_of(temporal, 3)
        lined = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
        (gate,) = await pending(lined)
        form = form_of(await inbox(client, good, changed, gone, lined), good, changed, gone, lined)
        for name, value in form.items():
            if name.startswith("gate:") and json.loads(value)[0] == changed.id:
                form[name] = json.dumps([changed.id, "c1", "d" * 32])
        form["gate:98"] = json.dumps(["clerk/nowhere", "c1", "d" * 32])
        form["gate:99"] = json.dumps([good.id, "c9", "d" * 32])
        await temporal.people.decide(lined.id, "ok", "approve", by="carl", digest=gate["digest"])
        await gone.terminate()
        outcomes = told(await client.post("/decide", data=form, headers=as_("ada"), timeout=60))
        assert "has changed" in outcomes[changed.id]
        assert "There is no run 'clerk/nowhere'" in outcomes["clerk/nowhere"]
        assert outcomes[gone.id].startswith("c1 did not count")
        assert outcomes[lined.id].startswith("ok did not count")
        assert outcomes[lined.id].endswith("carl has approved it")
        assert (await result(good))["status"] == "complete"
        await changed.terminate()


async def test_nobody_decides_several_who_may_not_decide_one(temporal: Temporal) -> None:
    async with (
        temporal.worker(clerk, llm=asking(call("for_bob", "c1", amount=5))),
        browser(temporal, ACCESS) as client,
    ):
        ((run, item),) = await runs_of(temporal, 1)
        page = await inbox(client, run)
        assert ('id="several"' in page, offers(page)) == (False, {})
        forged = {"decision": "approve", "key": "k", "gate:1": json.dumps([run.id, "c1", item["digest"]])}
        assert (await client.post("/decide", data=forged, headers=as_("vera"))).status_code == 403
        outcomes = told(await client.post("/decide", data=forged, headers=as_("ada")))
        assert "ada may not decide it" in outcomes[run.id]
        assert len(await pending(run)) == 1
        await run.terminate()


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({}, "Decision is missing"),
        ({"decision": "approve", "gate:1": "{"}, "not valid JSON"),
        ({"decision": "approve", "gate:1": '["a", "b"]'}, "A selection must be a run, a gate and a digest"),
        ({"decision": "approve", **{f"gate:{n}": f'["a", "b", "{n}"]' for n in range(101)}}, "at most 100"),
    ],
)
async def test_a_form_that_cannot_be_read_decides_nothing(temporal: Temporal, sent: dict[str, str], says: str) -> None:
    async with browser(temporal, ACCESS) as client:
        refused = await client.post("/decide", data=sent, headers=as_("ada"))
        assert refused.status_code in (409, 422)
        assert says in html.unescape(refused.text)
        assert (
            "Nothing was selected"
            in (await client.post("/decide", data={"decision": "approve"}, headers=as_("ada"))).text
        )
        del client.headers["Accept"]
    async with browser(temporal) as client:
        foreign = {"decision": "approve", "gate:1": '["a", "b", "c"]', "csrf": "wrong"}
        assert (await client.post("/decide", data=foreign)).status_code == 403


async def test_what_a_card_does_not_show_whole_is_not_offered(temporal: Temporal) -> None:
    async with (
        temporal.worker(clerk, llm=asking(call("write", "c1", text="x" * 50_000))),
        browser(temporal, ACCESS) as client,
    ):
        ((run, _),) = await runs_of(temporal, 1)
        page = await inbox(client, run)
        assert 'value="approve"' in page  # on its own, after looking at its parts
        assert offers(page) == {}
        await run.terminate()


async def test_the_api_decides_several_and_answers_for_each(temporal: Temporal) -> None:
    async with (
        temporal.worker(clerk, llm=asking(call("charge", "c1", amount=5))),
        browser(temporal, ACCESS) as client,
    ):
        waiting = await runs_of(temporal, 2)
        gates = [{"run": run.id, "gate": "c1", "digest": item["digest"]} for run, item in waiting]
        body = {"decision": "approve", "comment": "ok", "gates": [*gates, {**gates[0], "gate": "c7"}]}
        headers = {"Authorization": f"Bearer {TOKENS['ada']}", "Idempotency-Key": "several-1"}
        for _ in range(2):  # sent again, it counts once
            answer = await client.post("/api/v1/decide", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            found = answer.json()["gates"]
            assert [one["outcome"] for one in found][:2] == ["done", "done"], found
            assert found[2]["outcome"] == "refused"
        for run, _ in waiting:
            assert (await result(run))["status"] == "complete"
        too_many = {**body, "gates": gates[:1] * 101}
        assert (await client.post("/api/v1/decide", json=too_many, headers=headers)).status_code == 422


async def test_without_a_worker_each_is_said_to_be_not_confirmed(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(temporal, ACCESS) as client:
        async with temporal.worker(clerk, llm=asking(call("charge", "c1", amount=5))):
            runs = [run for run, _ in await runs_of(temporal, 2)]
            form = form_of(await inbox(client, *runs), *runs)
        app = client._transport.app  # type: ignore[attr-defined]
        pages = next(route.endpoint.__self__ for route in app.routes if getattr(route, "path", "") == "/")
        monkeypatch.setattr(pages._desk.people, "_timeout", 1.0)
        outcomes = told(await client.post("/decide", data=form, headers=as_("ada"), timeout=60))
        for run in runs:
            assert outcomes[run.id].startswith("c1 not confirmed"), outcomes
            assert "may count once a worker is there" in outcomes[run.id]
        async with temporal.worker(clerk, llm=asking(call("charge", "c1", amount=5))):
            for run in runs:
                assert (await result(run))["status"] == "complete"
