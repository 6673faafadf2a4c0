"""Talks to stores from one event loop of this process, whatever calls the effects: other loops, and plain threads.

A loop that ends takes its connections along, and with them the process's name, by which others know that it lives.
"""

import asyncio
import contextvars
import os
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from standfast.effects.keys import ActivityKeys, process_of
from standfast.runtime.at_work import is_alive, scope_of
from standfast.stores.protocol import DurableStore

T = TypeVar("T")


class Keeper:
    """The event loop of a process, the names that it holds in stores, and the keys of its activities' effects."""

    def __init__(self) -> None:
        self.process, self.keys = os.getpid(), ActivityKeys()
        self._loop = asyncio.new_event_loop()
        self._names: WeakKeyDictionary[DurableStore, asyncio.Task[str]] = WeakKeyDictionary()
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        threading.Thread(target=self._loop.run_forever, name="effects", daemon=True).start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work on the loop, in the context of the caller; it goes on if nobody waits for it any more."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # whoever cancels the waiting does not cancel the work
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

    async def owner(self, store: DurableStore) -> str:
        """Return a name for an attempt that no other has, and from which others can tell whether this process lives."""
        if store not in self._names:
            self._names[store] = asyncio.ensure_future(self._hold_name(store))
        try:
            name = await asyncio.shield(self._names[store])
        except BaseException:
            self._names.pop(store, None)  # the next attempt tries again
            raise
        self._count += 1
        return f"{name}.{self._count}"

    async def _hold_name(self, store: DurableStore) -> str:
        # The scope stands last, where `scope_of` looks for it.
        name = f"effects_{socket.gethostname()[:64]}_{self.process}_{uuid4().hex[:12]}_{await store.hold_scope()}"
        await store.hold(name)
        return name


_guard = threading.Lock()
_keepers: list[Keeper] = []  # at most one of this process, behind those of processes that it was forked from


def keeper() -> Keeper:
    """Return the keeper of this process."""
    with _guard:
        if not _keepers or _keepers[-1].process != os.getpid():
            _keepers.append(Keeper())
        return _keepers[-1]


async def on_keeper(work: Coroutine[Any, Any, T]) -> T:
    """Await work on the keeper's event loop, from another."""
    return await asyncio.wrap_future(keeper().begin(work))


async def may_live(store: DurableStore, owner: str | None) -> bool:
    """Whether the process of an attempt may be alive; True where nobody can tell."""
    if owner is None:
        return False
    process = process_of(owner)
    return bool(scope_of(process)) and await is_alive(store, process, await store.hold_scope())
