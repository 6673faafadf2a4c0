"""Resumes the paused runs of a namespace independently: a run that refuses does not block the others.

There may be thousands, each of which a worker may have to load first. The number of concurrent resumes adapts to the
server and the workers: more while they are quick, fewer while they are slow. Runs that did not confirm in time are
asked once more, with the same id, after all others.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import InputError, NotConfirmedError, StandfastError
from standfast.messages import JSONObject
from standfast.temporal.client.clients import StandfastClient
from standfast.temporal.client.runs.descriptions import runs_query

_FIRST, _MOST = 8.0, 32.0  # concurrent runs, initially and at most
_QUICK, _SLOW = 1.5, 4.0  # seconds for one resume, below or above which the concurrency grows or shrinks
_PASSES = 3  # passes over the runs; later passes are for runs that have not confirmed
_TRIES, _PAUSE, _LONGEST = 8, 1.0, 30.0  # while the server refuses; seconds between attempts, doubled each time
_OF_ALL = (RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNAVAILABLE)  # faults that no run causes
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resumed:
    """The outcome of resuming a run.

    Args:
        outcome: "done"; "gone" if the run no longer had such a pause; "failed" if it is not known to count.
        why: the reason of the failure.
    """

    workflow_id: str
    outcome: Literal["done", "gone", "failed"]
    why: str | None = None


async def paused_runs(people: StandfastClient, *, query: str | None = None, name: str | None = None) -> list[str]:
    """Return the workflow ids of the runs that are paused now, the last started first.

    Args:
        query: further conditions, in Temporal's list filter language.
        name: of the pause, such as "model"; any if None.

    Raises:
        RPCError: the query is invalid, or the namespace lacks standfast's search attributes.
    """
    running = "ExecutionStatus = 'Running'" + (f" AND ({query})" if query else "")
    listed = people.client.list_workflows(runs_query(status="paused", query=running))
    runs = [run.id async for run in listed]
    if name is None:
        return runs
    are_so = await _each(runs, _Pace(), lambda run: _is_paused(people, run, name))
    return [run for run, is_so in zip(runs, are_so, strict=True) if is_so]


async def resume_each(
    people: StandfastClient,
    runs: Sequence[str],
    action: Literal["retry", "abort"] = "retry",
    *,
    name: str | None = None,
    tell: Callable[[Resumed], None] = lambda _: None,
    **given: Any,
) -> list[Resumed]:
    """Resume runs, and return the outcomes in the same order. Repeating this does not affect runs that have continued.

    Args:
        name: of the pause to end; all pauses if None.
        tell: called with each outcome as soon as it is known.
        given: further arguments of `StandfastClient.resume`.

    Raises:
        RPCError: the server is away, or too busy for too long. Reported outcomes stay valid, and the call can be
            repeated.
    """
    pace, outcomes, left, sent = _Pace(), dict[str, Resumed](), list(runs), dict[str, str]()

    async def one(run: str) -> bool:
        """Return whether the outcome for a run is known."""
        try:
            resumed = await _resume(people, run, action, name, {**given, **({"id": sent[run]} if run in sent else {})})
        except RPCError as error:
            if error.status in _OF_ALL:
                raise
            resumed = Resumed(run, "failed", str(error))
        except StandfastError as error:
            outcomes[run] = Resumed(run, "failed", str(error))
            if isinstance(error, NotConfirmedError) and error.id:
                sent[run] = error.id
            return False
        outcomes[run] = resumed
        tell(resumed)
        return True

    for _ in range(_PASSES):
        are_heard = await _each(left, pace, one)
        left = [run for run, is_heard in zip(left, are_heard, strict=True) if not is_heard]
        if not left or not any(are_heard):
            break
    for run in left:
        tell(outcomes[run])
    return [outcomes[run] for run in runs]


async def _resume(people: StandfastClient, run: str, action: Any, name: str | None, given: JSONObject) -> Resumed:
    """Resume a run.

    Raises:
        StandfastError: the outcome was not confirmed.
        RPCError: the server refuses.
    """
    try:
        await people.resume(run, action, name=name, **given)
    except InputError as error:
        return Resumed(run, "failed", str(error)) if await _is_paused(people, run, name) else Resumed(run, "gone")
    return Resumed(run, "done")


async def _is_paused(people: StandfastClient, run: str, name: str | None) -> bool:
    """Whether a run has such a pause, as far as that is known."""
    try:
        items = await people.pending(run)
    except InputError:  # it no longer exists
        return False
    except (StandfastError, RPCError) as error:
        if isinstance(error, RPCError) and error.status in _OF_ALL:
            raise
        return True
    return any(item["kind"] == "pause" and name in (None, item["name"]) for item in items)


class _Pace:
    """The number of concurrent resumes."""

    def __init__(self) -> None:
        self._most, self._busy = _FIRST, 0
        self._free = asyncio.Condition()

    async def take(self, do: Callable[[], Awaitable[T]]) -> T:
        """Run an action when it is its turn, and again if the server is too busy for it.

        Raises:
            RPCError: the server does not accept it.
        """
        async with self._free:
            await self._free.wait_for(lambda: self._busy < self._most)
            self._busy += 1
        try:
            for tries in range(_TRIES - 1):
                begun = time.monotonic()
                try:
                    done = await do()
                except RPCError as error:
                    if error.status != RPCStatusCode.RESOURCE_EXHAUSTED:
                        raise
                    self._most = max(1.0, self._most / 2)
                    await asyncio.sleep(random.uniform(0.5, 1.5) * min(_PAUSE * 2**tries, _LONGEST))
                else:
                    self._learn(time.monotonic() - begun)
                    return done
            return await do()
        finally:
            async with self._free:
                self._busy -= 1
                self._free.notify_all()

    def _learn(self, seconds: float) -> None:
        if seconds < _QUICK:
            self._most = min(_MOST, self._most + 1 / self._most)
        elif seconds > _SLOW:
            self._most = max(1.0, self._most - 0.5)


async def _each(runs: Sequence[str], pace: _Pace, do: Callable[[str], Awaitable[T]]) -> list[T]:
    """Run an action for each run, and return the outcomes. An error also ends the other actions."""
    doing = [asyncio.ensure_future(pace.take(partial(do, run))) for run in runs]
    try:
        return list(await asyncio.gather(*doing))
    finally:
        for one in doing:
            one.cancel()
