"""Files of older and newer versions: landed migrations are never edited, and a rollback finds a usable store."""

import contextlib
import hashlib
import sqlite3
from pathlib import Path

import pytest
from support.stores import append, contents

from standfast import StoreError, sqlite_store
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.thread import SQLiteThread

_LANDED = (
    "cdc82a9ec997",
    "19cebfdf737d",
    "10c822c452b3",
    "f256bc4c8907",
    "f39ea151229d",
    "8ae8cfb7d0ed",
    "1bced22eb496",
    "fb1d733c7c97",
    "7d430c0ebaab",
    "08aaf2aaf6e2",
    "93e7b15cfbc1",
    "1c7e20da3f3a",
    "7dfc55a9a545",
    "22c166d6738c",
)  # a new script is appended with its digest; none of these ever changes


def test_a_migration_that_has_landed_is_never_edited() -> None:
    digests = tuple(hashlib.blake2b(script.encode(), digest_size=6).hexdigest() for script in MIGRATIONS)
    assert digests == _LANDED


async def migrated(path: Path, migrations: tuple[str, ...]) -> None:
    """Make, or migrate, a file as a version with these migrations does."""
    thread = SQLiteThread(str(path), migrations)
    await thread.do(lambda db: None)
    await thread.close()


@pytest.mark.parametrize("as_it_landed", [True, False])
async def test_what_a_model_says_is_told_by_stores_of_each_edition_of_the_fifth_migration(
    tmp_path: Path, as_it_landed: bool
) -> None:
    path = tmp_path / "older.db"
    await migrated(path, MIGRATIONS[:5])
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE standfast_schema DROP COLUMN oldest_reader")  # which that version had not
        if not as_it_landed:
            db.executescript(f"DROP TABLE partial_answers; {MIGRATIONS[5].partition(';')[2]}")
    async with sqlite_store(path) as store:
        part = PartialAnswer(turn=1, attempt="1", text="Once", offset=0)
        await store.add_partial("r", part)
        told = await store.load_partial("r")
    assert told is not None
    assert told.text == "Once"


async def test_a_version_continues_with_a_file_to_which_the_next_one_has_added_something(tmp_path: Path) -> None:
    path = tmp_path / "next.db"
    added = ("ALTER TABLE agent_sessions ADD COLUMN mood TEXT;", "CREATE TABLE moods (mood TEXT) STRICT;")
    await migrated(path, MIGRATIONS + added)
    async with sqlite_store(path) as store:
        await append(store, "hello")
        assert await contents(store) == ["hello"]
    await migrated(path, MIGRATIONS + added)  # which continues after the rollback


async def test_a_file_that_was_changed_under_older_versions_is_refused_by_them_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "next.db"
    next_one = ("-- breaking\nALTER TABLE agent_sessions DROP COLUMN usage;", "CREATE TABLE moods (mood TEXT) STRICT;")
    await migrated(path, MIGRATIONS + next_one)
    before = path.read_bytes()
    newest = len(MIGRATIONS)
    with pytest.raises(
        StoreError, match=f"has schema version {newest + 2}, written by a newer standfast.*knows {newest}"
    ):
        await sqlite_store(path).load_session("s")
    assert path.read_bytes() == before
    await migrated(path, MIGRATIONS + next_one[:1])  # but not by one that knows what was changed
