"""Running work is cancelled in the order in which it began, since a replay must give the same commands."""

import asyncio

from standfast.temporal.workflows.run.run_lifetime import Running


async def test_what_runs_is_cancelled_in_the_order_in_which_it_began() -> None:
    running, loop = Running(), asyncio.get_running_loop()
    handles: list[asyncio.Future[None]] = [loop.create_future() for _ in range(50)]
    cancelled: list[int] = []
    for number, handle in enumerate(handles):
        handle.add_done_callback(lambda _, number=number: cancelled.append(number))  # type: ignore[misc]
        running.add(handle)
    running.cancel()
    await asyncio.sleep(0)  # callbacks run in the loop's next turn
    assert cancelled == list(range(50))
