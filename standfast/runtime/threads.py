"""Runs plain functions beside the event loop."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any


def begin_in_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Begin a function that may block in its own thread; cancelling the future abandons it.

    In a pool it could wait for a thread, and start after its timeout had already been reported. The thread is a daemon,
    so that a hanging function does not keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            report, value = future.set_result, context.run(call)
        except StopIteration:  # a future cannot carry it
            report, value = future.set_exception, RuntimeError("the tool raised StopIteration")
        except BaseException as error:
            report, value = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nothing waits for the result
            loop.call_soon_threadsafe(lambda: None if future.done() else report(value))

    threading.Thread(target=work, name="tool", daemon=True).start()
    return future


async def in_thread(call: Callable[[], Any], *, limit: asyncio.Timeout) -> Any:
    """Run a function in a thread, and return its result.

    When the run is cancelled, the function is awaited: it cannot be stopped, and an outcome that will soon be known
    should not be called unknown. After `limit` it is abandoned.
    """
    future = begin_in_thread(call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        try:
            if limit.expired():
                raise
            await asyncio.wait({future})
        except asyncio.CancelledError:
            future.cancel()  # abandoned: nothing reads its result
            raise
        return future.result()
