"""Checks of a durable store under concurrent use: other objects, threads and processes."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from standfast.errors import SessionConflictError
from standfast.stores import Append, DecisionRecord
from standfast.testing.expectations import contents, expect, expect_same, say, session
from standfast.testing.ledgers import running
from standfast.testing.rivals import Rivals
from standfast.testing.workers import at_work

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
        expect((await contents(store, session_id))[known:], [str(won[0])] * 2, "the written messages")

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
        expect_same(lasts, "the number of the last message, as returned to each writer")
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
    expect(sorted(final[::3]), sorted(written), "the written messages")
    expect([final[1::3], final[2::3]], [final[::3]] * 2, "the second and third message of each write")
    kept = await store.load_session("s1")
    expect((kept.last_seq, kept.version), (3 * len(written), len(written)), "last_seq and version")
    expect(sorted(heard), [3 * (index + 1) for index in range(len(written))], "the numbers returned to the writers")


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
        expect([one.content for one in await after(last - 4)], kept[-4:], "messages after their count")

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
        expect(len(written), last, "the number of messages in a session that was deleted and recreated")
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


async def _claim(store: Any, who: int, number: int) -> tuple[str, str]:
    entry = await store.claim("race", str(number), owner=f"o{who}", arguments_hash="h")
    return entry.state, entry.owner


async def of_many_that_claim_a_call_one_owns_it(store: Any, rivals: Rivals) -> None:
    async def check(number: int, seen: list[Any]) -> None:
        expect_same(seen, "the owner of a call, for each concurrent claim")
        entry = (await store.load_entries("race", [str(number)]))[str(number)]
        expect((entry.state, entry.owner), seen[0], "the entry")

    await rivals.race(_claim, check)


async def _claim_or_settle(store: Any, who: int, number: int) -> tuple[str, str | None]:
    if (who + number) % 2:
        entry = await store.settle("race", str(number))
    else:
        entry = await store.claim("race", str(number), owner=f"o{who}", arguments_hash="h")
    return entry.state, entry.owner


async def a_call_that_is_settled_while_it_is_claimed_is_claimed_or_abandoned_for_all(
    store: Any, rivals: Rivals
) -> None:
    async def check(number: int, seen: list[Any]) -> None:
        expect_same(seen, "the outcome of a call, for each who concurrently settled or claimed it")

    await rivals.race(_claim_or_settle, check)


async def _finish_or_lose(store: Any, who: int, number: int) -> Any:
    key, other = str(number), f"o{who}"
    match (who + number) % 3:
        case 0:
            return "me", await store.finish("race", key, owner="me", state="done", result=f"r{who}")
        case 1:
            await store.take_over("race", key, owner=other)
            return other, await store.finish("race", key, owner=other, state="done", result=f"r{who}")
        case _:
            return "", (await store.abandon("race", key, owner="me")).state == "abandoned"


async def who_has_lost_a_call_records_nothing_and_hears_so(store: Any, rivals: Rivals) -> None:
    async def claim(number: int) -> None:
        await store.claim("race", str(number), owner="me", arguments_hash="h", running=running("me"))

    async def check(number: int, seen: list[Any]) -> None:
        entry = (await store.load_entries("race", [str(number)]))[str(number)]
        expect(entry.state in ("done", "abandoned"), True, f"whether {entry} has ended")
        for who, (owner, has_won) in enumerate(seen):
            is_so = entry.state == "abandoned" if owner == "" else (entry.owner, entry.result) == (owner, f"r{who}")
            what = f"abandon by {who}" if owner == "" else f"finish by {owner} with r{who}"
            expect(has_won, is_so, f"{what}, when {entry} is kept")

    await rivals.race(_finish_or_lose, check, before=claim)
    expect(await store.running_calls(), [], "running_calls")


async def _run_a_call(store: Any, who: int, number: int) -> bool:
    key, owner = f"{number}/{who}", f"o{number}/{who}"
    await store.claim("race", key, owner=owner, arguments_hash="h", running=running(owner))
    await store.begin_call(running(f"{owner}/within"))
    is_done: bool = await store.finish("race", key, owner=owner, state="done", result="r")
    await store.end_call(f"{owner}/within")
    return is_done


async def calls_that_end_beside_others_leave_only_those_that_run(store: Any, rivals: Rivals) -> None:
    async def check(number: int, done: list[bool]) -> None:
        expect(done, [True] * len(done), "finish")
        expect(await store.running_calls(), [running("stays")], "running_calls")

    await store.begin_call(running("stays"))
    await rivals.race(_run_a_call, check, most=20)


async def _keep_a_reply(store: Any, who: int, number: int) -> str:
    kept: str = await store.save_reply("race", number, f"r{who}")
    return kept


async def of_many_replies_to_a_turn_one_is_kept(store: Any, rivals: Rivals) -> None:
    async def check(number: int, heard: list[str]) -> None:
        expect_same(heard, "the stored reply, for each concurrent writer")
        expect(await store.load_reply("race", number), heard[0], "load_reply")

    await rivals.race(_keep_a_reply, check)


async def _append_a_reply(store: Any, who: int, number: int) -> str:
    appends = [
        Append(session(), say(f"question {number}"), f"{number}/question", 2 * number),
        Append(session(), say(f"r{who}"), f"{number}/reply", 2 * number + 1),
    ]
    kept: str = await store.append_reply(appends, journal_key="race", turn=number, reply=f"r{who}")
    return kept


async def of_many_replies_that_are_appended_one_is_kept_with_its_messages(store: Any, rivals: Rivals) -> None:
    async def check(number: int, heard: list[str]) -> None:
        expect_same(heard, "the stored reply, for each concurrent writer")
        expect((await contents(store))[2 * number :], [f"question {number}", heard[0]], "its messages")
        expect(await store.load_reply("race", number), heard[0], "load_reply")

    await rivals.race(_append_a_reply, check)


async def _decide(store: Any, who: int, number: int) -> None:
    decision = DecisionRecord(
        journal_key=f"race {number}", gate="g", at=datetime(2026, 1, 1, tzinfo=UTC), decision="approve", by=f"p{who}"
    )
    await store.record_decision(decision.model_copy(update={"key": "k"}))
    await store.record_decision(decision)


async def of_many_decisions_with_one_key_one_is_recorded(store: Any, rivals: Rivals) -> None:
    async def check(number: int, got: list[None]) -> None:
        decisions = await store.load_decisions(f"race {number}")
        expect([one.key for one in decisions if one.key], ["k"], "the keys of decisions")
        expect(sorted(one.by for one in decisions if not one.key), [f"p{n}" for n in range(len(got))], "the others")

    await rivals.race(_decide, check)


async def _begin_work(store: Any, who: int, number: int) -> tuple[str, str]:
    new, old = (await store.begin_work(at_work(f"new {number}", journal_key=f"w{who}"))), at_work(f"old {number}")
    taken = await store.begin_work(at_work(f"old {number}", journal_key=f"w{who}"), instead_of=old)
    return new.journal_key, taken.journal_key


async def of_many_workflows_one_is_at_work_and_one_takes_the_place_of_another(store: Any, rivals: Rivals) -> None:
    async def begin(number: int) -> None:
        await store.begin_work(at_work(f"old {number}"))

    async def check(number: int, seen: list[Any]) -> None:
        expect_same(seen, "the marks of two sessions, for each who concurrently began to work on them")
        found = [(await store.find_work(f"{session} {number}"))[0].journal_key for session in ("new", "old")]
        expect(tuple(found), seen[0], "find_work")

    await rivals.race(_begin_work, check, before=begin)


async def _write_or_follow(store: Any, who: int, number: int) -> tuple[str, int]:
    name = f"fence {number}"
    if who % 2:
        with suppress(SessionConflictError):
            written = session(name).model_copy(update={"journal_key": "old/1"})
            return "", await store.append_messages_atomic(name, say("late"), written, write_key=f"old/{who}")
        return "", 0
    new, old = at_work(name, journal_key=f"new {who}"), at_work(name, journal_key="old")
    mark = await store.begin_work(new, instead_of=old)
    found = await store.load_session(name)
    return mark.journal_key, 0 if found is None else found.last_seq


async def once_a_run_has_followed_another_that_one_writes_nothing(store: Any, rivals: Rivals) -> None:
    async def begin(number: int) -> None:
        await store.begin_work(at_work(f"fence {number}", journal_key="old"))

    async def check(number: int, seen: list[Any]) -> None:
        found = await store.load_session(f"fence {number}")
        last = 0 if found is None else found.last_seq
        expect({read for mark, read in seen if mark}, {last}, "the last message, as those who followed have read it")
        expect(max([0, *(wrote for mark, wrote in seen if not mark)]), last, "the last message that was written")

    await rivals.race(_write_or_follow, check, before=begin)


async def _come_and_go(store: Any, who: int, number: int) -> None:
    await store.add_worker("all")
    await store.add_worker(f"w{who}")
    if number % 2:
        await store.drop_worker(f"w{who}")


async def workers_that_come_and_go_at_once_are_each_known_once(store: Any, rivals: Rivals) -> None:
    async def check(number: int, came: list[None]) -> None:
        expected = ["all"] if number % 2 else ["all", *(f"w{who}" for who in range(len(came)))]
        expect(sorted(await store.list_workers()), expected, "list_workers")

    await rivals.race(_come_and_go, check, most=10)


LEDGER_RACES = [
    of_many_that_claim_a_call_one_owns_it,
    a_call_that_is_settled_while_it_is_claimed_is_claimed_or_abandoned_for_all,
    who_has_lost_a_call_records_nothing_and_hears_so,
    calls_that_end_beside_others_leave_only_those_that_run,
    of_many_replies_to_a_turn_one_is_kept,
    of_many_replies_that_are_appended_one_is_kept_with_its_messages,
    of_many_decisions_with_one_key_one_is_recorded,
    of_many_workflows_one_is_at_work_and_one_takes_the_place_of_another,
    once_a_run_has_followed_another_that_one_writes_nothing,
    workers_that_come_and_go_at_once_are_each_known_once,
]
