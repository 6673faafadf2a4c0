"""Runs user code on one long-lived event loop, in a separate thread beside the worker's loop.

A handler that blocks the worker's loop would stop its heartbeats, and the server would treat live calls as lost
(measured: 4 of 4). One loop serves all handlers for as long as the worker lives. Database and HTTP clients belong to
the loop on which they were made.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from temporalio import activity

T = TypeVar("T")


class HandlerThread:
    """A thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)  # a handler that blocks for ever must not keep the worker from exiting

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._run_until_stopped()
            for task in (tasks := asyncio.all_tasks(self._loop)):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _run_until_stopped(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):  # of a user function, whose caller gets the error
                continue
            return

    async def run(self, work: Coroutine[Any, Any, T], *, seconds: float | None = None) -> T:
        """Await a coroutine on the thread's loop. A cancel is passed on to the coroutine, and its end is awaited.

        Args:
            seconds: how long its end is awaited; then it is cancelled and abandoned, since it may ignore the cancel. A
                coroutine that could not begin because another blocks the thread does not begin later.

        Raises:
            asyncio.CancelledError: the coroutine was cancelled, and did not return a value despite that.
            RuntimeError: it raised an error that would end the worker.
            TimeoutError: it did not end in time.
        """
        here = asyncio.get_running_loop()
        ended: asyncio.Future[None] = here.create_future()
        until = None if seconds is None else here.time() + seconds
        context = contextvars.copy_context()
        task: asyncio.Task[T] | None = None

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(work, context=context)
            task.add_done_callback(end)

        def end(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # its loop was closed: nothing waits any more
                here.call_soon_threadsafe(tell)

        def tell() -> None:
            if not ended.done():
                ended.set_result(None)

        self._loop.call_soon_threadsafe(start)
        while not ended.done():
            try:
                await asyncio.wait({ended}, timeout=None if until is None else max(0.0, until - here.time()))
            except asyncio.CancelledError:
                self._loop.call_soon_threadsafe(lambda: task and task.cancel())
                continue
            if not ended.done():
                self._loop.call_soon_threadsafe(lambda: task and task.cancel())
                raise TimeoutError
        assert task is not None
        try:
            return task.result()
        except (KeyboardInterrupt, SystemExit) as error:  # signals sent by people come to the main thread
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def heartbeat_of(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a function by which a handler sends heartbeats for its activity, from any thread."""
    context = contextvars.copy_context()

    def heartbeat(*details: Any) -> None:
        loop.call_soon_threadsafe(lambda: context.run(activity.heartbeat, *details))

    return heartbeat
