"""Actions of the `temporal` command on a run, each of which would repeat an effect without the ledger."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from acceptance.temporal_world import LOST, World, until, world
from standfast.temporal.client.runs.owners import Run

same_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, address: str) -> AsyncIterator[World]:
    """Return a world with a worker that is not killed."""
    async with world(tmp_path_factory.mktemp("operators"), address) as made:
        await made.worker("a")
        yield made


# --- workflow reset ---


async def before(run: Run, activity: str, which: int = 1) -> int:
    """Return the event that a run is reset to, so that its n-th activity of this type is dispatched again."""
    found = [
        scheduled.workflow_task_completed_event_id
        for event in (await run.fetch_history()).events
        if (scheduled := event.activity_task_scheduled_event_attributes).activity_type.name == activity
    ]
    return found[which - 1]


async def reset(world: World, run: Run, activity: str, which: int = 1) -> Run:
    """Reset a run to before an activity, and return the new one."""
    event = str(await before(run, activity, which))
    await world.temporal("workflow", "reset", "--workflow-id", run.id, "--event-id", event, "--reason", "test")
    return world.client.get_workflow_handle(run.id, result_type=dict)


async def waits_for(world: World, run: Run, activity: str) -> None:
    async def is_pending() -> bool:
        pending = await world.activity(run)
        return pending is not None and pending.activity_type.name == activity

    await until(is_pending, f"{run.id} waits for {activity}")


async def ended(run: Run) -> tuple[str, str]:
    async with asyncio.timeout(60):
        result = await run.result()
    return result["status"], result["response"]


def whole(case: str, tool: str) -> list[str]:
    return [f"{case}: {tool}", f"calls {case}.1", f"completed: did {case}.1", f"done {case}"]


@same_loop
@pytest.mark.parametrize("tool", ["charge", "look"])
@pytest.mark.parametrize(("activity", "which"), [("tool", 1), ("call_model", 2), ("call_model", 1)])
async def test_a_finished_run_that_is_reset_has_no_effect_and_pays_no_model_again(
    shared: World, tool: str, activity: str, which: int
) -> None:
    case = f"finished-{tool}-{activity}-{which}"
    run = await shared.start(case, tool)
    await run.result()
    run = await reset(shared, run, tool if activity == "tool" else activity, which)
    assert await ended(run) == ("complete", f"done {case}")
    assert (shared.count("effects", case), shared.model_calls(case)) == (1, [0, 1])
    assert await shared.transcript(case) == whole(case, tool)


@same_loop
async def test_an_unsafe_call_that_runs_when_its_run_is_reset_is_waited_for(shared: World) -> None:
    case = "running"
    # A plain function, since an async one would be cancelled as soon as its worker receives the reset.
    run = await shared.start_and_stop(case, "charge_plainly", "after-effect", worker="a")
    run = await reset(shared, run, "charge_plainly")
    await waits_for(shared, run, "standfast.settle")
    shared.go_on("after-effect", f"{case}.1", worker="a")
    assert await ended(run) == ("complete", f"done {case}")
    assert (shared.count("effects", case), shared.model_calls(case)) == (1, [0, 1])
    assert await shared.transcript(case) == whole(case, "charge_plainly")


@same_loop
async def test_an_unsafe_call_that_runs_when_its_run_is_reset_to_the_start_is_not_repeated(shared: World) -> None:
    case = "restarted"
    run = await shared.start_and_stop(case, "charge", "after-effect", worker="a")
    run = await reset(shared, run, "call_model")
    shared.go_on("after-effect", f"{case}.1", worker="a")
    assert await ended(run) == ("complete", f"done {case}")
    assert (shared.count("effects", case), shared.model_calls(case)) == (1, [0, 1])
    assert await shared.results(case) in ([f"completed: did {case}.1"], [f"failed: {LOST}"])


@same_loop
async def test_a_safe_call_that_runs_when_its_run_is_reset_runs_again(shared: World) -> None:
    case = "running-safe"
    run = await shared.start_and_stop(case, "look", "before-effect", worker="a")
    run = await reset(shared, run, "look")
    await waits_for(shared, run, "look")
    shared.go_on("before-effect", f"{case}.1", worker="a")
    assert await ended(run) == ("complete", f"done {case}")
    assert shared.model_calls(case) == [0, 1]
    assert await shared.transcript(case) == whole(case, "look")


@same_loop
@pytest.mark.parametrize("which", [1, 2])
async def test_a_reset_in_the_second_turn_repeats_no_effect_of_either(shared: World, which: int) -> None:
    case = f"second-turn-{which}"
    run = await shared.start_and_stop(case, "charge charge", "after-effect", worker="a", call=2)
    run = await reset(shared, run, "call_model", which)
    shared.go_on("after-effect", f"{case}.2", worker="a")
    assert await ended(run) == ("complete", f"done {case}")
    assert [shared.effects(f"{case}.1"), shared.effects(f"{case}.2")] == [1, 1]
    assert shared.model_calls(case) == [0, 1, 2]
    first, second = await shared.results(case)
    assert first == f"completed: did {case}.1"
    assert second in (f"completed: did {case}.2", f"failed: {LOST}")


# --- activity pause, unpause, update-options, reset ---

ATTEMPTS = "update-options --retry-maximum-attempts 5"
# The case: the tool, and what an operator does while it runs. A plain function continues; the others are broken off.
ACTIONS = {
    "pause": ("charge_plainly", ["pause", "wait", "unpause"]),
    "pause-with-attempts": ("charge_plainly", [ATTEMPTS, "pause", "wait", "unpause"]),
    "attempts": ("charge", [ATTEMPTS]),
    "reset": ("charge_plainly", ["reset", "wait"]),
    "reset-with-attempts": ("charge_plainly", [ATTEMPTS, "reset", "wait"]),
    "lost-patience": ("charge_plainly", [f"{ATTEMPTS} --heartbeat-timeout 1s", "wait"]),
    "pause-async": ("charge", ["pause", "wait"]),
    "reset-async": ("charge", ["reset", "wait"]),
    "reset-async-with-attempts": ("charge", [ATTEMPTS, "reset", "wait"]),
}
# The case: what an operator does before the worker is killed, and after.
KILLED = {
    "attempts-kill": ([ATTEMPTS], []),
    "pause-kill": (["pause"], ["unpause"]),
    "pause-kill-with-attempts": ([ATTEMPTS, "pause"], ["unpause"]),
    "reset-kill": ([ATTEMPTS, "reset"], []),
}
GO_ON = [case for case, (tool, _) in ACTIONS.items() if tool == "charge_plainly" or case == "attempts"]


class Ended(NamedTuple):
    """What became of a run."""

    status: str
    effects: int
    results: list[str]
    model_calls: list[int]


async def operate(world: World, run: Run, activity_id: str, actions: list[str]) -> None:
    """Do what an operator would; "wait" until the call's worker has learned of it."""
    for action in actions:
        command, *options = action.split()
        if command == "wait":
            await world.next_heartbeat(run)
        elif (pending := await world.activity(run)) is not None and pending.activity_id == activity_id:
            which = ("--workflow-id", run.id, "--activity-id", activity_id)
            await world.temporal("activity", command, *which, *options)


