"""Pipelines on Temporal: workers that come and go, cancels, deploys, restarts, long runs, and odd inputs."""

import asyncio
import contextlib
import re
from functools import partial
from typing import Any

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    chain,
    check_healthy,
    events,
    failure,
    pending,
    result,
    status,
    until,
    wedges,
)
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError

from integration.pipelines.test_gates import writer
from integration.pipelines.test_pipelines import echo
from integration.pipelines.test_temporal_gates import gated, journal_key_of, so_many_refusals, start
from standfast import Agent, Approval, InputError, Pipeline, SessionConflictError, Step, pipeline
from standfast.temporal import start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel

# --- workers that come and go, and cancels ---


async def test_a_gate_outlives_its_worker(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal)
        before = await pending(run)
    await run.signal("approve", {"gate": "ok", "by": "bob"})
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        assert (await result(run))["outputs"]["ok"]["by"] == ["bob"]
        await check_healthy(run)
    assert before[0]["name"] == "ok"


async def test_a_run_continues_with_the_functions_of_a_later_deploy(temporal: Temporal) -> None:
    def made(text: str) -> Pipeline:
        say = Step("say", agent=writer, input=lambda ctx: text)
        return pipeline("w").step("ok", approval=Approval()).step(say).build()

    async with temporal.worker(writer, pipelines=[made("before")], llm=ScriptedModel(echo)):
        run = await start(temporal, made("before"))
        await pending(run)
    async with temporal.worker(writer, pipelines=[made("after")], llm=ScriptedModel(echo)):
        await run.signal("approve", {"gate": "ok"})
        assert (await result(run))["outputs"]["say"] == {"response": "<after>"}
        await check_healthy(run)


async def test_a_run_whose_next_step_is_gone_waits_for_a_deploy_that_has_it(temporal: Temporal) -> None:
    made = pipeline("w").step("ok", approval=Approval()).step("say", agent=writer).build()
    without = pipeline("w").step("ok", approval=Approval()).step("other", agent=writer).build()
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        run = await start(temporal, made)
        await pending(run)
    async with temporal.worker(writer, pipelines=[without], llm=ScriptedModel(echo)):
        await run.signal("approve", {"gate": "ok"})
        await until(partial(_waits_for, run, "worker"))
        (waits,) = await pending(run)
        assert (waits["name"], waits["message"]) == ("say", 'Step "say" not found in workflow "w".')
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


async def _waits_for(run: Run, kind: str) -> bool:
    return [item["kind"] for item in (await status(run))["waiting"]] == [kind]


async def test_a_run_that_waits_at_a_gate_can_be_cancelled(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal)
        await pending(run)
        await run.cancel()
        with pytest.raises(WorkflowFailureError) as failed:
            await result(run)
        assert isinstance(failed.value.cause, CancelledError)
        assert (await status(run))["status"] == "cancelled"
        await check_healthy(run)


async def test_a_cancel_reaches_the_agent_of_a_step(temporal: Temporal) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def slow(messages: Any, tools: Any) -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(slow)):
        run = await start(temporal)
        await began.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(run)
        child = temporal.client.get_workflow_handle(f"{run.id}/write")
        assert (await child.describe()).status == WorkflowExecutionStatus.CANCELED
        await check_healthy(run)
    assert ended.is_set()


# --- what it is started with ---


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((5,), "The input must be a JSON object"),
        (({}, {}), "takes? one JSON object|is one JSON object"),
        (({"inputs": 1},), "unknown key 'inputs'; it accepts input, run_key, user_id, tenant_id"),
        (({"user_id": ""},), "user_id must not be empty"),
        (({"input": "x" * 300_000},), "more than"),
    ],
    ids=["a number", "two", "another key", "nobody", "too large"],
)
async def test_a_pipeline_that_cannot_be_started_so_fails_with_the_reason(
    temporal: Temporal, arguments: tuple[Any, ...], why: str
) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await temporal.start_raw("w", *arguments)
        error = await failure(run)
        assert error.type == "InputError"
        assert re.search(why, error.message)
        await check_healthy(run)


async def test_any_worker_carries_a_run_until_one_has_its_pipeline(temporal: Temporal) -> None:
    async with temporal.worker(Agent("other"), llm=ScriptedModel([])):
        run = await start(temporal, start_signal="approve", start_signal_args=[{"gate": "ok", "by": "ada"}])
        (waits,) = await pending(run)
        assert (waits["kind"], waits["message"]) == ("worker", "This worker has no pipeline 'w'; it has none")
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        assert (await result(run))["outputs"]["ok"]["by"] == ["ada"]
        await check_healthy(run)


