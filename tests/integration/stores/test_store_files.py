"""Faulty store files: foreign, damaged, protected, or on a full disk."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stores import append, contents, python

from standfast import Agent, StoreError, run, sqlite_store
from standfast.stores import SQLiteStore
from standfast.stores.sqlite import files as sqlite_files
from standfast.testing import ScriptedModel


async def write_and_close(path: Path, *texts: str) -> None:
    async with sqlite_store(path) as store:
        for text in texts:
            await append(store, text)


OPERATIONS: dict[str, Callable[[SQLiteStore], Awaitable[Any]]] = {
    "load_session": lambda store: store.load_session("s"),
    "append_messages_atomic": lambda store: append(store, "x"),
    "run": lambda store: run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s"),
}


# --- one file under two names ---


async def claim(store: SQLiteStore, owner: str) -> str | None:
    return (await store.claim("s@1/2", "0/c1", owner=owner, arguments_hash="h")).owner


async def test_a_call_is_claimed_once_by_all_names_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "other.db").symlink_to(tmp_path / "real" / "standfast.db")
    names = [tmp_path / "real" / "standfast.db", tmp_path / "linked" / "standfast.db", tmp_path / "other.db"]
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(sqlite_store(name)) for name in names]
        assert [await claim(store, str(number)) for number, store in enumerate(stores)] == ["0", "0", "0"]
        assert [await store.hold("s") for store in stores] == [True, False, False]


async def test_a_file_with_a_second_name_of_its_own_is_refused_since_a_call_would_be_claimed_by_each(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "standfast.db", tmp_path / "other.db"
    async with sqlite_store(path) as store:
        assert await claim(store, "1") == "1"
        os.link(path, other)
        async with sqlite_store(other) as linked:
            with pytest.raises(StoreError, match=r"other\.db has another name, a hard link.*Nothing was changed"):
                await claim(linked, "2")
        os.unlink(other)
        assert await claim(store, "3") == "1"
    assert sorted(os.listdir(tmp_path)) == ["standfast.db", "standfast.db-mark"]


async def test_a_file_that_is_mounted_on_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mounts = tmp_path / "my store.db", tmp_path / "mountinfo"
    escaped = str(path).replace(" ", "\\040")
    mounts.write_text(f"22 27 0:21 / /proc rw - proc proc rw\n90 27 8:1 /srv/a.db {escaped} rw - ext4 /dev/sda1 rw\n")
    async with sqlite_store(path) as store:
        await append(store, "a")
    monkeypatch.setattr(sqlite_files, "_MOUNTS", str(mounts))
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match=r"is mounted as a file by itself.*mount the folder"):
            await append(store, "b")


# --- files without a store ---


def not_a_database(path: Path) -> None:
    path.write_text("Dear diary, this is not a database.\n" * 50)


def only_the_header(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)


def a_foreign_database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, total REAL)")
        db.execute("INSERT INTO invoices (total) VALUES (9.5)")
        db.commit()


def a_foreign_database_with_a_table_of_our_name(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE agent_sessions (id TEXT, mine TEXT)")
        db.commit()


def a_newer_store(path: Path) -> None:
    asyncio.run(write_and_close(path, "from the future"))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO standfast_schema (version) VALUES (99)")
        db.commit()


def a_store_with_a_torn_page(path: Path) -> None:
    asyncio.run(write_and_close(path, "a" * 20_000))
    data = bytearray(path.read_bytes())
    data[100:4_096] = bytes([255]) * 3_996
    path.write_bytes(data)


BAD_FILES: dict[Callable[[Path], None], str] = {
    not_a_database: "is not a SQLite database; give another path",
    only_the_header: "is not a SQLite database|is damaged",
    a_foreign_database: "give another path",
    a_foreign_database_with_a_table_of_our_name: "give another path",
    a_newer_store: "has schema version 99, written by a newer standfast.*Upgrade standfast",
    a_store_with_a_torn_page: "is damaged; restore it from a backup",
}


@pytest.mark.parametrize("make", BAD_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_a_file_that_is_not_a_store_of_ours_is_refused_and_stays_unchanged(
    tmp_path: Path, make: Callable[[Path], None], operation: Callable[[SQLiteStore], Awaitable[Any]]
) -> None:
    path = tmp_path / "other.db"
    await asyncio.to_thread(make, path)
    before, files = path.read_bytes(), sorted(os.listdir(tmp_path))
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match=BAD_FILES[make]) as caught:
            await operation(store)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == files


@pytest.mark.parametrize("filling", [0, 255, 65])
async def test_a_store_whose_data_pages_are_torn_is_damaged_and_is_not_written_to(tmp_path: Path, filling: int) -> None:
    path = tmp_path / "torn.db"
    await write_and_close(path, *("x" * 3_000 for _ in range(50)))
    data = bytearray(path.read_bytes())
    data[len(data) // 4 :] = bytes([filling]) * (len(data) - len(data) // 4)
    path.write_bytes(data)
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match="is damaged; restore it from a backup") as caught:
            await store.load_messages("s")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == bytes(data)


async def test_a_run_calls_no_model_and_no_tool_when_its_store_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    not_a_database(path)
    model = ScriptedModel(["yes"])
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError):
            await run(Agent("greeter"), message="hi", llm=model, store=store, session_id="s")
    assert model.calls == []


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_a_folder_is_refused(tmp_path: Path, operation: Callable[[SQLiteStore], Awaitable[Any]]) -> None:
    async with sqlite_store(tmp_path) as store:
        with pytest.raises(StoreError, match="cannot be opened") as caught:
            await operation(store)
    assert (str(tmp_path) in str(caught.value), os.listdir(tmp_path)) == (True, [])


async def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "standfast.db"
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match="check that the folder exists") as caught:
            await append(store, "x")
        assert (str(path) in str(caught.value), os.listdir(tmp_path)) == (True, [])
        path.parent.mkdir()
        assert await append(store, "x") == 1


@pytest.mark.parametrize("path", ["", "standfast\0.db"], ids=["empty", "NUL"])
async def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises((StoreError, ValueError)) as caught:
        await append(sqlite_store(path), "x")
    assert "standfast" in type(caught.value).__module__


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    async with sqlite_store(path) as store:
        assert (await append(store, "x"), await contents(store)) == (1, ["x"])


async def test_every_commit_is_flushed_to_disk_and_sessions_take_their_messages_with_them(tmp_path: Path) -> None:
    async with OpenStore(tmp_path / "standfast.db") as store:
        settings = [await store.setting(name) for name in ("synchronous", "journal_mode", "foreign_keys")]
    full = 2
    assert settings == [full, "wal", 1]


async def test_a_store_opens_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    await write_and_close(path, "a", "b")
    assert sorted(os.listdir(tmp_path)) == ["standfast.db", "standfast.db-mark"]
    async with sqlite_store(path) as store:
        assert await contents(store) == ["a", "b"]


async def test_a_store_at_a_relative_path_stays_at_it_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with sqlite_store("standfast.db") as store:
        await append(store, "x")
        await store.close()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert await contents(store) == ["x"]


# --- files that may not be written ---


AS_NOBODY = """
import asyncio, os, sqlite3, sys
import standfast, standfast.testing
from standfast import Agent, StoreError, run, sqlite_store
from standfast.testing import ScriptedModel
asyncio.run(asyncio.to_thread(int))  # what an unprivileged user may not import is imported before
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
effects = []

