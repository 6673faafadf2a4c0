"""A page of 10,000 waiting items is read in order by an index, without a scan."""

from typing import Any

import pytest

from standfast import sqlite_store
from standfast.stores import PostgresStore, SQLiteStore, WaitFilter
from standfast.stores.sql import waits
from standfast.stores.sql.waits import counted, page
from standfast.testing.boards import board_of, later, wait_of

ITEMS, RUNS = 10_000, 20


async def filled(store: Any) -> None:
    for run in range(RUNS):
        put = [
            wait_of(
                f"k{run}.{number}", deadline=later((number * 7919) % 5_003), kind="approval" if number % 9 else "pause"
            )
            for number in range(ITEMS // RUNS)
        ]
        await store.show_waits(board_of(f"greeter/{run}"), put)


async def pages(store: Any) -> list[tuple[WaitFilter, Any]]:
    """Return filters of pages, each with the place of its first item."""
    wanted = WaitFilter(namespace="default")
    (first,) = await store.waits(wanted, limit=1)
    return [(wanted, None), (wanted, first.place), (wanted.model_copy(update={"kind": "pause"}), first.place)]


async def test_a_page_of_a_sqlite_store_is_read_by_an_index(tmp_path: Any) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        await filled(store)
        for wanted, after in await pages(store):
            plan = " ".join(await explained(store, *page(wanted, after, 50)))
            assert "SEARCH w USING INDEX waits_" in plan
            assert "TEMP B-TREE" not in plan
        plan = " ".join(await explained(store, *counted(WaitFilter(namespace="default"))))
        assert "USING COVERING INDEX waits_kind" in plan


BOUNDS = ({"tenants": ("t7",)}, {"owner": "ada7"}, {"tenants": ("t7", "t8"), "owner": "ada7"})


async def of_many_tenants(store: Any) -> None:
    for run in range(400):
        board = board_of(f"greeter/{run}", tenant_id=f"t{run % 100}", user_id=f"Ada{run % 50}")
        await store.show_waits(board, [wait_of(f"k{run}.{number}", deadline=later(number)) for number in range(25)])


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
async def test_a_person_who_is_bounded_reads_a_sqlite_store_without_looking_at_what_is_of_others(
    tmp_path: Any, bounds: dict[str, Any]
) -> None:
    async with sqlite_store(tmp_path / "standfast.db") as store:
        await of_many_tenants(store)
        wanted = WaitFilter(namespace="default", **bounds)
        for asked in (page(wanted, None, 50), counted(wanted)):
            plan = " ".join(await explained(store, *asked))
            assert "SEARCH b USING INDEX boards_" in plan.replace("COVERING ", "")
            assert "SEARCH w USING INDEX sqlite_autoindex_waits" in plan


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
async def test_a_person_who_is_bounded_reads_a_postgres_store_without_looking_at_what_is_of_others(
    postgres_store: PostgresStore, bounds: dict[str, Any]
) -> None:
    await of_many_tenants(postgres_store)
    await postgres_store._do(lambda db: db.rows("ANALYZE @waits"))
    await postgres_store._do(lambda db: db.rows("ANALYZE @boards"))
    wanted = WaitFilter(namespace="default", **bounds)
    for statement, values in (page(wanted, None, 50, keys_first=True), counted(wanted)):
        rows = await postgres_store._executor.rows((f"EXPLAIN {statement}", values))
        plan = "\n".join(line for (line,) in rows)
        assert "Seq Scan on waits" not in plan, plan


async def explained(store: SQLiteStore, statement: str, values: dict[str, Any]) -> list[str]:
    return [row[3] for row in await store._executor.rows((f"EXPLAIN QUERY PLAN {statement}", values))]


async def test_a_page_of_a_postgres_store_is_read_by_an_index(postgres_store: PostgresStore) -> None:
    await filled(postgres_store)
    await postgres_store._do(lambda db: db.rows("ANALYZE @waits"))
    await postgres_store._do(lambda db: db.rows("ANALYZE @boards"))
    for wanted, after in await pages(postgres_store):
        statement, values = page(wanted, after, 50, keys_first=True)
        rows = await postgres_store._executor.rows((f"EXPLAIN {statement}", values))
        plan = "\n".join(line for (line,) in rows)
        assert "Index Scan using waits_" in plan
        assert "Sort" not in plan


async def test_a_board_is_written_without_reading_those_of_other_runs(tmp_path: Any) -> None:
    values = {"namespace": "default", "workflow_id": "greeter/0", "run_id": "r", "at": "", "keys": ["k0.1"]}
    async with sqlite_store(tmp_path / "standfast.db") as store:
        for statement in (waits.TAKE_OUT, waits.KEYS):
            plan = await explained(store, statement, {**values})
            assert "(namespace=? AND workflow_id=?" in plan[0]
            assert not [line for line in plan if line.startswith("SCAN") and "waits" in line]
