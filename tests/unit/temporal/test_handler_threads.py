"""The event loop that runs users' code."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from standfast.temporal.activities.worker.agent_host import HandlerThread


@pytest.fixture
async def thread() -> AsyncIterator[HandlerThread]:
    made = HandlerThread()
    made.start()
    yield made
    made.stop()


async def test_what_cannot_begin_in_time_does_not_begin_later(thread: HandlerThread) -> None:
    """A call that waits while another blocks the thread is settled as lost after its time, and may run again."""
    begun: list[str] = []
    blocked, free = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        free.wait()

    async def begin(what: str) -> None:
        begun.append(what)

    blocking = asyncio.ensure_future(thread.run(block()))
    await asyncio.to_thread(blocked.wait)
    with pytest.raises(TimeoutError):
        await thread.run(begin("late"), seconds=0.01)
    free.set()
    await blocking
    await thread.run(begin("next"))
    assert begun == ["next"]


async def test_what_has_not_ended_in_time_is_cancelled(thread: HandlerThread) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.ensure_future(thread.run(wait(), seconds=0.05))
    await asyncio.to_thread(begun.wait)
    with pytest.raises(TimeoutError):
        await running
    assert await asyncio.to_thread(cancelled.wait, 10)


@pytest.mark.parametrize("error", [KeyboardInterrupt("no"), SystemExit("no")], ids=repr)
async def test_what_would_end_the_worker_ends_neither_the_thread_nor_its_caller(
    thread: HandlerThread, error: BaseException
) -> None:
    async def raises() -> None:
        raise error

    async def begin() -> str:
        task = asyncio.ensure_future(raises())
        await asyncio.wait({task})
        return str(task.exception())

    with pytest.raises(RuntimeError, match=f"{type(error).__name__}: no"):
        await thread.run(raises())
    assert await thread.run(begin()) == "no"