# --- a run that is long ---


@pytest.mark.slow
async def test_a_long_run_continues_as_new_and_loses_nothing(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 40)
    made = (
        pipeline("w")
        .parallel("all", Step("ok", approval=Approval(approvers=["ada", "bob"], quorum=2)), Step("say", agent=writer))
        .map("each", Step("one", agent=writer, input=lambda ctx: str(ctx.item)), over=lambda ctx: list(range(12)))
        .step("then", approval=Approval())
        .build()
    )
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        run = await start(temporal, made)
        await pending(run)
        await run.signal("approve", {"gate": "then", "by": "early"})
        await run.signal("reject", {"gate": 5})
        for _ in range(12):  # what is refused is recorded, and makes the history long
            with pytest.raises(InputError):
                await temporal.people.decide(run.id, "all/ok", "approve", by="mallory")
        latest: Run = temporal.client.get_workflow_handle(run.id)

        async def continued() -> bool:
            return (await latest.describe()).run_id != run.result_run_id

        await until(continued)
        await temporal.people.decide(run.id, "all/ok", "approve", by="ada")
        shown = next(item for item in await pending(latest) if item["name"] == "all/ok")
        assert (shown["quorum"], shown["approved_by"]) == (2, ["ada"])
        with pytest.raises(InputError, match="ada has approved it already"):
            await temporal.people.decide(run.id, "all/ok", "approve", by="ada")
        await temporal.people.decide(run.id, "all/ok", "approve", by="bob")
        ended = await result(run)
        assert (ended["status"], ended["journal_key"]) == ("complete", run.result_run_id)
        assert ended["outputs"]["each"] == [{"response": f"<{number}>"} for number in range(12)]
        assert (ended["outputs"]["all"]["ok"]["by"], ended["outputs"]["then"]["by"]) == (["ada", "bob"], ["early"])
        for history in await chain(temporal.client, run):
            assert not wedges(history)
    assert len(await chain(temporal.client, run)) > 3


# --- what a hostile sender or an unlucky operator does ---


async def test_a_cancel_among_many_signals_ends_the_run(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal)
        await pending(run)
        for _ in range(30):
            await run.signal("approve", {"gate": "ok", "by": "mallory"})
        await run.cancel()
        for _ in range(30):
            with contextlib.suppress(RPCError):  # it has ended
                await run.signal("approve", {"gate": "ok", "by": "ada"})
        with pytest.raises(WorkflowFailureError):
            await result(run)
        await check_healthy(run)


async def test_decisions_at_gates_that_are_not_there_are_noted_and_take_no_room(temporal: Temporal) -> None:
    first = [{"gate": "nope", "by": "ada"}]
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal, start_signal="approve", start_signal_args=first)
        await pending(run)
        await run.signal("approve", {"gate": "write", "by": "ada"})
        assert await until(partial(so_many_refusals, run, 2)) == [
            "there is not a gate nope", "approve: no gate write is open; open: ok"
        ]  # fmt: skip
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        assert (await result(run))["status"] == "complete"


async def test_what_only_agents_accept_is_refused_at_once(temporal: Temporal) -> None:
    """Its sender waited for an outcome that no pipeline reports, and read that the message may count."""
    handle = await start_pipeline(temporal.client, "gated", input={}, run_key="r", task_queue=temporal.name)
    people = temporal.people
    for sent in (
        people.message(handle.id, "hi"),
        people.answer(handle.id, "yes"),
        people.resolve(handle.id, "c1", "leave"),
        people.export(handle.id),
    ):
        with pytest.raises(InputError, match="is a pipeline's and does not accept"):
            await sent
    await temporal.end_all()


