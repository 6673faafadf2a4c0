"""Checks of a store that can delete the data of sessions and runs."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from standfast.errors import InputError, SessionConflictError
from standfast.stores import DecisionRecord, Dropped, LedgerEntry, NotedRun, PartialAnswer, Session
from standfast.stores.deletion import DELETED
from standfast.stores.partial_answers import reasoning_key
from standfast.stores.protocol import has_partial_answers
from standfast.testing.expectations import contents, expect, expect_error, say, session

_DAY = timedelta(days=1)
_TEXT = "data that no session owns"


def run_key(number: int) -> str:
    """Return the journal key of a Temporal run."""
    return str(UUID(int=number, version=4))


def _noted(number: int, session_id: str | None = "s1", workflow: str = "") -> NotedRun:
    workflow = workflow or f"greeter/{session_id}"
    return NotedRun(journal_key=run_key(number), namespace="default", workflow_id=workflow, session_id=session_id)


def _before() -> datetime:
    """Return a time after everything in the store, whatever the store's clock shows."""
    return datetime.now(UTC) + _DAY


async def _fill(store: Any, number: int = 1, session_id: str = "s1", workflow: str = "") -> Session:
    """Store everything that a Temporal run stores for a session, and return the session."""
    noted = _noted(number, session_id, workflow)
    run = noted.journal_key
    await store.note_run(noted)
    made = session(session_id, workflow_id=noted.workflow_id, journal_key=f"{run}/1")
    await store.append_messages_atomic(session_id, say(_TEXT, _TEXT), made, expected_seq=0)
    kept: Session = await store.load_session(session_id)
    await store.save_reply(f"{run}/open", 0, f'{{"session":"{session_id}","message":"{_TEXT}"}}')
    await store.save_reply(run, 1, _TEXT)
    await store.save_reply(f"{run}/edits/ab", 0, _TEXT)
    await store.save_reply(f"{kept.key}/said", 0, _TEXT)
    for call in ("done", "running"):
        await store.claim(f"{kept.key}/2", f"0/{call}", owner="me", arguments_hash=_TEXT)
    await store.finish(f"{kept.key}/2", "0/done", owner="me", state="done", result=_TEXT)
    await store.settle(f"{kept.key}/2", "0/never")
    for place in (run, noted.workflow_id):
        await store.record_decision(_decision(place))
    if has_partial_answers(store):
        for key in (run, reasoning_key(run)):
            await store.add_partial(key, PartialAnswer(turn=1, attempt="a", offset=0, text=_TEXT))
    return kept


def _decision(place: str) -> DecisionRecord:
    return DecisionRecord(
        journal_key=place,
        gate="c1",
        at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        decision="approve",
        by="ada",
        comment=_TEXT,
        edit={"said": _TEXT},
        key="once",
    )


async def _found(store: Any, kept: Session, number: int = 1) -> list[object]:
    """Return all data of `_fill` that is in the store, except the messages."""
    run, scope, name = run_key(number), f"{kept.key}/2", f"{kept.key}/said"
    replies = [await store.load_reply(*place) for place in ((run, 1), (f"{run}/edits/ab", 0), (name, 0))]
    found = await store.load_entries(scope, ["0/done", "0/running", "0/never"])
    entries = {key: entry.model_copy(update={"claimed_at": None}) for key, entry in found.items()}
    decisions = [row for place in (run, kept.workflow_id) for row in await store.load_decisions(place)]
    keys = (run, reasoning_key(run)) if has_partial_answers(store) else ()
    partial = [part for key in keys if (part := await store.load_partial(key)) is not None]
    return [replies, entries, decisions, partial, await store.load_reply(f"{run}/open", 0)]


async def deleting_a_session_leaves_no_text_of_it(store: Any) -> None:
    kept = await _fill(store)
    await store.delete_session("s1")
    replies, entries, decisions, partial, opened = await _found(store, kept)
    expect((await store.load_session("s1"), await contents(store)), (None, []), "the session and its messages")
    expect(replies, [None, None, None], "its run's stored results")
    expect((decisions, partial), ([], []), "decisions and partial answers")
    expect(opened, DELETED, "the entry that replaces its run's recorded facts")
    texts = [(entry.result, entry.arguments_hash) for entry in entries.values()]  # type: ignore[attr-defined]
    expect(texts, [(None, None)] * 3, "results and arguments of its calls")


