"""Calls that an in-process run refuses: the ledger has the answer, so no run on Temporal starts them."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from support.temporal_runs import until
from support.told_calls import Shop, check_told
from support.transcripts import USER, asks, error_of, tool_contents

from standfast import RunResult, is_interrupted, run
from standfast.runtime.call_ledger import (
    NOT_RUN,
    answer_without_run,
    has_started,
    hash_of,
    last_dispatch,
    read_result,
    told,
    with_answer,
)
from standfast.stores import SQLiteStore
from standfast.stores.protocol import Session
from standfast.tools import Cancelled
from standfast.tools.calls import call_key, read_outcome, turn_scope

UNSAID = "Not run: its run ended before it could say why"
AT_GATES = ("rejected", "unapproved", "a stopped call is not approved")
OTHERS = ("stopped", "guardrail", "too many", "cut", "not found", "spent", "nothing")


async def go(shop: Shop, store: SQLiteStore, **given: Any) -> Any:
    return await run(shop.agent, session_id="s", store=store, llm=shop.llm, **given)


async def go_until_told(shop: Shop, name: str, store: SQLiteStore) -> None:
    """Run the agent until the model has been told of both calls."""
    if name == "cancelled before it started":
        running = asyncio.create_task(go(shop, store, message="go"))
        await until(shop.began.is_set)
        running.cancel()
        shop.may_return.set()
        with suppress(asyncio.CancelledError):
            await running
        return
    if name == "stopped":
        with suppress(Exception):
            await go(shop, store, message="go")
        return
    ended = await go(shop, store, message="go")
    if name in ("unapproved", "a stopped call is not approved"):
        deadlines = [item.deadline for item in ended.approvals]
        await until(lambda: all(at is not None and at < datetime.now(UTC) for at in deadlines))
        ended = await go(shop, store)
    if name == "rejected":
        for item in ended.approvals:
            no = {"gate": item.gate, "decision": "reject", "by": "ada", "digest": item.digest}
            ended = await go(shop, store, decisions=[no])
    assert not is_interrupted(ended)


@pytest.mark.parametrize("name", [*AT_GATES, *OTHERS, "cancelled before it started"])
async def test_a_call_that_was_not_run_in_process_is_not_started_by_a_worker(store: SQLiteStore, name: str) -> None:
    shop = Shop(name)
    await go_until_told(shop, name, store)
    session, messages = await store.load_session("s"), await store.load_messages("s")
    assert session is not None
    scope = turn_scope(session.key, 2)
    for position, one in enumerate(messages[1].tool_calls or ()):
        (message,) = [message for message in messages if message.tool_call_id == one.id]
        if message.content == f"paid {one.id}" or (name, one.id) == ("stopped", "c1"):
            continue
        late = await store.claim(scope, call_key(position, one.id), owner="w", arguments_hash=hash_of(one))
        assert (late.owner, late.state) == (NOT_RUN, "failed")
    await go(shop, store, message="more")
    await check_told(store, "s", shop, in_process=True)


async def test_a_run_in_process_finds_what_a_lost_run_on_temporal_has_left_in_the_ledger(store: SQLiteStore) -> None:
    shop = Shop("nothing")
    asked = asks("c1", "c2", tool="pay")
    session = Session(id="s", agent_name="shop", workflow_id="w", journal_key="r/1", created_at=datetime.now(UTC))
    await store.append_messages_atomic("s", [USER, asked], session, write_key="r/1", expected_seq=0)
    scope, (first, second) = turn_scope(session.key, 2), asked.tool_calls or ()
    key = call_key(0, first.id)
    await store.claim(scope, key, owner="w", arguments_hash=hash_of(first))
    await store.finish(scope, key, owner="w", state="done", result='{"returned": "paid c1"}')
    await answer_without_run(store, scope, 1, second, '{"failed": "Not run: it was rejected"}')
    shop.paid.append("c1")
    assert isinstance(await go(shop, store, message="more"), RunResult)
    assert tool_contents(await store.load_messages("s"))[0] == ("c1", "paid c1")
    assert error_of((await store.load_messages("s"))[3]) == "Not run: it was rejected"
    assert shop.paid == ["c1"]


async def test_of_a_call_that_was_claimed_for_its_answer_any_reader_writes_one(store: SQLiteStore) -> None:
    (one,) = asks("c1").tool_calls or ()
    key = call_key(0, "c1")
    entry = await store.claim("s@1/2", key, owner=NOT_RUN, arguments_hash=hash_of(one))
    whole = await with_answer(store, "s@1/2", key, entry)
    assert (whole.state, read_outcome(read_result(whole))) == ("failed", Cancelled(UNSAID))
    later = await answer_without_run(store, "s@1/2", 0, one, '{"failed": "Not run: it was rejected"}')
    assert later.result == whole.result
    assert not await has_started(store, "s@1/2", 0, "c1")


@pytest.mark.parametrize(
    ("known", "answer", "is_told"),
    [
        ({"asked": "which?"}, {"cancelled": "Not run: no"}, {"cancelled": "Not answered: the run ended"}),
        ({"asked": "did it?", "about_unknown": True}, {"cancelled": "Not run: no"}, {"unknown": "did it?"}),
        ({"asked": "which?"}, {"returned": "this"}, {"returned": "this"}),
        ({"asked": "which?"}, {"failed": "Nobody answered"}, {"failed": "Nobody answered"}),
        ({"unknown": ""}, {"unknown": "not resolved"}, {"unknown": "not resolved"}),
        ({"unknown": ""}, {"cancelled": "Not run: no"}, {"unknown": ""}),
        ({"returned": "paid"}, {"cancelled": "Not run: no"}, {"returned": "paid"}),
    ],
)
def test_a_call_that_has_run_is_not_told_as_one_that_has_not(known: Any, answer: Any, is_told: dict[str, Any]) -> None:
    assert told(known, answer) == is_told


async def test_an_answer_takes_the_next_number_after_a_dispatch_that_was_abandoned(store: SQLiteStore) -> None:
    (one,) = asks("c1").tool_calls or ()
    await store.settle("s@1/2", call_key(0, "c1"))
    answers = [answer_without_run(store, "s@1/2", 0, one, f'{{"failed": "no {number}"}}') for number in range(2)]
    first, second = await asyncio.gather(*answers)
    assert first.result == second.result
    assert await last_dispatch(store, "s@1/2", 0, "c1") == 2


async def test_a_call_that_was_started_is_not_answered_in_its_place(store: SQLiteStore) -> None:
    (one,) = asks("c1").tool_calls or ()
    await store.claim("s@1/2", call_key(0, "c1"), owner="w", arguments_hash="edited")
    entry = await answer_without_run(store, "s@1/2", 0, one, '{"failed": "no"}')
    assert (entry.owner, entry.state, entry.result) == ("w", "claimed", None)
    assert await has_started(store, "s@1/2", 0, "c1")
