"""A worker dies by SIGKILL with a call at every point of its life; another one continues its runs.

One kill serves all cases of a world: each case is a run whose call is at its point when the worker dies.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.client import WorkflowHistory

from acceptance.temporal_world import LOST, World, world

# The case: the tool that its model calls, and where the call is when its worker dies.
CLAIMED = {  # another worker finds the claim in the store, and reports the loss
    "unsafe-claimed": ("charge", "after-claim"),
    "unsafe-effect": ("charge", "after-effect"),
    "unsafe-plain": ("charge_plainly", "after-effect"),
    "safe-claimed": ("look", "after-claim"),
    "safe-effect": ("look", "after-effect"),
    "safe-plain": ("look_plainly", "after-effect"),
    "verify-happened": ("transfer", "after-effect"),
    "verify-not-happened": ("transfer", "after-claim"),
    "verify-nobody-knows": ("transfer", "after-effect"),
    "verify-raises": ("transfer", "after-effect"),
}
UNCLAIMED = {  # the claim is not there yet, or is gone: missing heartbeats may tell the server first
    "unsafe-unclaimed": ("charge", "before-claim"),
    "safe-unclaimed": ("look", "before-claim"),
    "verify-unclaimed": ("transfer", "before-claim"),
    "unsafe-recorded": ("charge", "after-record"),
    "safe-recorded": ("look", "after-record"),
    "reply": ("charge", "after-reply"),
    "model": ("charge", "in-model"),
}


@dataclass(frozen=True)
class Ended:
    """What became of a run."""

    status: str
    effects: int
    results: list[str]
    read: list[str]
    model_calls: list[int]
    verified: int
    losses: list[str]


def why(failure: Failure) -> str:
    cause = failure.cause if failure.HasField("cause") else failure
    if cause.HasField("timeout_failure_info"):
        return TimeoutType.Name(cause.timeout_failure_info.timeout_type)
    return cause.application_failure_info.type


def losses(history: WorkflowHistory) -> list[str]:
    """Return why attempts of a run's activities failed, as far as a history tells: the last of each activity's."""
    failures = []
    for event in history.events:
        if event.HasField("activity_task_failed_event_attributes"):
            failures.append(event.activity_task_failed_event_attributes.failure)
        elif event.HasField("activity_task_timed_out_event_attributes"):
            failures.append(event.activity_task_timed_out_event_attributes.failure)
        elif event.activity_task_started_event_attributes.HasField("last_failure"):
            failures.append(event.activity_task_started_event_attributes.last_failure)
    return [why(failure) for failure in failures]


async def ended(world: World, case: str, run: Any) -> Ended:
    status = (await run.result())["status"]
    return Ended(
        status,
        world.count("effects", case),
        await world.results(case),
        world.read_by_model(case),
        world.model_calls(case),
        world.count("verified", case),
        losses(await run.fetch_history()),
    )


async def killed(world: World, how: str, cases: dict[str, tuple[str, str]], **options: Any) -> dict[str, Ended]:
    """Kill a worker with all of these cases in it, and let a restarted or a second one finish them."""
    first = await world.worker("a", **options)
    for verdict in ("happened", "not-happened", "nobody-knows", "raises"):
        world.verify_says(verdict, f"verify-{verdict}.1")
    starting = (world.start_and_stop(case, tool, point, worker="a") for case, (tool, point) in cases.items())
    runs = await asyncio.gather(*starting)
    if how == "second":
        await world.worker("b", **options)
    first.kill()
    if how == "restarted":
        await world.worker("b", **options)
    found = await asyncio.gather(*(ended(world, case, run) for case, run in zip(cases, runs, strict=True)))
    return dict(zip(cases, found, strict=True))


async def frozen(world: World) -> dict[str, Ended]:
    """Freeze a worker with calls in it, let a second one finish their runs, then let the first go on.

    The frozen one has neither workflows nor free slots: the server would hand it tasks, and wait for each.
    """
    cases = {"frozen-unclaimed": "before-claim", "frozen-effect": "before-effect"}
    await world.worker("workflows", no_remote_activities=True)
    first = await world.worker("a", workflows=False, max_concurrent_activities=len(cases))
    runs = await asyncio.gather(
        *(world.start_and_stop(case, "charge", point, worker="a") for case, point in cases.items())
    )
    first.freeze()
    await world.worker("b")
    await asyncio.gather(*(run.result() for run in runs))
    world.stop_at("after-claim", "frozen-unclaimed.1", worker="a")
    for case, point in cases.items():
        world.go_on(point, f"{case}.1", worker="a")
    first.thaw()
    await world.stands("after-claim", "frozen-unclaimed.1", worker="a")
    world.go_on("after-claim", "frozen-unclaimed.1", worker="a")
    await world.nothing_runs()  # now it has done all that it will ever do
    found = await asyncio.gather(*(ended(world, case, run) for case, run in zip(cases, runs, strict=True)))
    return dict(zip(cases, found, strict=True))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aftermath(
    tmp_path_factory: pytest.TempPathFactory, address: str
) -> AsyncIterator[dict[str, dict[str, Ended]]]:
    async with (
        world(tmp_path_factory.mktemp("restarted"), address) as one,
        world(tmp_path_factory.mktemp("second"), address) as two,
        world(tmp_path_factory.mktemp("unclaimed"), address) as three,
        world(tmp_path_factory.mktemp("frozen"), address) as four,
        world(tmp_path_factory.mktemp("fast"), address) as five,
        asyncio.timeout(150),
    ):
        found = await asyncio.gather(
            # On a machine with much to do, a worker may start more slowly than heartbeats are missed.
            killed(one, "restarted", CLAIMED, dead_after=60),
            killed(two, "second", CLAIMED, dead_after=60),
            killed(three, "second", UNCLAIMED),
            frozen(four),
            killed(five, "second", CLAIMED, dead_after=60, lane="fast"),
        )
        yield dict(zip(("restarted", "second", "unclaimed", "frozen", "in the fast lane"), found, strict=True))


@pytest.fixture(params=["restarted", "second", "in the fast lane"])
def after(request: pytest.FixtureRequest, aftermath: dict[str, dict[str, Ended]]) -> dict[str, Ended]:
    """Return the outcome of claimed calls when a worker was restarted, and when there was a second one."""
    return aftermath[request.param]


@pytest.fixture
def unclaimed(aftermath: dict[str, dict[str, Ended]]) -> dict[str, Ended]:
    """Return the outcome of the other calls when there was a second worker."""
    return aftermath["unclaimed"]


def outcome(run: Ended) -> tuple[int, list[str], list[str]]:
    """Return the effects of a run's call, its result in the transcript, and what the model read."""
    return run.effects, run.results, run.read


