"""The timeline on the page of a run, and running a pipeline again from one of its steps."""

import asyncio
import base64
import html
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commands import done
from support.pages import CHARGES, browser, charge
from support.temporal_runs import Run, Temporal, chain, goes_on_as_new, pending, result, until
from support.transcripts import asks_for, call
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.exceptions import ApplicationError

from integration.local.test_held_answers import READ, clerk
from standfast import (
    Agent,
    Approval,
    Citation,
    HostedCall,
    InputError,
    LLMResponse,
    Reasoning,
    Step,
    StoreError,
    ToolCall,
    ToolContext,
    TurnEnded,
    events,
    pipeline,
    tool,
)
from standfast.stores import Board, SQLiteStore, Wait
from standfast.temporal import StandfastClient, load_arguments, start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel
from standfast.web.page import run_page
from standfast.web.page.timelines import fold


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


async def test_thoughts_calls_of_the_provider_and_sources_are_shown_told_and_in_the_result(temporal: Temporal) -> None:
    ran = HostedCall(name="web_search", input='{"query": "Oslo"}')
    lost = HostedCall(name="code_execution", outcome="unknown")
    failed = HostedCall(name="web_fetch", outcome="failed", error="url_not_accessible")
    source = Citation(url="https://yr.no", title="Yr", text="Rain.")
    thoughts = Reasoning(provider="p", blocks=({"type": "thinking", "thinking": "Let me look. " * 50},))
    answer = LLMResponse(text="It rains.", reasoning=thoughts, hosted=(ran, lost, failed), citations=(source,))
    async with temporal.worker(Agent("clerk"), llm=ScriptedModel([answer])), browser(temporal) as client:
        run = await temporal.start("clerk", "The weather?")
        ended = await result(run)
        assert ended["citations"] == [source.model_dump()]
        entry = (await timeline(client, run.id))[1]
        (turn,) = [event for event in await temporal.people.events(run.id) if isinstance(event, TurnEnded)]
    assert (turn.hosted, turn.citations) == ((ran, lost, failed), (source,))
    assert turn.thoughts == ("Let me look. " * 50)[:300] + "…"
    assert "thoughts Let me look." in entry
    assert 'web_search {"query": "Oslo"} ran at the model\'s provider' in entry
    assert "code_execution may have run at the model's provider: the answer does not have its result" in entry
    assert "web_fetch failed at the model's provider (url_not_accessible)" in entry
    assert "source: Yr https://yr.no" in entry


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
        *_, entry, _, _ = await timeline(client, run.id)
    assert "Its worker died while it ran." in entry
    assert "it was not run again" in entry
    assert ("pay unknown" in entry, "Its outcome was found" in entry) == (True, False)


@pytest.mark.parametrize(
    ("found_by", "said"),
    [
        ("ledger", "was found in the ledger"),
        ("verify", "was found by `verify`"),
        ("person", "A person gave"),
        (None, "was found;"),
    ],
)
def test_the_timeline_says_who_found_the_outcome_of_a_lost_call(found_by: Any, said: str) -> None:
    lost = ToolCall(id="c1", name="pay", arguments={})
    ended = events.ToolEnded(lost, text="paid", recovered=True, found_by=found_by)
    (entry,) = fold([events.ToolStarted(lost), events.ToolLost(lost, "its worker died"), ended])
    assert [said in note for note in entry.notes] == [True]


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


async def test_a_person_who_did_not_start_a_run_is_not_offered_to_run_it_again(temporal: Temporal) -> None:
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
    monkeypatch.setattr(run_page, "_ENTRIES", 2)
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel(["done"])), browser(temporal) as client:
        run = await temporal.start(agent, "hello")
        await result(run)
        first, last = await timeline(client, run.id)
        assert ("Model, turn 1" in first, "Ended: complete" in last) == (True, True)
        assert "Earlier entries: 1." in (await client.get(f"/runs/{run.id}")).text
        assert len(await timeline(client, f"{run.id}?all=1")) == 3


def refunds(**options: Any) -> Agent:
    """Return an agent that pays what two people have approved."""

    @tool(approval=Approval(message="Refund it?", approvers=["ada", "bob"], quorum=2, **options))
    async def refund(amount: float, to: str) -> str:
        return f"{amount} to {to}"

    return Agent("refunds", tools=[refund])


