"""PostgreSQL: a fault is reported in one sentence with its remedy, without a password, and nothing changes."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.postgres import PostgresServer, new_schema, postgres_server
from support.postgres_proxies import PostgresProxy
from support.stores import SESSION, append, contents, say, seed

from standfast import InputError, Message, StoreError, ToolCall, postgres_store
from standfast.stores import DecisionRecord, Session
from standfast.stores.postgres.connections import check_session_mode
from standfast.stores.postgres.database import Address

SECRET = "hunter2"


# --- addresses ---


@pytest.mark.parametrize(
    "dsn",
    ["", "standfast.db", f"user:{SECRET}@host/db", f"mysql://user:{SECRET}@host/db", f"postgresql:{SECRET}", None],
)
def test_what_is_not_an_address_is_refused_at_once(dsn: str) -> None:
    with pytest.raises(InputError, match="an address such as postgresql://") as refused:
        postgres_store(dsn)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("schema", ["", "Mine", 'a"b', "a.b", "pg_mine", "1a", "x" * 64, None])
def test_a_schema_that_would_have_to_be_quoted_is_refused_at_once(schema: str) -> None:
    with pytest.raises(InputError, match="schema must be 1 to 63 of a-z 0-9 _"):
        postgres_store("postgresql://host/db", schema=schema)


@pytest.mark.parametrize(
    "password", [f"{SECRET}@x", f"x/{SECRET}@", f"x?{SECRET}", f"x#{SECRET}", f"x:{SECRET}", f"%{SECRET}"]
)
async def test_a_password_that_is_not_escaped_is_never_shown(postgres: PostgresServer, password: str) -> None:
    address = f"127.0.0.1:{postgres.port}/postgres"
    async with postgres_store(f"postgresql://standfast:{password}@{address}") as store:
        assert SECRET not in repr(store)
        with contextlib.suppress(StoreError):
            await store.load_session("s")  # some of them are read as another address, which is away
        with pytest.raises(StoreError) as refused:
            await postgres_store(f"postgresql://nobody:{password}@{address}x").load_session("s")
    error: BaseException | None = refused.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# --- servers and databases ---


async def refusal(dsn: str, schema: str | None = None) -> str:
    async with postgres_store(dsn, schema=schema or new_schema()) as store:
        with pytest.raises(StoreError) as refused:
            await append(store, "a")
        with pytest.raises(StoreError):
            await store.hold("s")
    text = str(refused.value)
    assert "\n" not in text
    return text


async def test_a_server_that_is_not_there_is_said_to_be_away(postgres: PostgresServer) -> None:
    text = await refusal("postgresql://standfast:hunter2@127.0.0.1:1/postgres")
    assert text.startswith("The store postgresql://127.0.0.1:1/postgres, schema s")
    assert "does not answer, or the connection to it was lost" in text
    assert "no host has this name" in await refusal("postgresql://standfast@nowhere.invalid/postgres")
    assert "there is no such database; create it" in await refusal(postgres.dsn("nothing"))


async def test_a_wrong_password_or_user_is_said(postgres: PostgresServer) -> None:
    postgres.sql("CREATE ROLE secretive LOGIN PASSWORD 'right'")
    postgres.ask_for_password("secretive")
    address = f"127.0.0.1:{postgres.port}/postgres"
    text = await refusal(f"postgresql://secretive:{SECRET}@{address}")
    assert "refuses this user's password; check it" in text
    assert SECRET not in text
    assert "refuses this user; check the user's name" in await refusal(postgres.dsn(user="nobody"))


async def test_rights_that_are_missing_are_said(postgres: PostgresServer) -> None:
    postgres.sql("CREATE ROLE guest LOGIN")
    assert "GRANT CREATE ON DATABASE" in await refusal(postgres.dsn(user="guest"))
    schema = new_schema()
    async with postgres.store(schema) as store:
        await append(store, "a")
    assert "give the user the rights to the schema and its tables" in await refusal(postgres.dsn(user="guest"), schema)
    tables = f"ALL TABLES IN SCHEMA {schema}"
    postgres.sql(f"GRANT USAGE ON SCHEMA {schema} TO guest; GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO guest")
    async with postgres_store(postgres.dsn(user="guest"), schema=schema) as store:
        assert await append(store, "b") == 2  # using a store does not require owning it
        assert await store.hold("s")
        assert await store.hold_scope()


async def test_a_read_only_server_is_said_to_be_one(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as store:
        await append(store, "a")
    postgres.sql("CREATE ROLE reader LOGIN SUPERUSER; ALTER ROLE reader SET default_transaction_read_only = on")
    assert "is read-only: it is a replica" in await refusal(postgres.dsn(user="reader"), schema)
    assert "give the address of the primary" in await refusal(postgres.dsn(user="reader"))
    async with postgres_store(postgres.dsn(user="reader"), schema=schema) as store:
        assert await contents(store) == ["a"]


async def test_a_database_that_cannot_keep_every_text_is_refused(postgres: PostgresServer) -> None:
    postgres.sql("CREATE DATABASE latin ENCODING LATIN1 TEMPLATE template0 LOCALE 'C'")
    assert "has the encoding LATIN1; give a database with the encoding UTF8" in await refusal(postgres.dsn("latin"))


async def test_a_table_that_is_missing_is_said(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as store:
        await append(store, "a")
    postgres.sql(f"DROP TABLE {schema}.agent_messages, {schema}.holds")
    assert "lacks a table that its schema version says it has" in await refusal(postgres.dsn(), schema)


async def test_a_server_without_a_free_connection_is_said() -> None:
    with postgres_server("-c", "superuser_reserved_connections=0", "-c", "max_connections=4") as server:
        async with server.store() as store, server.store() as other:
            await asyncio.gather(*(store.load_session("s") for _ in range(4)))
            with pytest.raises(StoreError, match=r"has no connection left; raise the server's max_connections"):
                await asyncio.gather(*(store.load_session("s") for _ in range(8)), *(other.hold("s") for _ in range(8)))


@pytest.mark.slow
async def test_a_full_disk_is_said_and_nothing_is_lost() -> None:
    with postgres_server() as server, server.folder() as folder, full_disk(folder):
        server.sql(f"CREATE TABLESPACE small LOCATION '{folder}'")
        server.sql("CREATE DATABASE small TABLESPACE small")
        async with postgres_store(server.dsn("small")) as store:
            await append(store, "a")
            noise = os.urandom(3_000_000).hex()
            replies = [store.save_reply("run", number, noise) for number in range(10)]
            with pytest.raises(StoreError, match="cannot grow: the server's disk is full; free some space"):
                await asyncio.gather(*replies)
            assert await contents(store) == ["a"]


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Make a folder a file system of 24 MB, which is soon full."""
    owner = f"size=24m,uid={folder.stat().st_uid},mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", owner, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# --- poolers ---


