"""The page's form for edits before an approval: a call's arguments, and a gate's value."""

import html
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, RootModel
from support.commands import data, done
from support.forms import sent_to
from support.pages import CHARGES, browser, charge
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from integration.pipelines.test_edits_at_gates import DRAFT, drafts, edited, writer
from integration.web.test_api import api, program
from standfast import Agent, Approval, Pipeline, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.temporal.client.history.audits import load_acts
from standfast.testing import ScriptedModel
from standfast.web import Access, Person

BOB = Access(local=Person(name="bob", role="operator"))


async def approve(client: httpx.AsyncClient, run: str, **typed: str) -> httpx.Response:
    """Approve as a browser does, with the texts typed into some fields, by their keys."""
    action = f"/runs/{run}/decide"
    form = sent_to((await client.get(f"/runs/{run}")).text, action)
    named = {name if name in ("edit", "comment") else f"field.{name}": text for name, text in typed.items()}
    return await client.post(action, data={**form, **named, "decision": "approve"}, follow_redirects=True)


async def started(temporal: Temporal, asked: Pipeline) -> Any:
    run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
    await pending(run)
    return run


async def row_of(temporal: Temporal, run: Any) -> Any:
    key = (await run.describe()).raw_info.first_run_id
    (row,) = [one for one in await temporal.store.load_decisions(key) if one.refused is None]
    return row


