"""The timeline on the page of a run, and running a pipeline again from one of its steps."""

import asyncio
import base64
import html
import re

import httpx
import pytest
from support.pages import CHARGES, browser, charge
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call
from temporalio.exceptions import ApplicationError

from integration.local.test_held_answers import READ, clerk
from standfast import Agent, Step, ToolContext, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel
from standfast.web import pages


async def timeline(client: httpx.AsyncClient, run: str) -> list[str]:
    """Return the entries of a timeline, as texts."""
    page = (await client.get(f"/runs/{run}")).text
    listed = page.split('<ol class="timeline">', 1)[1].split("</ol>")[0]
    return [
        " ".join(html.unescape(re.sub("<[^>]*>", " ", entry)).split()) for entry in re.split(r"<li class=", listed)[1:]
    ]


async def test_the_timeline_says_what_happened_and_who_decided(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "All **done**."])), browser(temporal) as client:
        run = await temporal.start(agent, "Charge 5", user_id="grace")
        await pending(run)
        started, turn, gate = await timeline(client, run.id)
        assert "Started by grace" in started
        assert "1,200 tokens in" in turn
        assert "asks for charge" in turn
        assert "Approval of ada waits" in gate
        await temporal.people.decide(run.id, "c1", "approve", by="ada", comment="fine")
        await result(run)
        entries = await timeline(client, run.id)
        assert "approve by ada: fine" in entries[2]
        assert "returned charged 5" in entries[3]
        assert "Ended: complete" in entries[-1]
        assert '<div class="md answer"><p>All <strong>done</strong>.</p>' in (await client.get(f"/runs/{run.id}")).text


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_turn_in_which_guardrails_held_what_the_user_said_is_not_the_models(
    temporal: Temporal, decision: str
) -> None:
    agent = clerk(inputs=[READ])
    model = ScriptedModel(["thanks"])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent, "4111")
        await pending(run)
        _, held, gate = await timeline(client, run.id)
        assert ("Guardrails, turn 1" in held, "Model" in held, "model" in held) == (True, False, False)
        assert "Approval of ada waits" in gate
        await temporal.people.decide(run.id, "message-2", decision, by="ada")
        await result(run)
        turn = (await timeline(client, run.id))[3]
        assert ("Model, turn 2" if decision == "approve" else "Guardrails, turn 2") in turn
        assert len(model.calls) == (decision == "approve")


async def test_the_timeline_says_that_a_call_was_lost_and_not_run_again(temporal: Temporal) -> None:
    started, loop = asyncio.Event(), asyncio.get_running_loop()

    @tool
    async def pay(ctx: ToolContext) -> str:
        loop.call_soon_threadsafe(started.set)
        await asyncio.get_running_loop().create_future()
        return "never"

    agent = Agent("payer", tools=[pay])
    model = ScriptedModel([asks_for(call("pay", "c1")), "I do not know."])
    async with temporal.worker(agent, llm=model), browser(temporal) as client:
        run = await temporal.start(agent)
        await started.wait()
        token = base64.b64decode((await temporal.store.running_calls())[0].task_token)
        died = ApplicationError("its worker died", type="WorkerDied", non_retryable=True)
        await temporal.client.get_async_activity_handle(task_token=token).fail(died)
        await result(run)
        entry = next(entry for entry in await timeline(client, run.id) if "pay unknown" in entry)
    assert "Its worker died while it ran." in entry
    assert "it was not run again" in entry


async def test_agents_that_a_pipeline_runs_are_folded_in_and_it_runs_again_from_a_step(temporal: Temporal) -> None:
    writer = Agent("writer")
    line = (
        pipeline("line")
        .step("draft", agent=writer, input=lambda ctx: "draft")
        .step("edit", agent=writer, input=lambda ctx: f"edit {ctx.prev['draft']['response']}")
        .build()
    )
    model = ScriptedModel(lambda messages, tools: f"<{messages[-1].content}>")
    async with temporal.worker(writer, pipelines=[line], llm=model), browser(temporal) as client:
        run = await start_pipeline(
            temporal.client, line, user_id="ada", run_key=temporal.session(), task_queue=temporal.name
        )
        await result(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert page.count("Its run, 3 entries") == 2
        form = page.split('aria-label="Run again from edit"')[0].rpartition("<form")[2]
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        assert fields["step"] == "edit"
        calls = len(model.calls)
        for _ in range(2):  # a double click
            sent = await client.post(f"/again/{run.id}", data=fields)
            assert sent.status_code == 303, sent.text
        new = sent.headers["location"].partition("?")[0].removeprefix("/runs/")
        assert new != run.id
        again = await result(temporal.client.get_workflow_handle(new))
        assert again["outputs"]["edit"]["response"] == "<edit <draft>>"
        assert len(model.calls) == calls + 1
        wrong = await client.post(f"/again/{run.id}", data={**fields, "step": "nowhere", "key": "b" * 32})
        failed = await client.get(wrong.headers["location"]) if wrong.status_code == 303 else wrong
        assert "nowhere" in failed.text


async def test_who_did_not_start_a_run_is_not_offered_to_run_it_again(temporal: Temporal) -> None:
    writer = Agent("writer")
    line = pipeline("line").parallel("both", Step("one", agent=writer), Step("two", agent=writer)).build()
    async with (
        temporal.worker(writer, pipelines=[line], llm=ScriptedModel(["x", "y"])),
        browser(temporal) as client,
    ):
        run = await start_pipeline(
            temporal.client, line, input="x", user_id="grace", run_key=temporal.session(), task_queue=temporal.name
        )
        await result(run)
        assert "Run again from here" not in (await client.get(f"/runs/{run.id}")).text


async def test_a_long_timeline_shows_its_end_and_all_of_it_when_asked(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_ENTRIES", 2)
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel(["done"])), browser(temporal) as client:
        run = await temporal.start(agent, "hello")
        await result(run)
        first, last = await timeline(client, run.id)
        assert ("Model, turn 1" in first, "Ended: complete" in last) == (True, True)
        assert "Earlier entries: 1." in (await client.get(f"/runs/{run.id}")).text
        assert len(await timeline(client, f"{run.id}?all=1")) == 3