@standfast.tool
async def post() -> None:
    effects.append("post")

async def main(path, session_id):
    model = ScriptedModel([{"tool_calls": [{"id": "c1", "name": "post"}]}, "done"])
    async with sqlite_store(path) as store:
        try:
            await run(Agent("greeter", tools=[post]), message="hi", llm=model, store=store, session_id=session_id)
        except StoreError as error:
            print(error)
    print(effects)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can reach, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="standfast-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def run_as_nobody(path: Path, session_id: str = "s") -> list[str]:
    done = python(AS_NOBODY, path, session_id)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("session_id", ["s", "new"])
@pytest.mark.parametrize("folder_mode", [0o777, 0o555], ids=["folder writable", "folder read-only"])
def test_a_read_only_file_is_an_error_and_no_tool_runs(open_folder: Path, session_id: str, folder_mode: int) -> None:
    path = open_folder / "standfast.db"
    asyncio.run(write_and_close(path, "a"))
    path.chmod(0o444)
    open_folder.chmod(folder_mode)
    before = path.read_bytes()
    error, effects = run_as_nobody(path, session_id)
    assert error.startswith(f"The store {path} ")
    assert "give this process the right to write to the file and its folder" in error
    assert (effects, path.read_bytes()) == ("[]", before)


def test_a_file_that_may_not_be_read_is_an_error_that_says_what_to_do(open_folder: Path) -> None:
    path = open_folder / "standfast.db"
    asyncio.run(write_and_close(path, "a"))
    path.chmod(0o000)
    before = path.stat().st_size
    error, effects = run_as_nobody(path)
    assert error.startswith(f"The store {path} ")
    assert ("check that" in error or "the right to" in error, effects, path.stat().st_size) == (True, "[]", before)


