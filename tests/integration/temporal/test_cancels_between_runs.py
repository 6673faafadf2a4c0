"""A cancel that arrives together with the cause of a continue-as-new reaches the run.

The SDK takes in the signals of a task before the cancel, and the run continues with them. Here both wait for a worker.
"""

from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, ask_once, check_healthy, clerk, events, pending, until
from support.transcripts import asks_for, call
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from standfast import Agent, Approval, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


@tool(approval=Approval(message="Ship it?"))
async def ship(what: str) -> str:
    """Ship something."""
    return "shipped"


careful = Agent("careful", tools=[ship])
release = pipeline("release").step("ship", approval=Approval(message="Ship it?")).build()
NOBODY = {"gate": "nobody's"}  # it changes nothing, but a run that is long continues as new


def ships_once(messages: Any, tools: Any) -> Any:
    return "done" if any(message.role == "tool" for message in messages) else asks_for(call("ship", "c1", what="red"))


async def is_cancelled(temporal: Temporal, run: Run) -> None:
    """Wait until the last run of a chain has ended, and check how; nothing that it waited for is left."""
    last: Run = temporal.client.get_workflow_handle(run.id)

    async def ended() -> WorkflowExecution | None:
        found = await last.describe()
        return found if found.close_time is not None else None

    assert (await until(ended, 10)).status is WorkflowExecutionStatus.CANCELED
    await check_healthy(last)


async def test_a_run_at_a_gate(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with temporal.worker(careful, llm=ScriptedModel(ships_once)):
        run = await temporal.start(careful)
        await pending(run)
    monkeypatch.setattr(run_lifetime, "EVENTS", len(await events(run)))
    await run.signal("reject", NOBODY)
    await run.cancel()
    async with temporal.worker(careful, llm=ScriptedModel(ships_once)):
        await is_cancelled(temporal, run)
    assert (await temporal.messages())[-1].content == (
        '{"error": "Not run: the run was cancelled before people had decided"}'
    )


async def test_a_run_whose_next_turn_is_due(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
    monkeypatch.setattr(run_lifetime, "EVENTS", len(await events(run)))
    await run.signal("answer", {"text": "Ada", "tool_call_id": "c1"})
    await run.cancel()
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        await is_cancelled(temporal, run)


async def test_a_pipeline_at_a_gate(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with temporal.worker(pipelines=[release]):
        run: Run = await start_pipeline(temporal.client, release, run_key=temporal.name, task_queue=temporal.name)
        await pending(run)
    monkeypatch.setattr(run_lifetime, "EVENTS", len(await events(run)))
    await run.signal("reject", {"gate": "ship", "decision": 3})
    await run.cancel()
    async with temporal.worker(pipelines=[release]):
        await is_cancelled(temporal, run)
