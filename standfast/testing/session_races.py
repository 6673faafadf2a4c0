"""Checks of a durable store's sessions with concurrent writers: other objects, threads and processes."""

from typing import Any

from standfast.errors import SessionConflictError
from standfast.testing.expectations import contents, expect, expect_same, say, session
from standfast.testing.rivals import Rivals

_ALL = 6  # contenders of a race


async def _append_what_follows(store: Any, who: int, number: int) -> int | None:
    """Append to a new session, and in the next round to the existing one."""
    session_id, known = f"s{number // 2}", 2 * (number % 2)
    write = store.append_messages_atomic(
        session_id, say(f"{who}", f"{who}"), session(session_id, state=f"[{who}]"), expected_seq=known
    )
    try:
        last: int = await write
    except SessionConflictError:
        return None
    return last


async def of_many_writers_that_know_the_same_messages_one_writes(store: Any, rivals: Rivals) -> None:
    async def check(number: int, lasts: list[int | None]) -> None:
        session_id, known = f"s{number // 2}", 2 * (number % 2)
        won = [who for who, last in enumerate(lasts) if last is not None]
        expect(len(won), 1, f"how many of {lasts} wrote after message {known}")
        expect(lasts[won[0]], known + 2, "the number of the last message")
        expect((await contents(store, session_id))[known:], [str(won[0])] * 2, "what was written")

    await rivals.race(_append_what_follows, check)


async def _save_what_follows(store: Any, who: int, number: int) -> bool:
    try:
        await store.append_messages_atomic(
            "s1", [], session(state=f"[{number}, {who}]"), expected_seq=0, expected_version=number
        )
    except SessionConflictError:
        return False
    return True


async def of_many_writers_that_know_the_same_version_one_writes(store: Any, rivals: Rivals) -> None:
    async def check(number: int, wrote: list[bool]) -> None:
        expect(sum(wrote), 1, f"how many of {wrote} wrote to version {number}")
        kept = await store.load_session("s1")
        expect((kept.version, kept.state), (number + 1, f"[{number}, {wrote.index(True)}]"), "version and state")

    await rivals.race(_save_what_follows, check)


async def _append_once(store: Any, who: int, number: int) -> int:
    last: int = await store.append_messages_atomic(
        "s1", say(f"{number}", f"{number}"), session(), write_key=f"k{number}", expected_seq=2 * number
    )
    return last


async def a_write_that_is_repeated_while_it_is_made_is_made_once(store: Any, rivals: Rivals) -> None:
    async def check(number: int, lasts: list[int]) -> None:
        expect_same(lasts, "the number of the last message, as each who made the write heard it")
        expect((await store.load_session("s1")).version, number + 1, "version")

    await rivals.race(_append_once, check)
    expect(await contents(store), [f"{number}" for number in range(rivals.rounds) for _ in range(2)], "load_messages")


async def _append_or_read(store: Any, who: int, number: int) -> Any:
    if who % 2:
        return [message.content for message in await store.load_messages("s1")]
    return await store.append_messages_atomic("s1", say(*[f"{number} {who}"] * 3), session())


async def writes_of_many_are_whole_and_none_is_lost(store: Any, rivals: Rivals) -> None:
    heard, written = list[int](), list[str]()

    async def check(number: int, got: list[Any]) -> None:
        for texts in got[1::2]:
            expect(len(texts) % 3, 0, f"messages of unfinished writes among {texts[-6:]}")
        heard.extend(got[::2])
        written.extend(f"{number} {who}" for who in range(0, len(got), 2))

    await rivals.race(_append_or_read, check)
    final = await contents(store)
    expect(sorted(final[::3]), sorted(written), "what was written")
    expect([final[1::3], final[2::3]], [final[::3]] * 2, "the second and third message of each write")
    kept = await store.load_session("s1")
    expect((kept.last_seq, kept.version), (3 * len(written), len(written)), "last_seq and version")
    expect(sorted(heard), [3 * (index + 1) for index in range(len(written))], "the numbers that the writers heard")


async def _append_or_prune(store: Any, who: int, number: int) -> None:
    if who % 2:
        await store.append_messages_atomic("s1", say(*[f"{number} {who}"] * 2), session())
    else:
        await store.prune_messages("s1", 4)


async def pruning_beside_writers_loses_only_what_is_old(store: Any, rivals: Rivals) -> None:
    async def check(number: int, _: list[Any]) -> None:
        kept, last = await contents(store), (await store.load_session("s1")).last_seq
        expect(last, 6 * (number + 1), "last_seq")
        # Pruned before, between or after three writes of two messages: four messages, and up to six more.
        expect(kept[::2], kept[1::2], "the first and second message of each write")
        newest = {f"{number} {who}" for who in (1, 3, 5)} - {text.content for text in await after(last - 6)}
        expect(len(kept) in range(4, 11), True, f"whether from 4 to 10 messages are kept, as {len(kept)} are")
        expect(len(newest) <= 1, True, f"whether at most one of the newest writes was pruned, as {newest} were")
        expect([one.content for one in await after(last - 4)], kept[-4:], "messages after their number")

    async def after(number: int) -> Any:
        return await store.load_messages("s1", after=number)

    await rivals.race(_append_or_prune, check)


async def _append_or_delete(store: Any, who: int, number: int) -> None:
    if who == number % _ALL:
        await store.delete_session("s1")
    else:
        await store.append_messages_atomic("s1", say(*[f"{number} {who}"] * 2), session())


async def deleting_beside_writers_leaves_a_whole_session_or_none(store: Any, rivals: Rivals) -> None:
    async def check(number: int, _: list[Any]) -> None:
        kept, written = await store.load_session("s1"), await contents(store)
        last = 0 if kept is None else kept.last_seq
        expect(len(written), last, "how many messages a session has that was deleted and made anew")
        expect(written[::2], written[1::2], "the first and second message of each write")
        await store.delete_session("s1")
        expect(await contents(store), [], "messages of a session that was deleted")

    await rivals.race(_append_or_delete, check)


SESSION_RACES = [
    of_many_writers_that_know_the_same_messages_one_writes,
    of_many_writers_that_know_the_same_version_one_writes,
    a_write_that_is_repeated_while_it_is_made_is_made_once,
    writes_of_many_are_whole_and_none_is_lost,
    pruning_beside_writers_loses_only_what_is_old,
    deleting_beside_writers_leaves_a_whole_session_or_none,
]