def test_a_new_store_in_a_read_only_folder_is_an_error(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    error, effects = run_as_nobody(open_folder / "new.db")
    assert "cannot be opened; check that the folder exists and may be written to" in error
    assert (effects, os.listdir(open_folder)) == ("[]", [])


# --- a disk that is full ---


ON_A_FULL_DISK = """
import asyncio, resource, sys
from standfast import Agent, StoreError, run, sqlite_store, tool
from standfast.testing import ScriptedModel

started = []

@tool
async def post(text: str) -> str:
    "Post a text."
    started.append(text)
    return "x" * 200_000

def steps():
    return [{"tool_calls": [{"id": f"c{n}", "name": "post", "arguments": {"text": str(n)}}]} for n in range(50)]

async def main(path):
    agent = Agent("greeter", tools=[post])
    async with sqlite_store(path) as store:
        await run(agent, message="before", llm=ScriptedModel(["kept"]), store=store, session_id="s")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        try:
            await run(agent, message="fill", llm=ScriptedModel(steps()), store=store, session_id="s")
        except StoreError as error:
            print(error)
        full = await store.load_messages("s")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await run(agent, llm=ScriptedModel(["went on"]), store=store, session_id="s")
        after = await store.load_messages("s")
    asked = [call.id for message in after for call in message.tool_calls or ()]
    given = [message.tool_call_id for message in after if message.role == "tool"]
    print(after[: len(full)] == full, asked == given, len(started) == len(asked), after[-1].content)
    print([message.content for message in after[:3]], len(started) > 1)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_full_disk_stops_the_run_what_was_written_stays_and_it_continues_with_space(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    done = await asyncio.to_thread(python, ON_A_FULL_DISK, path)
    error, went_on, first = done.stdout.splitlines() or [done.stderr, "", ""]
    assert error.startswith(f"The store {path} ")
    assert "full" in error
    assert (went_on, first) == ("True True True went on", "['before', 'kept', 'fill'] True")
    assert (done.returncode, done.stderr) == (0, "")


class OpenStore(SQLiteStore):
    """A store whose connection can be looked into and set up."""

    async def setting(self, pragma: str) -> Any:
        return await self._do(lambda db: db.execute(f"PRAGMA {pragma}").fetchone()[0], writes=False)


async def test_a_database_that_may_not_grow_refuses_one_write_and_keeps_the_others(tmp_path: Path) -> None:
    async with OpenStore(tmp_path / "standfast.db") as store:
        await append(store, "kept")
        await store.setting("max_page_count = 30")
        with pytest.raises(StoreError, match="the disk is full; free some space, then try again"):
            await append(store, "x" * 1_000_000)
        assert (await append(store, "small"), await contents(store)) == (2, ["kept", "small"])
        await store.setting("max_page_count = 1000000")
        assert await append(store, "x" * 1_000_000) == 3


async def test_a_stored_call_that_is_torn_is_damage_and_not_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "standfast.db"
    await write_and_close(path, "a")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE agent_messages SET tool_calls = '[{'")
        db.commit()
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match=r"has session s, message 1 of 1 in .*, but it cannot be read"):
            await store.load_messages("s")