REFUND = asks_for(call("refund", "c1", amount=129.9, to="the shop with a rather long name in the street"))
EDITED = "Edited by ada: amount: 129.9 → 80"


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("events_of_a_run", [4_000, 40], ids=["in one piece", "continues as new in between"])
async def test_an_edit_is_shown_to_all_who_decide_and_wherever_what_ran_is_shown(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, events_of_a_run: int
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", events_of_a_run)
    agent = refunds()
    async with (
        temporal.worker(agent, llm=ScriptedModel([REFUND, "done"])),
        browser(temporal, task_queue=temporal.name) as client,
    ):
        run = await temporal.start(agent)
        (first,) = await pending(run)
        edit = {**first["arguments"], "amount": 80}
        await temporal.people.decide(run.id, "c1", "approve", by="ada", digest=first["digest"], edit=edit)
        (item,) = await pending(run)
        assert (item["arguments"], item["edited_by"], item["changes"]) == (edit, "ada", "amount: 129.9 → 80")
        assert (item["quorum"], item["approved_by"], item["digest"] != first["digest"]) == (2, ["ada"], True)
        told = (await run.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)).current_details
        assert '"amount": 80' in told.replace("\\", "")
        assert EDITED in told.replace("\\", "")
        assert item["digest"] in told
        assert EDITED in html.unescape((await client.get(f"/runs/{run.id}")).text)
        shown = await done(temporal, "pending", run.id)
        assert f"  Edited     {EDITED[7:]}. The message was written before the edit." in shown
        entries = await timeline(client, run.id)
        assert "Approval of ada, bob waits" in entries[-1]
        assert '"amount": 80' in entries[-1]
        with pytest.raises(InputError, match="since ada has edited it to"):
            await temporal.people.decide(run.id, "c1", "approve", by="bob", digest=first["digest"])
        if events_of_a_run < 100:
            await goes_on_as_new(run, "c1")
        await temporal.people.decide(run.id, "c1", "approve", by="bob", digest=item["digest"])
        await result(run)
        *_, asked, ran, _, _ = await timeline(client, run.id)
        happened = await temporal.people.events(run.id)
    assert EDITED in ran
    assert ("129.9 →" in ran, '"amount": 129.9' in ran) == (True, False)
    assert "approve by bob" in asked
    opened = [event for event in happened if isinstance(event, events.GateOpened)]
    assert [one.digest for one in opened] == [first["digest"], item["digest"]]
    counted = [one for one in happened if isinstance(one, events.GateDecided) and one.refused is None]
    assert [(one.by, one.edit, one.waits) for one in counted] == [("ada", edit, True), ("bob", None, False)]
    (started,) = [event for event in happened if isinstance(event, events.ToolStarted)]
    assert (started.call.arguments, started.edited_by) == (edit, "ada")
    (ended,) = [event for event in happened if isinstance(event, events.ToolEnded)]
    assert ended.call.arguments == edit
    said = [event.user_metadata.summary.data for one in await chain(temporal.client, run) for event in one]
    assert any(b"80" in one and b"edited by ada" in one and b"approved by ada, bob" in one for one in said)


