"""A session with an active Temporal run is refused to an in-process run, and is free if that run cannot continue."""

import asyncio

import pytest

from acceptance.temporal_worker import Outside
from acceptance.temporal_world import LOST, World, until
from acceptance.test_operator_actions import reset
from standfast import InterruptedResponse, RunResult, SessionConflictError, run
from standfast.tools.calls import call_key


async def run_here(world: World, case: str) -> RunResult | InterruptedResponse:
    here = Outside(world.folder, "here")
    return await run(here.agents()[0], message=None, llm=here.model(), store=world.store, session_id=case)


async def is_free(world: World, case: str) -> bool:
    return all(work.ended_at is not None for work in await world.store.find_work(case))


async def test_run_is_refused_a_session_in_which_a_tool_of_a_temporal_run_is_at_work(world: World) -> None:
    await world.worker("a")
    temporal = await world.start_and_stop("case", "transfer", "before-effect", worker="a")
    world.verify_says("not-happened", "case.1")
    with pytest.raises(SessionConflictError, match=f"workflow {temporal.id}"):
        await run_here(world, "case")
    world.go_on("before-effect", "case.1", worker="a")
    assert (await temporal.result())["status"] == "complete"
    assert (world.count("effects", "case"), world.count("verified", "case")) == (1, 0)


async def test_a_session_is_free_as_soon_as_its_temporal_run_has_given_its_last_answer(world: World) -> None:
    await world.worker("a")
    temporal = await world.start("case", "charge")
    await temporal.result()
    assert await is_free(world, "case")
    assert isinstance(await run_here(world, "case"), RunResult)


async def test_a_cancelled_temporal_run_leaves_its_session_free(world: World) -> None:
    await world.worker("a")
    temporal = await world.start_and_stop("case", "charge", "before-effect", worker="a")
    await temporal.cancel()
    with pytest.raises(Exception, match="failed"):
        await temporal.result()
    assert await is_free(world, "case")


async def test_a_session_whose_workflow_was_terminated_is_soon_free_while_a_worker_lives(world: World) -> None:
    await world.worker("a")
    temporal = await world.start_and_stop("case", "charge", "in-model", worker="a", call=0)
    await temporal.terminate()

    async def free() -> bool:
        return await is_free(world, "case")

    await until(free, "the session is free")


async def test_a_session_is_taken_over_in_process_at_once_where_no_worker_lives(world: World) -> None:
    worker = await world.worker("a")
    temporal = await world.start_and_stop("case", "charge", "after-effect", worker="a")
    worker.kill()
    await temporal.terminate()
    assert isinstance(await run_here(world, "case"), RunResult)
    assert (world.count("effects", "case"), await world.results("case")) == (1, [f"failed: {LOST}"])


async def test_a_frozen_worker_that_thaws_finds_the_call_fenced_that_a_process_ran_in_the_meantime(
    world: World,
) -> None:
    """The process could not see that the worker lived, as on another machine that has its own locks."""
    world.verify_says("not-happened", "case.1")
    worker = await world.worker("a", max_concurrent_activities=1)
    temporal = await world.start_and_stop("case", "transfer", "before-claim", worker="a")
    worker.freeze()
    await temporal.terminate()
    for name in await world.store.list_workers():
        await world.store.drop_worker(name)
    assert isinstance(await run_here(world, "case"), RunResult)
    session = await world.store.load_session("case")
    assert session is not None
    scope = f"case@{session.created_at:%Y%m%dT%H%M%S%f}/2"
    world.stop_at("after-claim", "case.1", worker="a")
    world.go_on("before-claim", "case.1", worker="a")
    worker.thaw()
    await world.stands("after-claim", "case.1", worker="a")
    world.go_on("after-claim", "case.1", worker="a")
    await world.nothing_runs()
    entries = await world.store.load_entries(scope, [call_key(0, "case.1", number) for number in (1, 2)])
    assert [entry.state for entry in entries.values()] == ["abandoned", "claimed"]
    assert (world.count("effects", "case"), await world.results("case")) == (1, ["completed: did case.1"])


async def test_a_run_that_is_reset_in_its_course_is_at_work_again(world: World) -> None:
    await world.worker("a")
    first = await world.start_and_stop("case", "charge charge", "after-effect", worker="a", call=2)
    for work in await world.store.find_work("case"):
        await world.store.end_work(work)
    again = await reset(world, first, "call_model", 2)

    async def is_at_work() -> bool:
        return not await is_free(world, "case")

    await until(is_at_work, "the run is at work")
    world.go_on("after-effect", "case.2", worker="a")
    assert (await again.result())["status"] == "complete"
    assert (world.count("effects", "case"), await is_free(world, "case")) == (2, True)


async def test_of_two_temporal_runs_that_open_a_session_at_once_one_continues(world: World) -> None:
    await world.worker("a")
    starts = [
        world.client.start_workflow(
            "teller",
            {"message": "case: charge", "session_id": "case"},
            id=f"{desk}/case/{world.queue}",
            task_queue=world.queue,
        )
        for desk in ("desk", "batch", "phone")
    ]
    runs = await asyncio.gather(*starts)
    ends = await asyncio.gather(*(one.result() for one in runs), return_exceptions=True)
    done = [end for end in ends if not isinstance(end, BaseException)]
    assert len(done) >= 1
    assert world.count("effects", "case") == len(done)
