"""Checks of any store, for its author to run.

    def reopen(store):
        return functools.partial(my_store, store.dsn)

    @pytest.mark.parametrize("check", store_suite(reopen=reopen), ids=lambda check: check.__name__)
    async def test_my_store(check, my_store):
        await check(my_store)

Each check gets a new, empty store and raises an AssertionError that describes the fault.
"""

import asyncio
import functools
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from standfast.checkpoints import Question
from standfast.errors import InputError, MemoryStoreNotDurableError, StandfastError, StoreError
from standfast.messages import Message, ToolCall, Usage
from standfast.stores import PartialAnswer
from standfast.testing.boards import BOARDS
from standfast.testing.deletions import DELETIONS
from standfast.testing.durable_stores import ATOMIC_WRITES
from standfast.testing.expectations import contents, expect, expect_error, expect_same, say, session
from standfast.testing.holds import HELD_BY_ONE, SHARED_HOLDS, SHARED_SCOPE
from standfast.testing.ledgers import LEDGER
from standfast.testing.lost_answers import (
    INTERRUPTED_STEPS,
    INTERRUPTED_WRITES,
    KILLED_STEPS,
    KILLED_WRITERS,
    LOST_SESSIONS,
    LOST_WORKERS,
    Interrupt,
)
from standfast.testing.races import LEDGER_RACES, SESSION_RACES
from standfast.testing.rivals import ROUNDS, Reopen, Rivals, User, rivals_of
from standfast.testing.standing_approvals import ON_RECORD, STANDING_APPROVALS
from standfast.testing.store_processes import StoreProcess, StoreProcesses, close, set_clock_ahead
from standfast.testing.workers import WORKERS

Check = Callable[[Any], Awaitable[None]]

_LARGE = 1_000_000
_MANY = 10_000


async def _identity(store: Any, who: int, number: int) -> str:
    identity: str = await store.identity()
    return identity


async def a_store_has_one_identity_for_all_also_if_many_make_it_at_once(store: Any, rivals: Rivals) -> None:
    async def check(number: int, heard: list[str]) -> None:
        expect_same(heard, "the identity that each concurrent creator of the store read")
        await close(store)
        expect(await store.identity(), heard[0], "the identity after reopening")

    await rivals.race(_identity, check, most=2)


async def a_store_that_was_closed_opens_again(store: Any, rivals: Rivals) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), expected_seq=0)
    await close(store)
    await close(store)
    expect(await contents(store), ["a"], "load_messages after close")
    await close(store)
    await store.append_messages_atomic("s1", say("b"), session(), expected_seq=1)
    await close(store)
    expect(await contents(rivals.other), ["a", "b"], "load_messages by another object")


async def a_store_serves_event_loops_that_end(store: Any, rivals: Rivals) -> None:
    for number in range(3):
        last = await asyncio.to_thread(asyncio.run, _append(store, number))
        expect(last, number + 1, "the number of the last message")
    expect(await contents(store), ["m0", "m1", "m2"], "load_messages in the surviving loop")


async def _append(store: Any, number: int) -> int:
    last: int = await store.append_messages_atomic("s1", say(f"m{number}"), session(), expected_seq=number)
    return last


