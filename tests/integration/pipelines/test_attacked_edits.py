"""Edits at gates while processes are killed, time passes, and stores differ: none is lost or used unapproved."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_drivers import InProcess, PipelineDriver
from support.resets import resets
from support.temporal_runs import Run, Temporal, events, pending, result, until
from temporalio.api.enums.v1 import EventType

from integration.pipelines.test_edits_at_gates import DRAFT, decides, drafts, edited, writer
from integration.pipelines.test_pipelines import echo, says
from standfast import Approval, InputError, Pipeline, run_pipeline
from standfast.agent_loop import edited_digest
from standfast.stores import DurableStore
from standfast.temporal import start_pipeline
from standfast.temporal.client.history.audits import load_acts
from standfast.testing import ScriptedModel

# --- kill -9 ---

PROGRAM = """
import asyncio, os, signal, sys
from pydantic import BaseModel
from standfast import Agent, Approval, Step, pipeline, run_pipeline
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

path, effects, killed, how, *given = sys.argv[1:]

class Article(BaseModel):
    title: str
    words: int = 0

def stop(where):
    if where == killed:
        os.kill(os.getpid(), signal.SIGKILL)

class Stopping(SQLiteStore):
    async def record_decision(self, record):
        stop("before the record")
        await super().record_decision(record)
        stop("after the record")

def publish(ctx):
    with open(effects, "a") as file:
        file.write(ctx.prev["ok"].title + "\\n")
    stop("before the next step")
    return "go"

writer = Agent("writer")
drafts = Step("write", agent=Agent("drafts"), output=Article)
w = (
    pipeline("w").step(drafts).step("ok", approval=Approval(edit=Article)).step("publish", agent=writer, input=publish)
    .build()
)

async def in_process():
    decisions = [] if not given else [{"gate": "ok", "decision": "approve", "digest": given[0], "edit": {"title": "B"}}]
    async with Stopping(path) as store:
        model = ScriptedModel(lambda messages, tools: "out" if messages[-1].content == "go" else '{"title": "Draft"}')
        went = await run_pipeline(w, store=store, run_key="k", input="x", decisions=decisions, llm=model)
        print(went.status, went.digest or went.outputs["ok"].title)

async def on_temporal():
    from standfast.temporal import StandfastPlugin, connect
    from temporalio.worker import Worker
    from support.heartbeats import give_up_after
    give_up_after(5)
    address, queue = given
    async with Stopping(path) as store:
        model = ScriptedModel(['{"title": "Draft"}', "out"])
        plugin = StandfastPlugin(agents=[writer, drafts.agent], pipelines=[w], store=store, llm=model)
        async with Worker(await connect(address), task_queue=queue, plugins=[plugin]):
            await asyncio.Event().wait()

