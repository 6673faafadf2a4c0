"""Checks of any store, for its author to run.

    def reopen(store):
        return functools.partial(my_store, store.dsn)

    @pytest.mark.parametrize("check", store_suite(reopen=reopen), ids=lambda check: check.__name__)
    async def test_my_store(check, my_store):
        await check(my_store)

Each check gets a new, empty store and raises an AssertionError that describes the fault.
"""

import functools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from standfast.checkpoints import Question
from standfast.errors import InputError, MemoryStoreNotDurableError
from standfast.messages import Message, ToolCall, Usage
from standfast.testing.boards import BOARDS
from standfast.testing.deletions import DELETIONS
from standfast.testing.durable_stores import ATOMIC_WRITES
from standfast.testing.expectations import contents, expect, expect_error, say, session
from standfast.testing.holds import HELD_BY_ONE, SHARED_HOLDS, SHARED_SCOPE
from standfast.testing.ledger_races import LEDGER_RACES
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
from standfast.testing.opened_stores import LARGE_RESULTS, OBJECTS
from standfast.testing.partial_answers import PARTIAL_ANSWERS
from standfast.testing.rivals import ROUNDS, Reopen, rivals_of
from standfast.testing.session_races import SESSION_RACES
from standfast.testing.standing_approvals import ON_RECORD, STANDING_APPROVALS
from standfast.testing.store_clocks import WRONG_CLOCKS, WRONG_CLOCKS_AND_CALLS, WRONG_CLOCKS_AND_HOLDS
from standfast.testing.store_processes import StoreProcesses
from standfast.testing.workers import WORKERS

Check = Callable[[Any], Awaitable[None]]


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
        raise InputError("The suite of a durable store needs reopen=, by which others use the data of a store")
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
    expect(isinstance(identity, str) and len(identity) >= 16, True, f"whether {identity!r} is an id that is unique")
    await store.save_session(session())
    expect(await store.identity(), identity, "identity once more")


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
    expect(await contents(store), [], "messages of the session made anew")


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