@contextlib.contextmanager
def pooler(server: PostgresServer, mode: str, *lines: str) -> Iterator[str]:
    """PgBouncer in a mode; yields the address of the database behind it."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is missing")
    port = server.free_port()
    with server.folder() as folder:
        settings = [
            *("[databases]", f"postgres = host=127.0.0.1 port={server.port} user=standfast", "[pgbouncer]"),
            *("listen_addr = 127.0.0.1", f"listen_port = {port}", "unix_socket_dir =", "auth_type = any"),
            *(f"pool_mode = {mode}", "default_pool_size = 20", *lines),
        ]
        (folder / "pgbouncer.ini").write_text("\n".join(settings))
        with server.running([program, str(folder / "pgbouncer.ini")], port):
            yield f"postgresql://standfast@127.0.0.1:{port}/postgres"


@pytest.mark.parametrize("lines", [(), ("server_reset_query_always = 1",), ("default_pool_size = 1",)])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_that_does_not_keep_holds_is_refused(
    postgres: PostgresServer, mode: str, lines: tuple[str, ...]
) -> None:
    schema = new_schema()
    with pooler(postgres, mode, *lines) as address:
        text = await refusal(address, schema)
        assert "behind a pooler in transaction mode" in text
        assert "session mode (pool_mode = session)" in text
    assert postgres.sql(f"SELECT to_regnamespace('{schema}') IS NULL") == "t"


@dataclass(frozen=True)
class WithoutPreparedStatements(Address):
    """What newer poolers keep in transaction mode, too; then it is the lost lock that tells."""

    async def connect(self) -> Any:
        return await asyncpg.connect(self.dsn, statement_cache_size=0)


@pytest.mark.parametrize(
    ("mode", "lines", "is_refused"),
    [
        ("transaction", (), True),
        ("transaction", ("server_reset_query_always = 1",), True),
        ("session", (), False),
    ],
)
async def test_a_pooler_is_known_by_the_outcome_of_a_lock(
    postgres: PostgresServer, mode: str, lines: tuple[str, ...], is_refused: bool
) -> None:
    with pooler(postgres, mode, *lines) as address:
        where = WithoutPreparedStatements(address, "s", "here", 1)
        connection = await where.connect()
        refused = False
        try:
            await check_session_mode(where, connection)
        except StoreError as error:
            refused = "holds belong to anybody" in str(error)
        finally:
            await connection.close()
    assert refused is is_refused


async def test_a_pooler_in_session_mode_serves(postgres: PostgresServer) -> None:
    schema = new_schema()
    with pooler(postgres, "session") as address:
        async with postgres_store(address, schema=schema) as store, postgres.store(schema) as direct:
            await append(store, "a")
            assert await store.hold("s")
            assert not await direct.hold("s")
            await store.let_go("s")
            assert await direct.hold("s")


# --- values ---


async def test_texts_with_nul_and_the_escape_for_it_are_kept(postgres: PostgresServer) -> None:
    texts = ["\0", "a\0b", "\x10", "\x10\x10", "\x100", "\x10\0", "\0\x10", "\0\0\x10\x10\x100", "é🙂\0"]
    async with postgres.store() as store:
        for turn, text in enumerate(texts):
            assert await store.save_reply("run", turn, text) == text
            assert await store.load_reply("run", turn) == text
            await store.claim(text, text, owner=text, arguments_hash=text)
            assert await store.finish(text, text, owner=text, state="done", result=text)
            assert (await store.load_entries(text, [text]))[text].result == text
        call = ToolCall(id="c\0", name="look", arguments={"a": "b\0"})
        messages = [*(Message(role="user", content=text) for text in texts), assistant(call)]
        await seed(store, messages)
        assert await store.load_messages("s") == messages


def assistant(call: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=(call,))


async def test_half_a_character_is_refused_and_nothing_is_written(postgres: PostgresServer) -> None:
    half = Message.model_construct(role="user", content="\ud800")
    async with postgres.store() as store:
        with pytest.raises(InputError, match="cannot keep a value"):
            await store.append_messages_atomic("s", [*say("a"), half], SESSION)
        assert await contents(store) == []


async def test_keys_and_texts_may_be_long(postgres: PostgresServer) -> None:
    long, noise = "k" * 100_000, os.urandom(1_000_000).hex()
    async with postgres.store() as store:
        for key in (long + "1", long + "2"):
            await store.claim("run", key, owner=key, arguments_hash="h")
            assert await store.finish("run", key, owner=key, state="done", result=noise)
        found = await store.load_entries("run", [long + "1", long + "2", long])
        assert {key[-1]: entry.result == noise for key, entry in found.items()} == {"1": True, "2": True}


# --- connections that break ---


async def test_what_is_repeated_after_a_connection_broke_is_done_once(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with PostgresProxy(postgres).running() as proxy:
        store = proxy.store(schema)
        await append(store, "first")
        for number in range(25):
            task = asyncio.create_task(
                store.append_messages_atomic("s", say(f"m{number}"), SESSION, write_key=f"k{number}")
            )
            await asyncio.sleep(0.0004 * number)
            proxy.cut()
            proxy.mend()
            await task
        assert await contents(store) == ["first", *(f"m{number}" for number in range(25))]
        await store.close()


async def test_what_has_no_key_is_not_repeated(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with PostgresProxy(postgres).running() as proxy, postgres.store(schema) as direct:
        store = proxy.store(schema)
        await direct.save_session(SESSION)
        record = DecisionRecord(journal_key="run", gate="g", at=datetime(2026, 1, 2, tzinfo=UTC), decision="approve")
        kept = 0
        for number in range(20):
            task = asyncio.create_task(store.record_decision(record))
            await asyncio.sleep(0.0004 * number)
            proxy.cut()
            proxy.mend()
            with contextlib.suppress(StoreError):
                await task
                kept += 1
        assert kept <= len(await direct.load_decisions("run")) <= 20
        await store.close()


@pytest.mark.slow
async def test_a_server_that_restarts_under_load_loses_nothing_that_was_acknowledged() -> None:
    with postgres_server() as server:
        async with server.store() as store:
            acknowledged: list[str] = []
            ends = asyncio.Event()

            async def write(name: str) -> None:
                number = 0
                while not ends.is_set():
                    text = f"{name}{number}"
                    with contextlib.suppress(StoreError):
                        await store.append_messages_atomic(name, say(text), with_id(name), write_key=text)
                        acknowledged.append(text)
                        number += 1
                    await asyncio.sleep(0)

            tasks = [asyncio.create_task(write(name)) for name in "abcdefgh"]
            for _ in range(3):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.restart)
            ends.set()
            await asyncio.gather(*tasks)
            kept = [text for name in "abcdefgh" for text in await contents(store, name)]
            assert sorted(kept) == sorted(acknowledged)


def with_id(name: str) -> Session:
    return SESSION.model_copy(update={"id": name})