async def a_call_of_a_deleted_session_is_not_run_again(store: Any) -> None:
    kept = await _fill(store)
    scope = f"{kept.key}/2"
    await store.delete_session("s1")
    for call in ("0/done", "0/running"):
        expect((await store.settle(scope, call)).state, "claimed", f"the state of call {call}, which may have run")
        late = await store.finish(scope, call, owner="me", state="done", result=_TEXT)
        expect(late, False, f"whether the owner of call {call} records a result later")
        try:
            owner = (await store.claim(scope, call, owner="you", arguments_hash=_TEXT)).owner
        except InputError:
            continue
        expect(owner == "you", False, f"whether another owner gets call {call}")
    never = (await store.settle(scope, "0/never")).model_copy(update={"claimed_at": None})
    expect(never, LedgerEntry(state="abandoned"), "a call that has never run")
    for place in (scope, f"{kept.key}/4"):
        late = store.claim(place, "0/late", owner="you", arguments_hash="h")
        await expect_error(SessionConflictError, late, "a claim of another call")
        await expect_error(SessionConflictError, store.settle(place, "0/late"), "settling another call")
    entries = await store.load_entries(scope, ["0/done", "0/running"])
    expect([entry.result for entry in entries.values()], [None, None], "the results")


async def a_session_without_runs_on_temporal_is_deleted_with_all_its_calls(store: Any) -> None:
    await store.save_session(session())
    scope = f"{(await store.load_session('s1')).key}/2"
    await store.claim(scope, "0/c1", owner="me", arguments_hash="h")
    await store.delete_session("s1")
    expect(await store.load_entries(scope, ["0/c1"]), {}, "its calls")


async def decisions_of_a_deleted_session_can_be_kept_without_texts(store: Any) -> None:
    kept = await _fill(store)
    await store.delete_session("s1", keep_decisions=True)
    decisions = (await _found(store, kept))[2]
    bare = [_decision(place).model_copy(update={"comment": None, "edit": None}) for place in (run_key(1), "greeter/s1")]
    expect(decisions, bare, "the decisions")


async def who_deleted_a_session_stays(store: Any) -> None:
    await _fill(store)
    await store.record_decision(_decision(run_key(1)).model_copy(update={"decision": "delete", "key": "act"}))
    await store.delete_session("s1")
    expect([row.decision for row in await store.load_decisions(run_key(1))], ["delete"], "people's acts")


async def deleting_a_session_leaves_those_with_similar_names(store: Any) -> None:
    kept = await _fill(store)
    others = ["s10", "s1.c1", "S1", "s", "@t/s1", f"{kept.key}", "s1@t"]
    filled = [await _fill(store, number, name) for number, name in enumerate(others, 2)]
    before = [await _found(store, one, number) for number, one in enumerate(filled, 2)]
    await store.delete_session("s1")
    expect([await _found(store, one, number) for number, one in enumerate(filled, 2)], before, f"{others}")
    expect([len(await contents(store, name)) for name in others], [2] * len(others), f"the messages of {others}")


async def sessions_of_agents_that_it_called_go_with_a_session(store: Any) -> None:
    await _fill(store)
    called = await _fill(store, 2, "s1.c1.ab", "greeter/s1/c1")
    below = await _fill(store, 3, "s1.c1.ab.d1.cd", "greeter/s1/c1/d1")
    named_so = await _fill(store, 4, "s1.own", "greeter/s1.own")
    elsewhere = await _fill(store, 5, "other", "greeter/s1/by-hand")
    stay = [await _found(store, named_so, 4), await _found(store, elsewhere, 5)]
    await store.delete_session("s1")
    for number, one in ((2, called), (3, below)):
        expect((await store.load_session(one.id), await contents(store, one.id)), (None, []), f"session {one.id}")
        expect((await _found(store, one, number))[0], [None] * 3, f"what a run of {one.id} has kept")
    expect([await _found(store, named_so, 4), await _found(store, elsewhere, 5)], stay, "the others")


async def a_session_that_is_made_anew_shares_nothing_with_the_deleted_one(store: Any) -> None:
    first = await _fill(store)
    await store.delete_session("s1")
    second = await _fill(store, 2)
    expect(second.key == first.key, False, f"whether both have the key {first.key}")
    replies, entries, *_ = await _found(store, second, 2)
    expect(replies, [_TEXT] * 3, "its run's stored results")
    states = [entry.state for entry in entries.values()]  # type: ignore[attr-defined]
    expect(sorted(states), ["abandoned", "claimed", "done"], "the states of its calls")
    await store.delete_session("nobody")


