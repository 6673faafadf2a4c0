"""A SQLite store keeps its identity; a copy has its original's, and is reported once."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from standfast import StoreError, memory_store, sqlite_store
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.thread import SQLiteThread


async def identity(path: Path) -> str:
    async with sqlite_store(path) as store:
        return await store.identity()


async def test_two_stores_have_two_identities(tmp_path: Path) -> None:
    stores = [sqlite_store(tmp_path / name) for name in ("a.db", "b.db")] + [sqlite_store(":memory:")]
    found = {await store.identity() for store in [*stores, memory_store(), memory_store()]}
    await asyncio.gather(*(store.close() for store in stores))
    assert len(found) == 5


async def test_a_store_of_an_older_version_gets_its_identity_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    older = SQLiteThread(str(path), MIGRATIONS[:8])
    await older.do(lambda db: None)
    await older.close()
    assert await identity(path) == await identity(path)


async def test_a_copy_has_the_identity_of_its_original_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original, copy, moved = tmp_path / "a.db", tmp_path / "copy.db", tmp_path / "moved.db"
    made = await identity(original)
    assert await identity(original) == made
    shutil.copy(original, copy)
    original.rename(moved)
    with caplog.at_level(logging.WARNING, logger="standfast"):
        assert await identity(moved) == made
        assert caplog.messages == []
        assert [await identity(copy) for _ in range(2)] == [made, made]
    (warning,) = caplog.messages
    assert warning.startswith(f"The store {copy} is a copy of {original}, or was restored from a backup.")


async def test_a_store_whose_identity_was_removed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await identity(path)
    db = sqlite3.connect(path)
    with db:
        db.execute("DELETE FROM store_identity")
    db.close()
    with pytest.raises(StoreError, match="lost its identity"):
        await identity(path)


async def test_a_wal_that_a_replaced_file_left_behind_is_refused(tmp_path: Path) -> None:
    path, backup, wal = (tmp_path / name for name in ("a.db", "backup.db", "a.db-wal"))
    await identity(path)
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    # SQLite moves 1,000 pages at a time into the file, so its last claims are in the -wal alone, and others are not.
    script = """
import asyncio, os, signal, sys
from standfast import sqlite_store
async def main():
    store = sqlite_store(sys.argv[1])
    for number in range(40):
        await store.save_reply(sys.argv[2], number, "x" * 200_000)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    for run in ("r", "another"):
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(path), run, env=os.environ)
        assert await worker.wait() == -signal.SIGKILL
        assert wal.stat().st_size
        if run == "r":
            await identity(path)  # its own -wal is read
    shutil.copyfile(backup, path)
    with pytest.raises(StoreError, match=f"was replaced by an older copy, and {wal} belongs to the file"):
        await identity(path)
    assert path.read_bytes() == backup.read_bytes()
    wal.unlink()
    Path(f"{path}-shm").unlink(missing_ok=True)
    async with sqlite_store(path) as store:
        assert await store.load_reply("r", 0) is None


@pytest.mark.parametrize("kind", ["a folder", "a link"])
async def test_a_mark_that_cannot_be_read_is_told(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    path, mark = tmp_path / "a.db", tmp_path / "a.db-mark"
    made = await identity(path)
    mark.unlink()
    if kind == "a folder":
        mark.mkdir()
    else:
        mark.symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, logger="standfast"):
        assert await identity(path) == made
    assert f"{mark} cannot be read" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


async def test_a_moved_store_has_a_mark_even_if_its_old_folder_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, moved = tmp_path / "folder", tmp_path / "moved.db"
    folder.mkdir()
    made = await identity(folder / "a.db")
    (folder / "a.db").rename(moved)
    (folder / "a.db-mark").unlink()
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("no folder any more")
    with caplog.at_level(logging.WARNING, logger="standfast"):
        assert [await identity(moved) for _ in range(2)] == [made, made]
    (warning,) = caplog.messages
    assert warning.startswith(f"The store {moved} is a copy of {folder / 'a.db'}, or was restored from a backup.")
    assert Path(f"{moved}-mark").is_file()
