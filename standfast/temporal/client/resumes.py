"""Resumes the paused runs of a namespace, each for itself: one that refuses does not keep the others from going on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.temporal.client.clients import StandfastClient
from standfast.temporal.client.runs import runs_query

_AT_ONCE = 32
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What came of the resume of a run.

    Args:
        outcome: "done"; "gone" if the run was not paused so any more; "failed" if it is not known to count.
        why: it failed.
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
        RPCError: the query is wrong, or the namespace lacks our search attributes.
    """
    running = "ExecutionStatus = 'Running'" + (f" AND ({query})" if query else "")
    listed = people.client.list_workflows(runs_query(status="paused", query=running))
    runs = [run.id async for run in listed]
    if name is None:
        return runs
    return [
        run
        for run, is_so in zip(runs, await _each(runs, lambda run: _is_paused(people, run, name)), strict=True)
        if is_so
    ]


async def resume_each(
    people: StandfastClient,
    runs: Sequence[str],
    action: Literal["retry", "abort"] = "retry",
    *,
    name: str | None = None,
    **given: Any,
) -> list[Resumed]:
    """Resume runs, and return what came of each, in their order. To do it again changes nothing in those that go on.

    Args:
        name: of the pause that is ended; all of them if None.
        given: what else `StandfastClient.resume` takes.
    """
    return await _each(runs, lambda run: _resume(people, run, action, name, given))


async def _resume(people: StandfastClient, run: str, action: Any, name: str | None, given: dict[str, Any]) -> Resumed:
    try:
        await people.resume(run, action, name=name, **given)
    except (StandfastError, RPCError) as error:
        if isinstance(error, InputError) and not await _is_paused(people, run, name):
            return Resumed(run, "gone")
        return Resumed(run, "failed", str(error))
    return Resumed(run, "done")


async def _is_paused(people: StandfastClient, run: str, name: str | None) -> bool:
    """Whether a run is paused so, as far as anybody can say."""
    try:
        items = await people.pending(run)
    except InputError:  # it is gone
        return False
    except (StandfastError, RPCError):
        return True
    return any(item["kind"] == "pause" and name in (None, item["name"]) for item in items)


async def _each(runs: Sequence[str], do: Callable[[str], Awaitable[T]]) -> list[T]:
    few = asyncio.Semaphore(_AT_ONCE)

    async def one(run: str) -> T:
        async with few:
            return await do(run)

    return list(await asyncio.gather(*map(one, runs)))
