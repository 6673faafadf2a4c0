"""All runs of a session share the same ledger entries, in both drivers, even concurrently."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from acceptance.temporal_world import LOST, World, until


async def start(world: World, case: str, message: str | None = None, *, desk: str = "desk") -> Any:
    """Start a run of a case's session under its own workflow id."""
    return await world.client.start_workflow(
        "teller",
        {"message": message, "session_id": case},
        id=f"{desk}/{case}/{world.queue}",
        task_queue=world.queue,
        result_type=dict,
    )


async def lose(world: World, case: str, point: str, *, name: str, tool: str | None = None, **options: Any) -> None:
    """Let a run of a case come to a point of its call, and end the run and its worker there."""
    world.stop_at(point, f"{case}.1", worker=name)
    worker = await world.worker(name, **options)
    run = await start(world, case, None if tool is None else f"{case}: {tool}")
    await world.stands(point, f"{case}.1", worker=name)
    await run.terminate()
    worker.kill()


async def three_runs(world: World, **options: Any) -> tuple[int, list[str]]:
    """Lose a call before its claim, then after its effect; returns the effects, and the results in the end."""
    await lose(world, "case", "before-claim", name="a", tool="charge", **options)
    await lose(world, "case", "after-effect", name="b", **options)
    await world.worker("c", **options)
    assert (await (await start(world, "case")).result())["status"] == "complete"
    return world.count("effects", "case"), await world.results("case")


async def test_three_runs_of_one_session_one_after_the_other_have_one_effect(world: World) -> None:
    assert await three_runs(world) == (1, [f"failed: {LOST}"])


async def test_with_the_run_in_the_key_three_runs_would_have_two_effects(world: World) -> None:
    assert await three_runs(world, mutant=True) == (2, ["completed: did case.1"])


async def test_a_result_that_a_run_recorded_before_it_was_terminated_is_read_by_the_run_after_the_next(
    world: World,
) -> None:
    await lose(world, "case", "before-claim", name="a", tool="charge")
    await lose(world, "case", "after-record", name="b")
    await world.worker("d")
    assert (await (await start(world, "case")).result())["status"] == "complete"
    assert (world.count("effects", "case"), await world.results("case")) == (1, ["completed: did case.1"])


async def test_a_call_that_was_dispatched_twenty_times_in_vain_has_one_effect(world: World) -> None:
    await lose(world, "case", "before-claim", name="a", tool="charge")
    session = await world.store.load_session("case")
    assert session is not None
    scope = f"case@{session.created_at:%Y%m%dT%H%M%S%f}/2"
    for dispatch in range(1, 21):
        key = "0/case.1" if dispatch == 1 else f"0/case.1#{dispatch}"
        assert (await world.store.settle(scope, key)).state == "abandoned"
    await lose(world, "case", "after-effect", name="b")
    await world.worker("c")
    assert (await (await start(world, "case")).result())["status"] == "complete"
    assert (world.count("effects", "case"), await world.results("case")) == (1, [f"failed: {LOST}"])


@pytest.mark.parametrize(
    ("tool", "lost", "repairs"),
    [("charge", "before-claim", "before-effect"), ("transfer", "before-effect", "in-verify")],
    ids=["by another dispatch", "by asking verify"],
)
async def test_a_run_that_would_repair_what_another_repairs_just_now_is_refused(
    world: World, tool: str, lost: str, repairs: str
) -> None:
    world.verify_says("not-happened", "case.1")
    await lose(world, "case", lost, name="a", tool=tool)
    world.stop_at(repairs, "case.1", worker="b")
    await world.worker("b")
    first = await start(world, "case", desk="desk")
    await world.stands(repairs, "case.1", worker="b")
    second = await start(world, "case", desk="batch")
    with pytest.raises(WorkflowFailureError) as refused:
        await second.result()
    assert "workflow desk/case" in str(refused.value.cause)
    world.go_on(repairs, "case.1", worker="b")
    assert (await first.result())["status"] == "complete"
    assert (world.count("effects", "case"), await world.results("case")) == (1, ["completed: did case.1"])
    assert world.count("verified", "case") == (1 if tool == "transfer" else 0)


async def test_a_call_of_a_live_worker_that_is_taken_for_dead_is_waited_for_before_verify_is_asked(
    world: World,
) -> None:
    """The second worker sees other holds than the first, as on another machine; the first hears nothing of the end."""
    await world.worker("workflows", no_remote_activities=True)
    world.verify_says("not-happened", "case.1")
    world.stop_at("before-effect", "case.1", worker="a")
    await world.worker("a", workflows=False, max_concurrent_activities=1, silent=True)
    run = await world.start("case", "transfer")
    await world.stands("before-effect", "case.1", worker="a")
    await world.worker("b", workflows=False, locks="elsewhere")
    await run.terminate()
    again = await start(world, "case")

    async def settles() -> bool:
        pending = await world.activity(again)
        return pending is not None and pending.activity_type.name == "standfast.settle"

    await until(settles, "the second run settles the call")
    await asyncio.sleep(1)  # in which `verify` would be asked
    assert world.count("verified", "case") == 0
    world.go_on("before-effect", "case.1", worker="a")
    assert (await again.result())["status"] == "complete"
    assert world.count("effects", "case") == 1


async def test_a_process_that_took_a_session_over_is_remembered_by_every_later_run(world: World) -> None:
    """It may have run the call; the run after it writes to the session, and so hides who wrote before."""
    await lose(world, "case", "before-claim", name="a", tool="charge")
    session = await world.store.load_session("case")
    assert session is not None
    process = session.model_copy(update={"workflow_id": None, "journal_key": None})
    await world.store.append_messages_atomic("case", [], process, expected_version=session.version)
    early = await lose_early(world)
    hidden = session.model_copy(update={"version": 0, "journal_key": f"{early}/1"})
    await world.store.append_messages_atomic("case", [], hidden, expected_version=session.version + 1)
    await world.worker("c")
    assert (await (await start(world, "case")).result())["status"] == "complete"
    assert (world.count("effects", "case"), await world.results("case")) == (0, [f"failed: {LOST}"])


async def lose_early(world: World) -> str:
    """Open the session, end the run before it writes, and return the run's id."""
    worker = await world.worker("b", no_remote_activities=True)
    run = await start(world, "case")

    async def is_open() -> bool:
        return await world.activity(run) is not None

    await until(is_open, "the run is open")
    await run.terminate()
    worker.kill()
    return str(run.first_execution_run_id)
