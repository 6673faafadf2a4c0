"""Checks of a store's ledger, its journal of replies and its list of running calls."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from standfast.errors import InputError, SessionConflictError
from standfast.stores import Append, DecisionRecord, RunningCall
from standfast.testing.expectations import contents, expect, expect_error, say, session


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
    expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "the same again")
    expect(await store.finish("run", "1", owner="me", state="failed", result="x"), False, "another result")
    entry = await store.claim("run", "1", owner="you", arguments_hash="h")
    expect((entry.state, entry.result), ("done", "r"), "the result of a later claim")


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
    expect(await store.finish("run", "1", owner="dead", state="done", result="x"), False, "finish by the dead owner")
    expect(await store.finish("run", "1", owner="me", state="done", result="r"), True, "finish by the new owner")


async def a_call_that_has_not_happened_is_given_up_by_its_owner(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h", running=running("me"))
    expect((await store.abandon("run", "1", owner="you")).state, "claimed", "abandon by another")
    expect((await store.abandon("run", "1", owner="me")).state, "abandoned", "abandon by the owner")
    expect(await store.running_calls(), [], "running_calls")
    expect(await store.finish("run", "1", owner="me", state="done", result="r"), False, "finish by the late owner")
    late = await store.claim("run", "1", owner="late", arguments_hash="h")
    expect(late.state, "abandoned", "a later claim")
    await store.claim("run", "1#2", owner="me", arguments_hash="h")
    await store.finish("run", "1#2", owner="me", state="done", result="r")
    expect((await store.abandon("run", "1#2", owner="me")).state, "done", "abandon of a call that has a result")


async def a_claim_has_its_time(store: Any) -> None:
    before = datetime.now(UTC)
    first = await store.claim("run", "1", owner="me", arguments_hash="h")
    claimed = (await store.settle("run", "1")).claimed_at
    if claimed is None or abs((claimed - before).total_seconds()) > 60:
        raise AssertionError(f"claimed_at: expected a time close to {before}, got {claimed}")
    expect(first.owner, "me", "the owner")
    later = (await store.take_over("run", "1", owner="you")).claimed_at
    expect(later is not None and later >= claimed, True, "whether a takeover has its own time")


async def decisions_are_kept_in_order_and_once_by_key(store: Any) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = DecisionRecord(journal_key="run", gate="g", at=at, decision="approve", by="ada", edit={"n": [1]}, key="1")
    second = DecisionRecord(journal_key="run", gate="h", at=at, decision="reject", comment="no", refused="too late")
    about: Any = {"journal_key": "run", "gate": "", "at": at, "decision": "message", "act_id": "a"}
    third = DecisionRecord(**about, key="a", comment="hello", outcome="intended")
    fourth = DecisionRecord(**about, outcome="unknown", refused="not confirmed")
    for record in (first, second, first, second, third, fourth, third):
        await store.record_decision(record)
    expect(await store.load_decisions("run"), [first, second, second, third, fourth], "load_decisions")
    expect(await store.load_decisions("other"), [], "load_decisions of another run")


async def the_first_reply_of_a_turn_is_kept(store: Any) -> None:
    expect(await store.load_reply("run", 1), None, "load_reply")
    expect(await store.save_reply("run", 1, "first"), "first", "save_reply")
    expect(await store.save_reply("run", 1, "second"), "first", "save_reply again")
    expect(await store.load_reply("run", 1), "first", "load_reply")
    expect(await store.load_reply("run", 2), None, "load_reply of another turn")


async def entries_are_loaded_without_changing_anything(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h")
    await store.finish("run", "1", owner="me", state="done", result="r")
    found = await store.load_entries("run", ["1", "2"])
    expect({key: entry.result for key, entry in found.items()}, {"1": "r"}, "load_entries")
    expect((await store.claim("run", "2", owner="me", arguments_hash="h")).state, "claimed", "a missing call")


def running(owner: str) -> RunningCall:
    return RunningCall(owner=owner, worker="w", task_token="dG9rZW4=", workflow_id="a/s", run_id="r")


async def a_running_call_is_known_from_its_claim_to_its_result(store: Any) -> None:
    await store.claim("run", "1", owner="me", arguments_hash="h", running=running("me"))
    expect(await store.running_calls(), [running("me")], "while it runs")
    await store.finish("run", "1", owner="me", state="done", result="r")
    expect(await store.running_calls(), [], "when it has ended")


async def a_call_that_claims_nothing_can_be_known_to_run(store: Any) -> None:
    await store.begin_call(running("me"))
    await store.begin_call(running("me"))
    await store.begin_call(running("you"))
    expect(sorted(call.owner for call in await store.running_calls()), ["me", "you"], "running_calls")
    await store.end_call("me")
    await store.end_call("me")
    expect([call.owner for call in await store.running_calls()], ["you"], "running_calls")


async def append_reply(store: Any, reply: str, text: str, *, expected_seq: int = 0) -> str:
    append = Append(session(), say(text), "run/1", expected_seq)
    kept: str = await store.append_reply([append], journal_key="run", turn=1, reply=reply)
    return kept


async def a_reply_and_its_messages_are_written_together_and_once(store: Any) -> None:
    expect(await append_reply(store, "first", "a"), "first", "append_reply")
    expect(await append_reply(store, "first", "a"), "first", "the same again")
    expect(await append_reply(store, "second", "b"), "first", "another reply of the turn")
    expect(await contents(store), ["a"], "the messages")
    expect(await store.load_reply("run", 1), "first", "the reply")


async def what_precedes_a_reply_is_written_with_it_or_was_before(store: Any) -> None:
    first = Append(session(), say("a", "b"), "run/0", 0)
    await store.append_messages_atomic("s1", first.messages, first.session, write_key="run/0", expected_seq=0)
    for turn, key in enumerate(["run/0", "run/1"], 1):
        before = first if turn == 1 else Append(session(), say("d"), key, 3)
        reply = Append(session(), say(f"reply {turn}"), f"run/{turn}/reply", before.expected_seq + len(before.messages))
        for _ in range(2):
            expect(
                await store.append_reply([before, reply], journal_key="run", turn=turn, reply=f"r{turn}"),
                f"r{turn}",
                "append_reply",
            )
    expect(await contents(store), ["a", "b", "reply 1", "d", "reply 2"], "the messages")
    taken = Append(session(), say("x"), "run/2", 5)
    late = Append(session(), say("y"), "run/3", 4)
    await expect_error(
        SessionConflictError, store.append_reply([taken, late], journal_key="run", turn=3, reply="r3"), "append_reply"
    )
    expect(await contents(store), ["a", "b", "reply 1", "d", "reply 2"], "the messages, none of a refused write")
    expect(await store.load_reply("run", 3), None, "the reply")


async def a_reply_to_a_session_that_went_on_is_not_kept(store: Any) -> None:
    await store.append_messages_atomic("s1", say("a"), session(), expected_seq=0)
    await expect_error(SessionConflictError, append_reply(store, "first", "b"), "append_reply")
    expect(await store.load_reply("run", 1), None, "the reply")
    expect(await contents(store), ["a"], "the messages")


async def many_calls_at_once_are_all_recorded(store: Any) -> None:
    async def call(number: int) -> bool:
        owner = f"o{number}"
        await store.claim("run", str(number), owner=owner, arguments_hash="h", running=running(owner))
        done: bool = await store.finish("run", str(number), owner=owner, state="done", result=str(number))
        return done

    expect(await asyncio.gather(*(call(number) for number in range(50))), [True] * 50, "finish")
    expect(await store.running_calls(), [], "running_calls")


async def a_reply_that_was_kept_before_lets_only_its_own_messages_be_appended(store: Any) -> None:
    def appends(text: str) -> list[Append]:
        return [Append(session(), say(text), f"k {text}", 0)]

    await store.save_reply("run", 1, "first")
    kept = await store.append_reply(appends("second"), journal_key="run", turn=1, reply="second")
    expect((kept, await contents(store)), ("first", []), "append_reply of another reply, and its messages")
    for _ in range(2):
        kept = await store.append_reply(appends("first"), journal_key="run", turn=1, reply="first")
        expect((kept, await contents(store)), ("first", ["first"]), "append_reply of the kept reply, and its messages")


LEDGER = [
    a_reply_that_was_kept_before_lets_only_its_own_messages_be_appended,
    a_call_is_claimed_once,
    a_claim_with_other_arguments_is_refused,
    only_the_owner_of_a_claim_records_its_result,
    settling_fences_a_call_that_never_started,
    settling_reports_what_is_known,
    a_safe_call_can_be_taken_over,
    a_call_that_has_not_happened_is_given_up_by_its_owner,
    a_claim_has_its_time,
    decisions_are_kept_in_order_and_once_by_key,
    the_first_reply_of_a_turn_is_kept,
    entries_are_loaded_without_changing_anything,
    a_running_call_is_known_from_its_claim_to_its_result,
    a_call_that_claims_nothing_can_be_known_to_run,
    a_reply_and_its_messages_are_written_together_and_once,
    what_precedes_a_reply_is_written_with_it_or_was_before,
    a_reply_to_a_session_that_went_on_is_not_kept,
    many_calls_at_once_are_all_recorded,
]
