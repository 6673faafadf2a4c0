"""Everything that a handler may do except return, and the effect on a run on Temporal."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from acceptance.temporal_world import World, world

LIMIT = "10,485,761 bytes, more than max_message_bytes=10,485,760"
LOST_RESULT = 'failed: {"error": "Tool \\"%s\\" ran, but its result was lost: %s"}'
BUSY, BROKEN, CLOSED = (
    'failed: {"error": "busy"}',
    'failed: {"error": "no luck"}',
    'failed: {"error": "account closed"}',
)
# The plan, how often its handlers run, and what the transcript says of it.
PLANS = {
    "late": (3, ["completed: did late.1 at attempt 3"]),
    "busy": (3, [BUSY]),
    "broken": (3, [BROKEN]),
    "broken_once": (1, [BROKEN]),
    "charge_busy": (1, [BUSY]),
    "charge_broken": (1, [BROKEN]),
    "charge_closed": (1, [CLOSED]),
    "look_closed": (1, [CLOSED]),
    "charge_breaking_off": (1, ["failed: durability error"]),
    "charge_asking": (1, ["completed: Seven"]),
    "look_asking": (1, ["completed: Seven"]),
    "charge_hugely": (1, [LOST_RESULT % ("charge_hugely", LIMIT)]),
}


class Ended(NamedTuple):
    """What became of a run."""

    status: str
    response: str
    effects: int
    results: list[str]


async def outcome(world: World, plan: str) -> Ended:
    run = await world.start(plan, plan)
    if plan.endswith("asking"):
        await world.answer(run, "Seven")
    result = await run.result()
    return Ended(result["status"], result["response"], world.count("effects", plan), await world.results(plan))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory, address: str) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("outcomes"), address) as made, asyncio.timeout(60):
        await made.worker("a")
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def after(shared: World) -> dict[str, Ended]:
    plans = [*PLANS, "charge_opaquely", "look_opaquely"]
    return dict(zip(plans, await asyncio.gather(*(outcome(shared, plan) for plan in plans)), strict=True))


def test_a_run_completes_whatever_its_tools_do(after: dict[str, Ended]) -> None:
    assert {(run.status, run.response) for run in after.values()} == {("complete", f"done {plan}") for plan in after}


@pytest.mark.parametrize("plan", PLANS)
def test_a_handler_runs_as_often_as_its_tool_allows_and_the_model_reads_the_last_outcome(
    after: dict[str, Ended], plan: str
) -> None:
    assert (after[plan].effects, after[plan].results) == PLANS[plan]


@pytest.mark.parametrize("plan", ["charge_opaquely", "look_opaquely"])
def test_a_result_that_cannot_be_written_is_lost_and_the_call_is_not_repeated(
    after: dict[str, Ended], plan: str
) -> None:
    (result,) = after[plan].results
    assert after[plan].effects == 1
    assert result.startswith(f'failed: {{"error": "Tool \\"{plan}\\" ran, but its result was lost: ')


@pytest.mark.asyncio(loop_scope="module")
async def test_a_terminal_error_stops_the_run_if_the_agent_says_so(shared: World) -> None:
    run = await shared.start("stops", "charge_closed charge", agent="stopper")
    result = await run.result()
    assert (result["status"], shared.count("effects", "stops"), shared.model_calls("stops")) == ("error", 1, [0])
    assert "account closed" in result["response"]
    assert await shared.results("stops") == [CLOSED]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_terminal_error_fails_the_run_if_the_agent_says_so(shared: World) -> None:
    run = await shared.start("fails", "charge_closed+charge charge", agent="failer")
    with pytest.raises(WorkflowFailureError) as failure:
        await run.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable, cause.message) == ("TerminalError", True, "account closed")
    assert cause.details == ({"status_code": 402, "metadata": {"account": 7}},)
    assert (shared.effects("fails.1"), shared.effects("fails.2"), shared.model_calls("fails")) == (1, 0, [0])
    not_run = 'cancelled: {"error": "Not run: call fails.1 of tool charge_closed failed for good"}'
    assert await shared.results("fails") == [CLOSED, not_run]
