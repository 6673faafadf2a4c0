"""The store lists what runs wait for: exactly, once, as long as it waits, and whether a worker lives."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from support.own_workflows import Release
from support.resets import reset, resets
from support.stores import Refusing
from support.temporal_runs import Run, Temporal, ask_once, clerk, events, forget, pending, result, until
from support.transcripts import asks_for, call
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker

from standfast import Agent, Approval, InputError, NotConfirmedError, pipeline, tool
from standfast.stores import Board, ShownWait, Wait, WaitFilter
from standfast.temporal import StandfastClient, StandfastPlugin, start_pipeline
from standfast.temporal.client.board.boards import Mended, mend_board
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


@tool(
    approval=Approval(message="Ship it?", approvers=["leads"], groups={"leads": ["ada", "bob"]}, quorum=2, timeout="1d")
)
async def ship(what: str) -> str:
    """Ship something."""
    return "shipped"


careful = Agent("careful", tools=[ship])


def ships_once(messages: Any, tools: Any) -> Any:
    if any(message.role == "tool" for message in messages):
        return "done"
    return asks_for(call("ship", "c1", what="the red one"))


async def shown(temporal: Temporal, **wanted: Any) -> list[ShownWait]:
    return await temporal.store.waits(WaitFilter(namespace="default", **wanted))


async def is_shown(temporal: Temporal, count: int = 1, **wanted: Any) -> list[ShownWait]:
    """Return what the store shows, as soon as there is that much."""

    async def enough() -> list[ShownWait] | None:
        found = await shown(temporal, **wanted)
        return found if len(found) == count else None

    found: list[ShownWait] = await until(enough)
    return found


async def is_empty(temporal: Temporal) -> None:
    async def empty() -> bool:
        return not await shown(temporal)

    await until(empty)


def looking(temporal: Temporal, client: Client | None = None) -> StandfastClient:
    """Return someone who looks at the store."""
    return StandfastClient(client or temporal.client, store=temporal.store, timeout="2s")


@contextlib.asynccontextmanager
async def a_gate(temporal: Temporal, **options: Any) -> AsyncIterator[Run]:
    """Give a run that waits at a gate."""
    async with temporal.worker(careful, llm=ScriptedModel(ships_once), **options):
        run = await temporal.start(careful, user_id="eve", tenant_id="t")
        await pending(run)
        yield run


async def approve(temporal: Temporal, run: Run) -> None:
    for name in ("ada", "bob"):
        await temporal.people.decide(run.id, "c1", "approve", by=name)


def kinds(history: Any) -> list[str]:
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history]


async def test_the_board_has_what_the_run_has_and_who_asks_for_it(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        (item,) = await is_shown(temporal)
        (asked,) = await pending(run)
        await until(looking(temporal).board)
        (read,) = await looking(temporal).waiting()
        assert asked.items() <= read.items()
        whose = {"workflow_id": run.id, "agent": "careful", "user_id": "eve", "tenant_id": "t", "groups": ["leads"]}
        assert (whose | {"session_id": temporal.session(), "requesters": ["eve"]}).items() <= read.items()
        assert item.board.task_queue == temporal.name
        await approve(temporal, run)
        await result(run)
        assert await shown(temporal) == []


async def test_a_person_who_has_approved_is_on_the_board(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await until(looking(temporal).board)

        async def is_approved() -> bool:
            return [item["approved_by"] for item in await looking(temporal).waiting()] == [["ada"]]

        await until(is_approved)
        await temporal.people.decide(run.id, "c1", "approve", by="bob")
        await result(run)


async def test_a_run_that_never_waits_costs_nothing_more(temporal: Temporal) -> None:
    async with temporal.worker(careful, llm=ScriptedModel(["done"])):
        run = await temporal.start(careful)
        await result(run)
        assert kinds(await events(run)).count("MARKER_RECORDED") == 1  # the opening
        assert await temporal.store.boards("default") == []


async def test_a_gate_costs_two_markers(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await is_shown(temporal)
        await temporal.people.decide(run.id, "c1", "reject", by="ada")
        await result(run)
        assert kinds(await events(run)).count("MARKER_RECORDED") == 3


async def test_what_waits_is_read_with_no_worker_alive_and_a_decision_is_not_confirmed(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await until(looking(temporal).board)
    people = looking(temporal)
    (item,) = await people.waiting(person="ADA", text="red", group="leads")
    (asked,) = await people.pending(run.id)
    assert asked.items() <= item.items()
    assert await people.count_waiting() == {"approval": 1}
    assert await people.waiting(person="carol") == []
    with pytest.raises(NotConfirmedError):
        await people.decide(run.id, "c1", "approve", by="ada", digest=item["digest"])
    async with temporal.worker(careful, llm=ScriptedModel(ships_once)):
        await temporal.people.decide(run.id, "c1", "approve", by="bob", digest=item["digest"])
        assert (await result(run))["status"] == "complete"
        await is_empty(temporal)


async def test_questions_are_on_the_board_until_they_are_answered(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        (item,) = await is_shown(temporal, kind="question")
        assert (item.wait.name, item.wait.people) == ("c1", None)
        await temporal.people.answer(run.id, "Ada", by="bob")
        await result(run)
        assert await shown(temporal) == []


async def test_a_run_without_a_worker_for_its_agent_is_on_the_board(temporal: Temporal) -> None:
    other = Agent("other")
    async with temporal.worker(other, llm=ScriptedModel([])):
        run = await temporal.start("careful")
        (item,) = await is_shown(temporal, kind="worker")
        assert item.wait.people == ()
        await run.cancel()
        await until(lambda: _has_ended(run))
        await is_empty(temporal)


async def _has_ended(run: Run) -> bool:
    return (await run.describe()).close_time is not None


async def test_a_cancelled_run_leaves_nothing_on_the_board(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await is_shown(temporal)
        await run.cancel()
        await until(lambda: _has_ended(run))
        assert await shown(temporal) == []


async def test_a_gate_of_a_users_workflow_is_on_the_board_and_gone_when_the_workflow_ends(temporal: Temporal) -> None:
    plugin = StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))
    async with Worker(temporal.client, task_queue=temporal.name, workflows=[Release], plugins=[plugin]):
        run: Run = await temporal.client.start_workflow(
            "Release", "Ship?", id=temporal.session(), task_queue=temporal.name
        )
        (item,) = await is_shown(temporal)
        assert (item.board.agent, item.wait.name, item.wait.people) == ("Release", "ship", ("ada", "bob"))
        for name in ("ada", "bob"):
            await temporal.people.decide(run.id, "ship", "approve", by=name)
        await result(run)
        assert await shown(temporal) == []


# --- the store is away ---


async def test_a_store_that_does_not_show_what_waits_holds_up_nothing(temporal: Temporal) -> None:
    store = Refusing(temporal.store)
    store.refuses = {"show_waits"}
    async with a_gate(temporal, store=store) as run:
        await until(lambda: len(store.refused) > 2)
        assert await shown(temporal) == []
        store.refuses = set()
        await is_shown(temporal)
        store.refuses = {"show_waits"}
        await approve(temporal, run)
        assert (await result(run))["status"] == "complete"
        store.refuses = set()
        assert len(await shown(temporal)) == 1  # until a worker looks
        mended = await mend_board(temporal.client, temporal.store)
        assert (mended.over, await shown(temporal)) == ([run.id], [])


# --- resets, other runs, and what a crash left ---


async def test_after_a_reset_to_any_task_the_board_has_what_the_run_has(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await is_shown(temporal)
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await temporal.people.decide(run.id, "c1", "reject", by="bob")
        await result(run)
        count = 0
        async for again in resets(temporal, run):
            await result(again)
            assert await shown(temporal) == []
            count += 1
        assert count > 3
        (board,) = [board for board, _ in await temporal.store.boards("default")]
        assert board.first_run_id == run.result_run_id


async def test_a_gate_is_on_the_board_again_when_its_run_is_reset_behind_a_decision(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await is_shown(temporal)
        await temporal.people.answer(run.id, "Ada", by="bob")
        await result(run)
        (before,) = [board for board, _ in await temporal.store.boards("default")]
        await reset(temporal, run, 0)

        async def is_later() -> bool:
            (board,) = [board for board, _ in await temporal.store.boards("default")]
            return board.at > before.at and board.run_id != before.run_id

        await until(is_later)


async def test_what_a_terminated_run_left_is_taken_out_and_a_later_run_keeps_its_own(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        (item,) = await is_shown(temporal)
        await run.terminate("by an operator")
        assert await shown(temporal) == [item]

        async def has_looked() -> Mended | None:  # the server lists it a little longer
            found = await mend_board(temporal.client, temporal.store)
            return found if found.over else None

        mended = await until(has_looked)
        assert (mended.over, mended.missing, await shown(temporal)) == ([run.id], [], [])
        again = await temporal.start(careful, "again", user_id="eve", tenant_id="t")
        (later,) = await is_shown(temporal)
        assert later.board.first_run_id == again.result_run_id != run.result_run_id
        await temporal.store.show_waits(item.board, [item.wait])  # a zombie of the first run
        assert await shown(temporal) == [later]
        assert (await mend_board(temporal.client, temporal.store)).over == []
        await approve(temporal, again)
        await result(again)
        assert await shown(temporal) == []


async def test_what_a_deleted_workflow_left_is_taken_out(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await is_shown(temporal)
        await forget(temporal, run)
        await until(lambda: _is_gone(temporal))


async def _is_gone(temporal: Temporal) -> bool:
    await mend_board(temporal.client, temporal.store)
    return not await shown(temporal)


async def test_what_a_store_has_lost_is_put_in_again_and_taken_out_by_the_run(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        (item,) = await is_shown(temporal)
        await temporal.store.show_waits(item.board, [])  # as if it were restored

        async def is_put_in() -> bool:
            mended = await mend_board(temporal.client, temporal.store)
            return mended.missing == [run.id]

        await until(is_put_in)
        (read,) = await is_shown(temporal)
        assert (read.wait.name, read.wait.groups, read.board.is_watched) == ("c1", ("leads",), True)
        assert (await mend_board(temporal.client, temporal.store)).missing == []
        await approve(temporal, run)
        await result(run)
        assert await shown(temporal) == []


async def test_runs_of_queues_with_another_store_are_not_put_in(temporal: Temporal, tmp_path: Any) -> None:
    from standfast import sqlite_store

    async with a_gate(temporal), sqlite_store(tmp_path / "another.db") as another:
        mended = await mend_board(temporal.client, another)
        assert (mended.missing, await another.boards("default")) == ([], [])


async def test_a_look_at_the_board_alone_changes_nothing(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        await is_shown(temporal)
        await run.terminate("by an operator")

        async def is_found() -> bool:  # Temporal lists the run as running for a moment
            return (await mend_board(temporal.client, temporal.store, dry_run=True)).over == [run.id]

        await until(is_found)
        assert len(await shown(temporal)) == 1


# --- continue-as-new ---


async def test_gates_stay_on_the_board_when_their_run_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_gate(temporal) as run:
        await stays_shown(temporal, run, monkeypatch)
        await approve(temporal, run)
        await until(lambda: _chain_has_ended(temporal, run))
        assert await shown(temporal) == []


async def test_a_gate_of_a_pipeline_stays_on_the_board_when_its_run_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = pipeline("release").step("ok", approval=Approval(message="Ship it?")).build()
    async with temporal.worker(pipelines=[release]):
        run: Run = await start_pipeline(temporal.client, release, run_key=temporal.name, task_queue=temporal.name)
        await stays_shown(temporal, run, monkeypatch)
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        await until(lambda: _chain_has_ended(temporal, run))
        assert await shown(temporal) == []


@pytest.mark.slow
async def test_a_question_of_a_run_that_was_reset_stays_on_the_board_when_it_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a run looks up what was said before the reset, before it asks again."""
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        (before,) = await is_shown(temporal)
        run = await reset(temporal, run, -1)

        async def is_again() -> bool:
            found = await shown(temporal)
            return bool(found) and found[0].board.run_id != before.board.run_id

        await until(is_again)
        await stays_shown(temporal, run, monkeypatch)
        await temporal.people.answer(run.id, "red", tool_call_id="c1")  # again, while it looks up earlier answers
        await until(lambda: _chain_has_ended(temporal, run))
        assert await shown(temporal) == []


