"""Runs paused with the `temporal` command: people see the pause, and nothing fails because of it."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from support.commands import done
from support.temporal_runs import Temporal, ask_once, check_healthy, clerk, pending, result, until
from temporalio.client import WorkflowExecutionStatus

from standfast import Agent, sqlite_store
from standfast.temporal import connect, dev_server
from standfast.temporal.activities.sessions.session_marks import drop_ended
from standfast.temporal.client.queues.servers import temporal_binary
from standfast.testing import ScriptedModel

MAY_PAUSE = "--dynamic-config-value=frontend.WorkflowPauseEnabled=true"


async def operate(temporal: Temporal, *words: str) -> None:
    """Run the `temporal` command."""
    address = temporal.client.service_client.config.target_host
    command = [str(temporal_binary()), *words, "--address", address]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ("pause", "--identity", "ada", "--reason", "too dear"),
            "Activity call_model was paused by ada (too dear); to continue it, run: ",
        ),
        (
            ("update-options", "--task-queue", "nobody's"),
            "Activity call_model was moved to the task queue nobody's and waits for a worker there",
        ),
    ],
    ids=["paused", "moved to an unserved queue"],
)
async def test_a_run_whose_activity_an_operator_holds_up_says_so_and_continues_after_the_command_that_it_names(
    temporal: Temporal, words: tuple[str, ...], shown: str
) -> None:
    answers: list[object] = [ConnectionError("the network is away"), "done"]
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(lambda messages, tools: answers[0])):
        run = await temporal.start("helper")

        async def attempt() -> str:
            tried = (await run.describe()).raw_description.pending_activities
            return next((one.activity_id for one in tried if one.attempt > 1), "")

        act, *options = words
        which = ("--workflow-id", run.id, "--activity-id", await until(attempt))
        await operate(temporal, "activity", act, *which, *options)

        async def waits() -> list[str]:
            return [item["message"] for item in await temporal.people.pending(run.id) if item["kind"] == "operator"]

        (message,) = await until(waits)
        assert message.startswith(shown)
        assert message in await done(temporal, "show", run.id)
        del answers[0]
        await operate(temporal, *message.partition("temporal ")[2].split())
        assert (await result(run))["response"] == "done"
        assert await temporal.people.pending(run.id) == []
        await check_healthy(run)


async def test_a_run_that_is_paused_says_so_and_hides_no_other(tmp_path: Path) -> None:
    async with dev_server(extra_args=[MAY_PAUSE]) as server, sqlite_store(tmp_path / "s.db") as store:
        temporal = Temporal(await connect(server.address), store, "q")
        async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
            run, other = await temporal.start(clerk, session="one"), await temporal.start(clerk, session="two")
            await pending(run)
            await pending(other)
            await operate(temporal, "workflow", "pause", "--workflow-id", run.id, "--identity", "ada")

            items = await temporal.people.pending(run.id)
            assert [item["message"] for item in items if item["kind"] == "operator"] == [
                f"This run was paused by ada; to continue it, run: temporal workflow unpause --workflow-id {run.id}"
            ]
            assert items[-1]["message"] in await done(temporal, "show", run.id)
            listed = await done(temporal, "ls")
            assert run.id in listed
            assert other.id in listed
            assert (await run.describe()).status == WorkflowExecutionStatus.RUNNING
            assert len(await store.find_work()) == 2
            await drop_ended(temporal.client, store, "")  # as each worker does now and then
            assert len(await store.find_work()) == 2

            await operate(temporal, "workflow", "unpause", "--workflow-id", run.id)
            for one in (run, other):
                await temporal.people.answer(one.id, "Ada")
                assert (await result(one))["status"] == "complete"
                await check_healthy(one)


@pytest.mark.parametrize("status", [1, 2, 7])
def test_the_other_statuses_are_what_they_were(status: int) -> None:
    assert WorkflowExecutionStatus(status) == status