async def test_a_field_of_a_call_is_changed(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        assert "Approved." in (await approve(client, run.id, amount="7")).text
        await result(run)
    assert "charged 7" in (await temporal.messages())[2].content


async def test_an_untouched_form_of_a_call_is_not_an_edit(temporal: Temporal) -> None:
    """Also of values that no field of a form could express."""
    seen: list[Any] = []

    @tool(approval=Approval(message="Send it?"))
    async def send_it(text: str, amount: float, big: int, note: str | None = None, flag: bool = False) -> str:
        seen.append((text, amount, big, note, flag))
        return "sent"

    hostile: dict[str, Any] = {"text": "\n a\r\nb\u202e\t", "amount": 1.0, "big": 10**40, "note": None}
    agent = Agent("clerk", tools=[send_it])
    model = ScriptedModel([asks_for(call("send_it", "c1", **hostile)), "done"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        await approve(client, run.id)
        await result(run)
        row = await row_of(temporal, run)
    assert (row.edit, seen) == (None, [("\n a\r\nb\u202e\t", 1.0, 10**40, None, False)])
    assert (await temporal.messages())[2].content == "sent"  # without a word of an edit


async def test_what_waits_has_the_schema_so_that_a_page_without_the_agents_has_the_form(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])):
        run = await temporal.start(agent)
        (item,) = await pending(run)
        assert item["edit"]["properties"]["amount"]["type"] == "integer"
        bare = await temporal.people.pending(run.id)
        assert bare[0]["edit"] == item["edit"]


async def test_the_value_of_a_gate_is_changed_in_its_fields(temporal: Temporal) -> None:
    asked = edited()
    model = ScriptedModel([DRAFT, "out"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model), browser(temporal) as client:
        run = await started(temporal, asked)
        assert "Approved." in (await approve(client, run.id, title="Better")).text
        assert (await result(run))["outputs"]["ok"] == {"title": "Better", "words": 5}


async def test_the_value_of_a_gate_is_approved_unchanged(temporal: Temporal) -> None:
    asked = edited()
    model = ScriptedModel([DRAFT, "out"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model), browser(temporal) as client:
        run = await started(temporal, asked)
        (item,) = await pending(run)
        assert "Approved." in (await approve(client, run.id)).text
        assert (await result(run))["outputs"]["ok"] == {"title": "Draft", "words": 5}
        row = await row_of(temporal, run)
    assert (row.edit, row.digest) == (None, item["digest"])


async def test_a_refused_edit_is_shown_again_with_the_error_beside_its_field(temporal: Temporal) -> None:
    asked = edited()
    model = ScriptedModel([DRAFT, "out"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model), browser(temporal) as client:
        run = await started(temporal, asked)
        for typed, fault in (("many", "'many' is not a number"), ("1.5", "valid integer")):
            page = await approve(client, run.id, title="Better <b>", words=typed, comment="so & so")
            assert page.status_code == 409
            again = sent_to(page.text, f"/runs/{run.id}/decide")
            assert (again["field.title"], again["field.words"], again["comment"]) == ("Better <b>", typed, "so & so")
            beside = page.text.split('name="field.words"')[1].split("</fieldset>")[0]
            assert fault in html.unescape(beside)
        sent = {**again, "field.words": "8", "decision": "approve"}
        assert (await client.post(f"/runs/{run.id}/decide", data=sent, follow_redirects=True)).status_code == 200
        assert (await result(run))["outputs"]["ok"] == {"title": "Better <b>", "words": 8}


async def test_a_person_who_comes_second_sees_the_changed_value_and_approves_it_untouched(temporal: Temporal) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2)
    model = ScriptedModel([DRAFT, "out"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model):
        async with browser(temporal) as client:
            run = await started(temporal, asked)
            await approve(client, run.id, title="Better")
        async with browser(temporal, BOB) as client:
            form = sent_to((await client.get(f"/runs/{run.id}")).text, f"/runs/{run.id}/decide")
            assert form["field.title"] == "Better"
            await approve(client, run.id)
        assert (await result(run))["outputs"]["ok"] == {"title": "Better", "words": 5}


async def test_what_somebody_else_has_changed_in_the_meantime_is_not_approved_by_an_old_form(
    temporal: Temporal,
) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2)
    model = ScriptedModel([DRAFT, "out"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model), browser(temporal, BOB) as client:
        run = await started(temporal, asked)
        (item,) = await pending(run)
        form = sent_to((await client.get(f"/runs/{run.id}")).text, f"/runs/{run.id}/decide")
        await temporal.people.decide(run.id, "ok", "approve", by="ada", digest=item["digest"], edit={"title": "Mine"})
        sent = {**form, "field.title": "Yours", "decision": "approve"}
        page = await client.post(f"/runs/{run.id}/decide", data=sent)
        assert (page.status_code, "has changed" in page.text, "Yours" in page.text) == (409, True, True)
        await approve(client, run.id)
        assert (await result(run))["outputs"]["ok"] == {"title": "Mine", "words": 0}


async def test_the_audit_trail_says_what_an_edit_has_changed(temporal: Temporal) -> None:
    text = "".join(f"line {number}\n" for number in range(9))

    @tool(approval=Approval(message="Send it?", approvers=["ada", "bob"], quorum=2))
    async def send_it(amount: float, text: str, note: str = "") -> str:
        return "sent"

    agent = Agent("clerk", tools=[send_it])
    model = ScriptedModel([asks_for(call("send_it", "c1", amount=120, text=text)), "done"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        changed = text.replace("line 4", "line four")
        page = await approve(client, run.id, amount="80", text=changed)
        assert "amount: 120.0 → 80" in page.text
        assert '<pre class="diff">  line 3\n<del>- line 4</del>\n<ins>+ line four</ins>\n  line 5\n</pre>' in page.text
        assert "note" not in page.text.split('id="audit"')[1]
        await temporal.people.decide(run.id, "c1", "approve", by="bob")
        await result(run)
        key = (await run.describe()).raw_info.first_run_id
        first, second = await load_acts(temporal.store, [key], run.id)
        assert [one.path for one in first.changes or ()] == ["amount", "text"]
        assert second.changes is None  # bob approved what ada had made of it


async def test_the_audit_trail_of_a_gate_says_what_each_has_changed(temporal: Temporal) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2)
    model = ScriptedModel([DRAFT, "out"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model), browser(temporal) as client:
        run = await started(temporal, asked)
        assert "title: &#34;Draft&#34; → &#34;Mine&#34;" in (await approve(client, run.id, title="Mine")).text
        (item,) = await pending(run)
        given = {"by": "bob", "digest": item["digest"], "edit": {"title": "Mine", "words": 5}}
        await temporal.people.decide(run.id, "ok", "approve", **given)
        await result(run)
        key = (await run.describe()).raw_info.first_run_id
        rows = await load_acts(temporal.store, [key], run.id)
        assert [[one.in_words for one in row.changes or ()] for row in rows] == [['title: "Draft" → "Mine"'], []]


async def test_a_command_shows_what_an_edit_has_changed(temporal: Temporal, tmp_path: Path) -> None:
    asked, store = edited(), ("--store", str(tmp_path / "standfast.db"))
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await started(temporal, asked)
        edit = json.dumps({"title": "Mine\n1", "words": 5})
        await done(temporal, "approve", run.id, "ok", "--edit", edit, "--yes", *store)
        await result(run)
        (row,) = (await data(temporal, "show", run.id, "--audit", *store))["audit"]
        change = {"path": "title", "how": "changed", "before": "Draft", "after": "Mine\n1"}
        assert row["changes"] == [{**change, "in_words": "title:", "lines": ["- Draft", "+ Mine", "+ 1"]}]
        said = await done(temporal, "show", run.id, "--audit", *store)
        assert "    title:\n      - Draft\n      + Mine\n" in said


class Titles(RootModel[list[str]]):
    """Any JSON may be edited, not only objects."""


TITLES: Pipeline = (
    pipeline("w")
    .step("ok", approval=Approval(edit=Titles, show=lambda ctx: Titles(["a", "b"]), approvers=["ada"]))
    .build()
)


async def test_a_list_is_edited_by_the_page(temporal: Temporal) -> None:
    async with temporal.worker(pipelines=[TITLES], llm=ScriptedModel([])), browser(temporal) as client:
        run = await started(temporal, TITLES)
        form = sent_to((await client.get(f"/runs/{run.id}")).text, f"/runs/{run.id}/decide")
        assert form["field"] == "a\r\nb"
        sent = {**form, "field": "a\r\nc", "decision": "approve"}
        assert (await client.post(f"/runs/{run.id}/decide", data=sent, follow_redirects=True)).status_code == 200
        assert (await result(run))["outputs"]["ok"] == ["a", "c"]


async def test_a_list_is_edited_by_the_json_api(temporal: Temporal) -> None:
    async with temporal.worker(pipelines=[TITLES], llm=ScriptedModel([])), program(temporal, "ada") as ada:
        run = await started(temporal, TITLES)
        (item,) = (await ada.get(api(run.id, "pending"))).json()["items"]
        asked = {"gate": "ok", "decision": "approve", "digest": item["digest"]}
        for wrong in ("c", {"a": 1}, [1]):
            answer = await ada.post(api(run.id, "decide"), json={**asked, "edit": wrong})
            assert (answer.status_code, "gate ok: edit" in answer.text) == (409, True)
        assert (await ada.post(api(run.id, "decide"), json={**asked, "edit": ["c"]})).json() == {"done": True}
        assert (await result(run))["outputs"]["ok"] == ["c"]


class Long(BaseModel):
    text: str


@pytest.mark.parametrize(("size", "can_change"), [(20_000, True), (70_000, False)])
async def test_a_large_value_is_changed_as_long_as_a_form_can_have_it(
    temporal: Temporal, size: int, can_change: bool
) -> None:
    asked = pipeline("w").step("ok", approval=Approval(edit=Long, show=lambda ctx: Long(text="x" * size))).build()
    async with temporal.worker(pipelines=[asked], llm=ScriptedModel([])), browser(temporal) as client:
        run = await started(temporal, asked)
        page = (await client.get(f"/runs/{run.id}")).text
        assert ("too large to edit here" in page, 'name="field.text"' in page) == (not can_change, can_change)
        await approve(client, run.id, **({"text": "y"} if can_change else {}))
        assert len((await result(run))["outputs"]["ok"]["text"]) == (1 if can_change else size)