async def test_a_run_key_has_one_run(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        run = await start(temporal)
        await pending(run)
        for way in ("in flight", "ended"):
            again = await start(temporal)
            assert (await again.describe()).run_id == run.result_run_id
            for other in ({"input": "other"}, {"restart_of": "k", "restart_from": "write"}):
                with pytest.raises(SessionConflictError, match=r"already has a run .*, with another input, in flight"):
                    await start(temporal, **other)
            if way == "in flight":
                await run.signal("reject", {"gate": "ok", "by": "ada"})
            assert (await result(again))["error_reason"] == "approval-rejected"


async def test_a_verdict_counts_for_one_effect_alone(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        first = await start(temporal, input="harmless")
        await pending(first)
        await temporal.people.decide(first.id, "ok", "approve", by="ada")
        key = (await result(first))["run_key"]
        again = partial(start_pipeline, temporal.client, gated, task_queue=temporal.name, restart_of=key)
        for given in ({}, {"input": "evil"}):
            run = await again(restart_from="publish", **given)
            assert [item["name"] for item in await pending(run)] == ["ok"]
            assert "publish" not in (await status(run))["done"]
            await temporal.people.decide(run.id, "ok", "reject", by="bob")
            assert (await result(run))["error_reason"] == "approval-rejected"
            rows = await temporal.store.load_decisions(await journal_key_of(run))
            assert [(row.by, row.decision) for row in rows] == [("bob", "reject")]


async def test_a_pipeline_that_only_its_input_tells_from_an_agent_is_left_to_other_workers(temporal: Temporal) -> None:
    async with temporal.worker(Agent("other"), llm=ScriptedModel([])):
        run = await temporal.start_raw("w", {"input": "x"}, id=f"w/{temporal.session()}")
        await until(partial(_wedges, run))
    assert "This worker has no pipeline 'w'" in (await _wedges(run))[0]


async def _wedges(run: Run) -> list[str]:
    return wedges(await events(run))


async def test_a_run_is_found_by_the_groups_that_it_asks_now(temporal: Temporal) -> None:
    two = (
        pipeline("w")
        .step("one", approval=Approval(approvers=["ops"], groups={"ops": ["ada"]}))
        .step("two", approval=Approval())
        .build()
    )

    async def asked() -> list[str]:
        query = f"StandfastGroup = 'ops' AND TaskQueue = '{temporal.name}'"
        return [found.id async for found in temporal.client.list_workflows(query)]

    async with temporal.worker(pipelines=[two]):
        run = await start(temporal, two)
        assert await until(asked) == [run.id]
        await temporal.people.decide(run.id, "one", "approve", by="ada")
        await until(partial(_nobody, asked))
        assert [item["name"] for item in await pending(run)] == ["two"]


async def _nobody(asked: Any) -> bool:
    return await asked() == []


def _ends_the_process(ctx: Any) -> str:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda ctx: {}["x" * 3_000_000], "Step 'say': input raised KeyError"),
        (_ends_the_process, "Step 'say': input raised RuntimeError: SystemExit: 3"),
    ],
    ids=["three megabytes", "the end of the process"],
)
async def test_what_a_function_raises_fails_a_run_that_nobody_mends(temporal: Temporal, say: Any, why: str) -> None:
    made = pipeline("w").step("say", agent=writer, input=say).build()
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        run = await start(temporal, made)
        (paused,) = await pending(run)
        assert (paused["kind"], paused["name"], why in paused["message"]) == ("pause", "say", True)
        await temporal.people.resume(run.id, "abort")
        failed = await failure(run)
        assert why in failed.message
        assert failed.details == ({"failed_step": "say"},)
        await check_healthy(run)


async def test_a_step_that_has_become_of_another_kind_is_waited_for(temporal: Temporal) -> None:
    made = pipeline("w").step("ok", approval=Approval()).step("say", agent=writer).build()
    other = pipeline("w").step("ok", approval=Approval()).step("say", approval=Approval()).build()
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        run = await start(temporal, made)
        await pending(run)
    async with temporal.worker(writer, pipelines=[other], llm=ScriptedModel(echo)):
        await run.signal("approve", {"gate": "ok"})
        await until(partial(_waits_for, run, "worker"))
        assert "is now of kind approval, not agent" in (await pending(run))[0]["message"]
    async with temporal.worker(writer, pipelines=[made], llm=ScriptedModel(echo)):
        assert (await result(run))["status"] == "complete"


async def test_what_was_decided_before_a_reset_stays_decided(temporal: Temporal) -> None:
    async with temporal.worker(writer, pipelines=[gated], llm=ScriptedModel(echo)):
        first = await start(temporal)
        await pending(first)
        await temporal.people.decide(first.id, "ok", "approve", by="ada", edit="first")
        ended = await result(first)
        completed = next(
            event.event_id for event in await events(first)
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        )  # fmt: skip
        again = await temporal.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=temporal.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=first.id, run_id=first.result_run_id or ""),
                workflow_task_finish_event_id=completed,
                request_id=temporal.name,
            )
        )
        run: Run = temporal.client.get_workflow_handle(first.id, run_id=again.run_id, result_type=dict[str, Any])
        assert (await result(run))["outputs"] == ended["outputs"]
