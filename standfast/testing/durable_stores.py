"""Additional checks of durable stores: atomic writes, and a ledger of calls and replies."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from standfast.checkpoints import Question
from standfast.errors import SessionConflictError
from standfast.messages import Message, Usage
from standfast.testing.expectations import contents, expect, expect_error, say, session


async def an_atomic_append_makes_the_session_and_its_messages_visible_together(store: Any) -> None:
    expect(store.durable, True, "durable")
    last = await store.append_messages_atomic("s1", say("a", "b"), session(state='{"n": 1}'), expected_seq=0)
    expect(last, 2, "the last number")
    expect((await store.load_session("s1")).state, '{"n": 1}', "state")
    expect(await contents(store), ["a", "b"], "load_messages")
    used = Usage(input_tokens=5)
    await store.append_messages_atomic("s1", say("c"), session(usage=used), expected_seq=2)
    expect((await store.load_session("s1")).usage, used, "usage")


async def atomic_appends_stay_in_order(store: Any) -> None:
    for number, text in enumerate(("a", "b", "c", "d")):
        last = await store.append_messages_atomic("s1", say(text), session(), expected_seq=number)
        expect(last, number + 1, "the last number")
    expect(await contents(store), ["a", "b", "c", "d"], "load_messages")


async def an_atomic_append_that_cannot_be_stored_leaves_nothing(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(state="{}"))
    before = await store.load_session("s1")
    broken = Message.model_construct(role="user", content=object())
    try:
        await store.append_messages_atomic("s1", [*say("b"), broken], session(state='{"n": 2}'))
    except Exception:
        pass
    else:
        raise AssertionError("a message that cannot be stored was accepted")
    expect(await store.load_session("s1"), before, "the session")
    expect(await contents(store), ["a"], "load_messages")


async def the_same_write_key_again_changes_nothing(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), write_key="k1", expected_seq=0)
    again = await store.append_messages_atomic("s1", say("a"), session(), write_key="k1", expected_seq=0)
    expect(again, 1, "the last number")
    await store.append_messages_atomic("s1", say("b"), session(), write_key="k2", expected_seq=1)
    await store.append_messages_atomic("s1", say("a"), session(), write_key="k1", expected_seq=0)
    expect(await contents(store), ["a", "b"], "load_messages")


async def the_same_write_key_again_changes_nothing_also_without_messages(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), write_key="k1", expected_seq=0, expected_version=0)
    for _ in range(2):
        last = await store.append_messages_atomic(
            "s1", [], session(state="[1]"), write_key="k2", expected_seq=1, expected_version=1
        )
        expect(last, 1, "the last number")
    expect((await store.load_session("s1")).version, 2, "version")


async def a_write_key_belongs_to_its_session(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session("s1"), write_key="k")
    await store.append_messages_atomic("s2", say("b"), session("s2"), write_key="k")
    expect(await contents(store, "s2"), ["b"], "load_messages")


async def a_second_writer_is_refused_and_nothing_is_interleaved(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), expected_seq=0)
    for known in (0, 2):
        await expect_error(
            SessionConflictError,
            store.append_messages_atomic("s1", say("x"), session(state='{"x": 1}'), expected_seq=known),
            f"a writer that knows of {known} messages",
        )
    expect(await contents(store), ["a"], "load_messages")
    expect((await store.load_session("s1")).state, "{}", "state")


async def a_writer_of_a_session_that_was_made_anew_is_refused(store: Any) -> None:
    born = datetime(2026, 1, 1, tzinfo=UTC)
    await store.append_messages_atomic("s1", say("a"), session(created_at=born), expected_seq=0)
    await store.delete_session("s1")
    anew = session(created_at=datetime(2026, 1, 2, tzinfo=UTC))
    await store.append_messages_atomic("s1", say("b"), anew, expected_seq=0)
    await expect_error(
        SessionConflictError,
        store.append_messages_atomic("s1", say("x"), session(created_at=born), expected_seq=1),
        "a writer of the deleted session",
    )
    expect(await contents(store), ["b"], "load_messages")


async def a_write_without_messages_counts_as_a_write(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), expected_seq=0, expected_version=0)
    await store.append_messages_atomic("s1", [], session(state="[1]"), expected_seq=1, expected_version=1)
    expect((await store.load_session("s1")).version, 2, "version")
    await expect_error(
        SessionConflictError,
        store.append_messages_atomic("s1", [], session(state="[2]"), expected_seq=1, expected_version=1),
        "a writer that knows only the first write",
    )
    expect((await store.load_session("s1")).state, "[1]", "state")


async def many_writers_at_once_lose_no_number(store: Any) -> None:
    await asyncio.gather(*(store.append_messages_atomic("s1", say(f"m{n}"), session()) for n in range(20)))
    expect(sorted(await contents(store)), sorted(f"m{n}" for n in range(20)), "load_messages")
    expect((await store.load_session("s1")).last_seq, 20, "last_seq")


async def a_failed_write_does_not_take_its_neighbours_down(store: Any) -> None:
    good = [store.append_messages_atomic(f"s{n}", say("a"), session(f"s{n}"), expected_seq=0) for n in range(5)]
    bad = store.append_messages_atomic("s9", say("a"), session("s9"), expected_seq=7)
    results = await asyncio.gather(*good, bad, return_exceptions=True)
    expect(results[:5], [1] * 5, "the good writes")
    expect(type(results[5]), SessionConflictError, "the bad write")


async def open_questions_are_written_and_cleared_with_the_messages(store: Any) -> None:
    question = Question(question="When?", tool_call_id="c1")
    await store.append_messages_atomic("s1", say("a"), session(questions=(question,)))
    expect((await store.load_session("s1")).questions, (question,), "questions")
    await store.append_messages_atomic("s1", say("b"), session(), expected_seq=1)
    expect((await store.load_session("s1")).questions, None, "questions")


async def messages_after_a_number_are_loaded_alone(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a", "b", "c"), session(), expected_seq=0)
    await store.prune_messages("s1", 1)
    await store.append_messages_atomic("s1", say("d"), session(), expected_seq=3)
    for after, expected in ((0, ["c", "d"]), (2, ["c", "d"]), (3, ["d"]), (4, [])):
        loaded = [message.content for message in await store.load_messages("s1", after=after)]
        expect(loaded, expected, f"load_messages(after={after})")


async def the_same_write_key_changes_nothing_also_from_where_the_session_is_now(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), write_key="k", expected_seq=0)
    again = await store.append_messages_atomic("s1", say("b"), session(), write_key="k", expected_seq=1)
    expect((again, await contents(store)), (1, ["a"]), "the session's last number and its messages")


ATOMIC_WRITES = [
    the_same_write_key_changes_nothing_also_from_where_the_session_is_now,
    messages_after_a_number_are_loaded_alone,
    an_atomic_append_makes_the_session_and_its_messages_visible_together,
    atomic_appends_stay_in_order,
    an_atomic_append_that_cannot_be_stored_leaves_nothing,
    the_same_write_key_again_changes_nothing,
    the_same_write_key_again_changes_nothing_also_without_messages,
    a_write_key_belongs_to_its_session,
    a_second_writer_is_refused_and_nothing_is_interleaved,
    a_writer_of_a_session_that_was_made_anew_is_refused,
    a_write_without_messages_counts_as_a_write,
    many_writers_at_once_lose_no_number,
    a_failed_write_does_not_take_its_neighbours_down,
    open_questions_are_written_and_cleared_with_the_messages,
]
