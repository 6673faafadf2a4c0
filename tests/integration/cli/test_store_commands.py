"""Commands that read a store accept any store; its address may be in a file, like a container's secret."""

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.commands import data, done, refused
from support.d1 import ACCOUNT, TOKEN, D1Server
from support.postgres import PostgresServer, new_schema
from support.stores import append, contents

from standfast import sqlite_store
from standfast.runtime.restored_stores import current_epoch, note_place
from standfast.stores import open_store


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    return f"{postgres.dsn()}?schema={new_schema()}"


async def test_a_new_schema_is_made_and_checked(address: str) -> None:
    first = await data(None, "store", "check", "--store", address)
    assert (first["sessions"], first["machines"]) == (0, "any number")
    assert await data(None, "store", "check", "--store", address) == first


async def test_a_file_has_to_be_there(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    assert "There is no store" in await refused(None, "store", "check", "--store", str(path))
    async with sqlite_store(path) as store:
        await append(store, "a")
    found = await data(None, "store", "check", "--store", str(path))
    assert (found["sessions"], found["machines"]) == (1, "this one")


@pytest.mark.parametrize(
    "words",
    [
        ("pending",),
        ("pending", "r"),
        ("show", "r"),
        ("start", "a"),
        ("cancel", "r"),
        ("approve", "r"),
        ("reject", "r"),
        ("answer", "r", "yes"),
        ("message", "r", "hi"),
        ("resume", "r"),
        ("resume", "--all", "--yes"),
        ("resolve", "r", "c", "--leave"),
        ("chat", "a"),
        ("standing", "list"),
        ("sessions",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("store", ["memory", "typo.db"])
async def test_a_store_that_is_named_and_not_there_is_the_fault_that_is_told_and_none_is_made(
    words: tuple[str, ...], store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a server can be reached is another matter: the words are read first."""
    monkeypatch.chdir(tmp_path)
    told = await refused(None, *words, "--store", store, TEMPORAL_ADDRESS="127.0.0.1:9")
    assert f"There is no store '{store}'; --store or STANDFAST_STORE names another" in told
    assert list(tmp_path.iterdir()) == []


async def test_sessions_are_listed_from_a_database(address: str) -> None:
    async with open_store(address) as store:
        await append(store, "Pay invoice 7")
    [session] = await data(None, "sessions", "--store", address)
    assert "Pay invoice 7" in await done(None, "sessions", session["id"], "--store", address)


async def test_an_address_is_read_from_a_file(address: str, tmp_path: Path) -> None:
    (tmp_path / "store").write_text(address + "\n")
    found = await data(None, "store", "check", STANDFAST_STORE_FILE=str(tmp_path / "store"))
    assert found["machines"] == "any number"
    environment = {"STANDFAST_STORE": "a.db", "STANDFAST_STORE_FILE": str(tmp_path / "store")}
    assert "set one of them" in await refused(None, "store", "check", **environment)
    missing = str(tmp_path / "missing")
    assert "cannot be read" in await refused(None, "store", "check", STANDFAST_STORE_FILE=missing)
    (tmp_path / "empty").touch()
    empty = str(tmp_path / "empty")
    assert "is empty" in await refused(None, "store", "check", STANDFAST_STORE_FILE=empty)


async def test_a_d1_database_is_named_by_its_address_and_its_token_may_be_in_a_file(
    d1: D1Server, tmp_path: Path
) -> None:
    address, api = (
        f"d1://{ACCOUNT}/{d1.new_database()}",
        {"CLOUDFLARE_API_BASE_URL": d1.url, "CLOUDFLARE_API_TOKEN": ""},
    )
    assert "set CLOUDFLARE_API_TOKEN" in await refused(None, "store", "check", "--store", address, **api)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    api["CLOUDFLARE_API_TOKEN_FILE"] = str(tmp_path / "token")
    found = await data(None, "store", "check", "--store", address, **api)
    assert (found["store"], found["sessions"], found["machines"]) == (address, 0, "any number")
    async with d1.store(address.rpartition("/")[2]) as store:
        await append(store, "Pay invoice 7")
    [session] = await data(None, "sessions", "--store", address, **api)
    assert "Pay invoice 7" in await done(None, "sessions", session["id"], "--store", address, **api)
    (tmp_path / "token").write_text("another")
    assert "refuses the API token" in await refused(None, "store", "check", "--store", address, **api)


@pytest.mark.parametrize("words", [("store", "check"), ("sessions",)], ids=" ".join)
async def test_an_error_shows_no_password(words: tuple[str, ...]) -> None:
    error = await refused(None, *words, "--store", "postgresql://ada:topsecret@127.0.0.1:9/agents")
    assert "127.0.0.1" in error
    assert "topsecret" not in error


# --- restoring a file ---


async def test_a_backup_is_restored_by_one_command(tmp_path: Path) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"
    async with sqlite_store(path) as store:
        await note_place(store)
        await append(store, "kept")
        back_up(path, backup)
        await append(store, "lost")
    done_ = await data(None, "store", "restore", str(backup), "--store", str(path))
    assert done_["store"] == str(path)
    async with sqlite_store(path) as store:
        assert await contents(store) == ["kept"]
        assert await current_epoch(store) == done_["epoch"] > 0
    path.unlink()
    assert (await data(None, "store", "restore", str(backup), "--store", str(path)))["epoch"] > 0


async def test_a_restore_that_would_go_wrong_changes_nothing(tmp_path: Path) -> None:
    path, backup, other, text = (tmp_path / name for name in ("s.db", "backup.db", "other.db", "text"))
    text.write_text("no database")
    async with sqlite_store(other) as store:
        await append(store, "other")
    async with sqlite_store(path) as store:
        await append(store, "a")
        back_up(path, backup)
        await append(store, "b")
        for wrong, why in (
            (backup, "is in use: stop all its workers and runs first"),
            (other, "The backup is of the store"),
            (text, "is not a SQLite database"),
            (path, "is the store itself"),
            (tmp_path / "none", "There is no backup"),
        ):
            assert why in await refused(None, "store", "restore", str(wrong), "--store", str(path))
        assert await contents(store) == ["a", "b"]
    damaged, newer, empty = (tmp_path / name for name in ("damaged.db", "newer.db", "empty.db"))
    damaged.write_bytes(backup.read_bytes()[:9_000])
    shutil.copy(backup, newer)
    with contextlib.closing(sqlite3.connect(newer)) as db, db:
        db.execute("INSERT INTO standfast_schema VALUES (9999, 9999)")
    empty.touch()
    for wrong, why in (
        (damaged, f"The backup {damaged} is damaged; use another one"),
        (newer, f"The store {newer} has schema version 9999, written by a newer standfast"),
        (empty, "has no tables of a store"),
    ):
        assert why in await refused(None, "store", "restore", str(wrong), "--store", str(path))
        assert not [*tmp_path.glob(f"{wrong.name}-*")]
    async with sqlite_store(path) as store:
        assert await contents(store) == ["a", "b"]
    hard_link = tmp_path / "hard.db"
    hard_link.hardlink_to(path)
    assert "another name, a hard link" in await refused(None, "store", "restore", str(backup), "--store", str(path))
    hard_link.unlink()
    async with sqlite_store(path) as store:
        assert await contents(store) == ["a", "b"]
    nowhere = str(tmp_path / "none" / "s.db")
    assert "There is no folder" in await refused(None, "store", "restore", str(backup), "--store", nowhere)
    assert "its own tools" in await refused(None, "store", "restore", str(backup), "--store", "postgresql://a@b/c")


async def test_a_file_that_a_killed_restore_left_empty_is_restored(tmp_path: Path) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"
    async with sqlite_store(path) as store:
        await append(store, "kept")
        back_up(path, backup)
    path.write_bytes(b"")
    await data(None, "store", "restore", str(backup), "--store", str(path))
    async with sqlite_store(path) as store:
        assert await contents(store) == ["kept"]
    assert not [*tmp_path.glob("backup.db-*")]


async def test_a_file_that_cannot_be_read_is_put_away_before_a_restore(tmp_path: Path) -> None:
    path, backup = tmp_path / "s.db", tmp_path / "backup.db"
    async with sqlite_store(path) as store:
        await append(store, "kept")
        back_up(path, backup)
    path.write_bytes(b"damaged" * 9_000)
    restore = ("store", "restore", str(backup), "--store", str(path))
    assert f"move it, {path}-wal and {path}-shm away, then run this again" in await refused(None, *restore)
    path.rename(tmp_path / "damaged.db")
    await data(None, *restore)
    async with sqlite_store(path) as store:
        assert await contents(store) == ["kept"]


async def test_a_store_that_was_moved_is_not_opened_again_by_a_restore(tmp_path: Path) -> None:
    path, backup, moved = (tmp_path / name for name in ("s.db", "backup.db", "moved.db"))
    async with sqlite_store(path) as store:
        await append(store, "kept")
        back_up(path, backup)
    await data(None, "store", "copy", str(path), str(moved))
    assert f"was moved to {moved}" in await refused(None, "store", "restore", str(backup), "--store", str(path))
    assert "was moved to" in await refused(None, "store", "restore", str(path), "--store", str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()


def back_up(path: Path, backup: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)