async def stays_shown(temporal: Temporal, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run that waits for people go on as new, and check that nothing is taken out of the board."""
    (before,) = await is_shown(temporal)
    first, show, boards = await _run_id(temporal, run), temporal.store.show_waits, list[list[str]]()

    async def show_and_note(board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        boards.append([*(wait.key for wait in put), *keep])
        return await show(board, put, keep)

    async def is_of_new_run() -> list[ShownWait] | None:
        found = await shown(temporal)
        return found if found and found[0].board.run_id != first else None

    monkeypatch.setattr(temporal.store, "show_waits", show_and_note)
    monkeypatch.setattr(run_lifetime, "EVENTS", len(await events(run)))
    await run.signal("reject", {"gate": "nope"})
    (after,) = await until(is_of_new_run)
    # Otherwise each run of a pipeline is as long before it judges anything.
    monkeypatch.setattr(run_lifetime, "EVENTS", 4_000)
    assert after.wait.key == before.wait.key
    assert all(boards), boards


async def _run_id(temporal: Temporal, run: Run) -> str:
    return (await temporal.client.get_workflow_handle(run.id).describe()).run_id


async def _chain_has_ended(temporal: Temporal, run: Run) -> bool:
    return (await temporal.client.get_workflow_handle(run.id).describe()).close_time is not None


# --- filters ---


async def test_filters_that_cannot_be_used_are_named(temporal: Temporal) -> None:
    people = looking(temporal)
    for filters, why in (
        ({"colour": "red"}, "unknown filter 'colour'"),
        ({"kind": 3}, "kind must be a text"),
        ({"waits_longer_than": "soon"}, "waits_longer_than must be like"),
    ):
        with pytest.raises(InputError, match=why):
            await people.waiting(**filters)
    with pytest.raises(InputError, match="which has a board"):
        await StandfastClient(temporal.client).waiting(text="red")
    async with temporal.worker(Agent("other"), llm=ScriptedModel([])):
        await until(people.board)
        with pytest.raises(InputError, match="after must be the place"):
            await people.waiting(after=uuid4().hex)
