"""A worker is frozen before it claims a call, and thaws before anyone has looked for the call."""

import asyncio

import pytest

from acceptance.temporal_world import World, until


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["charge", "look"])
async def test_a_call_whose_worker_thaws_too_late_is_run_by_another_and_nobody_says_it_was_cancelled(
    world: World, tool: str
) -> None:
    """The call was not settled: the worker claims it after the server has given up its attempt."""
    await world.worker("workflows", no_remote_activities=True)
    first = await world.worker("a", workflows=False, max_concurrent_activities=1)
    run = await world.start_and_stop("case", tool, "before-claim", worker="a")
    first.freeze()

    async def is_given_up() -> bool:
        pending = await world.activity(run)
        return pending is not None and (pending.activity_type.name == "standfast.settle" or pending.attempt > 1)

    await until(is_given_up, "the server has given the attempt up")
    first.thaw()
    await first.marked("cancelled")
    world.go_on("before-claim", "case.1", worker="a")
    await world.worker("b")
    async with asyncio.timeout(30):
        assert (await run.result())["status"] == "complete"
    assert (world.count("effects", "case"), await world.results("case")) == (1, ["completed: did case.1"])
