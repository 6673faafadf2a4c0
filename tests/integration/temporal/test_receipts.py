"""Everything acknowledged is in the store, even if an operator completes the storing activity by hand.

The activity's result has a receipt, which what someone puts in has not: it is done again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, pending, question, result, until, waiting
from support.transcripts import tool_results
from temporalio import workflow
from temporalio.service import RPCError
from temporalio.worker import Worker

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_completed_by_hand import complete
from standfast import Agent, Approval, pipeline
from standfast.runtime.message_ids import Unheard
from standfast.temporal import StandfastPlugin, approval, start_pipeline
from standfast.temporal.activities.sessions.transcripts import Transcript


@workflow.defn(name="own")
class Own:
    """A user's workflow, with a gate."""

    @workflow.run
    async def run(self) -> Any:
        return await approval("c1")


@contextlib.asynccontextmanager
async def held(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> AsyncIterator[asyncio.Event]:
    """Let the first caller of a method wait for the block to end; later callers do not wait."""
    inside, over, usual = asyncio.Event(), asyncio.Event(), getattr(owner, method)

    async def hang(*given: Any, **more: Any) -> Any:
        if not inside.is_set():
            inside.set()
            await over.wait()
        return await usual(*given, **more)

    monkeypatch.setattr(owner, method, hang)
    yield inside
    over.set()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", [None, "", "no", []], ids=repr)
@pytest.mark.parametrize("kind", ["agent", "pipeline", "own"])
async def test_what_is_put_in_for_the_record_of_a_decision_is_not_a_record(
    temporal: Temporal, kind: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, post = world(Approval())
    flow = pipeline("notes", input=str).step("c1", approval=Approval()).build()
    plugin = StandfastPlugin(
        agents=[Agent("poster", tools=[post])], pipelines=[flow], store=temporal.store, llm=posts("hi")
    )
    async with (
        Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], workflows=[Own]),
        held(monkeypatch, type(temporal.store), "record_decision") as inside,
    ):
        if kind == "agent":
            run = await temporal.start("poster")
        elif kind == "pipeline":
            keyed: Any = {"run_key": temporal.name, "task_queue": temporal.name}
            run = await start_pipeline(temporal.client, flow, input="x", **keyed)
        else:
            run = await temporal.client.start_workflow(Own.run, id=temporal.name, task_queue=temporal.name)
        await pending(run)
        deciding = asyncio.create_task(temporal.people.decide(run.id, "c1", "approve", by="ada"))
        await inside.wait()
        await complete(temporal, run, "standfast.decide", value)
        await deciding
        rows = await temporal.store.load_decisions((await run.describe()).run_id)
        assert [(row.by, row.refused) for row in rows] == [("ada", None)]
        await result(run)
        await check_healthy(run)
        assert ran == (["hi"] if kind == "agent" else [])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", [None, [], "kept"], ids=repr)
async def test_what_is_put_in_for_a_message_that_is_to_be_kept_keeps_nothing(
    temporal: Temporal, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with question(temporal) as run, held(monkeypatch, Unheard, "keep") as inside:
        saying = asyncio.create_task(temporal.people.message(run.id, "important"))
        await inside.wait()
        await complete(temporal, run, "standfast.keep", value)
        await saying
        session = await temporal.store.load_session(temporal.session())
        assert session is not None
        unheard = await Unheard(session, temporal.store).take(await temporal.messages())
        assert [kept.message.content for kept in unheard] == ["important"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("value", [None, 0, 3, 99], ids=repr)
async def test_what_is_put_in_for_an_answer_that_is_to_be_written_writes_nothing(
    temporal: Temporal, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with question(temporal) as run, held(monkeypatch, Transcript, "commit") as inside:
        answering = asyncio.create_task(temporal.people.answer(run.id, "Ada"))
        await inside.wait()
        await complete(temporal, run, "standfast.commit", value)
        await answering
        assert tool_results(await temporal.messages())[0].content == "Ada"


async def test_what_is_put_in_again_and_again_is_shown(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    over, usual = asyncio.Event(), Unheard.keep

    async def keep(*given: Any) -> Any:
        await over.wait()
        return await usual(*given)

    monkeypatch.setattr(Unheard, "keep", keep)
    async with question(temporal) as run:
        saying = asyncio.create_task(run.execute_update("message", {"text": "important"}))

        async def is_paused() -> bool:
            with contextlib.suppress(TimeoutError, RPCError):  # it is between two attempts
                async with asyncio.timeout(0.5):
                    await complete(temporal, run, "standfast.keep", None)
            return any(item["name"] == "standfast.keep" for item in await waiting(run))

        await until(is_paused)
        over.set()
        await temporal.people.resume(run.id)
        assert (await saying)["accepted"]
