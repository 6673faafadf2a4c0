"""D1: schemas of older and newer versions, of other programs, incomplete ones, and two concurrent creators."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
from support.d1 import ACCOUNT, TOKEN, D1Server
from support.d1_proxies import D1Proxy
from support.stores import append, contents

from standfast import StoreError
from standfast.stores import D1Store
from standfast.stores.d1.database import Database, HttpBinding
from standfast.stores.d1.schema import MIGRATIONS, prepare

_LANDED = (
    "f5070e732785",
    "576056770918",
    "93e7b15cfbc1",
    "1c7e20da3f3a",
    "7dfc55a9a545",
)  # a new script is appended with its digest; none of these ever changes


def test_a_migration_that_has_landed_is_never_edited() -> None:
    digests = tuple(hashlib.blake2b(script.encode(), digest_size=6).hexdigest() for script in MIGRATIONS)
    assert digests == _LANDED


@pytest.fixture
def name(d1: D1Server) -> str:
    return d1.new_database()


@pytest.fixture
async def db(d1: D1Server, name: str) -> AsyncIterator[Database]:
    binding = HttpBinding(f"{d1.url}/accounts/{ACCOUNT}/d1/database/{name}/query", TOKEN)
    yield Database(binding, "here")
    await binding.close()


ADDED = ("ALTER TABLE agent_sessions ADD COLUMN mood TEXT;", "CREATE TABLE moods (mood TEXT);")


async def test_a_version_continues_with_a_database_to_which_the_next_one_has_added_something(
    d1: D1Server, name: str, db: Database
) -> None:
    await prepare(db, MIGRATIONS + ADDED)
    async with d1.store(name) as store:
        await append(store, "hello")
        assert await contents(store) == ["hello"]
    await prepare(db, MIGRATIONS + ADDED)  # which continues after the rollback


async def test_a_worker_continues_while_a_newer_one_migrates(d1: D1Server, name: str, db: Database) -> None:
    async with d1.store(name) as older:
        await append(older, "a")
        await prepare(db, MIGRATIONS + ADDED)
        await append(older, "b")
        assert await contents(older) == ["a", "b"]


def tables(server: D1Server, name: str) -> list[str]:
    found = server.sql(name, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [row["name"] for row in found if not row["name"].startswith("_cf")]


async def refused(store: D1Store, text: str) -> None:
    async with store:
        for _ in range(2):
            with pytest.raises(StoreError, match=text):
                await append(store, "a")


async def test_a_database_that_a_newer_version_has_changed_is_refused_and_left_alone(
    d1: D1Server, name: str, db: Database
) -> None:
    breaking = ("-- breaking\nALTER TABLE agent_sessions DROP COLUMN usage;",)
    await prepare(db, MIGRATIONS + breaking)
    before = tables(d1, name)
    await refused(d1.store(name), f"schema version {len(MIGRATIONS) + 1}, written by a newer standfast.*Upgrade")
    assert tables(d1, name) == before


async def test_a_database_of_another_program_is_refused_and_left_alone(d1: D1Server, name: str) -> None:
    d1.sql(name, "CREATE TABLE customers (id TEXT)")
    await refused(d1.store(name), r"is the database of another program \(it has the table 'customers'\)")
    assert tables(d1, name) == ["customers"]


async def test_a_database_in_which_wrangler_keeps_its_migrations_is_used(d1: D1Server, name: str) -> None:
    d1.sql(name, "CREATE TABLE d1_migrations (id INTEGER PRIMARY KEY)")
    async with d1.store(name) as store:
        assert await append(store, "a") == 1


@pytest.mark.parametrize("lost", ["holds", "tool_ledger", "agent_messages", "marks"])
async def test_a_database_that_is_half_a_store_is_refused_and_left_alone(d1: D1Server, name: str, lost: str) -> None:
    async with d1.store(name) as store:
        await append(store, "a")
    d1.sql(name, f"DROP TABLE {lost}")
    await refused(d1.store(name), f"is only half there.*schema version 5, and lacks the table {lost}. Restore it")
    d1.sql(name, "DELETE FROM standfast_schema")
    await refused(d1.store(name), "is only half there.*lacks its version. Restore it")
    assert lost not in tables(d1, name)


async def test_an_identity_that_was_removed_is_missed(d1: D1Server, d1_store: D1Store) -> None:
    await append(d1_store, "a")
    d1.sql(d1_store._name.rpartition("/")[2], "DELETE FROM store_identity")
    with pytest.raises(StoreError, match="has lost its identity, the row of its table store_identity"):
        await d1_store.identity()


async def test_a_script_that_fails_leaves_nothing(d1: D1Server, name: str, db: Database) -> None:
    with pytest.raises(StoreError, match="no such column"):
        await prepare(db, (*MIGRATIONS, "CREATE TABLE moods (mood TEXT); UPDATE agent_sessions SET moods = 1;"))
    assert tables(d1, name) == []
    async with d1.store(name) as store:
        assert await append(store, "a") == 1


async def test_of_many_who_make_a_store_at_once_all_have_the_same(d1: D1Server, name: str) -> None:
    stores = [d1.store(name) for _ in range(8)]
    identities = await asyncio.gather(*(store.identity() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))
    assert len(set(identities)) == 1
    assert d1.sql(name, "SELECT version FROM standfast_schema") == [
        {"version": 1},
        {"version": 2},
        {"version": 3},
        {"version": 4},
        {"version": 5},
    ]


@pytest.mark.parametrize("faults", [["lose"], ["drop", "lose"], ["", "lose", "lose"], ["", "", "lose"]])
async def test_a_store_whose_making_is_not_answered_is_made_once(d1: D1Server, name: str, faults: list[str]) -> None:
    async with D1Proxy(d1).running() as proxy, proxy.store(name) as store:
        proxy.faults = [*faults]
        assert await append(store, "a") == 1
        assert proxy.faults == []
    assert d1.sql(name, "SELECT count(*) AS n FROM store_identity") == [{"n": 1}]