async def large_texts_and_many_messages_are_kept_whole(store: Any, rivals: Rivals) -> None:
    text = "ä🙂" * (_LARGE // 6)
    large = [
        Message(role="user", content=text),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look", arguments={"text": text}),)),
        Message(role="tool", content=text, tool_call_id="c1", tool_name="look", status="completed"),
    ]
    await store.append_messages_atomic("s1", large, session(state=f'"{text}"'), expected_seq=0)
    expect(await store.load_messages("s1") == large, True, "whether messages of a megabyte are loaded unchanged")
    expect(
        (await store.load_session("s1")).state == f'"{text}"', True, "whether a state of a megabyte is loaded unchanged"
    )
    many = [f"m{number}" for number in range(_MANY)]
    expect(
        await store.append_messages_atomic("s2", say(*many), session("s2"), expected_seq=0), _MANY, "the last number"
    )
    expect(await contents(store, "s2") == many, True, f"whether {_MANY:,} messages are loaded unchanged")


async def large_results_and_replies_are_kept_whole(store: Any, rivals: Rivals) -> None:
    text = "ä🙂" * (_LARGE // 6)
    await store.claim("run", "1", owner="me", arguments_hash="h")
    await store.finish("run", "1", owner="me", state="done", result=text)
    expect((await store.settle("run", "1")).result == text, True, "whether a result of a megabyte is loaded unchanged")
    await store.save_reply("run", 1, text)
    expect(await store.load_reply("run", 1) == text, True, "whether a reply of a megabyte is loaded unchanged")


async def long_keys_are_kept_whole_or_refused(store: Any, rivals: Rivals) -> None:
    for length in (600, 20_000):
        keys = [_hard_to_shorten(f"{length} {number}", length) for number in range(2)]
        for key in (keys[0], keys[0][:-1] + "-"):
            try:
                await store.claim(keys[1], key, owner=key, arguments_hash="h")
                await store.save_reply(key, 1, key)
            except StoreError:
                expect(length > 600, True, f"whether a key of {length:,} characters is refused")
                continue
            entry = (await store.load_entries(keys[1], [key]))[key]
            expect((entry.owner == key, await store.load_reply(key, 1) == key), (True, True), "the data under the key")


def _hard_to_shorten(seed: str, length: int) -> str:
    parts = (hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(length // 64 + 1))
    return "".join(parts)[:length]


async def a_text_that_no_database_keeps_is_kept_or_refused_and_harms_no_other(store: Any, rivals: Rivals) -> None:
    await store.append_messages_atomic("s1", say("before"), session(state="[0]"), expected_seq=0)
    for number, odd in enumerate(("a\0b", "\ud800", "\0", "\udfff\ud800"), 1):
        state = f'"{odd}"'
        writes = [
            store.append_messages_atomic("s1", [], session(state=state), expected_seq=number),
            *(store.append_messages_atomic(f"{number}{n}", say("a"), session(f"{number}{n}")) for n in range(3)),
        ]
        ended = await asyncio.gather(*writes, return_exceptions=True)
        expect(ended[1:], [1] * 3, f"writes beside {odd!r}")
        kept = (await store.load_session("s1")).state
        if isinstance(ended[0], BaseException):
            expect(isinstance(ended[0], StandfastError), True, f"whether {ended[0]!r} is an error of standfast")
            expect(kept, f"[{number - 1}]", f"the state, when {odd!r} was refused")
        else:
            expect(kept, state, "the state")
        await store.append_messages_atomic("s1", say(f"m{number}"), session(state=f"[{number}]"), expected_seq=number)


OBJECTS = [
    a_store_has_one_identity_for_all_also_if_many_make_it_at_once,
    a_store_that_was_closed_opens_again,
    a_store_serves_event_loops_that_end,
    large_texts_and_many_messages_are_kept_whole,
    a_text_that_no_database_keeps_is_kept_or_refused_and_harms_no_other,
]
LARGE_RESULTS = [large_results_and_replies_are_kept_whole, long_keys_are_kept_whole_or_refused]


def store_suite(
    *,
    durable: bool = True,
    ledger: bool = True,
    partial_answers: bool = False,
    deletion: bool = False,
    waits: bool = False,
    standing_approvals: bool = False,
    reopen: Reopen | None = None,
    interrupt: Interrupt | None = None,
    rounds: int = ROUNDS,
) -> list[Check]:
    """Return the checks for a durable store, or for an in-memory one.

    Many checks of a durable store let two objects, two threads and two other processes use it at the same time.

    Args:
        ledger: False leaves out the parts that in-process runs do not use: the ledger, the journal of replies, and the
            workers at work.
        partial_answers: True for a store that also has `PartialAnswers`, which workers with `stream=True` need.
        deletion: True for a store that also has `Deletion`, as `standfast store prune` and `retention` need.
        waits: True for a store that also has `Waits`, so that its inbox does not need a worker.
        standing_approvals: True for a store that also has `StandingApprovals`, as `Approval(remember=…)` needs.
        reopen: for a durable store: takes a store, and returns a function that opens another object over the same data.
            It is sent to other processes, so it must be a module-level function that they can import, or a
            `functools.partial` of one.
        interrupt: for a durable store, if possible: breaks a resource that the store needs in the middle of an
            operation, and returns when the resource is back. For example, it ends the store's connections, or restarts
            the database.
        rounds: the number of rounds of each race; a slow database needs fewer, which find double winners less reliably.

    Raises:
        InputError: `reopen` is missing.
    """
    processes = StoreProcesses()
    standing = STANDING_APPROVALS if standing_approvals else []
    if not durable:
        alone = [_with_rivals(check, None, processes, rounds) for check in HELD_BY_ONE]
        return [*_ANY_STORE, *alone, *(BOARDS if waits else ()), *standing, a_memory_store_refuses_an_atomic_write]
    if reopen is None:
        raise InputError("The suite of a durable store needs reopen=, with which other processes open the same data")
    shared = [*HELD_BY_ONE, *SHARED_HOLDS, *SESSION_RACES, *OBJECTS, *KILLED_WRITERS]
    shared += [*WRONG_CLOCKS, *WRONG_CLOCKS_AND_HOLDS]
    interrupted = [*INTERRUPTED_WRITES, *LOST_SESSIONS]
    if ledger:
        shared += [*SHARED_SCOPE, *LEDGER_RACES, *LARGE_RESULTS, *KILLED_STEPS, *WRONG_CLOCKS_AND_CALLS]
        interrupted += [*INTERRUPTED_STEPS, *LOST_WORKERS]
    return [
        *_ANY_STORE,
        *ATOMIC_WRITES,
        *([*LEDGER, *WORKERS] if ledger else ()),
        *(PARTIAL_ANSWERS if partial_answers else ()),
        *(DELETIONS if deletion else ()),
        *(BOARDS if waits else ()),
        *standing,
        *(ON_RECORD if standing and ledger else ()),
        *(_with_rivals(check, reopen, processes, rounds) for check in shared),
        *(_with_rivals(check, reopen, processes, rounds, interrupt) for check in interrupted if interrupt is not None),
    ]


def _with_rivals(check: Any, reopen: Reopen | None, processes: StoreProcesses, rounds: int, *hooks: Any) -> Check:
    @functools.wraps(check)
    async def with_rivals(store: Any) -> None:
        async with rivals_of(store, reopen, processes, rounds) as rivals:
            await check(store, rivals, *hooks)

    return with_rivals


async def a_session_is_held_by_one_run_at_a_time(store: Any) -> None:
    expect(await store.hold("s1"), True, "the first hold")
    expect(await store.hold("s1"), False, "a second hold")
    expect(await store.hold("s2"), True, "a hold of another session")
    await store.let_go("s1")
    expect(await store.hold("s1"), True, "a hold after let_go")
    await store.let_go("s1")
    await store.let_go("s2")


async def the_identity_of_a_store_is_its_own_and_stays(store: Any) -> None:
    identity = await store.identity()
    expect(isinstance(identity, str) and len(identity) >= 16, True, f"whether {identity!r} is a unique id")
    await store.save_session(session())
    expect(await store.identity(), identity, "identity, read again")


async def an_unknown_session_is_none_and_has_no_messages(store: Any) -> None:
    expect(await store.load_session("nope"), None, "load_session")
    expect(await store.load_messages("nope"), [], "load_messages")
    await store.delete_session("nope")
    await store.prune_messages("nope", 3)


async def a_saved_session_is_loaded_as_it_was(store: Any) -> None:
    saved = session(
        state='{"n": 1}',
        user_id="u",
        tenant_id="t",
        questions=(Question(question="When?", tool_call_id="c1"),),
        usage=Usage(input_tokens=3, cost=0.25),
    )
    await store.save_session(saved)
    loaded = await store.load_session("s1")
    kept = loaded.model_copy(update={"created_at": None, "updated_at": None, "version": 0})
    expect(kept, saved, "the loaded session")
    if loaded.created_at is None or loaded.updated_at is None:
        raise AssertionError(f"created_at and updated_at are set by the store, got {loaded!r}")


async def saving_again_keeps_the_first_name_and_time_of_creation(store: Any) -> None:
    await store.save_session(session())
    first = await store.load_session("s1")
    await store.save_session(session(agent_name="other", state='{"n": 2}', user_id="u", tenant_id="t"))
    second = await store.load_session("s1")
    expect((second.agent_name, second.created_at), ("greeter", first.created_at), "agent_name, created_at")
    expect((second.state, second.user_id, second.tenant_id), ('{"n": 2}', "u", "t"), "state, user_id, tenant_id")
    if second.updated_at < first.updated_at:
        raise AssertionError("updated_at went back")


async def the_time_of_creation_is_the_one_of_the_first_save(store: Any) -> None:
    born = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    await store.save_session(session(created_at=born))
    await store.save_session(session(created_at=datetime(2026, 6, 1, tzinfo=UTC)))
    expect((await store.load_session("s1")).created_at, born, "created_at")


async def appended_messages_come_back_in_order(store: Any) -> None:
    await store.save_session(session())
    await store.append_messages("s1", say("a", "b"), session())
    await store.append_messages("s1", say("c"), session())
    expect(await contents(store), ["a", "b", "c"], "load_messages")
    expect((await store.load_session("s1")).last_seq, 3, "last_seq")


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
    await store.save_session(session())
    await store.append_messages("s1", messages, session())
    loaded = await store.load_messages("s1")
    expect(loaded, messages, "load_messages")
    expect(loaded[0].model_dump(), {"role": "user", "content": messages[0].content}, "a message's JSON")


async def system_messages_are_never_stored(store: Any) -> None:
    await store.save_session(session())
    await store.append_messages("s1", [Message(role="system", content="rules"), *say("a")], session())
    expect(await contents(store), ["a"], "load_messages")


async def deleting_a_session_deletes_its_messages(store: Any) -> None:
    await store.save_session(session())
    await store.append_messages("s1", say("a"), session())
    await store.delete_session("s1")
    await store.save_session(session())
    expect(await contents(store), [], "messages of the recreated session")


async def sessions_are_listed_by_update_and_filters_combine(store: Any) -> None:
    await store.save_session(session("old", user_id="u"))
    await store.save_session(session("other", agent_name="writer", user_id="u"))
    await store.save_session(session("new", user_id="v"))
    await store.save_session(session("old", user_id="u"))

    async def ids(**filters: Any) -> list[str]:
        return [session.id for session in await store.list_sessions(**filters)]

    expect(await ids(), ["old", "new", "other"], "all")
    expect(await ids(agent_name="greeter"), ["old", "new"], "by agent")
    expect(await ids(user_id="u"), ["old", "other"], "by user")
    expect(await ids(agent_name="greeter", user_id="u"), ["old"], "by both")
    expect(await ids(limit=2), ["old", "new"], "two of them")


async def pruning_keeps_the_last_messages_in_order(store: Any) -> None:
    await store.save_session(session())
    await store.append_messages("s1", say("a", "b", "c", "d", "e", "f"), session())
    await store.prune_messages("s1", 9)
    expect(await contents(store), ["a", "b", "c", "d", "e", "f"], "with fewer than keep")
    await store.prune_messages("s1", 4)
    expect(await contents(store), ["c", "d", "e", "f"], "the last four of six")


async def pruning_never_cuts_a_turn(store: Any) -> None:
    await store.save_session(session())
    turn = [
        Message(role="user", content="b"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="look"),)),
        Message(role="tool", content="r", tool_call_id="c1", tool_name="look"),
        Message(role="assistant", content="done"),
    ]
    await store.append_messages("s1", [*say("a", "z"), *turn], session())
    await store.prune_messages("s1", 5)
    expect(await store.load_messages("s1"), turn, "keep=5 cuts before the last turn's user message")
    await store.prune_messages("s1", 2)
    expect(await store.load_messages("s1"), turn, "keep=2 leaves the last turn whole")


async def numbers_go_on_after_pruning(store: Any) -> None:
    await store.save_session(session())
    await store.append_messages("s1", say("a", "b", "c", "d"), session())
    await store.prune_messages("s1", 2)
    await store.append_messages("s1", say("e"), session())
    expect((await store.load_session("s1")).last_seq, 5, "last_seq")
    expect(await contents(store), ["c", "d", "e"], "load_messages")


async def a_memory_store_refuses_an_atomic_write(store: Any) -> None:
    expect(store.durable, False, "durable")
    await expect_error(
        MemoryStoreNotDurableError, store.append_messages_atomic("s1", say("a"), session()), "append_messages_atomic"
    )


_ANY_STORE: list[Check] = [
    a_session_is_held_by_one_run_at_a_time,
    the_identity_of_a_store_is_its_own_and_stays,
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


def part(text: str, offset: int = 0, *, turn: int = 1, attempt: str = "a") -> PartialAnswer:
    return PartialAnswer(turn=turn, attempt=attempt, offset=offset, text=text)


async def what_is_said_can_be_followed_from_where_one_is(store: Any) -> None:
    expect(await store.load_partial("run"), None, "load_partial before the first text")
    await store.add_partial("run", part("Hé"))
    heard = await store.load_partial("run")
    expect(heard, part("Hé"), "the text")
    await store.add_partial("run", part("llo\n", 2))
    more = await store.load_partial("run", after=heard)
    expect(more, part("llo\n", 2), "the new text")
    expect(await store.load_partial("run", after=more), part("", 6), "new text, if there is none")
    expect(await store.load_partial("run"), part("Héllo\n"), "the whole text")
    expect(await store.load_partial("other"), None, "another run's text")


async def what_is_said_twice_is_there_once(store: Any) -> None:
    await store.add_partial("run", part("one "))
    await store.add_partial("run", part("two ", 4))
    await store.add_partial("run", part("two ", 4))
    expect(await store.load_partial("run"), part("one two "), "the text")


async def a_later_attempt_takes_the_place_of_an_earlier_one_for_good(store: Any) -> None:
    await store.add_partial("run", part("first"))
    heard = await store.load_partial("run")
    await store.add_partial("run", part("again", attempt="b"))
    await store.add_partial("run", part(" late", 5))
    expect(await store.load_partial("run", after=heard), part("again", attempt="b"), "the later attempt's text")
    await store.drop_partial("run", turn=1, attempt="a")
    expect(
        await store.load_partial("run"),
        part("again", attempt="b"),
        "the later attempt's text after the earlier one has ended",
    )
    await store.add_partial("run", part("next", turn=2, attempt="0"))
    expect(await store.load_partial("run"), part("next", turn=2, attempt="0"), "the next turn's text")


async def what_was_said_is_forgotten_and_not_begun_in_its_middle(store: Any) -> None:
    await store.add_partial("run", part("gone"))
    await store.drop_partial("run", turn=1, attempt="a")
    expect(await store.load_partial("run"), None, "load_partial")
    await store.add_partial("run", part("late", 4))
    expect(await store.load_partial("run"), None, "load_partial after a late write")


PARTIAL_ANSWERS = [
    what_is_said_can_be_followed_from_where_one_is,
    what_is_said_twice_is_there_once,
    a_later_attempt_takes_the_place_of_an_earlier_one_for_good,
    what_was_said_is_forgotten_and_not_begun_in_its_middle,
]


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
            expect(await other.do(_hold), False, "hold by a process whose clock differs by an hour")
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
            expect(await first.do(_claim, key, "first"), "first", "the owner of the call")
            expect(await second.do(_claim, key, "second"), "first", "the owner when it is claimed again")
            expect(
                await second.do(_leave, key, "second"),
                "claimed",
                "its state after others tried to settle and abandon it",
            )
            expect(await first.do(_finish, key, "first"), True, "finish by its owner")
        await rivals.here.do(_claim, "3", "first")
        expect(await ahead.do(_take_over, "3", "second"), "second", "the owner after take_over")
        expect(await rivals.here.do(_finish, "3", "first"), False, "finish by the earlier owner")


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
