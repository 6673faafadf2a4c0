"""Runs handlers within their time limits, and plain functions beside the event loop."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from standfast.agent_loop import ToolFacts, cut_off
from standfast.tools import Outcome, ToolContext


async def run_bounded(
    ask: Callable[..., Awaitable[Outcome | None]],
    tool: ToolFacts,
    name: str,
    arguments: dict[str, Any] | str,
    context: ToolContext,
    *,
    limit: int,
    seconds: float | None,
) -> Outcome | None:
    """Run one attempt, or `verify` once, and cut it off after `seconds`.

    Args:
        ask: the tool's `attempt` or `ask_whether_it_happened`.
        tool: decides what a timeout means.
        limit: the largest result in bytes.
    """
    try:
        async with asyncio.timeout(seconds) as until:
            return await ask(arguments, context, limit=limit, in_thread=partial(in_thread, limit=until))
    except TimeoutError:
        assert seconds is not None
        return cut_off(tool, name, seconds)


async def in_thread(call: Callable[[], Any], *, limit: asyncio.Timeout) -> Any:
    """Run a function that may block in a thread of its own, and return what it returns.

    In a pool it could wait for a place, and start after its timeout had already been reported. The thread is a daemon,
    because a function that hangs must not keep the process from ending. When the run is cancelled, the
    function is waited for: it cannot be stopped, and an outcome that will soon be known should not be called unknown.
    After `limit` it is abandoned.
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
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits for the result
            loop.call_soon_threadsafe(lambda: None if future.done() else report(value))

    threading.Thread(target=work, name="tool", daemon=True).start()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        try:
            if limit.expired():
                raise
            await asyncio.wait({future})
        except asyncio.CancelledError:
            future.cancel()  # abandoned: nobody reads its result
            raise
        return future.result()
