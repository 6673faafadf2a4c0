"""PostgreSQL: schemas of older and newer versions, of other programs, and two in one database."""

import asyncio
import hashlib

import asyncpg
import pytest
from support.postgres import PostgresServer, new_schema
from support.stores import append, contents

from standfast import StoreError
from standfast.stores import PartialAnswer
from standfast.stores.postgres.migrations import MIGRATIONS
from standfast.stores.postgres.schema import prepare

# A new script is appended with its digest; none of these ever changes.
_LANDED = ("77502b564635", "cfef8b540445", "a4610bf4d8cb", "994ea5091855", "83825bdc3607")


def test_a_migration_that_has_landed_is_never_edited() -> None:
    digests = tuple(hashlib.blake2b(script.encode(), digest_size=6).hexdigest() for script in MIGRATIONS)
    assert digests == _LANDED


async def migrated(server: PostgresServer, schema: str, migrations: tuple[str, ...]) -> None:
    """Make, or migrate, a schema as a version with these migrations does."""
    connection = await asyncpg.connect(server.dsn())
    try:
        await prepare(connection, "here", schema, migrations)
    finally:
        await connection.close()


ADDED = ("ALTER TABLE @agent_sessions ADD COLUMN mood text;", "CREATE TABLE @moods (mood text);")


async def test_a_version_continues_with_a_schema_to_which_the_next_one_has_added_something(
    postgres: PostgresServer,
) -> None:
    schema = new_schema()
    await migrated(postgres, schema, MIGRATIONS + ADDED)
    async with postgres.store(schema) as store:
        await append(store, "hello")
        assert await contents(store) == ["hello"]
    await migrated(postgres, schema, MIGRATIONS + ADDED)  # which continues after the rollback


async def test_a_worker_continues_while_a_newer_one_migrates(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as older:
        await append(older, "a")
        await migrated(postgres, schema, MIGRATIONS + ADDED)
        await append(older, "b")
        assert await contents(older) == ["a", "b"]


async def test_a_schema_that_was_changed_under_older_versions_is_refused_by_them_and_left_alone(
    postgres: PostgresServer,
) -> None:
    schema, newest = new_schema(), len(MIGRATIONS)
    next_one = ("-- breaking\nALTER TABLE @agent_sessions DROP COLUMN usage;", "CREATE TABLE @moods (mood text);")
    await migrated(postgres, schema, MIGRATIONS + next_one)
    before = postgres.sql(f"SELECT * FROM {schema}.standfast_schema")
    async with postgres.store(schema) as store:
        with pytest.raises(
            StoreError, match=f"has schema version {newest + 2}, written by a newer standfast.*knows {newest}"
        ):
            await store.load_session("s")
    assert postgres.sql(f"SELECT * FROM {schema}.standfast_schema") == before
    await migrated(postgres, schema, MIGRATIONS + next_one[:1])  # but not by one that knows what was changed


async def test_of_many_that_open_a_new_store_at_once_one_makes_it(postgres: PostgresServer) -> None:
    schema = new_schema()
    stores = [postgres.store(schema) for _ in range(8)]
    try:
        await asyncio.gather(*(append(store, f"m{place}") for place, store in enumerate(stores)))
        assert len(await contents(stores[0])) == 8
    finally:
        await asyncio.gather(*(store.close() for store in stores))
    assert postgres.sql(f"SELECT count(*) FROM {schema}.standfast_schema") == str(len(MIGRATIONS))


async def test_a_migration_that_breaks_off_leaves_nothing(postgres: PostgresServer) -> None:
    schema = new_schema()
    with pytest.raises(asyncpg.UndefinedTableError):
        await migrated(postgres, schema, (*MIGRATIONS, "CREATE TABLE @moods (mood text); DROP TABLE @nothing;"))
    assert postgres.sql(f"SELECT to_regnamespace('{schema}') IS NULL") == "t"
    await migrated(postgres, schema, MIGRATIONS)
    with pytest.raises(asyncpg.UndefinedTableError):
        await migrated(postgres, schema, (*MIGRATIONS, "CREATE TABLE @moods (mood text); DROP TABLE @nothing;"))
    async with postgres.store(schema) as store:
        await append(store, "a")
    assert postgres.sql(f"SELECT to_regclass('{schema}.moods') IS NULL") == "t"


async def test_a_schema_of_another_program_is_refused_and_left_alone(postgres: PostgresServer) -> None:
    schema = new_schema()
    postgres.sql(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.invoices (id int)")
    async with postgres.store(schema) as store:
        with pytest.raises(StoreError, match=r"another program \(it has the table 'invoices'\); give another schema"):
            await append(store, "a")
    assert postgres.sql(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'") == "1"


async def test_an_empty_schema_that_an_administrator_has_made_is_used(postgres: PostgresServer) -> None:
    schema = new_schema()
    postgres.sql(f"CREATE SCHEMA {schema}")
    async with postgres.store(schema) as store:
        assert await append(store, "a") == 1


async def test_two_schemas_of_one_database_do_not_see_each_other(postgres: PostgresServer) -> None:
    async with postgres.store() as one, postgres.store() as other:
        await append(one, "a")
        await one.add_partial("run", PartialAnswer(turn=1, attempt="1", offset=0, text="Once"))
        await one.claim("run", "1", owner="me", arguments_hash="h")
        assert await one.hold("s")
        assert await other.hold("s")
        assert (await other.load_session("s"), await other.load_partial("run")) == (None, None)
        assert await other.load_entries("run", ["1"]) == {}
        assert await one.hold_scope() != await other.hold_scope()