async def activity_id(world: World, run: Run) -> str:
    pending = await world.activity(run)
    assert pending is not None
    return pending.activity_id


async def result(world: World, case: str, run: Run) -> Ended:
    status = (await run.result())["status"]
    return Ended(status, world.count("effects", case), await world.results(case), world.model_calls(case))


async def operated(world: World, case: str) -> Ended:
    """Let an operator act on a call in its effect, then let it go on."""
    tool, actions = ACTIONS[case]
    run = await world.start_and_stop(case, tool, "after-effect", worker="a")
    await operate(world, run, await activity_id(world, run), actions)
    world.go_on("after-effect", f"{case}.1", worker="a")
    return await result(world, case, run)


async def all_killed(world: World) -> list[Ended]:
    """Let an operator act on calls in their effect, then kill their worker."""
    first = await world.worker("a")
    runs = [await world.start_and_stop(case, "charge", "after-effect", worker="a") for case in KILLED]
    ids = [await activity_id(world, run) for run in runs]
    cases = list(zip(runs, ids, KILLED.values(), strict=True))
    await asyncio.gather(*(operate(world, run, id_, actions) for run, id_, (actions, _) in cases))
    first.kill()
    await world.worker("b")
    await asyncio.gather(*(operate(world, run, id_, actions) for run, id_, (_, actions) in cases))
    return await asyncio.gather(*(result(world, case, run) for case, run in zip(KILLED, runs, strict=True)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def after(
    tmp_path_factory: pytest.TempPathFactory, address: str, shared: World
) -> AsyncIterator[dict[str, Ended]]:
    """Return the outcome of the runs that an operator acted on."""
    async with world(tmp_path_factory.mktemp("killed"), address) as doomed, asyncio.timeout(60):
        living = asyncio.gather(*(operated(shared, case) for case in ACTIONS))
        dead = await all_killed(doomed)
        yield dict(zip([*KILLED, *ACTIONS], [*dead, *await living], strict=True))


def test_no_action_on_an_activity_keeps_a_run_from_completing_or_makes_it_pay_twice(after: dict[str, Ended]) -> None:
    assert {(run.status, *run.model_calls) for run in after.values()} == {("complete", 0, 1)}


def test_no_action_on_an_activity_repeats_an_unsafe_effect(after: dict[str, Ended]) -> None:
    assert {case: run.effects for case, run in after.items()} == dict.fromkeys(after, 1)


@pytest.mark.parametrize("case", GO_ON)
def test_an_unsafe_call_that_continues_has_its_result(after: dict[str, Ended], case: str) -> None:
    assert after[case].results == [f"completed: did {case}.1"]


@pytest.mark.parametrize("case", KILLED)
def test_an_unsafe_call_that_is_lost_after_an_action_is_a_durability_error(after: dict[str, Ended], case: str) -> None:
    assert after[case].results == [f"failed: {LOST}"]
