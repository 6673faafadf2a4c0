"""Repeats writes until the store accepts them, and shows people those that take long."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio import activity
from temporalio.service import RPCError

from standfast.errors import StoreError
from standfast.messages import cut, error_text
from standfast.temporal.wire import names

T = TypeVar("T")

_DELAYS = (0.05, 0.2, 0.5, 1.0)  # seconds between attempts at a write; the last is repeated
_LAST_TRIES = 5  # of a write whose activity has been cancelled
_SAID = 2_000  # characters of the reason why a store takes nothing


async def retry_write(write: Callable[[], Awaitable[T]], *, tries: int | None = None) -> T:
    """Await a write that does no harm when it is made twice, such as the result of an effect that is done.

    A store that refuses is asked again: `tries` times, or for as long as the activity may take. If a cancel breaks off
    the write, it is made again, to know its result.
    """
    left = tries
    for attempt in itertools.count():
        try:
            return await write()
        except asyncio.CancelledError:
            left = _LAST_TRIES if left is None else left
        except StoreError:
            left = None if left is None else left - 1
            if left is not None and left <= 0:
                raise
            try:
                await asyncio.sleep(_DELAYS[min(attempt, len(_DELAYS) - 1)])
            except asyncio.CancelledError:
                left = _LAST_TRIES if left is None else left
    raise AssertionError


async def write_in_sight(write: Callable[[], Awaitable[T]], reference: Mapping[str, Any], patience: float) -> T:
    """Retry a write of data that would be lost if the activity gave up; its run tells people after a while.

    Args:
        reference: that of the activity, by which the run knows it; see `names.holder`.
        patience: seconds until the run is told; it then shows that the store is away until the activity ends.
    """
    since, why = datetime.now(UTC), "the store does not answer"

    async def noted() -> T:
        nonlocal why
        try:
            return await write()
        except StoreError as error:
            why = error_text(error)
            raise

    async def tell() -> None:
        info = activity.info()
        run = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        holder = names.holder(info.activity_type, reference)
        told = {"holder": holder, "message": cut(why, _SAID), "since": since.isoformat()}
        with suppress(RPCError):  # the write goes on, shown or not
            await run.signal(names.STORE_WAITS, told)

    with AfterAWhile(tell, patience) as begun:
        try:
            return await retry_write(noted)
        finally:
            for telling in begun:
                telling.cancel()


A_WHILE = 0.5  # seconds; under load, quick work takes 0.1, and would pay for being slow


@dataclass(slots=True)
class AfterAWhile:
    """Begin work when a block has lasted for a while; yields a list that contains the task once it has begun."""

    work: Callable[[], Coroutine[Any, Any, None]]
    seconds: float | None = None
    _begun: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _timer: asyncio.TimerHandle = field(init=False)

    def __enter__(self) -> list[asyncio.Task[None]]:
        seconds = A_WHILE if self.seconds is None else self.seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)
        return self._begun

    def _begin(self) -> None:
        self._begun.append(asyncio.ensure_future(self.work()))

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