def lost(effects: int) -> tuple[int, list[str], list[str]]:
    return effects, [f"failed: {LOST}"], [LOST]


def did(case: str, effects: int) -> tuple[int, list[str], list[str]]:
    return effects, [f"completed: did {case}.1"], [f"did {case}.1"]


def test_every_run_of_a_killed_worker_completes(after: dict[str, Ended], unclaimed: dict[str, Ended]) -> None:
    assert {run.status for run in (*after.values(), *unclaimed.values())} == {"complete"}


def test_an_unsafe_call_lost_before_its_claim_is_dispatched_again_and_runs_once(unclaimed: dict[str, Ended]) -> None:
    assert outcome(unclaimed["unsafe-unclaimed"]) == did("unsafe-unclaimed", effects=1)


def test_an_unsafe_call_lost_between_claim_and_effect_is_a_durability_error(after: dict[str, Ended]) -> None:
    assert outcome(after["unsafe-claimed"]) == lost(effects=0)


@pytest.mark.parametrize("case", ["unsafe-effect", "unsafe-plain"])
def test_an_unsafe_call_lost_after_its_effect_is_a_durability_error_and_never_repeated(
    after: dict[str, Ended], case: str
) -> None:
    assert outcome(after[case]) == lost(effects=1)


@pytest.mark.parametrize("case", ["unsafe-recorded", "safe-recorded"])
def test_a_call_lost_after_its_record_has_the_recorded_result(unclaimed: dict[str, Ended], case: str) -> None:
    assert outcome(unclaimed[case]) == did(case, effects=1)


@pytest.mark.parametrize(
    ("case", "effects"), [("safe-unclaimed", 1), ("safe-claimed", 1), ("safe-effect", 2), ("safe-plain", 2)]
)
def test_a_safe_call_that_is_lost_runs_again_and_the_model_sees_a_normal_result(
    after: dict[str, Ended], unclaimed: dict[str, Ended], case: str, effects: int
) -> None:
    assert outcome((after | unclaimed)[case]) == did(case, effects)


