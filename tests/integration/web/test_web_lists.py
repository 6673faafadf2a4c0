"""The list of runs: pages, filters, saved filters, costs, and batch acts."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from support.pages import CHARGES, PEOPLE, TOKENS, browser, charge, csrf_of, shows
from support.temporal_runs import Run, Temporal, ask_models_once, pending, result, until

from standfast import Agent, ModelError
from standfast.mcp.known_tools import KnownTools
from standfast.testing import ScriptedModel
from standfast.web import Access
from standfast.web.page import overview, run_lists

AGENT = Agent("clerk", tools=[charge])


def rows(page: str) -> list[str]:
    """Return the runs that a page lists."""
    return re.findall(r'<td class="id"><a href="/runs/([^"]*)">', page)


def row(page: str, run: str) -> str:
    """Return the text of a run's row."""
    found = page.split(f'<a href="/runs/{run}">')[1].split("</tr>")[0]
    return " ".join(re.sub("<[^>]*>", " ", found).split())


async def test_a_list_has_pages(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lists, "_RUNS", 2)
    async with temporal.worker(AGENT, llm=ScriptedModel(["done"] * 5)), browser(temporal) as client:
        runs = [await temporal.start(AGENT, session=f"s{number}") for number in range(5)]
        for run in runs:
            await result(run)
        first = f"/runs?q=clerk/{temporal.name}"
        # A run that ends between two pages moves in the list: its index learns of an end a moment later.
        ended = f"TaskQueue = '{temporal.name}' AND WorkflowType = 'clerk' AND ExecutionStatus = 'Completed'"
        await until(lambda: _are_listed(temporal, ended, 5))
        seen, at = [], first
        for _ in range(3):
            page = (await client.get(at)).text
            seen.append(rows(page))
            nexts = re.findall(r'<a rel="next" href="([^"]*)">', page)
            at = nexts[0].replace("&amp;", "&") if nexts else first
        assert [len(part) for part in seen] == [2, 2, 1]
        assert {one for part in seen for one in part} == {run.id for run in runs}
        assert at == first
        for broken in ("AAAA", "!", "bm8gc3VjaCBwbGFjZQ=="):
            assert (await client.get(f"{first}&after={broken}")).status_code == 409, broken


async def _are_listed(temporal: Temporal, query: str, count: int) -> bool:
    return (await temporal.client.count_workflows(query)).count == count


async def test_a_run_is_found_by_how_its_id_begins_and_by_its_session(temporal: Temporal) -> None:
    async with temporal.worker(AGENT, llm=ScriptedModel(["done"])), browser(temporal) as client:
        run = await temporal.start(AGENT)
        await result(run)
        for wanted in (f"q=clerk/{temporal.name}", f"q={temporal.session()}", f"session={temporal.session()}&since=1h"):
            await until(lambda wanted=wanted: shows(client, f"/runs?{wanted}", f'"/runs/{run.id}"'))
        for other in (f"q={temporal.name}", "q=clerk' OR 'a' = 'a", "q=%5C"):
            assert rows((await client.get(f"/runs?{other}")).text) == []
        assert (await client.get("/runs?since=yesterday")).status_code == 409


async def test_a_row_says_who_started_a_run_how_long_it_lasted_and_what_it_cost(temporal: Temporal) -> None:
    model = ScriptedModel(
        lambda messages, tools: {"text": "done", "usage": {"input_tokens": 10, "output_tokens": 2, "cost": 0.0123}}
    )
    async with temporal.worker(AGENT, llm=model), browser(temporal) as client:
        run = await temporal.start(AGENT, user_id="grace")
        await result(run)
        at = f"/runs?session={temporal.session()}"
        await until(lambda: shows(client, at, 'class="status complete"'))
        said = row((await client.get(at)).text, run.id)
    assert "complete" in said
    assert "clerk grace" in said
    assert said.endswith("s $0.0123")


async def test_a_filter_is_saved_by_name_and_forgotten(temporal: Temporal) -> None:
    async with browser(temporal) as client:
        wanted = {"status": "waiting", "type": "clerk"}
        csrf = await csrf_of(client)
        saved = await client.post("/filters", data={**wanted, "csrf": csrf, "name": "Mine <b>"})
        assert parse_qs(urlsplit(saved.headers["location"]).query) == {"status": ["waiting"], "type": ["clerk"]}
        page = (await client.get("/runs")).text
        assert '<a href="/runs?status=waiting&amp;type=clerk">Mine &lt;b&gt;</a>' in page
        await client.post("/filters", data={**wanted, "csrf": csrf, "name": "Mine <b>", "forget": "1"})
        assert "Mine" not in (await client.get("/runs")).text
        assert (await client.post("/filters", data={"csrf": csrf, "name": " "})).status_code == 409
        assert (await client.post("/filters", data={"name": "x"})).status_code == 403
        client.cookies.set("standfast_filters", "bm90IEpTT04=")
        assert (await client.get("/runs")).status_code == 200


