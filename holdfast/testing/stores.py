"""What any store must do, as checks that its author can run.

    @pytest.mark.parametrize("check", store_suite(), ids=lambda check: check.__name__)
    async def test_my_store(check, my_store):
        await check(my_store)

Each check gets a new, empty store and raises AssertionError with what it saw.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from holdfast.checkpoints import Question
from holdfast.errors import HoldfastError, InputError, MemoryStoreNotDurableError, SessionConflictError
from holdfast.messages import Message, ToolCall, Usage
from holdfast.stores import Session

Check = Callable[[Any], Awaitable[None]]


def store_suite(*, durable: bool = True) -> list[Check]:
    """Return the checks for a durable store, or for one that only lives in memory."""
    return [*_ANY_STORE, *(_DURABLE_STORE if durable else _MEMORY_STORE)]


def _expect(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


async def _expect_error(kind: type[HoldfastError], awaitable: Awaitable[Any], what: str) -> None:
    try:
        result = await awaitable
    except kind:
        return
    raise AssertionError(f"{what}: expected {kind.__name__}, got {result!r}")


def _session(session_id: str = "s1", **fields: Any) -> Session:
    return Session(**{"id": session_id, "agent_name": "greeter", **fields})


def _say(*texts: str) -> list[Message]:
    """Turns of a user message and its answer."""
    return [Message(role="user" if index % 2 == 0 else "assistant", content=text) for index, text in enumerate(texts)]


async def _contents(store: Any, session_id: str = "s1") -> list[str]:
    return [message.content for message in await store.load_messages(session_id)]


# --- any store ----------------------------------------------------------------------------------------------------


async def an_unknown_session_is_none_and_has_no_messages(store: Any) -> None:
    _expect(await store.load_session("nope"), None, "load_session")
    _expect(await store.load_messages("nope"), [], "load_messages")
    await store.delete_session("nope")
    await store.prune_messages("nope", 3)


async def a_saved_session_is_loaded_as_it_was(store: Any) -> None:
    saved = _session(
        state='{"n": 1}', user_id="u", tenant_id="t", questions=(Question(question="When?", tool_call_id="c1"),)
    )
    await store.save_session(saved)
    loaded = await store.load_session("s1")
    kept = loaded.model_copy(update={"created_at": None, "updated_at": None})
    _expect(kept, saved, "the loaded session")
    if loaded.created_at is None or loaded.updated_at is None:
        raise AssertionError(f"created_at and updated_at are set by the store, got {loaded!r}")


async def saving_again_keeps_the_first_name_and_time_of_creation(store: Any) -> None:
    await store.save_session(_session())
    first = await store.load_session("s1")
    await store.save_session(_session(agent_name="other", state='{"n": 2}', user_id="u", tenant_id="t"))
    second = await store.load_session("s1")
    _expect((second.agent_name, second.created_at), ("greeter", first.created_at), "agent_name, created_at")
    _expect((second.state, second.user_id, second.tenant_id), ('{"n": 2}', "u", "t"), "state, user_id, tenant_id")
    if second.updated_at < first.updated_at:
        raise AssertionError("updated_at went back")


async def the_time_of_creation_is_the_one_of_the_first_save(store: Any) -> None:
    born = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    await store.save_session(_session(created_at=born))
    await store.save_session(_session(created_at=datetime(2026, 6, 1, tzinfo=UTC)))
    _expect((await store.load_session("s1")).created_at, born, "created_at")


async def appended_messages_come_back_in_order(store: Any) -> None:
    await store.save_session(_session())
    await store.append_messages("s1", _say("a", "b"), _session())
    await store.append_messages("s1", _say("c"), _session())
    _expect(await _contents(store), ["a", "b", "c"], "load_messages")
    _expect((await store.load_session("s1")).last_seq, 3, "last_seq")


async def every_field_of_a_message_survives_and_absent_ones_stay_absent(store: Any) -> None:
    messages = [
        Message(role="user", content="naïve 🙂 'quote\" \\"),
        Message(
            role="assistant",
            content="",
            tool_calls=(
                ToolCall(id="c1", name="look", arguments={"deep": {"n": [1, 2.5, None, True, "x"]}}),
                ToolCall(id="c2", name="look", arguments="{not json"),
            ),
            usage=Usage(input_tokens=3, output_tokens=4),
            cost=0.25,
        ),
        Message(role="tool", content='{"ok": true}', tool_call_id="c1", tool_name="look", status="completed"),
    ]
    await store.save_session(_session())
    await store.append_messages("s1", messages, _session())
    loaded = await store.load_messages("s1")
    _expect(loaded, messages, "load_messages")
    _expect(loaded[0].model_dump(), {"role": "user", "content": messages[0].content}, "a message's JSON")


async def system_messages_are_never_stored(store: Any) -> None:
    await store.save_session(_session())
    await store.append_messages("s1", [Message(role="system", content="rules"), *_say("a")], _session())
    _expect(await _contents(store), ["a"], "load_messages")


async def deleting_a_session_deletes_its_messages(store: Any) -> None:
    await store.save_session(_session())
    await store.append_messages("s1", _say("a"), _session())
    await store.delete_session("s1")
    await store.save_session(_session())
    _expect(await _contents(store), [], "messages of the session made anew")


async def sessions_are_listed_by_update_and_filters_combine(store: Any) -> None:
    await store.save_session(_session("old", user_id="u"))
    await store.save_session(_session("other", agent_name="writer", user_id="u"))
    await store.save_session(_session("new", user_id="v"))
    await store.save_session(_session("old", user_id="u"))

    async def ids(**filters: Any) -> list[str]:
        return [session.id for session in await store.list_sessions(**filters)]

    _expect(await ids(), ["old", "new", "other"], "all")
    _expect(await ids(agent_name="greeter"), ["old", "new"], "by agent")
    _expect(await ids(user_id="u"), ["old", "other"], "by user")
    _expect(await ids(agent_name="greeter", user_id="u"), ["old"], "by both")
    _expect(await ids(limit=2), ["old", "new"], "two of them")


async def pruning_keeps_the_last_messages_in_order(store: Any) -> None:
    await store.save_session(_session())
    await store.append_messages("s1", _say("a", "b", "c", "d", "e", "f"), _session())
    await store.prune_messages("s1", 9)
    _expect(await _contents(store), ["a", "b", "c", "d", "e", "f"], "with fewer than keep")
    await store.prune_messages("s1", 4)
    _expect(await _contents(store), ["c", "d", "e", "f"], "the last four of six")


async def pruning_never_cuts_a_turn(store: Any) -> None:
    await store.save_session(_session())
    turn = [
        Message(role="user", content="b"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look"),)),
        Message(role="tool", content="r", tool_call_id="c1", tool_name="look"),
        Message(role="assistant", content="done"),
    ]
    await store.append_messages("s1", [*_say("a", "z"), *turn], _session())
    await store.prune_messages("s1", 5)
    _expect(await store.load_messages("s1"), turn, "keep=5 cuts before the last turn's user message")
    await store.prune_messages("s1", 2)
    _expect(await store.load_messages("s1"), turn, "keep=2 leaves the last turn whole")


async def numbers_go_on_after_pruning(store: Any) -> None:
    await store.save_session(_session())
    await store.append_messages("s1", _say("a", "b", "c", "d"), _session())
    await store.prune_messages("s1", 2)
    await store.append_messages("s1", _say("e"), _session())
    _expect((await store.load_session("s1")).last_seq, 5, "last_seq")
    _expect(await _contents(store), ["c", "d", "e"], "load_messages")


# --- memory stores ------------------------------------------------------------------------------------------------


async def a_memory_store_refuses_an_atomic_write(store: Any) -> None:
    _expect(store.durable, False, "durable")
    await _expect_error(
        MemoryStoreNotDurableError, store.append_messages_atomic("s1", _say("a"), _session()), "append_messages_atomic"
    )


# --- durable stores -----------------------------------------------------------------------------------------------


async def an_atomic_append_makes_the_session_and_its_messages_visible_together(store: Any) -> None:
    _expect(store.durable, True, "durable")
    last = await store.append_messages_atomic("s1", _say("a", "b"), _session(state='{"n": 1}'), expected_seq=0)
    _expect(last, 2, "the last number")
    _expect((await store.load_session("s1")).state, '{"n": 1}', "state")
    _expect(await _contents(store), ["a", "b"], "load_messages")


async def atomic_appends_stay_in_order(store: Any) -> None:
    for number, text in enumerate(("a", "b", "c", "d")):
        last = await store.append_messages_atomic("s1", _say(text), _session(), expected_seq=number)
        _expect(last, number + 1, "the last number")
    _expect(await _contents(store), ["a", "b", "c", "d"], "load_messages")


async def an_atomic_append_that_cannot_be_stored_leaves_nothing(store: Any) -> None:
    await store.append_messages_atomic("s1", _say("a"), _session(state="{}"))
    before = await store.load_session("s1")
    broken = Message.model_construct(role="user", content=object())
    try:
        await store.append_messages_atomic("s1", [*_say("b"), broken], _session(state='{"n": 2}'))
    except Exception:
        pass
    else:
        raise AssertionError("a message that cannot be stored was accepted")
    _expect(await store.load_session("s1"), before, "the session")
    _expect(await _contents(store), ["a"], "load_messages")


async def the_same_write_key_again_changes_nothing(store: Any) -> None:
    await store.append_messages_atomic("s1", _say("a"), _session(), write_key="k1", expected_seq=0)
    again = await store.append_messages_atomic("s1", _say("a"), _session(), write_key="k1", expected_seq=0)
    _expect(again, 1, "the last number")
    await store.append_messages_atomic("s1", _say("b"), _session(), write_key="k2", expected_seq=1)
    await store.append_messages_atomic("s1", _say("a"), _session(), write_key="k1", expected_seq=0)
    _expect(await _contents(store), ["a", "b"], "load_messages")


async def a_write_key_belongs_to_its_session(store: Any) -> None:
    await store.append_messages_atomic("s1", _say("a"), _session("s1"), write_key="k")
    await store.append_messages_atomic("s2", _say("b"), _session("s2"), write_key="k")
    _expect(await _contents(store, "s2"), ["b"], "load_messages")


async def a_second_writer_is_refused_and_nothing_is_interleaved(store: Any) -> None:
    await store.append_messages_atomic("s1", _say("a"), _session(), expected_seq=0)
    for known in (0, 2):
        await _expect_error(
            SessionConflictError,
            store.append_messages_atomic("s1", _say("x"), _session(state='{"x": 1}'), expected_seq=known),
            f"a writer that knows of {known} messages",
        )
    _expect(await _contents(store), ["a"], "load_messages")
    _expect((await store.load_session("s1")).state, "{}", "state")


async def a_writer_of_a_session_that_was_made_anew_is_refused(store: Any) -> None:
    born = datetime(2026, 1, 1, tzinfo=UTC)
    await store.append_messages_atomic("s1", _say("a"), _session(created_at=born), expected_seq=0)
    await store.delete_session("s1")
    anew = _session(created_at=datetime(2026, 1, 2, tzinfo=UTC))
    await store.append_messages_atomic("s1", _say("b"), anew, expected_seq=0)
    await _expect_error(
        SessionConflictError,
        store.append_messages_atomic("s1", _say("x"), _session(created_at=born), expected_seq=1),
        "a writer of the deleted session",
    )
    _expect(await _contents(store), ["b"], "load_messages")


async def many_writers_at_once_lose_no_number(store: Any) -> None:
    await asyncio.gather(*(store.append_messages_atomic("s1", _say(f"m{n}"), _session()) for n in range(20)))
    _expect(sorted(await _contents(store)), sorted(f"m{n}" for n in range(20)), "load_messages")
    _expect((await store.load_session("s1")).last_seq, 20, "last_seq")


async def a_failed_write_does_not_take_its_neighbours_down(store: Any) -> None:
    good = [store.append_messages_atomic(f"s{n}", _say("a"), _session(f"s{n}"), expected_seq=0) for n in range(5)]
    bad = store.append_messages_atomic("s9", _say("a"), _session("s9"), expected_seq=7)
    results = await asyncio.gather(*good, bad, return_exceptions=True)
    _expect(results[:5], [1] * 5, "the good writes")
    _expect(type(results[5]), SessionConflictError, "the bad write")


async def open_questions_are_written_and_cleared_with_the_messages(store: Any) -> None:
    question = Question(question="When?", tool_call_id="c1")
    await store.append_messages_atomic("s1", _say("a"), _session(questions=(question,)))
    _expect((await store.load_session("s1")).questions, (question,), "questions")
    await store.append_messages_atomic("s1", _say("b"), _session(), expected_seq=1)
    _expect((await store.load_session("s1")).questions, None, "questions")


async def a_call_is_claimed_once(store: Any) -> None:
    first = await store.claim("run", "1", owner="me", arguments_hash="h")
    _expect((first.state, first.owner), ("claimed", "me"), "the first claim")
    second = await store.claim("run", "1", owner="you", arguments_hash="h")
    _expect((second.state, second.owner), ("claimed", "me"), "the second claim")
    other = await store.claim("another-run", "1", owner="you", arguments_hash="h")
    _expect(other.owner, "you", "the same call key in another run")


async def a_claim_with_other_arguments_is_refused(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    await _expect_error(InputError, store.claim("run", "1", owner="you", arguments_hash="other"), "claim")


async def only_the_owner_of_a_claim_records_its_result(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    _expect(await store.finish("run", "1", owner="you", state="done", result="x"), False, "finish by another")
    _expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "finish by the owner")
    _expect(await store.finish("run", "1", owner="me", state="failed", result="x"), False, "finish again")
    entry = await store.claim("run", "1", owner="you", arguments_hash="h")
    _expect((entry.state, entry.result), ("done", "r"), "what a later claim finds")


async def settling_fences_a_call_that_never_started(store: Any) -> None:
    _expect((await store.settle("run", "1")).state, "abandoned", "settle without a claim")
    late = await store.claim("run", "1", owner="late", arguments_hash="h")
    _expect((late.state, late.owner), ("abandoned", None), "the late starter's claim")
    _expect(await store.finish("run", "1", owner="late", state="done", result="x"), False, "its result")


async def settling_reports_what_is_known(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    _expect((await store.settle("run", "1")).state, "claimed", "settle while it may be running")
    await store.finish("run", "1", owner="me", state="failed", result="r")
    entry = await store.settle("run", "1")
    _expect((entry.state, entry.result), ("failed", "r"), "settle when it has ended")


async def a_safe_call_can_be_taken_over(store: Any) -> None:
    await store.claim("run", "1", owner="dead", arguments_hash="h")
    _expect((await store.take_over("run", "1", owner="me")).owner, "me", "the owner")
    _expect(await store.finish("run", "1", owner="dead", state="done", result="x"), False, "finish by the dead one")
    _expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "finish by the new one")


async def the_first_reply_of_a_turn_is_kept(store: Any) -> None:
    _expect(await store.load_reply("run", 1), None, "load_reply")
    _expect(await store.save_reply("run", 1, "first"), "first", "save_reply")
    _expect(await store.save_reply("run", 1, "second"), "first", "save_reply again")
    _expect(await store.load_reply("run", 1), "first", "load_reply")
    _expect(await store.load_reply("run", 2), None, "load_reply of another turn")


_ANY_STORE: list[Check] = [
    an_unknown_session_is_none_and_has_no_messages,
    a_saved_session_is_loaded_as_it_was,
    saving_again_keeps_the_first_name_and_time_of_creation,
    the_time_of_creation_is_the_one_of_the_first_save,
    appended_messages_come_back_in_order,
    every_field_of_a_message_survives_and_absent_ones_stay_absent,
    system_messages_are_never_stored,
    deleting_a_session_deletes_its_messages,
    sessions_are_listed_by_update_and_filters_combine,
    pruning_keeps_the_last_messages_in_order,
    pruning_never_cuts_a_turn,
    numbers_go_on_after_pruning,
]
_MEMORY_STORE: list[Check] = [a_memory_store_refuses_an_atomic_write]
_DURABLE_STORE: list[Check] = [
    an_atomic_append_makes_the_session_and_its_messages_visible_together,
    atomic_appends_stay_in_order,
    an_atomic_append_that_cannot_be_stored_leaves_nothing,
    the_same_write_key_again_changes_nothing,
    a_write_key_belongs_to_its_session,
    a_second_writer_is_refused_and_nothing_is_interleaved,
    a_writer_of_a_session_that_was_made_anew_is_refused,
    many_writers_at_once_lose_no_number,
    a_failed_write_does_not_take_its_neighbours_down,
    open_questions_are_written_and_cleared_with_the_messages,
    a_call_is_claimed_once,
    a_claim_with_other_arguments_is_refused,
    only_the_owner_of_a_claim_records_its_result,
    settling_fences_a_call_that_never_started,
    settling_reports_what_is_known,
    a_safe_call_can_be_taken_over,
    the_first_reply_of_a_turn_is_kept,
]