async def a_run_is_noted_once(store: Any) -> None:
    began = await store.noted()
    expect(began.namespaces, (), "namespaces before any run")
    expect(abs(datetime.now(UTC) - began.since) < _DAY, True, f"whether {began.since} is when the store was made")
    for number, session_id in ((1, "s1"), (2, "s1"), (3, None)):
        await store.note_run(_noted(number, session_id, f"w{number}"))
        await store.note_run(_noted(number, session_id, f"w{number}"))
    of_session = await store.find_runs(session_id="s1")
    expect(sorted(run.workflow_id for run in of_session), ["w1", "w2"], "the runs of a session")
    [pipeline] = await store.find_runs([run_key(3), run_key(9)])
    expect((pipeline.session_id, pipeline.noted_at is None), (None, False), "the run of a pipeline, and its time")
    expect(await store.noted(), began.model_copy(update={"namespaces": ("default",)}), "all known runs")


async def records_are_listed_by_their_keys(store: Any) -> None:
    keys = ["run/steps/z", "run/steps/ä", "a", "B", "run", "run-2/steps/a", "s@20260101T000000000000/2"]
    for key in keys:
        await store.save_reply(key, 0, "{}")
        await store.save_reply(key, 1, "{}")
    await store.claim("ledger", "0/c1", owner="me", arguments_hash="h")
    await store.record_decision(_decision("trail"))
    expected, found = sorted([*keys, "ledger", "trail"]), list[str]()
    while more := await store.list_records(found[-1] if found else "", limit=2):
        found += more
    expect(found, expected, "all keys, two at a time")


async def records_are_dropped_when_all_of_them_are_old(store: Any) -> None:
    await _fill(store)
    run = run_key(1)
    await store.save_reply(f"{run}x", 0, _TEXT)
    await store.save_reply(f"{run}-x/y", 0, _TEXT)
    partial = 2 * int(has_partial_answers(store))
    young = await store.drop_records(run, before=datetime.now(UTC) - _DAY, decisions=True)
    expect(young, Dropped(), "dropped, younger than the limit")
    asked = await store.drop_records(run, before=_before(), dry_run=True)
    expect(
        asked.model_copy(update={"bytes": 0}), Dropped(replies=3, partial_answers=partial), "rows that would be dropped"
    )
    expect(asked.bytes >= 2 * len(_TEXT), True, f"whether {asked.bytes} are the bytes of these texts")
    expect(await store.load_reply(run, 1), _TEXT, "a reply after a dry run")
    expect(await store.drop_records(run, before=_before()), asked, "the dropped rows")
    expect([await store.load_reply(run, 1), await store.load_reply(f"{run}/open", 0)], [None, None], "the replies")
    expect(len(await store.load_decisions(run)), 1, "the decisions")
    expect(await store.find_runs([run]), [], "the run, which is no longer noted")
    near = [await store.load_reply(f"{run}x", 0), await store.load_reply(f"{run}-x/y", 0)]
    expect(near, [_TEXT, _TEXT], "the rows beside it")
    expect(
        (await store.drop_records(run, before=_before(), decisions=True)).decisions, 1, "decisions that were dropped"
    )
    expect(await store.load_decisions(run), [], "the decisions")
    expect(await contents(store), [_TEXT, _TEXT], "the messages")


async def old_calls_of_a_session_are_dropped_up_to_a_message(store: Any) -> None:
    kept = await _fill(store)
    for number in (3, 12):
        await store.claim(f"{kept.key}/{number}", "0/c1", owner="me", arguments_hash="h")
    young = await store.drop_records(kept.key, before=datetime.now(UTC) - 3650 * _DAY, below=12)
    expect(young, Dropped(), "dropped, younger than the limit")
    dropped = await store.drop_records(kept.key, before=_before(), below=12)
    expect(dropped, Dropped(calls=4, bytes=len(_TEXT)), "dropped below message 12")
    expect(await store.load_entries(f"{kept.key}/2", ["0/done", "0/never"]), {}, "calls of message 2")
    expect(len(await store.load_entries(f"{kept.key}/12", ["0/c1"])), 1, "calls of message 12")
    expect(await store.load_reply(f"{kept.key}/said", 0), _TEXT, "an unread message")
    await store.drop_records(kept.key, before=_before())
    expect(await store.load_entries(f"{kept.key}/12", ["0/c1"]), {}, "calls of message 12, of a session that is gone")


DELETIONS = [
    deleting_a_session_leaves_no_text_of_it,
    a_call_of_a_deleted_session_is_not_run_again,
    a_session_without_runs_on_temporal_is_deleted_with_all_its_calls,
    decisions_of_a_deleted_session_can_be_kept_without_texts,
    who_deleted_a_session_stays,
    deleting_a_session_leaves_those_with_similar_names,
    sessions_of_agents_that_it_called_go_with_a_session,
    a_session_that_is_made_anew_shares_nothing_with_the_deleted_one,
    a_run_is_noted_once,
    records_are_listed_by_their_keys,
    records_are_dropped_when_all_of_them_are_old,
    old_calls_of_a_session_are_dropped_up_to_a_message,
]
