"""Talks to stores from one event loop of this process, whatever calls the effects: other loops, and plain threads.

A loop that ends takes its connections along, and with them the process's name, by which others know that it lives.
"""

import asyncio
import contextlib
import contextvars
import os
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from standfast.effects.keys import ActivityKeys, owner_of, process_of
from standfast.errors import InputError
from standfast.runtime.session_states import is_held, scope_of
from standfast.stores.protocol import DurableStore

T = TypeVar("T")

_A_WHILE = 5.0  # seconds in which a store that answers has taken a record


class Keeper:
    """The event loop of a process, the names that it holds in stores, and the keys of its activities' effects.

    `at_work` are the attempts of this process that claim or run a call now, by their owners' names.
    """

    def __init__(self) -> None:
        self.process, self.keys, self.at_work = os.getpid(), ActivityKeys(), set[str]()
        self._loop = asyncio.new_event_loop()
        self._names: WeakKeyDictionary[DurableStore, asyncio.Task[str]] = WeakKeyDictionary()
        self._own = f"effects_{socket.gethostname()[:64]}_{self.process}_{uuid4().hex[:12]}"
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        threading.Thread(target=self._loop.run_forever, name="effects", daemon=True).start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work on the loop, in the caller's context; it continues even if no caller waits for it any more."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # cancelling the wait does not cancel the work
        context = contextvars.copy_context()

        def start() -> None:
            task = self._loop.create_task(work, context=context)
            self._tasks.add(task)
            task.add_done_callback(end)

        def end(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                done.set_exception(RuntimeError("the event loop of effects has ended"))
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        self._loop.call_soon_threadsafe(start)
        return done

    async def owner(self, store: DurableStore, time: float | None) -> str:
        """Return a name for an attempt that no other has: others can tell from it whether the attempt still runs.

        Args:
            time: seconds after which it has been cut off; None if nothing cuts it off.
        """
        if store not in self._names:
            self._names[store] = asyncio.ensure_future(self._hold_name(store))
        try:
            name = await asyncio.shield(self._names[store])
        except BaseException:
            self._names.pop(store, None)  # the next attempt tries again
            raise
        self._count += 1
        return owner_of(name, self._count, time)

    async def lives(self, store: DurableStore, owner: str | None) -> bool | None:
        """Whether an attempt may still run the call that it has claimed; None if this process cannot tell."""
        process = process_of(owner or "")
        if process.startswith(f"{self._own}_"):
            return owner in self.at_work
        if owner is None or not (scope := scope_of(process)) or scope != await store.hold_scope():
            return None
        return await is_held(store, process)

    async def _hold_name(self, store: DurableStore) -> str:
        # The scope stands last, where `scope_of` looks for it.
        name = f"{self._own}_{uuid4().hex[:6]}_{await store.hold_scope()}"
        await store.hold(name)
        return name


_guard = threading.Lock()
_keepers: list[Keeper] = []  # at most one of this process, behind those of processes that it was forked from
if hasattr(os, "register_at_fork"):  # a lock that another thread has at the fork would never be free again
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_guard.release)


def keeper() -> Keeper:
    """Return the keeper of this process."""
    with _guard:
        if not _keepers or _keepers[-1].process != os.getpid():
            _keepers.append(Keeper())
        return _keepers[-1]


async def on_keeper(work: Coroutine[Any, Any, T]) -> T:
    """Await work on the keeper's event loop, from another loop. If this is cancelled, the work continues."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        work.close()
        raise InputError(
            "An async effect needs an asyncio event loop, and a different one, such as trio's, is running: "
            "nothing was run"
        ) from None
    return await asyncio.wrap_future(keeper().begin(work))


async def recorded(work: Coroutine[Any, Any, T], *, is_cancelled: bool = False) -> T | None:
    """Await a record that has to be made, however long the store needs to take it, and return its result.

    A caller that is cancelled waits a little longer, so that a process that ends does not take the record along. In an
    outage the keeper continues alone, for as long as the process lives.

    Args:
        is_cancelled: the caller has been cancelled, and raises that afterwards; None is returned then.
    """
    done = asyncio.wrap_future(keeper().begin(work))  # not a task, which the end of the loop would cancel
    if not is_cancelled:
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await _wait_a_while(done)
            raise
    await _wait_a_while(done)
    return None


async def _wait_a_while(done: asyncio.Future[Any]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + _A_WHILE
    while not done.done() and (left := end - loop.time()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({done}, timeout=left)
    if done.done():
        done.cancelled() or done.exception()  # which will never be retrieved
    else:
        done.cancel()  # the waiting, not the work