@pytest.mark.parametrize("events_of_a_run", [4_000, 40], ids=["in one piece", "continues as new in between"])
async def test_a_large_edit_is_read_whole_before_it_is_approved(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, events_of_a_run: int
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", events_of_a_run)
    agent = refunds()
    async with temporal.worker(agent, llm=ScriptedModel([REFUND, "done"])), browser(temporal) as client:
        run = await temporal.start(agent)
        (first,) = await pending(run)
        edit = {"amount": 80.0, "to": "x" * 20_000}
        await temporal.people.decide(run.id, "c1", "approve", by="ada", digest=first["digest"], edit=edit)
        (item,) = await pending(run)
        assert (len(item["arguments"]) < 100, item["size"] > 20_000) == (True, True)
        assert await load_arguments(temporal.store, item) == edit
        with pytest.raises(StoreError, match="do not match the digest"):
            await load_arguments(temporal.store, {**item, "digest": first["digest"]})
        if events_of_a_run < 100:
            await goes_on_as_new(run, "c1")
        assert "x" * 10_000 in (await client.get(f"/runs/{run.id}")).text
        await temporal.people.decide(run.id, "c1", "approve", by="bob", digest=item["digest"])
        await result(run)
        happened = await StandfastClient(temporal.client, store=temporal.store).events(run.id)
        (ran,) = [one for one in happened if isinstance(one, events.ToolStarted)]
    assert ran.call.arguments == edit


async def test_a_deadline_that_passed_while_no_worker_lived_is_in_the_timeline(temporal: Temporal) -> None:
    to = Approval(approvers=["eve"])
    agent = refunds(timeout="3s", remind_every="2s", on_timeout="escalate", escalate_to=replace(to, quorum=1))
    async with temporal.worker(agent, llm=ScriptedModel([REFUND, "done"])):
        run = await temporal.start(agent)
        (item,) = await pending(run)
    await until(lambda: datetime.fromisoformat(item["deadline"]) < datetime.now(UTC))
    async with temporal.worker(agent, llm=ScriptedModel(["done"])), browser(temporal) as client:
        await until(lambda: asks(run, "eve"))
        await temporal.people.decide(run.id, "c1", "approve", by="eve")
        await result(run)
        gate = next(entry for entry in await timeline(client, run.id) if "Refund it?" in entry)
        happened = [event.type for event in await temporal.people.events(run.id)]
    assert "the deadline passed; other people are asked" in gate
    assert happened.count("gate-escalated") == 1


async def asks(run: Run, who: str) -> bool:
    return any(item["approvers"] == [who] for item in await pending(run))


async def test_gates_of_pipelines_say_whom_they_ask_and_a_rejection_that_goes_back_is_not_a_failure(
    temporal: Temporal,
) -> None:
    writer = Agent("writer")
    ok = Approval(message="Good?", approvers=["ada", "bob"], quorum=2, on_reject="draft")
    line = pipeline("line").step("draft", agent=writer, input=lambda ctx: "draft").step("ok", approval=ok).build()
    model = ScriptedModel(lambda messages, tools: "text")
    async with temporal.worker(writer, pipelines=[line], llm=model), browser(temporal) as client:
        run = await start_pipeline(temporal.client, line, run_key=temporal.session(), task_queue=temporal.name)
        await until(lambda: asks_about(run, "ok"))
        await temporal.people.decide(run.id, "ok", "reject", by="ada", comment="shorter")

        async def asked_twice() -> list[events.GateOpened] | None:
            opened = [one for one in await temporal.people.events(run.id) if isinstance(one, events.GateOpened)]
            return opened if len(opened) == 2 else None

        opened = await until(asked_twice)
        page = (await client.get(f"/runs/{run.id}")).text
        await run.terminate()
    assert [(one.approvers, one.quorum) for one in opened] == [(("ada", "bob"), 2)] * 2
    assert '<li class="gate rejected">' in page
    assert '<li class="gate failed">' not in page


async def asks_about(run: Run, gate: str) -> bool:
    return [item["name"] for item in await pending(run)] == [gate]


async def test_a_tool_step_carries_its_steps_name_and_its_result_is_not_said_to_be_cut(temporal: Temporal) -> None:
    @tool
    async def ship(text: str) -> str:
        return "é" * 50

    line = pipeline("line").step("send", run=ship, input=lambda ctx: {"text": "x"}).build()
    writer = Agent("writer")
    async with temporal.worker(writer, pipelines=[line], llm=ScriptedModel([])), browser(temporal) as client:
        run = await start_pipeline(temporal.client, line, run_key=temporal.session(), task_queue=temporal.name)
        await result(run)
        (entry,) = [entry for entry in await timeline(client, run.id) if "ship" in entry]
        (started,) = [one for one in await temporal.people.events(run.id) if isinstance(one, events.ToolStarted)]
    assert "send: ship" in entry
    assert started.step == "send"


async def test_a_pipeline_whose_agent_waits_for_a_person_is_waiting_too(temporal: Temporal) -> None:
    agent = refunds()
    line = pipeline("line").step("refund", agent=agent, input=lambda ctx: "go").build()
    model = ScriptedModel([REFUND, "done"])
    async with temporal.worker(agent, pipelines=[line], llm=model), browser(temporal) as client:
        run = await start_pipeline(temporal.client, line, run_key=temporal.session(), task_queue=temporal.name)
        await until(lambda: has_status(run, "waiting"))
        await until(lambda: is_listed(client, run, "waiting"))
        page = (await client.get(f"/runs/{run.id}")).text
        assert '<span class="status waiting">waiting</span></h1>' in page
        child = temporal.people.run(f"{run.id}/refund")
        for by in ("ada", "bob"):
            await temporal.people.decide(child.id, "c1", "approve", by=by)
        await result(run)
        statuses = [
            (event.status, event.waits_for)
            for event in await temporal.people.events(run.id)
            if isinstance(event, events.StatusChanged)
        ]
        assert statuses[-2:] == [("running", ()), ("complete", ())]
        assert ("waiting", ()) in statuses
        assert not await is_listed(client, run, "waiting")


async def has_status(run: Run, status: str) -> bool:
    return bool((await run.query("status"))["status"] == status)


async def is_listed(client: httpx.AsyncClient, run: Run, status: str) -> bool:
    return f'/runs/{run.id}"' in (await client.get(f"/runs?status={status}")).text


class SlowToEnd(SQLiteStore):
    """A store in which the board of a run that ends is cleared only when it may be."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.may_end = asyncio.Event()

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        if not put and not keep:
            await self.may_end.wait()
        return await super().show_waits(board, put, keep)


async def test_nobody_speaks_to_a_run_that_has_just_ended(temporal: Temporal, tmp_path: Path) -> None:
    """The run says so a moment before the server does."""
    agent = Agent("clerk", tools=[charge])
    async with (
        SlowToEnd(str(tmp_path / "slow.db")) as store,
        temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"]), store=store),
        browser(temporal) as client,
    ):
        run = await temporal.start(agent)
        await pending(run)
        assert 'id="say"' in (await client.get(f"/runs/{run.id}")).text
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await until(lambda: has_status(run, "complete"))
        page = (await client.get(f"/runs/{run.id}")).text
        assert ('id="say"' in page, "Cancel the run" in page) == (False, False)
        store.may_end.set()
        await result(run)
