"""Messages to a run without a worker: they may count later, and their sender is told that."""

import asyncio

import pytest
from support.temporal_runs import Temporal

from standfast.errors import NotConfirmedError, StandfastError


async def test_what_no_worker_takes_in_time_is_not_confirmed(temporal: Temporal) -> None:
    """It may count when there is one again: who hears nothing must look before doing it twice."""
    run = await temporal.start("unattended")
    with pytest.raises(NotConfirmedError, match=r"no worker has taken `message` within 0.5 s"):
        await temporal.people_who_wait(0.5).message(run.id, "hello")
    await run.terminate()


async def test_what_no_worker_answers_in_time_says_after_how_long(temporal: Temporal) -> None:
    run = await temporal.start("unattended")
    with pytest.raises(StandfastError, match=r"no worker has answered within 0.5 s"):
        await temporal.people_who_wait(0.5).status(run.id)
    await run.terminate()


async def test_a_caller_cancelled_earlier_learns_that_nothing_is_confirmed(temporal: Temporal) -> None:
    """Clean-up code says its last word to a run when its own task has been cancelled already."""
    run = await temporal.start("unattended")
    people = temporal.people_who_wait(0.5)
    begun = asyncio.Event()

    async def clean_up() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await people.message(run.id, "bye")

    task = asyncio.create_task(clean_up())
    await begun.wait()
    task.cancel()
    with pytest.raises(NotConfirmedError):
        await task
    again = asyncio.create_task(people.message(run.id, "bye"))
    await asyncio.sleep(0.1)
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    await run.terminate()
