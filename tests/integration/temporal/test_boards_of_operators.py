"""The board with operators, other stores and versions: shown items can be decided, and finished ones go."""

import asyncio
import json
from typing import Any

import pytest
from support.resets import reset
from support.stores import Refusing
from support.temporal_runs import Temporal, check_healthy, pending, result, until
from support.transcripts import asks_for, call

from integration.temporal.test_attacked_boards import by_turn_of_user, clerk
from integration.temporal.test_boards import a_gate, approve, careful, is_empty, is_shown, looking, ships_once, shown
from integration.temporal.test_completed_by_hand import complete
from integration.temporal.test_temporal_tool_approvals import TEAM, at_gate
from standfast import Agent, Approval, NotConfirmedError, sqlite_store, tool
from standfast.stores import PostgresStore
from standfast.temporal import StandfastClient
from standfast.temporal.client.board.boards import mend_board
from standfast.temporal.client.board.gate_contents import is_cut, load_arguments
from standfast.testing import ScriptedModel

JUNK: list[Any] = ["a text", 7, None, True, {}, [1], ["nothing"]]


class WithoutBoard:
    """A store of an earlier version: it has everything except a board."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in ("show_waits", "waits", "count_waits", "load_board", "boards", "forget_boards"):
            raise AttributeError(name)
        return getattr(self._store, name)


# --- by hand ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("junk", JUNK, ids=str)
async def test_whatever_an_operator_puts_in_for_the_board_no_run_hangs(temporal: Temporal, junk: Any) -> None:
    """Two gates wait; one is decided, and the board is to keep the other."""
    store = Refusing(temporal.store)
    asks = asks_for(call("ship", "c1", what="the red one"), call("ship", "c2", what="the blue one"))
    async with temporal.worker(clerk, llm=ScriptedModel([asks, "done"]), store=store):
        run = await temporal.start(clerk)
        await is_shown(temporal, 2)
        store.refuses = {"show_waits"}
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await complete(temporal, run, "standfast.show", junk)
        store.refuses = set()
        await temporal.people.decide(run.id, "c2", "approve", by="bob")
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
        await mend_board(temporal.client, temporal.store)
        assert await shown(temporal) == []


async def test_the_doctor_names_runs_that_an_operator_has_ended_until_a_worker_has_looked(temporal: Temporal) -> None:
    where = ("--store", str(temporal.store._path), "--task-queue", temporal.name)

    async def board() -> tuple[bool, str]:
        rows = (await data_of_doctor(temporal, *where))["board"]
        return rows["ok"], rows["found"]

    async with a_gate(temporal) as run:
        await until(looking(temporal).board)
        await is_shown(temporal)
        ok, what = await board()
        assert (ok, "shows the waiting items" in what) == (True, True)
        await run.terminate("by an operator")
        ok, what = await board()
        assert (ok, run.id in what, "a worker repairs that" in what) == (False, True, True)
        await mend_board(temporal.client, temporal.store)
        assert (await board())[0] is True


async def data_of_doctor(temporal: Temporal, *words: str) -> dict[str, dict[str, Any]]:

    from support.commands import standfast

    said = await standfast(temporal, "doctor", *words, "-o", "json")
    return {row["check"]: row for row in json.loads(said.stdout)}


async def test_a_run_that_an_operator_resets_while_it_waits_is_on_the_board_once_and_can_be_decided(
    temporal: Temporal,
) -> None:
    async with a_gate(temporal) as run:
        await is_shown(temporal)
        again = await reset(temporal, run, 0)

        async def is_of_the_new_run() -> bool:
            return [one.board.run_id for one in await shown(temporal)] == [again.result_run_id or again.run_id]

        await until(is_of_the_new_run)
        (item,) = await looking(temporal).pending(run.id)
        for name in ("ada", "bob"):
            await looking(temporal).decide(run.id, "c1", "approve", by=name, digest=item["digest"])
        assert (await result(again))["status"] == "complete"
        await is_empty(temporal)


# --- what is large ---


async def test_large_arguments_are_on_the_board_by_reference_and_can_be_decided(temporal: Temporal) -> None:
    async with at_gate(temporal, TEAM, "x" * 20_000) as (run, posted):
        await until(looking(temporal).board)
        await is_shown(temporal)
        people = StandfastClient(temporal.client, store=temporal.store, timeout="60s")
        (item,) = await people.waiting()
        assert is_cut(item)
        assert (await load_arguments(temporal.store, item))["text"] == "x" * 20_000
        await people.decide(run.id, item["name"], "approve", by="ada", digest=item["digest"])
        await result(run)
        assert posted == ["x" * 20_000]
        assert await shown(temporal) == []


# --- other versions and other stores ---


async def test_a_run_of_a_worker_without_a_board_is_shown_by_a_newer_one_beside_it(temporal: Temporal) -> None:
    newer = await temporal.elsewhere()
    async with temporal.worker(careful, llm=ScriptedModel(ships_once), store=WithoutBoard(temporal.store)):
        run = await temporal.start(careful)
        await pending(run)
        async with newer.worker(careful, llm=ScriptedModel(ships_once)):
            await until(looking(temporal).board)

            async def is_put_in() -> bool:
                await mend_board(temporal.client, temporal.store)
                return len(await shown(temporal)) == 1

            await until(is_put_in)
            (item,) = await looking(temporal).waiting()
            for name in ("ada", "bob"):
                await looking(temporal).decide(run.id, "c1", "approve", by=name, digest=item["digest"])
            assert (await result(run))["status"] == "complete"

            async def is_taken_out() -> bool:
                await mend_board(temporal.client, temporal.store)
                return await shown(temporal) == []

            await until(is_taken_out)
        await check_healthy(run)


async def test_two_who_look_after_a_board_at_once_do_what_one_does(temporal: Temporal) -> None:
    async with a_gate(temporal) as run:
        (item,) = await is_shown(temporal)
        ended = await temporal.start(careful, session="other")
        await is_shown(temporal, 2)
        await ended.terminate()
        await temporal.store.show_waits(item.board, [])  # as if it were lost

        async def is_mended() -> bool:
            await asyncio.gather(*(mend_board(temporal.client, temporal.store) for _ in range(4)))
            return [one.board.workflow_id for one in await shown(temporal)] == [run.id]

        await until(is_mended)
        await approve(temporal, run)
        await result(run)
        await is_empty(temporal)


async def test_a_gate_that_opens_and_closes_while_the_store_is_away_is_not_on_the_board_when_it_is_back(
    temporal: Temporal,
) -> None:
    store = Refusing(temporal.store)
    async with temporal.worker(clerk, llm=ScriptedModel(by_turn_of_user), store=store):
        run = await temporal.start(clerk)
        await is_shown(temporal)
        store.refuses = {"show_waits"}
        await temporal.people.decide(run.id, "c1", "approve", by="bob")
        await result(run)
        again = await temporal.start(clerk, "again")
        await pending(again)
        store.refuses = set()

        async def is_right() -> bool:
            return [one.board.first_run_id for one in await shown(temporal)] == [again.result_run_id]

        await until(is_right)  # the run that waits writes it itself, and takes out what the one before has left
        await temporal.people.decide(run.id, "c2", "approve", by="bob")
        await result(again)
        assert await shown(temporal) == []


async def test_a_board_of_another_store_on_the_same_server_shows_its_own_runs(
    temporal: Temporal, tmp_path: Any
) -> None:
    other = await temporal.elsewhere()
    async with sqlite_store(tmp_path / "other.db") as store, a_gate(temporal) as run:
        theirs = type(other)(other.client, store, f"{temporal.name}.other")
        async with a_gate(theirs) as their_run:
            for one, mine in ((temporal, run), (theirs, their_run)):
                await is_shown(one)
                await mend_board(one.client, one.store)
                assert [item.board.workflow_id for item in await shown(one)] == [mine.id]
            await their_run.terminate()
        await theirs.end_all()
        await mend_board(temporal.client, temporal.store)
        assert len(await shown(temporal)) == 1


HOSTILE = ["a\u202eb", "x' OR 1=1 --", "%_\\", "<script>", "é\u0301\U0001f4a9", "-" * 200]


async def test_hostile_names_of_sessions_people_and_calls_are_shown_and_found(temporal: Temporal) -> None:
    @tool(approval=Approval(message="Ship it?"))
    async def send(what: str) -> str:
        """Send."""
        return "sent"

    agent = Agent("hostile", tools=[send])
    model = ScriptedModel(
        lambda messages, tools: (
            "done" if messages[-1].role == "tool" else asks_for(call("send", "c1", what=messages[-1].content))
        )
    )
    async with temporal.worker(agent, llm=model):
        await until(looking(temporal).board)
        for number, text in enumerate(HOSTILE):
            await temporal.start(agent, text, session=str(number), user_id=text)
        await is_shown(temporal, len(HOSTILE))
        for number, text in enumerate(HOSTILE):
            found = await looking(temporal).waiting(text=text.replace(" ", "")[:40] if " " not in text else "OR 1=1")
            assert temporal.session(str(number)) in [item["session_id"] for item in found]
            assert {item["user_id"] for item in found} >= {text}


# --- PostgreSQL ---


@pytest.mark.slow
async def test_on_postgresql_the_board_is_read_and_decided_with_every_worker_dead(
    temporal: Temporal, postgres_store: PostgresStore
) -> None:
    here = type(temporal)(temporal.client, postgres_store, f"{temporal.name}.pg")  # type: ignore[arg-type]
    async with a_gate(here) as run:
        await until(looking(here).board)
        await is_shown(here)
    people = looking(here)
    (item,) = await people.waiting(person="ADA", text="red", group="leads")
    assert await people.pending(run.id) == [{name: item[name] for name in await keys_of(people, run.id)}]
    assert await people.count_waiting() == {"approval": 1}
    with pytest.raises(NotConfirmedError):
        await people.decide(run.id, "c1", "approve", by="ada", digest=item["digest"])
    async with here.worker(careful, llm=ScriptedModel(ships_once)):
        await here.people.decide(run.id, "c1", "approve", by="bob", digest=item["digest"])
        assert (await result(run))["status"] == "complete"
        await is_empty(here)
    await here.end_all()


async def keys_of(people: StandfastClient, run: str) -> list[str]:
    (item,) = await people.pending(run)
    return list(item)
