"""Checks of a durable store in a process whose clock is wrong by an hour, longer than any lease."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from standfast.testing.expectations import contents, expect, say, session
from standfast.testing.rivals import Rivals, User
from standfast.testing.store_processes import StoreProcess, set_clock_ahead

_AHEAD = 3_600.0  # seconds


@asynccontextmanager
async def _process_ahead(rivals: Rivals) -> AsyncIterator[StoreProcess]:
    process = rivals.processes[0]
    there = await process.do(set_clock_ahead, _AHEAD)
    expect((there - datetime.now(UTC)).total_seconds() > _AHEAD / 2, True, "whether the other clock is ahead")
    try:
        yield process
    finally:
        await process.do(set_clock_ahead, 0)


async def a_clock_that_is_wrong_lets_the_next_writer_write(store: Any, rivals: Rivals) -> None:
    async with _process_ahead(rivals) as ahead:
        users: list[User] = [ahead, rivals.here, ahead]
        for number, user in enumerate(users):
            await user.do(_append_next, number)
        expect(await contents(store), ["0", "1", "2"], "load_messages")


async def _append_next(store: Any, number: int) -> None:
    known = await store.load_session("s1")
    made = datetime.now(UTC) if known is None else known.created_at
    last = await store.append_messages_atomic(
        "s1", say(f"{number}"), session(created_at=made), expected_seq=number, expected_version=number
    )
    expect(last, number + 1, "the number of the last message")
    expect((await store.load_session("s1")).created_at, made, "created_at")


async def a_clock_that_is_wrong_ends_no_hold(store: Any, rivals: Rivals) -> None:
    if not store.shares_holds:
        return
    async with _process_ahead(rivals) as ahead:
        pairs: list[tuple[User, User]] = [(rivals.here, ahead), (ahead, rivals.here)]
        for holder, other in pairs:
            expect(await holder.do(_hold), True, "hold")
            expect(await other.do(_hold), False, "hold by one whose clock differs by an hour")
            await holder.do(_let_go)


async def _hold(store: Any) -> bool:
    held: bool = await store.hold("s1")
    return held


async def _let_go(store: Any) -> None:
    await store.let_go("s1")


async def a_clock_that_is_wrong_gives_no_call_away(store: Any, rivals: Rivals) -> None:
    async with _process_ahead(rivals) as ahead:
        pairs: dict[str, tuple[User, User]] = {"1": (rivals.here, ahead), "2": (ahead, rivals.here)}
        for key, (first, second) in pairs.items():
            expect(await first.do(_claim, key, "first"), "first", "whose the call is")
            expect(await second.do(_claim, key, "second"), "first", "whose it is when it is claimed again")
            expect(await second.do(_leave, key, "second"), "claimed", "its state after others settled and abandoned it")
            expect(await first.do(_finish, key, "first"), True, "finish by its owner")
        await rivals.here.do(_claim, "3", "first")
        expect(await ahead.do(_take_over, "3", "second"), "second", "the owner after take_over")
        expect(await rivals.here.do(_finish, "3", "first"), False, "finish by the owner before")


async def _claim(store: Any, key: str, owner: str) -> Any:
    return (await store.claim("clocks", key, owner=owner, arguments_hash="h")).owner


async def _leave(store: Any, key: str, owner: str) -> Any:
    await store.settle("clocks", key)
    return (await store.abandon("clocks", key, owner=owner)).state


async def _take_over(store: Any, key: str, owner: str) -> Any:
    return (await store.take_over("clocks", key, owner=owner)).owner


async def _finish(store: Any, key: str, owner: str) -> Any:
    return await store.finish("clocks", key, owner=owner, state="done", result="r")


WRONG_CLOCKS = [a_clock_that_is_wrong_lets_the_next_writer_write]
WRONG_CLOCKS_AND_HOLDS = [a_clock_that_is_wrong_ends_no_hold]
WRONG_CLOCKS_AND_CALLS = [a_clock_that_is_wrong_gives_no_call_away]
