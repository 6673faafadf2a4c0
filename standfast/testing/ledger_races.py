"""Checks of a store's ledger, journal and workers under concurrent use: other objects, threads and processes."""

from datetime import UTC, datetime
from typing import Any

from standfast.stores import Append, DecisionRecord
from standfast.testing.expectations import contents, expect, expect_same, say, session
from standfast.testing.ledgers import running
from standfast.testing.rivals import Rivals
from standfast.testing.workers import at_work


async def _claim(store: Any, who: int, number: int) -> tuple[str, str]:
    entry = await store.claim("race", str(number), owner=f"o{who}", arguments_hash="h")
    return entry.state, entry.owner


async def of_many_that_claim_a_call_one_owns_it(store: Any, rivals: Rivals) -> None:
    async def check(number: int, seen: list[Any]) -> None:
        expect_same(seen, "whose a call is, for each who claimed it at once")
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
        expect_same(seen, "what became of a call, for each who settled or claimed it at once")

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
        expect_same(heard, "the kept reply, for each who gave one at once")
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
        expect_same(heard, "the kept reply, for each who gave one at once")
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
        expect_same(seen, "the marks of two sessions, for each who began to work on them at once")
        found = [(await store.find_work(f"{session} {number}"))[0].journal_key for session in ("new", "old")]
        expect(tuple(found), seen[0], "find_work")

    await rivals.race(_begin_work, check, before=begin)


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
    workers_that_come_and_go_at_once_are_each_known_once,
]
