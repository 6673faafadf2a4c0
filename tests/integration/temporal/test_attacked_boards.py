"""The board under attack: killed workers, external ends, other tenants. Everything that it shows can be decided."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import data, refused
from support.questions import ask
from support.temporal_runs import Run, Temporal, check_healthy, events, result, until
from support.transcripts import asks_for, call

from integration.temporal.test_boards import is_shown, kinds, looking, shown
from standfast import Agent, Approval, InputError, tool
from standfast.temporal import StandfastClient
from standfast.temporal.client.board import boards
from standfast.temporal.client.board.boards import mend_board
from standfast.testing import ScriptedModel


@tool(approval=Approval(message="Ship it?", timeout="1d"))
async def ship(what: str) -> str:
    """Ship something."""
    return "shipped"


clerk = Agent("clerk", tools=[ask, ship])
CALLS = {"ask": call("ask", "c1", question="Who?"), "ship": call("ship", "c1", what="the red one")}
WORKER = """
import asyncio, os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from temporalio.worker import Worker
from integration.temporal.test_attacked_boards import clerk, calls_once
from standfast.stores import SQLiteStore
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


@pytest.mark.slow(but=1)
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
    assert item.wait.name == "c1"
    if name == "ship":
        assert await _signals(run) == 2  # the first came before the run had its gate


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


# --- ends from outside ---


async def test_a_round_looks_up_so_many_boards_and_the_next_one_continues_after_them(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "_LOOKED_UP", 2)
    async with temporal.worker(clerk, llm=ScriptedModel(calls_once("ship"))):
        runs = [await temporal.start(clerk, session=str(number)) for number in range(5)]
        await is_shown(temporal, len(runs))
    for run in runs:
        await run.terminate("by an operator")

    async def are_over() -> bool:  # the server lists them a little longer
        return len((await mend_board(temporal.client, temporal.store, dry_run=True)).over) == len(runs)

    await until(are_over)
    first = runs[0].id
    before = [one.board for one in await shown(temporal) if one.board.workflow_id == first]
    over, after = list[list[str]](), first  # as if the round before had ended there
    for _ in range(3):
        mended = await mend_board(temporal.client, temporal.store, after=after)
        over.append(sorted(mended.over))
        after = mended.until
    assert over == [[run.id for run in runs[1:3]], [run.id for run in runs[3:]], [first]]
    assert (len(before), await shown(temporal)) == (1, [])


# --- whose it is ---


async def test_a_tenants_filter_shows_what_is_theirs_alone(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(calls_once("ship"))):
        runs = [await temporal.start(clerk, tenant_id=tenant) for tenant in ("acme", "acme-2", "acme.b")]
        await is_shown(temporal, 3)
        await until(looking(temporal).board)
        people = looking(temporal)
        for tenant, run in zip(("acme", "acme-2", "acme.b"), runs, strict=True):
            (item,) = await people.waiting(tenant=tenant)
            assert (item["workflow_id"], item["tenant_id"]) == (run.id, tenant)
            assert await people.count_waiting(tenant=tenant) == {"approval": 1}
        assert await people.waiting(tenant="acm%") == []
        for run in runs:
            await run.terminate()


async def test_a_child_run_says_on_the_board_who_has_started_it(temporal: Temporal) -> None:
    boss = Agent("boss", tools=[clerk])

    def asks_clerk(messages: Any, tools: Any) -> Any:
        if any(one.name == "clerk" for one in tools):
            is_done = any(message.role == "tool" for message in messages)
            return "done" if is_done else asks_for(call("clerk", "d1", message="Ship it"))
        return calls_once("ship")(messages, tools)

    async with temporal.worker(boss, clerk, llm=ScriptedModel(asks_clerk)):
        run = await temporal.start(boss)
        await until(looking(temporal).board)
        (shown_wait,) = await is_shown(temporal)
        (item,) = await looking(temporal).waiting()
        assert (item["parent"], item["agent"]) == (run.id, "clerk")
        await temporal.people.decide(shown_wait.board.workflow_id, "c1", "approve", by="bob")
        await result(run)
        assert await shown(temporal) == []


async def test_two_runs_of_a_session_have_their_boards_one_after_the_other(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(by_turn_of_user)):
        boards = []
        for message in ("one", "two"):
            run = await temporal.start(clerk, message)
            (one,) = await is_shown(temporal)
            boards.append(one.board)
            await temporal.people.decide(run.id, one.wait.name, "approve", by="bob")
            await result(run)
            assert await shown(temporal) == []
        assert boards[0].workflow_id == boards[1].workflow_id
        assert boards[0].first_run_id != boards[1].first_run_id
        assert boards[0].at < boards[1].at


def by_turn_of_user(messages: Any, tools: Any) -> Any:
    number = sum(message.role == "user" for message in messages)
    return "done" if messages[-1].role == "tool" else asks_for(call("ship", f"c{number}", what="the red one"))


# --- the command ---


async def test_a_command_decides_without_a_worker_and_says_that_nobody_has_confirmed_it(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(calls_once("ship"))):
        run = await temporal.start(clerk)
        await is_shown(temporal)
        await until(looking(temporal).board)
    store = {"STANDFAST_STORE": str(tmp_path / "standfast.db")}
    for filters, count in ((["--kind", "approval"], 1), (["--agent", "other"], 0), (["--text", "RED"], 1)):
        assert len(await data(temporal, "pending", *filters, **store)) == count
    told = await refused(temporal, "approve", run.id, "c1", "--yes", **store)
    assert f"Run {run.id}: no worker has taken `decide` within 10 s. It was sent, and may count" in told
    assert "does not wait for an approval 'c2'" in await refused(temporal, "reject", run.id, "c2", **store)
    async with temporal.worker(clerk, llm=ScriptedModel(calls_once("ship"))):
        assert (await result(run))["status"] == "complete"
    (decision,) = await temporal.store.load_decisions(str(run.result_run_id))
    assert decision.by == "ada"
