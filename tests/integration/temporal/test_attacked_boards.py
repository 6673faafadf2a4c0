"""The board under attack: killed workers, ends from outside, other tenants, races. What it shows can be acted on."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.questions import ask
from support.temporal_runs import Run, Temporal, check_healthy, events, result, until
from support.transcripts import asks_for, call

from integration.temporal.test_boards import is_shown, kinds, looking, shown
from standfast import Agent, Approval, InputError, tool
from standfast.temporal import StandfastClient
from standfast.testing import ScriptedModel


@tool(approval=Approval(message="Ship it?", timeout="1d"))
async def ship(what: str) -> str:
    """Ship something."""
    return "shipped"


clerk = Agent("clerk", tools=[ask, ship])
CALLS = {"ask": call("ask", "c1", question="Who?"), "ship": call("ship", "c1", what="the red one")}
WORKER = """
import asyncio, os
from pathlib import Path
from temporalio.worker import Worker
from integration.temporal.test_attacked_boards import clerk, calls_once
from standfast import SQLiteStore
from standfast.temporal import StandfastPlugin, connect
from standfast.testing import ScriptedModel


class Stopping(SQLiteStore):
    async def show_waits(self, board, put, keep=()):
        await super().show_waits(board, put, keep)
        Path(os.environ["STOPPED"]).touch()
        await asyncio.Event().wait()


async def main():
    client = await connect(os.environ["ADDRESS"])
    store = Stopping(os.environ["STORE"])
    plugin = StandfastPlugin(agents=[clerk], store=store, llm=ScriptedModel(calls_once(os.environ["CALL"])))
    await Worker(client, task_queue=os.environ["QUEUE"], plugins=[plugin]).run()


asyncio.run(main())
"""


def calls_once(name: str) -> Any:
    """Return a model that calls a tool once and then is done."""

    def reply(messages: Any, tools: Any) -> Any:
        return "done" if any(message.role == "tool" for message in messages) else asks_for(CALLS[name])

    return reply


@contextmanager
def a_worker_that_stops_when_it_has_shown(temporal: Temporal, folder: Path, name: str) -> Iterator[Path]:
    """Give the file that says that a row was written in a workflow task which does not end; kill the worker then."""
    given = {"STOPPED": str(folder / "stopped"), "STORE": str(folder / "standfast.db"), "QUEUE": temporal.name}
    given |= {"ADDRESS": temporal.client.service_client.config.target_host, "CALL": name}
    with (folder / "worker.log").open("w") as log:
        paths = {"PYTHONPATH": str(Path(__file__).parents[2])}
        worker = subprocess.Popen([sys.executable, "-c", WORKER], stderr=log, env={**os.environ, **given, **paths})
        try:
            yield folder / "stopped"
        finally:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("name", ["ship", "ask"])
async def test_what_a_killed_worker_has_shown_can_be_decided_before_the_run_has_it(
    temporal: Temporal, tmp_path: Path, name: str
) -> None:
    with a_worker_that_stops_when_it_has_shown(temporal, tmp_path, name) as stopped:
        run = await temporal.start(clerk)
        await until(stopped.exists)
        (item,) = await is_shown(temporal)
        await until(looking(temporal).board)
    people = StandfastClient(temporal.client, store=temporal.store, timeout="60s")
    if name == "ask":
        acting = asyncio.create_task(people.answer(run.id, "Ada", tool_call_id="c1", by="bob"))
    else:
        (waits,) = await people.waiting()
        acting = asyncio.create_task(people.decide(run.id, "c1", "approve", by="bob", digest=waits["digest"]))
    await until(lambda: _signals(run))  # the server keeps it back until the time of the dead worker's task is over
    async with temporal.worker(clerk, llm=ScriptedModel(calls_once(name))):
        await acting
        assert (await result(run))["status"] == "complete"
        assert await shown(temporal) == []
    await check_healthy(run)
    assert await _signals(run) == 2  # the first came before the run had what it was about
    assert item.wait.name == "c1"


async def _signals(run: Run) -> int:
    return kinds(await events(run)).count("WORKFLOW_EXECUTION_SIGNALED")


async def test_what_the_board_shows_no_more_is_refused_at_once(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(calls_once("ship"))):
        run = await temporal.start(clerk)
        await is_shown(temporal)
        people = StandfastClient(temporal.client, store=temporal.store, timeout="60s")
        (item,) = await people.pending(run.id)
        for gate, digest in (("c2", item["digest"]), ("c2", "0" * 32)):
            with pytest.raises(InputError, match="no gate c2 is open"):
                await people.decide(run.id, gate, "approve", by="bob", digest=digest)
        assert await _signals(run) == 2
        await people.decide(run.id, "c1", "approve", by="bob", digest=item["digest"])
        await result(run)
