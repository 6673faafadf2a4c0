"""Checks of a store's records of workers, and of the sessions that they work on."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

from standfast.errors import SessionConflictError
from standfast.messages import JSONObject, Message
from standfast.stores import Append, AtWork, Session
from standfast.testing.expectations import expect

_CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def at_work(session_id: str = "s1", workflow_id: str = "a/s1", journal_key: str = "r1") -> AtWork:
    return AtWork(session_id=session_id, namespace="default", workflow_id=workflow_id, journal_key=journal_key)


async def one_workflow_is_at_work_on_a_session(store: Any) -> None:
    first, second = at_work(), at_work(workflow_id="b/s1", journal_key="r2")
    expect(await store.begin_work(first), first, "begin_work")
    expect(await store.begin_work(first), first, "the same again")
    expect(await store.begin_work(second), first, "begin_work by another")
    expect(await store.begin_work(second, instead_of=first), second, "begin_work instead of the first")
    expect(
        await store.begin_work(first, instead_of=at_work(journal_key="r0")),
        second,
        "begin_work instead of one that is gone",
    )
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
    expect(await store.find_work("s4"), [], "find_work of a session that no run has begun")


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
    expect(await store.hold_scope(), scope, "hold_scope, read again")


async def a_run_that_another_has_followed_writes_nothing(store: Any) -> None:
    """An ended run's activity may still be running, and its write must not break the next run's."""
    first, second = at_work(journal_key="r1"), at_work(journal_key="r2")
    said = [Message(role="user", content="hi")]

    def of(run: str | None, seq: int) -> JSONObject:
        key = None if run is None else f"{run}/1"
        session = Session(id="s1", agent_name="a", workflow_id=run, journal_key=key, created_at=_CREATED)
        return {"session": session, "messages": said, "write_key": f"{run}/{seq}", "expected_seq": seq}

    async def write(run: str | None, seq: int) -> int:
        return int(await store.append_messages_atomic("s1", **of(run, seq)))

    async def refused(what: str, writing: Awaitable[object]) -> None:
        try:
            await writing
        except SessionConflictError as error:
            expect(second.workflow_id in str(error), True, f"{what} names the workflow at work")
        else:
            raise AssertionError(f"{what} was not refused")

    await store.begin_work(second)
    await refused("the first write to a session", write("r1", 0))
    expect(await store.load_session("s1"), None, "the session after a refused write")
    expect(await write("r2", 0), 1, "the write of the run at work")
    await refused("a write", write("r1", 1))
    reply = store.append_reply([Append(**of("r1", 1))], journal_key="r1", turn=1, reply="late")
    await refused("a model's reply", reply)
    expect(await store.load_reply("r1", 1), None, "the refused reply")
    expect(len(await store.load_messages("s1")), 1, "messages after refused writes")
    kept = await store.append_reply([Append(**of("r2", 1))], journal_key="r2", turn=1, reply="ours")
    expect(kept, "ours", "the reply of the run at work")
    expect(await write(None, 2), 3, "a write of no workflow")
    await store.begin_work(first, instead_of=second)
    expect(await write("r2", 0), 3, "a repeated write of a run that was followed since")
    await store.end_work(first)
    expect(await write("r2", 3), 4, "a write while no run is at work")
    await store.begin_work(second)
    await store.begin_work(second.ended(), instead_of=second)
    await refused("a write of a run that has ended", write("r2", 4))
    expect(await write(None, 4), 5, "an in-process write after another run has ended")


WORKERS = [
    one_workflow_is_at_work_on_a_session,
    of_many_that_begin_at_once_one_is_at_work,
    work_is_ended_by_its_own_run_alone,
    a_run_that_another_has_followed_writes_nothing,
    all_sessions_at_work_are_found_in_order,
    workers_are_known_until_they_are_dropped,
    the_scope_of_holds_says_whether_they_are_shared,
]