def test_what_verify_found_is_the_result_of_a_lost_call(after: dict[str, Ended]) -> None:
    found = "found verify-happened.1"
    assert outcome(after["verify-happened"]) == (1, [f"completed: {found}"], [found])
    assert after["verify-happened"].verified == 1


def test_a_lost_call_runs_when_verify_finds_that_it_has_not_happened(after: dict[str, Ended]) -> None:
    assert outcome(after["verify-not-happened"]) == did("verify-not-happened", effects=1)
    assert after["verify-not-happened"].verified == 1


@pytest.mark.parametrize("case", ["verify-nobody-knows", "verify-raises"])
def test_a_lost_call_is_a_durability_error_when_verify_cannot_tell(after: dict[str, Ended], case: str) -> None:
    assert outcome(after[case]) == lost(effects=1)
    assert after[case].verified == 1


def test_verify_is_not_asked_about_a_call_that_never_started(unclaimed: dict[str, Ended]) -> None:
    assert outcome(unclaimed["verify-unclaimed"]) == did("verify-unclaimed", effects=1)
    assert unclaimed["verify-unclaimed"].verified == 0


def test_the_model_is_asked_again_only_for_a_turn_in_which_it_had_not_answered(
    after: dict[str, Ended], unclaimed: dict[str, Ended]
) -> None:
    expected = {case: [0, 1, 1] if case == "model" else [0, 1] for case in CLAIMED | UNCLAIMED}
    assert {case: run.model_calls for case, run in (after | unclaimed).items()} == expected


@pytest.mark.parametrize("case", ["reply", "model"])
def test_a_model_call_that_is_lost_changes_nothing_for_the_calls_around_it(
    unclaimed: dict[str, Ended], case: str
) -> None:
    assert outcome(unclaimed[case]) == did(case, effects=1)


def test_the_loss_of_a_claimed_call_is_reported_by_another_worker(after: dict[str, Ended]) -> None:
    assert {case: run.losses for case, run in after.items()} == {case: ["WorkerDied"] for case in CLAIMED}


def test_a_call_of_a_worker_frozen_before_its_claim_runs_once_elsewhere(
    aftermath: dict[str, dict[str, Ended]],
) -> None:
    assert outcome(aftermath["frozen"]["frozen-unclaimed"]) == did("frozen-unclaimed", effects=1)


def test_a_call_of_a_worker_frozen_after_its_claim_stays_unknown_when_it_thaws(
    aftermath: dict[str, dict[str, Ended]],
) -> None:
    effects, *results = outcome(aftermath["frozen"]["frozen-effect"])
    assert results == [[f"failed: {LOST}"], [LOST]]
    assert effects <= 1  # it continues, or learns first that it is not needed any more


def test_a_frozen_worker_is_not_taken_for_a_dead_one(aftermath: dict[str, dict[str, Ended]]) -> None:
    runs = aftermath["frozen"]
    assert {case: runs[case].losses for case in runs} == {case: ["TIMEOUT_TYPE_HEARTBEAT"] for case in runs}


async def test_a_safe_call_that_is_cut_off_at_every_attempt_is_an_error(world: World) -> None:
    patient = {"dead_after": 60}
    first = await world.worker("a", **patient)
    run = await world.start_and_stop("case", "look_twice", "after-effect", worker="a")
    world.stop_at("after-effect", "case.1", worker="b")
    second = await world.worker("b", **patient)
    first.kill()
    await world.stands("after-effect", "case.1", worker="b")
    await world.worker("c", **patient)
    second.kill()
    assert (await run.result())["status"] == "complete"
    error = 'Tool \\"look_twice\\": it was cut off 2 times: its worker died while it ran'
    assert await world.results("case") == [f'failed: {{"error": "{error}"}}']
    assert world.count("effects", "case") == 2


@pytest.mark.slow
async def test_a_question_outlives_the_worker_of_its_call(world: World) -> None:
    first = await world.worker("a")
    run = await world.start("case", "charge_asking")
    await world.asks(run)
    first.kill()
    await world.worker("b")
    await world.answer(run, "Seven")
    assert (await run.result())["status"] == "complete"
    assert (world.count("effects", "case"), await world.results("case")) == (1, ["completed: Seven"])