asyncio.run(in_process() if how == "in process" else on_temporal())
"""


async def begun(folder: Path, killed: str, how: str, *given: str) -> asyncio.subprocess.Process:
    arguments = [str(folder / "s.db"), str(folder / "effects"), killed, how, *given]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


async def said(folder: Path, killed: str = "", *given: str) -> str:
    """Run the program in a separate process; return what it says, or "killed"."""
    ran = await begun(folder, killed, "in process", *given)
    words = (await ran.communicate())[0].decode().strip()
    return "killed" if ran.returncode == -signal.SIGKILL else words


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["before the record", "after the record", "before the next step"])
async def test_a_process_that_is_killed_after_an_edit_has_it_or_asks_again(tmp_path: Path, killed: str) -> None:
    status, digest = (await said(tmp_path)).split()
    assert status == "pending"
    assert await said(tmp_path, killed, digest) == "killed"
    again = await said(tmp_path)
    if killed == "before the record":  # nothing of it was acknowledged
        assert again == f"pending {digest}"
        again = await said(tmp_path, "", digest)
    assert again == "complete B"
    assert set((tmp_path / "effects").read_text().split()) == {"B"}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("killed", ["before the record", "after the record", "before the next step"])
async def test_an_edit_that_was_sent_survives_the_worker(temporal: Temporal, tmp_path: Path, killed: str) -> None:
    address = temporal.client.service_client.config.target_host
    first = await begun(tmp_path, killed, "on Temporal", address, temporal.name)
    try:
        run = await start_pipeline(
            temporal.client, "w", input="x", run_key=temporal.session(), task_queue=temporal.name
        )
        (item,) = await pending(run)
        await run.signal("approve", {"gate": "ok", "by": "ada", "digest": item["digest"], "edit": {"title": "B"}})
        assert await asyncio.wait_for(first.wait(), 60) == -signal.SIGKILL
        first = await begun(tmp_path, "", "on Temporal", address, temporal.name)
        assert (await result(run))["outputs"]["ok"] == {"title": "B", "words": 0}
        assert set((tmp_path / "effects").read_text().split()) == {"B"}
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()


# --- time passes when one of two has changed it ---


async def shown_now(pipelines: PipelineDriver, asked: Pipeline, run: Run | None, **options: Any) -> dict[str, Any]:
    """Return the digest and the value that people see now."""
    if run is not None:
        (item,) = await pending(run)
        return {"digest": item["digest"], "value": item["shown"][0]["value"]}
    went = await run_pipeline(asked, run_key="k", store=pipelines.temporal.store, llm=ScriptedModel([DRAFT]), **options)
    return {"digest": went.digest, "value": (went.shown or [{"value": None}])[0]["value"]}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kind", ["another message", "the same message"])
async def test_an_escalation_asks_for_what_was_shown_first_and_drops_an_edit_that_one_of_two_made(
    pipelines: PipelineDriver, kind: str
) -> None:
    to: Approval[Any] = Approval(approvers=["cy"], quorum=1, message="You?" if kind == "another message" else "")
    asked = edited(approvers=["ada", "bob"], quorum=2, timeout=4, on_timeout="escalate", escalate_to=to)
    temporal, edit = pipelines.temporal, {"title": "B"}
    options: dict[str, Any] = {"run_key": "k", "store": temporal.store, "llm": ScriptedModel([DRAFT, "out"])}

    async def goes(run: Run | None) -> Any:
        async def decide(**decision: Any) -> Any:
            if run is not None:
                return await temporal.people.decide(run.id, **decision)
            return await run_pipeline(asked, decisions=[decision], **options)

        first = await shown_now(pipelines, asked, run)
        await decide(**decides(first["digest"], edit=edit))
        second = await shown_now(pipelines, asked, run)
        assert second == {"digest": edited_digest(first["digest"], edit), "value": edit}

        async def escalated() -> Any:
            now = await shown_now(pipelines, asked, run)
            return now if now["value"] != edit else None

        third = await until(escalated)
        assert third["value"] == {"title": "Draft", "words": 5}
        assert (third["digest"] == first["digest"]) == (kind == "the same message")
        with pytest.raises(InputError, match="has changed"):
            await decide(**decides(second["digest"], by="cy"))
        return await decide(**decides(third["digest"], by="cy"))

    if isinstance(pipelines, InProcess):
        assert (await goes(None)).outputs["ok"].title == "Draft"
        return
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        await goes(run)
        assert (await result(run))["outputs"]["ok"] == {"title": "Draft", "words": 5}


async def test_a_reminder_asks_for_the_edit_that_one_of_two_made(temporal: Temporal) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2, remind_every=1, timeout="1h")
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        await temporal.people.decide(run.id, **decides(item["digest"], edit={"title": "B"}))

        async def reminders() -> int:
            return sum(one.event_type == EventType.EVENT_TYPE_TIMER_FIRED for one in await events(run))

        had = await reminders()

        async def reminded() -> bool:
            return await reminders() > had + 1

        assert await until(reminded)
        (item,) = await pending(run)
        assert (item["shown"][0]["value"], item["approved_by"]) == ({"title": "B"}, ["ada"])
        await temporal.people.decide(run.id, **decides(item["digest"], by="bob"))
        assert (await result(run))["outputs"]["ok"] == {"title": "B", "words": 0}


# --- other ways in, other places ---


async def test_an_edit_by_a_raw_signal_counts_as_every_other_does(temporal: Temporal) -> None:
    asked = edited(approvers=["ada"])
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        said = {"gate": "ok", "by": "ada", "edit": {"title": "B"}}
        for wrong in ({}, {"digest": "0" * 32}, {"digest": item["digest"], "edit": {"title": "empty"}}):
            await run.signal("approve", {**said, **wrong})
        await run.signal("approve", {**said, "digest": item["digest"]})
        assert (await result(run))["outputs"]["ok"] == {"title": "B", "words": 0}
        rows = await temporal.store.load_decisions((await run.describe()).raw_info.first_run_id)
        assert [row.refused is None for row in rows] == [False, False, False, True]


async def test_an_edit_on_a_postgres_store_is_the_same(temporal: Temporal, postgres_store: DurableStore) -> None:
    await edits_on(temporal, postgres_store)


@pytest.mark.slow
async def test_an_edit_on_a_d1_store_is_the_same(temporal: Temporal, d1_store: DurableStore) -> None:
    await edits_on(temporal, d1_store)


async def edits_on(temporal: Temporal, store: DurableStore) -> None:
    """Edit at a gate with both drivers on a store: both show the same, under the same digests."""
    asked = edited(approvers=["ada", "bob"], quorum=2)
    edit = {"words": 1, "title": "B \u20ac\n\"'"}
    first = await run_pipeline(asked, run_key="k", store=store, llm=says(DRAFT))
    second = await run_pipeline(
        asked, run_key="k", store=store, llm=says(), decisions=[decides(str(first.digest), edit=edit)]
    )
    assert second.digest == edited_digest(str(first.digest), edit)
    given = [decides(str(second.digest), by="bob")]
    went = await run_pipeline(asked, run_key="k", store=store, llm=ScriptedModel(echo), decisions=given)
    assert went.outputs["ok"].title == edit["title"]
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], store=store, llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        assert item["digest"] == first.digest  # of both drivers, and of every store
        await temporal.people.decide(run.id, **decides(item["digest"], edit=edit))
        (item,) = await pending(run)
        assert item["digest"] == second.digest
        await temporal.people.decide(run.id, **decides(item["digest"], by="bob"))
        assert (await result(run))["outputs"]["ok"] == edit
        rows = await load_acts(store, [(await run.describe()).raw_info.first_run_id], run.id)
        assert [[one.path for one in row.changes or ()] for row in rows] == [["title", "words"], []]


async def test_a_run_that_continues_from_an_edited_gate_has_what_was_edited(pipelines: PipelineDriver) -> None:
    temporal, asked = pipelines.temporal, edited()
    if isinstance(pipelines, InProcess):
        first = await run_pipeline(asked, llm=says(DRAFT))
        given = [decides(str(first.digest), edit={"title": "B"})]
        went = await run_pipeline(asked, llm=ScriptedModel(echo), previous_results=first.step_results, decisions=given)
        moved = await run_pipeline(
            asked, llm=ScriptedModel(echo), previous_results=went.step_results, resume_after="ok",
            run_key="moved", store=temporal.store,
        )  # fmt: skip
        assert moved.outputs["publish"] == went.outputs["publish"] == {"response": "<B, 0 words>"}
        return
    model = ScriptedModel(lambda messages, tools: DRAFT if len(model.calls) == 1 else echo(messages, tools))
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        await temporal.people.decide(run.id, **decides(item["digest"], edit={"title": "B"}))
        assert (await result(run))["outputs"]["publish"] == {"response": "<B, 0 words>"}
        again = await start_pipeline(
            temporal.client, "w", run_key=temporal.session("again"), task_queue=temporal.name,
            restart_of=temporal.session(), restart_from="publish",
        )  # fmt: skip
        (item,) = await pending(again)  # a verdict counts once: a restart asks again
        assert item["shown"][0]["value"] == {"title": "Draft", "words": 5}
        await temporal.people.decide(again.id, **decides(item["digest"], edit={"title": "C"}))
        ended = await result(again)
        assert (ended["outputs"]["ok"], ended["outputs"]["publish"]) == (
            {"title": "C", "words": 0}, {"response": "<C, 0 words>"},
        )  # fmt: skip


@pytest.mark.slow
async def test_a_reset_to_before_an_edit_whose_signals_come_again_counts_each_once(temporal: Temporal) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2)
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        for by, edit in (("ada", {"title": "B"}), ("bob", None)):
            (item,) = await pending(run)
            await temporal.people.decide(run.id, **decides(item["digest"], by=by, edit=edit))
        await result(run)
        async for again in resets(temporal, run, with_messages=True):
            assert (await result(again))["outputs"]["ok"] == {"title": "B", "words": 0}
