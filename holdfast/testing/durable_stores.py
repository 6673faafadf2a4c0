"""What a durable store must do beyond any other: atomic writes, and a ledger of calls and replies."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from holdfast.checkpoints import Question
from holdfast.errors import InputError, SessionConflictError
from holdfast.messages import Message
from holdfast.testing.expectations import contents, expect, expect_error, say, session


async def an_atomic_append_makes_the_session_and_its_messages_visible_together(store: Any) -> None:
    expect(store.durable, True, "durable")
    last = await store.append_messages_atomic("s1", say("a", "b"), session(state='{"n": 1}'), expected_seq=0)
    expect(last, 2, "the last number")
    expect((await store.load_session("s1")).state, '{"n": 1}', "state")
    expect(await contents(store), ["a", "b"], "load_messages")


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
        "a writer that knows of the first write only",
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


async def a_call_is_claimed_once(store: Any) -> None:
    first = await store.claim("run", "1", owner="me", arguments_hash="h")
    expect((first.state, first.owner), ("claimed", "me"), "the first claim")
    second = await store.claim("run", "1", owner="you", arguments_hash="h")
    expect((second.state, second.owner), ("claimed", "me"), "the second claim")
    other = await store.claim("another-run", "1", owner="you", arguments_hash="h")
    expect(other.owner, "you", "the same call key in another run")


async def a_claim_with_other_arguments_is_refused(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    await expect_error(InputError, store.claim("run", "1", owner="you", arguments_hash="other"), "claim")


async def only_the_owner_of_a_claim_records_its_result(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    expect(await store.finish("run", "1", owner="you", state="done", result="x"), False, "finish by another")
    expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "finish by the owner")
    expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "the same once more")
    expect(await store.finish("run", "1", owner="me", state="failed", result="x"), False, "another result")
    entry = await store.claim("run", "1", owner="you", arguments_hash="h")
    expect((entry.state, entry.result), ("done", "r"), "what a later claim finds")


async def settling_fences_a_call_that_never_started(store: Any) -> None:
    expect((await store.settle("run", "1")).state, "abandoned", "settle without a claim")
    late = await store.claim("run", "1", owner="late", arguments_hash="h")
    expect((late.state, late.owner), ("abandoned", None), "the late starter's claim")
    expect(await store.finish("run", "1", owner="late", state="done", result="x"), False, "its result")


async def settling_reports_what_is_known(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    expect((await store.settle("run", "1")).state, "claimed", "settle while it may be running")
    await store.finish("run", "1", owner="me", state="failed", result="r")
    entry = await store.settle("run", "1")
    expect((entry.state, entry.result), ("failed", "r"), "settle when it has ended")


async def a_safe_call_can_be_taken_over(store: Any) -> None:
    await store.claim("run", "1", owner="dead", arguments_hash="h")
    expect((await store.take_over("run", "1", owner="me")).owner, "me", "the owner")
    expect(await store.finish("run", "1", owner="dead", state="done", result="x"), False, "finish by the dead one")
    expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "finish by the new one")


async def the_first_reply_of_a_turn_is_kept(store: Any) -> None:
    expect(await store.load_reply("run", 1), None, "load_reply")
    expect(await store.save_reply("run", 1, "first"), "first", "save_reply")
    expect(await store.save_reply("run", 1, "second"), "first", "save_reply again")
    expect(await store.load_reply("run", 1), "first", "load_reply")
    expect(await store.load_reply("run", 2), None, "load_reply of another turn")


ATOMIC_WRITES = [
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
LEDGER = [
    a_call_is_claimed_once,
    a_claim_with_other_arguments_is_refused,
    only_the_owner_of_a_claim_records_its_result,
    settling_fences_a_call_that_never_started,
    settling_reports_what_is_known,
    a_safe_call_can_be_taken_over,
    the_first_reply_of_a_turn_is_kept,
]
