"""Other processes that use the tested store, some of which are killed."""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, BinaryIO

Work = Callable[..., Awaitable[Any]]  # its first parameter is the store

_SERVE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from standfast.testing.store_processes import serve
serve()
"""


class StoreProcess:
    """A process with its own object over the data of a store. It ends with this one.

    It must be able to import every requested function by name.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process lives
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._asking = threading.Lock()  # a failed check may leave a thread waiting for a reply
        self.kill = weakref.finalize(self, _kill, self._process, self._errors)

    @property
    def is_alive(self) -> bool:
        return bool(self.kill.alive) and self._process.poll() is None

    async def open(self, factory: Callable[[], Any]) -> None:
        """Open the store there, after closing the previous one."""
        try:
            pickle.loads(pickle.dumps(factory))
        except Exception as error:
            raise AssertionError(
                f"reopen(store) returned {factory!r}, which cannot be sent to another process ({error}). Return a "
                "function of a module, or functools.partial of one with the arguments that it needs"
            ) from error
        await self._ask(None, factory)

    async def close(self) -> None:
        """Close the store there."""
        await self._ask(None, None)

    async def do(self, work: Work, *arguments: Any) -> Any:
        """Return the result of `work(store, *arguments)` there."""
        return await self._ask(work, arguments)

    async def _ask(self, work: Work | None, arguments: Any) -> Any:
        return await asyncio.to_thread(self._exchange, pickle.dumps((work, arguments)))

    def _exchange(self, request: bytes) -> Any:
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            with self._asking:
                requests.write(request)
                requests.flush()
                is_done, reply = pickle.load(replies)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise ProcessEndedError(f"The other process has ended: {self._said()}") from error
        if not is_done:
            raise AssertionError(f"In another process:\n{reply}")
        return reply

    def _said(self) -> str:
        with contextlib.suppress(ValueError):  # closed, since it was killed
            self._errors.seek(0)
            return self._errors.read()[-4_000:].decode(errors="replace") or "it returned nothing"
        return "it was killed"


class ProcessEndedError(AssertionError):
    """The other process has ended, or was killed."""


class StoreProcesses:
    """The processes that the checks of one suite share, since a start takes longer than most checks."""

    def __init__(self) -> None:
        self._started: list[StoreProcess] = []

    def take(self, count: int) -> list[StoreProcess]:
        """Return this many processes; those that were killed are replaced."""
        self._started = [process for process in self._started if process.is_alive]
        while len(self._started) < count:
            self._started.append(StoreProcess())
        return self._started[:count]


def _kill(process: "subprocess.Popen[bytes]", errors: Any) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, errors):
        with contextlib.suppress(OSError):  # the data that was not sent yet
            if pipe is not None:
                pipe.close()


# --- in the other process ---


def serve() -> None:
    """Run the requested functions until no more requests can arrive."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a store that prints does not corrupt the replies
    asyncio.run(_serve(requests, replies))


async def _serve(requests: BinaryIO, replies: BinaryIO) -> None:
    store: Any = None
    while True:
        try:
            work, arguments = await asyncio.to_thread(pickle.load, requests)
        except EOFError:
            return
        try:
            if work is None:
                await close(store)
                store, reply = (None if arguments is None else arguments()), None
            else:
                reply = await work(store, *arguments)
            answer = pickle.dumps((True, reply))
        except Exception:
            answer = pickle.dumps((False, traceback.format_exc()))
        replies.write(answer)
        replies.flush()


async def close(store: Any) -> None:
    """Close a store, if it can be closed."""
    if hasattr(store, "close"):
        await store.close()


async def set_clock_ahead(store: Any, seconds: float) -> datetime:
    """Set the clock of this process ahead for all Python code, and return the new time; 0 resets it."""
    real_time, real_now = _REAL

    def now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
        return real_now(tz) + timedelta(seconds=seconds)

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: int((real_time() + seconds) * 1e9)
    # Modules refer to the class itself, whose methods cannot be replaced in another way.
    methods: Any = gc.get_referents(datetime.__dict__)[0]
    methods["now"] = classmethod(now)
    methods["utcnow"] = classmethod(lambda cls: now(cls, UTC).replace(tzinfo=None))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))
    return datetime.now(UTC)


_REAL = time.time, datetime.now
