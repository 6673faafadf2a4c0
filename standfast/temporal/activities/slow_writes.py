"""Shows people the writes that take long."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from temporalio import activity
from temporalio.service import RPCError

from standfast.errors import StoreError
from standfast.messages import cut, error_text
from standfast.runtime.retried_writes import retry_write
from standfast.temporal.wire import names

T = TypeVar("T")

_SAID = 2_000  # characters of the reason why a store refuses writes


async def write_in_sight(write: Callable[[], Awaitable[T]], reference: Mapping[str, Any], patience: float) -> T:
    """Retry a write whose data would be lost if the activity gave up; after a while, its run shows it to people.

    Args:
        reference: the activity's reference, by which the run knows it; see `names.holder`.
        patience: seconds until the run is notified; it then shows that the store is away until the activity ends.
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
        with suppress(RPCError):  # the write continues, shown or not
            await run.signal(names.STORE_WAITS, told)

    with AfterAWhile(tell, patience) as begun:
        try:
            return await retry_write(noted)
        finally:
            for telling in begun:
                telling.cancel()


A_WHILE = 0.5  # seconds; under load, quick work takes 0.1, and would be delayed further


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
