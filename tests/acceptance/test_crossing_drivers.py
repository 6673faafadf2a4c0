"""A session crosses from one driver to the other with a call in flight, and is repaired by the same rule."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from acceptance.temporal_worker import Outside
from acceptance.temporal_world import LOST, World
from standfast import RunResult, SessionConflictError, run
from standfast.temporal import start_agent

TOOLS = ("charge", "look", "charge_plainly", "transfer")
AFTER = {
    "charge": (1, [f"failed: {LOST}"]),
    "look": (2, ["completed: did look.1"]),
    "charge_plainly": (1, [f"failed: {LOST}"]),
    "transfer": (1, ["completed: found transfer.1"]),
}


async def run_here(world: World, case: str, message: str | None = None) -> RunResult:
    here = Outside(world.folder, "here")
    result = await run(here.agents()[0], message=message, llm=here.model(), store=world.store, session_id=case)
    assert isinstance(result, RunResult)
    return result


async def start(world: World, case: str, message: str | None) -> Any:
    return await start_agent(
        world.client, "teller", message=message, session_id=case, task_queue=world.queue, id=f"{case}/{world.queue}"
    )


async def after(world: World) -> dict[str, Any]:
    return {tool: (world.count("effects", tool), await world.results(tool)) for tool in TOOLS}


async def test_a_terminated_run_is_repaired_in_process(world: World) -> None:
    worker = await world.worker("a")
    world.verify_says("happened", "transfer.1")
    runs = await asyncio.gather(*(world.start_and_stop(tool, tool, "after-effect", worker="a") for tool in TOOLS))
    await asyncio.gather(*(run.terminate() for run in runs))
    worker.kill()
    results = await asyncio.gather(*(run_here(world, tool) for tool in TOOLS))
    assert [result.response for result in results] == [f"done {tool}" for tool in TOOLS]
    assert await after(world) == AFTER
    assert [world.model_calls(tool) for tool in TOOLS] == [[0, 1]] * len(TOOLS)


async def test_a_run_in_process_that_was_killed_is_repaired_by_temporal(world: World) -> None:
    world.verify_says("happened", "transfer.1")
    for tool in TOOLS:
        world.stop_at("after-effect", f"{tool}.1", worker="here")
    process = await world.run_in_process("here", {tool: tool for tool in TOOLS})
    for tool in TOOLS:
        await world.stands("after-effect", f"{tool}.1", worker="here")
    process.kill()
    await world.worker("a")
    runs = await asyncio.gather(*(start(world, tool, None) for tool in TOOLS))
    results = await asyncio.gather(*(run.result() for run in runs))
    assert [result["response"] for result in results] == [f"done {tool}" for tool in TOOLS]
    assert await after(world) == AFTER
    assert [world.model_calls(tool) for tool in TOOLS] == [[0, 1]] * len(TOOLS)


async def test_a_message_to_a_session_that_was_killed_comes_after_its_repair(world: World) -> None:
    world.stop_at("after-effect", "charge.1", worker="here")
    process = await world.run_in_process("here", {"charge": "charge"})
    await world.stands("after-effect", "charge.1", worker="here")
    process.kill()
    await world.worker("a")
    result = await (await start(world, "charge", "charge: look")).result()
    assert result["response"] == "done charge"
    assert await world.transcript("charge") == [
        "charge: charge",
        "calls charge.1",
        f"failed: {LOST}",
        "charge: look",
        "calls charge.2",
        "completed: did charge.2",
        "done charge",
    ]


async def test_a_terminated_run_is_settled_by_its_ledger_when_temporal_continues(world: World) -> None:
    points = {"recorded": "after-record", "claimed": "after-claim", "unclaimed": "before-claim", "done": "after-effect"}
    worker = await world.worker("a")
    runs = await asyncio.gather(
        *(world.start_and_stop(case, "charge", point, worker="a") for case, point in points.items())
    )
    await asyncio.gather(*(run.terminate() for run in runs))
    worker.kill()
    await world.worker("b")
    runs = await asyncio.gather(*(start(world, case, None) for case in points))
    await asyncio.gather(*(run.result() for run in runs))
    assert {case: (world.count("effects", case), await world.results(case)) for case in points} == {
        "recorded": (1, ["completed: did recorded.1"]),
        "claimed": (0, [f"failed: {LOST}"]),
        "unclaimed": (1, ["completed: did unclaimed.1"]),
        "done": (1, [f"failed: {LOST}"]),
    }


async def test_a_cancel_amid_a_repair_hides_no_effect(world: World) -> None:
    """Both calls had their effects before the process died; the cancel comes while the first is being settled."""
    for call in ("case.1", "case.2"):
        world.verify_says("happened", call)
    world.stop_at("after-effect", "case.2", worker="here")
    process = await world.run_in_process("here", {"case": "transfer+transfer"})
    await world.stands("after-effect", "case.2", worker="here")
    process.kill()
    await world.worker("a")
    world.stop_at("in-verify", "case.1", worker="a")
    run = await start(world, "case", None)
    await world.stands("in-verify", "case.1", worker="a")
    await run.cancel()
    world.go_on("in-verify", "case.1", worker="a")
    with pytest.raises(WorkflowFailureError):
        await run.result()
    first, second = await world.results("case")
    assert world.count("effects", "case") == 2
    assert first == "completed: found case.1"
    assert second in ("completed: found case.2", f"failed: {LOST}")


async def test_a_session_that_runs_in_process_is_refused_to_temporal(world: World) -> None:
    world.stop_at("after-effect", "charge.1", worker="here")
    process = await world.run_in_process("here", {"charge": "charge"})
    await world.stands("after-effect", "charge.1", worker="here")
    await world.worker("a")
    with pytest.raises(Exception, match="failed") as failure:
        await (await start(world, "charge", "charge: look")).result()
    assert getattr(failure.value.__cause__, "type", None) == SessionConflictError.__name__
    world.go_on("after-effect", "charge.1", worker="here")
    assert await process.ended() == 0, process.log()
    assert await world.results("charge") == ["completed: did charge.1"]


async def test_the_key_of_a_call_is_the_same_in_both_drivers(world: World, tmp_path: Path) -> None:
    worker = await world.worker("a")
    run = await world.start_and_stop("look", "look", "after-effect", worker="a")
    await run.terminate()
    worker.kill()
    await run_here(world, "look")
    first, second = (tmp_path / "keys.txt").read_text().splitlines()
    assert first == second
