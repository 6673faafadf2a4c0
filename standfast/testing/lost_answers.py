"""Checks of writes that are repeated because their outcome is unknown to the writer: nothing is written twice."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from standfast.errors import SessionConflictError, StoreError
from standfast.stores import Append, DecisionRecord
from standfast.testing.expectations import contents, expect, say, session
from standfast.testing.holds import within
from standfast.testing.ledgers import running
from standfast.testing.rivals import Rivals
from standfast.testing.workers import at_work

Interrupt = Callable[[Any], Awaitable[None]]
_BATCH = 20


async def _write(store: Any, name: str, number: int) -> None:
    """Make the write of a session with this number, which may be a repetition."""
    last = await store.append_messages_atomic(
        name, say(f"{number}", f"{number}"), session(name), write_key=f"{number}", expected_seq=2 * number
    )
    expect(last >= 2 * number + 2, True, "whether the number of the last message counts the write")


async def _step(store: Any, name: str, number: int) -> None:
    """Make all writes of a step, each of which may be a repetition."""
    owner, key = f"{name}/{number}", f"{number}"
    entry = await store.claim(name, key, owner=owner, arguments_hash="h", running=running(owner))
    expect(entry.owner, owner, "the owner, according to its own claim")
    expect(await store.finish(name, key, owner=owner, state="done", result=f"r{number}"), True, "finish")
    appends = [
        Append(session(name), say(f"{number}"), f"{number}/a", 2 * number),
        Append(session(name), say(f"{number}"), f"{number}/b", 2 * number + 1),
    ]
    reply = await store.append_reply(appends, journal_key=name, turn=number, reply=f"r{number}")
    expect(reply, f"r{number}", "append_reply")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    await store.record_decision(DecisionRecord(journal_key=name, gate="g", at=at, decision="approve", key=key))
    expect(await store.begin_work(at_work(name)), at_work(name), "begin_work")
    await store.add_worker(name)


async def _repeat(store: Any, write: Any, name: str, numbers: list[int]) -> None:
    for number in numbers:
        await write(store, name, number)


async def _expect_once(store: Any, write: Any, name: str, count: int) -> None:
    expect(await contents(store, name), [f"{n}" for n in range(count) for _ in range(2)], f"messages of {name}")
    expect((await store.load_session(name)).last_seq, 2 * count, "last_seq")
    if write is _step:
        expect([one.key for one in await store.load_decisions(name)], [f"{n}" for n in range(count)], "decisions")
        expect((await store.list_workers()).count(name), 1, "how often the worker is known")
        expect([call for call in await store.running_calls() if call.owner.startswith(f"{name}/")], [], "running calls")


async def _kill_in_the_middle(store: Any, rivals: Rivals, write: Any) -> None:
    process = rivals.processes[0]
    await rivals.processes[1].do(_repeat, write, "s2", list(range(_BATCH)))
    rivals.processes[1].kill()
    await _expect_once(store, write, "s2", _BATCH)  # acknowledged writes stay
    await process.do(_repeat, write, "s1", list(range(_BATCH)))
    dying = asyncio.create_task(process.do(_repeat, write, "s1", list(range(_BATCH, 100 * _BATCH))))

    async def has_begun() -> bool:
        return dying.done() or len(await store.load_messages("s1", after=2 * _BATCH)) > 2

    await within(has_begun, "messages of another process")
    process.kill()
    ended = (await asyncio.gather(dying, return_exceptions=True))[0]
    expect(type(ended).__name__, "ProcessEndedError", "the outcome of its write")
    written = await contents(store)
    expect(written[::2], written[1::2], "the first and second message of each write")
    count = len(written) // 2
    expect(written[: 2 * count : 2], [f"{number}" for number in range(count)], "the written messages")
    again = count + 2  # more than the write whose outcome its writer did not learn
    await _repeat(store, write, "s1", list(range(again)))
    await _expect_once(store, write, "s1", again)


async def writes_of_a_process_that_was_killed_are_made_again_and_there_once(store: Any, rivals: Rivals) -> None:
    await _kill_in_the_middle(store, rivals, _write)


async def steps_of_a_process_that_was_killed_are_made_again_and_there_once(store: Any, rivals: Rivals) -> None:
    await _kill_in_the_middle(store, rivals, _step)


async def _until_made(store: Any, write: Any, name: str, number: int) -> None:
    async def is_made() -> bool:
        try:
            await write(store, name, number)
        except StoreError:
            return False
        return True

    await within(is_made, "a write that is tried again and again after an interruption")


async def _interrupt_again_and_again(store: Any, interrupt: Interrupt, write: Any) -> None:
    names = [f"s{number}" for number in range(8)]

    async def write_all(name: str) -> None:
        for number in range(_BATCH):
            await _until_made(store, write, name, number)

    writing = asyncio.gather(*map(write_all, names))
    try:
        for number in range(3):

            async def has_gone_on(least: int = number * _BATCH // 4) -> bool:
                return writing.done() or len(await _contents(store, names[0])) > 2 * least

            await within(has_gone_on, "writes after an interruption")
            await interrupt(store)
        await writing
    finally:
        writing.cancel()
    for name in names:
        await _expect_once(store, write, name, _BATCH)


async def _contents(store: Any, name: str) -> list[str]:
    try:
        return await contents(store, name)
    except StoreError:  # it was just interrupted
        return []


async def writes_that_are_interrupted_are_made_again_and_there_once(
    store: Any, rivals: Rivals, interrupt: Interrupt
) -> None:
    await _interrupt_again_and_again(store, interrupt, _write)


async def steps_that_are_interrupted_are_made_again_and_there_once(
    store: Any, rivals: Rivals, interrupt: Interrupt
) -> None:
    await _interrupt_again_and_again(store, interrupt, _step)


async def who_has_lost_a_session_to_another_does_not_write_to_it(
    store: Any, rivals: Rivals, interrupt: Interrupt
) -> None:
    await _write(store, "s1", 0)

    async def append() -> None:
        await store.append_messages_atomic("s1", say("lost"), session(), expected_seq=2)

    async def save() -> None:
        await store.save_session(session(state='"lost"'))

    await _lose(store, rivals, interrupt, "s1", [append, save])
    await _until_made(store, _write, "s1", 1)
    await _expect_once(store, _write, "s1", 2)


async def a_worker_that_others_take_for_dead_begins_no_call(store: Any, rivals: Rivals, interrupt: Interrupt) -> None:
    async def claim() -> None:
        await store.claim("run", "1", owner="me", arguments_hash="h", running=running("me"))

    async def begin_call() -> None:
        await store.begin_call(running("me"))

    await _lose(store, rivals, interrupt, running("me").worker, [claim, begin_call])
    await _until_made(store, _step, "s1", 0)


async def _lose(store: Any, rivals: Rivals, interrupt: Interrupt, name: str, writes: list[Any]) -> None:
    """Interrupt a holder. If another then holds the name, these writes are refused, and later it is held again."""
    expect(await store.hold(name), True, "hold")
    await interrupt(store)
    if await _try(rivals.other, name):
        for write in writes:
            try:
                await write()
            except (StoreError, SessionConflictError):
                continue
            raise AssertionError(f"{write.__name__} was done by a holder of {name} that has lost its hold to another")
        await rivals.other.let_go(name)
    await store.let_go(name)
    await within(lambda: _try(store, name), "a hold after an interruption")
    expect(await _try(rivals.other, name), False, "hold by another object")


async def _try(store: Any, name: str) -> bool:
    try:
        held: bool = await store.hold(name)
    except StoreError:
        return False
    return held


KILLED_WRITERS = [writes_of_a_process_that_was_killed_are_made_again_and_there_once]
KILLED_STEPS = [steps_of_a_process_that_was_killed_are_made_again_and_there_once]
INTERRUPTED_WRITES = [writes_that_are_interrupted_are_made_again_and_there_once]
INTERRUPTED_STEPS = [steps_that_are_interrupted_are_made_again_and_there_once]
LOST_SESSIONS = [who_has_lost_a_session_to_another_does_not_write_to_it]
LOST_WORKERS = [a_worker_that_others_take_for_dead_begins_no_call]
