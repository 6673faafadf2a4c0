"""A run is cancelled, or its worker is asked to stop, while a call has its effect."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from acceptance.replays import failed_replays
from acceptance.temporal_worker import Outside
from acceptance.temporal_world import LOST, World, world
from standfast import RunResult, run

# The case: the tool that its model calls, and where the call is when the run is cancelled.
CASES = {
    "safe": ("look", "after-effect"),
    "unsafe": ("charge", "after-effect"),
    "safe-anyway": ("look_anyway", "after-effect"),
    "unsafe-anyway": ("charge_anyway", "after-effect"),
    "safe-plain": ("look_plainly", "after-effect"),
    "unsafe-plain": ("charge_plainly", "after-effect"),
    "safe-unclaimed": ("look", "before-claim"),
    "unsafe-unclaimed": ("charge", "before-claim"),
    "safe-asked-for": ("look", "after-reply"),
    "unsafe-asked-for": ("charge", "after-reply"),
}
NOT_STARTED = [case for case, (_, point) in CASES.items() if point in ("before-claim", "after-reply")]
GOES_ON = ["safe-plain", "unsafe-plain", *NOT_STARTED]
NOT_RUN = 'cancelled: {"error": "Not run: the run was cancelled before this call started"}'


class Ended(NamedTuple):
    """What a cancelled run left."""

    status: WorkflowExecutionStatus | None
    cause: type
    transcript: list[str]
    effects: int
    continued: str
    effects_after: int


async def continued(world: World, case: str) -> str:
    """Say something more to the session in process, and return how that ended."""
    here = Outside(world.folder, "here")
    result = await run(here.agents()[0], message=f"{case}: look", llm=here.model(), store=world.store, session_id=case)
    assert isinstance(result, RunResult)
    return f"{result.status}: {result.response}"


async def cancelled(world: World, case: str) -> Ended:
    """Cancel a run in its call. A call that cannot be cut off continues after its worker has received the cancel."""
    tool, point = CASES[case]
    handle = await world.start_and_stop(case, tool, point, worker="a")
    await handle.cancel()
    if case in GOES_ON:
        await world.next_heartbeat(handle)
        world.go_on(point, f"{case}.1", worker="a")
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    return Ended(
        (await handle.describe()).status,
        type(failure.value.cause),
        await world.transcript(case),
        world.count("effects", case),
        await continued(world, case),
        world.count("effects", case),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def after(tmp_path_factory: pytest.TempPathFactory, address: str) -> AsyncIterator[dict[str, Ended]]:
    """Return what is left when runs were cancelled."""
    async with world(tmp_path_factory.mktemp("cancelled"), address) as made, asyncio.timeout(60):
        await made.worker("a")
        yield dict(zip(CASES, await asyncio.gather(*(cancelled(made, case) for case in CASES)), strict=True))


def left(case: str, result: str) -> list[str]:
    return [f"{case}: {CASES[case][0]}", f"calls {case}.1", result]


def test_a_cancelled_run_ends_as_cancelled(after: dict[str, Ended]) -> None:
    ends = {(run.status, run.cause) for run in after.values()}
    assert ends == {(WorkflowExecutionStatus.CANCELED, CancelledError)}


def test_a_safe_call_that_was_broken_off_says_so(after: dict[str, Ended]) -> None:
    assert after["safe"].transcript == left("safe", 'cancelled: {"error": "Cancelled while it ran"}')


def test_an_unsafe_call_that_was_broken_off_is_a_durability_error(after: dict[str, Ended]) -> None:
    assert after["unsafe"].transcript == left("unsafe", f"failed: {LOST}")


@pytest.mark.parametrize("case", ["safe-anyway", "unsafe-anyway"])
def test_a_handler_that_returns_in_spite_of_a_cancel_has_its_result(after: dict[str, Ended], case: str) -> None:
    assert after[case].transcript == left(case, f"completed: cleaned up {case}.1")


@pytest.mark.parametrize("case", ["safe-plain", "unsafe-plain"])
def test_a_plain_function_is_waited_for_and_has_its_result(after: dict[str, Ended], case: str) -> None:
    assert after[case].transcript == left(case, f"completed: did {case}.1")


@pytest.mark.parametrize("case", NOT_STARTED)
def test_a_call_that_had_not_started_when_the_run_was_cancelled_is_not_run(after: dict[str, Ended], case: str) -> None:
    assert after[case].transcript == left(case, NOT_RUN)


def test_no_cancelled_call_is_run_again(after: dict[str, Ended]) -> None:
    expected = {case: 0 if case in NOT_STARTED else 1 for case in CASES}
    assert {case: run.effects for case, run in after.items()} == expected


def test_a_cancelled_session_is_continued_in_process(after: dict[str, Ended]) -> None:
    assert {case: run.continued for case, run in after.items()} == {case: f"complete: done {case}" for case in CASES}
    assert all(run.effects_after == run.effects + 1 for run in after.values())  # the new call's


async def test_a_worker_that_is_asked_to_stop_finishes_its_calls(world: World) -> None:
    first = await world.worker("a")
    tools = ("charge", "look", "charge_plainly")
    runs = await asyncio.gather(*(world.start_and_stop(tool, tool, "after-effect", worker="a") for tool in tools))
    first.terminate()
    await first.marked("stopping")
    for tool in tools:
        world.go_on("after-effect", f"{tool}.1", worker="a")
    assert await first.ended() == 0, first.log()
    await world.worker("b")
    results: list[Any] = await asyncio.gather(*(run.result() for run in runs))
    assert [result["status"] for result in results] == ["complete"] * 3
    assert [await world.results(tool) for tool in tools] == [[f"completed: did {tool}.1"] for tool in tools]
    assert [world.count("effects", tool) for tool in tools] == [1, 1, 1]
    assert [world.model_calls(tool) for tool in tools] == [[0, 1]] * 3


async def test_a_worker_whose_time_to_stop_is_over_breaks_its_calls_off(world: World) -> None:
    first = await world.worker("a", drain=0.2)
    tools = ("charge", "look", "charge_anyway")
    runs = await asyncio.gather(*(world.start_and_stop(tool, tool, "after-effect", worker="a") for tool in tools))
    assert await first.stop() == 0, first.log()
    await world.worker("b")
    results: list[Any] = await asyncio.gather(*(run.result() for run in runs))
    assert [result["status"] for result in results] == ["complete"] * 3
    assert {tool: (world.count("effects", tool), await world.results(tool)) for tool in tools} == {
        "charge": (1, [f"failed: {LOST}"]),
        "look": (2, ["completed: did look.1"]),
        "charge_anyway": (1, ["completed: cleaned up charge_anyway.1"]),
    }


async def ended(handle: Any) -> None:
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    assert isinstance(failure.value.cause, CancelledError)


@pytest.mark.slow
async def test_a_result_that_comes_together_with_a_cancel_is_kept(world: World) -> None:
    """Pause all workflow workers for a moment, so that the next one learns of both at once."""
    workflows = await world.worker("workflows", no_remote_activities=True)
    await world.worker("a", workflows=False)
    tools = ("charge", "look")
    runs = await asyncio.gather(*(world.start_and_stop(tool, tool, "after-effect", worker="a") for tool in tools))
    workflows.kill()
    for tool, handle in zip(tools, runs, strict=True):
        await handle.cancel()
        world.go_on("after-effect", f"{tool}.1", worker="a")
    await asyncio.gather(*(world.no_activity(handle) for handle in runs))
    await world.worker("b")
    await asyncio.gather(*(ended(handle) for handle in runs))
    assert {tool: (world.count("effects", tool), await world.results(tool)) for tool in tools} == {
        tool: (1, [f"completed: did {tool}.1"]) for tool in tools
    }


async def test_calls_that_are_asked_for_together_with_a_cancel_have_a_result(world: World) -> None:
    """The model's answer is in the transcript before the run hears of it, and the run hears of a cancel with it."""
    workflows = await world.worker("workflows", no_remote_activities=True)
    await world.worker("a", workflows=False)
    tools = ("charge", "look")
    runs = await asyncio.gather(*(world.start_and_stop(tool, tool, "after-reply", worker="a") for tool in tools))
    workflows.kill()
    for tool, handle in zip(tools, runs, strict=True):
        await handle.cancel()
        world.go_on("after-reply", f"{tool}.1", worker="a")
    await asyncio.gather(*(world.no_activity(handle) for handle in runs))
    await world.worker("b")
    await asyncio.gather(*(ended(handle) for handle in runs))
    assert {tool: (world.count("effects", tool), await world.results(tool)) for tool in tools} == {
        tool: (0, [NOT_RUN]) for tool in tools
    }


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("plan", ["charge", "look charge"], ids=["the first", "the second"])
async def test_calls_of_an_answer_whose_worker_died_in_a_cancel_have_a_result(world: World, plan: str) -> None:
    first, count = await world.worker("a"), len(plan.split())
    handle = await world.start_and_stop("case", plan, "after-reply", worker="a", call=count)
    first.kill()
    await handle.cancel()
    await world.worker("b")
    await ended(handle)
    assert (world.effects(f"case.{count}"), (await world.results("case"))[-1]) == (0, NOT_RUN)
    assert (len(await world.results("case")), await failed_replays(world)) == (count, [])


async def test_a_call_that_is_lost_in_a_run_that_is_cancelled_is_answered_for(world: World) -> None:
    first = await world.worker("a")
    tools = ("charge", "look")
    runs = await asyncio.gather(*(world.start_and_stop(tool, tool, "after-effect", worker="a") for tool in tools))
    first.kill()
    await asyncio.gather(*(handle.cancel() for handle in runs))
    await world.worker("b")
    await asyncio.gather(*(ended(handle) for handle in runs))
    assert (world.count("effects", "charge"), await world.results("charge")) == (1, [f"failed: {LOST}"])
    assert len(await world.results("look")) == 1