async def chosen(client: httpx.AsyncClient, act: str, *runs: Run) -> dict[str, str]:
    """Do an act to several runs, and return the outcome of each."""
    page = (await client.get("/runs?status=waiting")).text
    form = {name: re.findall(rf'name="{name}" value="(\w+)"', page)[0] for name in ("csrf", "key")}
    answer = await client.post("/batch", data={**form, "act": act, **{f"run:{run.id}": "on" for run in runs}})
    assert answer.status_code == 200
    return {run.id: row(answer.text, run.id) for run in runs}


async def test_several_runs_are_cancelled_and_the_outcome_of_each_is_said(temporal: Temporal) -> None:
    model = ScriptedModel(lambda messages, tools: CHARGES if messages[-1].content == "go" else "done")
    async with temporal.worker(AGENT, llm=model), browser(temporal) as client:
        waits = [await temporal.start(AGENT, session=f"s{number}") for number in range(2)]
        over = await temporal.start(AGENT, "no", session="over")
        await result(over)
        for run in waits:
            await pending(run)
        await until(lambda: shows(client, "/runs?status=waiting", f'name="run:{waits[1].id}"'))
        outcomes = await chosen(client, "cancel", *waits, over)
        assert [outcomes[run.id].split()[-1] for run in waits] == ["done", "done"]
        assert outcomes[over.id].endswith("has already ended") or "but was not cancelled" in outcomes[over.id]
        for run in waits:
            assert "by ada" in str(await until(lambda run=run: cancelled_by(run)))


async def cancelled_by(run: Run) -> Any:
    described = await run.describe()
    return described.close_time and "by ada" if described.status and described.status.name == "CANCELED" else None


async def test_several_paused_runs_are_resumed(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_models_once(monkeypatch)
    model = ScriptedModel([ModelError("down", transient=True), ModelError("down", transient=True), "done", "done"])
    async with temporal.worker(AGENT, llm=model), browser(temporal) as client:
        runs = [await temporal.start(AGENT, session=f"s{number}") for number in range(2)]
        for run in runs:
            await pending(run)
        await until(lambda: shows(client, "/runs?status=paused", runs[1].id))
        page = (await client.get("/runs?status=paused")).text
        form = {name: re.findall(rf'name="{name}" value="(\w+)"', page)[0] for name in ("csrf", "key")}
        answer = await client.post("/batch", data={**form, "act": "retry", **{f"run:{run.id}": "on" for run in runs}})
        assert [row(answer.text, run.id).split()[-1] for run in runs] == ["done", "done"]
        for run in runs:
            assert (await result(run))["response"] == "done"


async def test_only_operators_act_on_several_runs(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE)) as client:
        client.headers["Authorization"] = f"Bearer {TOKENS['ada']}"
        assert "With the selected runs" not in (await client.get("/runs")).text
        assert (await client.post("/batch", data={"act": "cancel", "run:x": "on"})).status_code == 403
        client.headers["Authorization"] = f"Bearer {TOKENS['olga']}"
        assert (await client.post("/batch", data={"act": "delete", "run:x": "on"})).status_code == 400
        answer = await client.post("/batch", data={"act": "cancel", "run:no/body": "on"})
        assert "There is no run &#39;no/body&#39;" in answer.text


# --- the overview ---


async def test_the_overview_counts_what_its_lists_have(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "_KEPT", 0.0)
    agent = Agent(f"a-{temporal.name.replace('_', '-')}", tools=[charge])
    model = ScriptedModel(
        lambda messages, tools: (
            CHARGES
            if messages[-1].content == "go"
            else {"text": "done", "usage": {"input_tokens": 10, "output_tokens": 2, "cost": 1.5}}
        )
    )
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        ended = await temporal.start(agent, "hello", session="ended")
        await result(ended)
        await until(lambda: shows(client, "/overview", agent.name))
        page = (await client.get("/overview")).text
        assert "could not be" not in page
        counts = re.findall(r'href="/runs\?([^"]*)"><b>([\d,]+)</b><span>([^<]*)<', page)
        assert [name for _, _, name in counts] == [name for name, _, _ in overview._TILES]
        assert int(counts[1][1].replace(",", "")) >= 1
        assert "$1.50" in page.split(agent.name, 1)[1]
        assert 'aria-label="Waiting by age"' in page
        await run.cancel()


async def test_the_overview_says_what_it_could_not_count(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with browser(temporal) as client:
        monkeypatch.setattr(overview, "_PATIENCE", 0.0)
        page = (await client.get("/overview")).text
    assert page.count("<b>?</b>") == len(overview._TILES)
    assert page.count("could not be counted") == len(overview._TILES)
    assert "The ended runs are unknown." in page


async def test_the_overview_names_mcp_tools_that_are_left_out(temporal: Temporal) -> None:
    await KnownTools(temporal.store, "k1", "http://shop/mcp").note_left_out({"<pay>": "its schema is a list"})
    async with browser(temporal) as client:
        page = (await client.get("/overview")).text
    assert "<b>&lt;pay&gt;</b> of http://shop/mcp: its schema is a list" in page


def test_the_usage_of_an_agent_that_an_agent_called_is_counted_once() -> None:
    agents = {"host/s", "other/s"}
    counted = [
        run
        for run in ("host/s", "host/s/c1", "line/k/write", "other/s/c1/d1")
        if not overview._counts_for_another(run, agents)
    ]
    assert counted == ["host/s", "line/k/write"]
