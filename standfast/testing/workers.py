"""Checks of a store's records of workers, and of the sessions that they work on."""

import asyncio
from typing import Any

from standfast.stores import AtWork
from standfast.testing.expectations import expect


def at_work(session_id: str = "s1", workflow_id: str = "a/s1", journal_key: str = "r1") -> AtWork:
    return AtWork(session_id=session_id, namespace="default", workflow_id=workflow_id, journal_key=journal_key)


async def one_workflow_is_at_work_on_a_session(store: Any) -> None:
    first, second = at_work(), at_work(workflow_id="b/s1", journal_key="r2")
    expect(await store.begin_work(first), first, "begin_work")
    expect(await store.begin_work(first), first, "the same once more")
    expect(await store.begin_work(second), first, "begin_work of another")
    expect(await store.begin_work(second, instead_of=first), second, "begin_work instead of the first")
    expect(await store.begin_work(first, instead_of=at_work(journal_key="r0")), second, "instead of one that is gone")
    expect(await store.find_work("s1"), [second], "find_work")


async def of_many_that_begin_at_once_one_is_at_work(store: Any) -> None:
    marks = [at_work(journal_key=f"r{number}") for number in range(20)]
    found = await asyncio.gather(*(store.begin_work(mark) for mark in marks))
    expect(len({mark.journal_key for mark in found}), 1, "whose it is")


async def work_is_ended_by_its_own_run_alone(store: Any) -> None:
    await store.begin_work(at_work())
    await store.end_work(at_work(journal_key="r2"))
    expect(await store.find_work("s1"), [at_work()], "find_work after another's end_work")
    await store.end_work(at_work())
    await store.end_work(at_work())
    expect(await store.find_work("s1"), [], "find_work after end_work")


async def all_sessions_at_work_are_found_in_order(store: Any) -> None:
    for name in ("s2", "s1", "s3"):
        await store.begin_work(at_work(name))
    expect([work.session_id for work in await store.find_work()], ["s1", "s2", "s3"], "find_work")
    expect(await store.find_work("s4"), [], "find_work of a session that nobody has begun")


async def workers_are_known_until_they_are_dropped(store: Any) -> None:
    for name in ("w1", "w2", "w1"):
        await store.add_worker(name)
    expect(sorted(await store.list_workers()), ["w1", "w2"], "list_workers")
    await store.drop_worker("w1")
    await store.drop_worker("w1")
    expect(await store.list_workers(), ["w2"], "list_workers")


async def the_scope_of_holds_says_whether_they_are_shared(store: Any) -> None:
    scope = await store.hold_scope()
    expect(bool(scope), store.shares_holds, "whether there is a scope")
    expect(await store.hold_scope(), scope, "hold_scope once more")


WORKERS = [
    one_workflow_is_at_work_on_a_session,
    of_many_that_begin_at_once_one_is_at_work,
    work_is_ended_by_its_own_run_alone,
    all_sessions_at_work_are_found_in_order,
    workers_are_known_until_they_are_dropped,
    the_scope_of_holds_says_whether_they_are_shared,
]
