"""Every store passes the suite that holdfast exports; what a file can do to a store is tested here, too."""

import asyncio
import contextlib
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Message, RunResult, StoreError, memory_store, run, sqlite_store, tool
from holdfast.stores import Session, SQLiteStore
from holdfast.stores.sqlite import MIGRATIONS
from holdfast.stores.sqlite_thread import SQLiteThread
from holdfast.testing import ScriptedModel, store_suite


@pytest.mark.parametrize("check", store_suite(), ids=lambda check: check.__name__)
async def test_sqlite(check: Any, store: Any) -> None:
    await check(store)


@pytest.mark.parametrize("check", store_suite(durable=False), ids=lambda check: check.__name__)
async def test_memory(check: Any) -> None:
    await check(memory_store())


SESSION = Session(id="s", agent_name="greeter")


def say(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


async def contents(store: SQLiteStore, session_id: str = "s") -> list[str]:
    return [message.content for message in await store.load_messages(session_id)]


async def append(store: SQLiteStore, text: str, session_id: str = "s") -> int:
    return await store.append_messages_atomic(session_id, say(text), SESSION.model_copy(update={"id": session_id}))


async def write_and_close(path: Path, *texts: str) -> None:
    async with sqlite_store(path) as store:
        for text in texts:
            await append(store, text)


def python(script: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


OPERATIONS: dict[str, Callable[[SQLiteStore], Awaitable[Any]]] = {
    "load_session": lambda store: store.load_session("s"),
    "append_messages_atomic": lambda store: append(store, "x"),
    "run": lambda store: run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s"),
}


# --- files that are no store --------------------------------------------------------------------------------------


def not_a_database(path: Path) -> None:
    path.write_text("Dear diary, this is no database at all.\n" * 50)


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
        db.execute("INSERT INTO holdfast_schema (version) VALUES (99)")
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
    a_newer_store: "has schema version 99, written by a newer holdfast.*Upgrade holdfast",
    a_store_with_a_torn_page: "is damaged; restore it from a backup",
}


@pytest.mark.parametrize("make", BAD_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
async def test_a_file_that_is_no_store_of_ours_is_refused_and_stays_as_it_is(
    tmp_path: Path, make: Callable[[Path], None], operation: Callable[[SQLiteStore], Awaitable[Any]]
) -> None:
    path = tmp_path / "other.db"
    await asyncio.to_thread(make, path)
    before = path.read_bytes()
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match=BAD_FILES[make]) as caught:
            await operation(store)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["other.db"]


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
    path = tmp_path / "missing" / "holdfast.db"
    async with sqlite_store(path) as store:
        with pytest.raises(StoreError, match="check that the folder exists") as caught:
            await append(store, "x")
        assert (str(path) in str(caught.value), os.listdir(tmp_path)) == (True, [])
        path.parent.mkdir()
        assert await append(store, "x") == 1


@pytest.mark.parametrize("path", ["", "holdfast\0.db"], ids=["empty", "NUL"])
async def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises((StoreError, ValueError)) as caught:
        await append(sqlite_store(path), "x")
    assert "holdfast" in type(caught.value).__module__


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    async with sqlite_store(path) as store:
        assert (await append(store, "x"), await contents(store)) == (1, ["x"])


async def test_every_commit_is_flushed_to_disk_and_sessions_take_their_messages_with_them(tmp_path: Path) -> None:
    async with OpenStore(tmp_path / "holdfast.db") as store:
        settings = [await store.setting(name) for name in ("synchronous", "journal_mode", "foreign_keys")]
    full = 2
    assert settings == [full, "wal", 1]


async def test_a_store_opens_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    await write_and_close(path, "a", "b")
    assert os.listdir(tmp_path) == ["holdfast.db"]
    async with sqlite_store(path) as store:
        assert await contents(store) == ["a", "b"]


async def test_a_store_at_a_relative_path_stays_at_it_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with sqlite_store("holdfast.db") as store:
        await append(store, "x")
        await store.close()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert await contents(store) == ["x"]


# --- files that may not be written --------------------------------------------------------------------------------

AS_NOBODY = """
import asyncio, os, sqlite3, sys
import holdfast, holdfast.testing
from holdfast import Agent, StoreError, run, sqlite_store
from holdfast.testing import ScriptedModel
asyncio.run(asyncio.to_thread(int))  # what an unprivileged user may not import is imported before
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
effects = []

@holdfast.tool
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
    path = Path(tempfile.mkdtemp(prefix="holdfast-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def run_as_nobody(path: Path, session_id: str = "s") -> list[str]:
    done = python(AS_NOBODY, path, session_id)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("session_id", ["s", "new"])
@pytest.mark.parametrize("folder_mode", [0o777, 0o555], ids=["folder writable", "folder read-only"])
def test_a_read_only_file_is_an_error_and_no_tool_runs(open_folder: Path, session_id: str, folder_mode: int) -> None:
    path = open_folder / "holdfast.db"
    asyncio.run(write_and_close(path, "a"))
    path.chmod(0o444)
    open_folder.chmod(folder_mode)
    before = path.read_bytes()
    error, effects = run_as_nobody(path, session_id)
    assert error.startswith(f"The store {path} ")
    assert "give this process the right to write to the file and its folder" in error
    assert (effects, path.read_bytes()) == ("[]", before)


def test_a_file_that_may_not_be_read_is_an_error_that_says_what_to_do(open_folder: Path) -> None:
    path = open_folder / "holdfast.db"
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


# --- a disk that is full ------------------------------------------------------------------------------------------

ON_A_FULL_DISK = """
import asyncio, resource, sys
from holdfast import Agent, StoreError, run, sqlite_store, tool
from holdfast.testing import ScriptedModel

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


async def test_a_full_disk_stops_the_run_what_was_written_stays_and_it_goes_on_with_space(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
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
    async with OpenStore(tmp_path / "holdfast.db") as store:
        await append(store, "kept")
        await store.setting("max_page_count = 30")
        with pytest.raises(StoreError, match="the disk is full; free some space, then try again"):
            await append(store, "x" * 1_000_000)
        assert (await append(store, "small"), await contents(store)) == (2, ["kept", "small"])
        await store.setting("max_page_count = 1000000")
        assert await append(store, "x" * 1_000_000) == 3


# --- a file that is locked ----------------------------------------------------------------------------------------


class ImpatientStore(SQLiteStore):
    """A store that waits for a lock only briefly."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._thread = SQLiteThread(str(path), MIGRATIONS, busy_timeout=0.02)
        self._do = self._thread.do


@contextlib.asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Another process that holds the write lock."""
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('BEGIN IMMEDIATE');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        script,
        str(path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"locked\n"
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()
        await process.stdout.read()


async def test_a_locked_file_is_an_error_after_a_while_and_works_once_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    async with ImpatientStore(path) as store:
        await append(store, "a")
        async with locked(path):
            with pytest.raises(StoreError, match="is locked by another process; end that one or wait") as caught:
                await append(store, "b")
            assert await contents(store) == ["a"]
        assert str(path) in str(caught.value)
        assert (await append(store, "c"), await contents(store)) == (2, ["a", "c"])


async def test_writes_that_meet_one_lock_wait_for_it_together_and_not_one_after_the_other(tmp_path: Path) -> None:
    path, statements = tmp_path / "holdfast.db", list[str]()
    async with ImpatientStore(path) as store:
        await store._do(lambda db: db.set_trace_callback(statements.append), writes=False)
        async with locked(path):
            ended = await asyncio.gather(*(append(store, "x") for _ in range(30)), return_exceptions=True)
    assert [type(end) for end in ended] == [StoreError] * 30
    assert statements.count("BEGIN IMMEDIATE") < 10


async def test_a_run_whose_store_is_locked_runs_no_tool_and_goes_on_later(tmp_path: Path) -> None:
    effects: list[str] = []

    @tool
    async def post() -> None:
        """Post."""
        effects.append("post")

    path, agent = tmp_path / "holdfast.db", Agent("greeter", tools=[post])
    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "post"}]}, "done"]
    async with ImpatientStore(path) as store:
        await append(store, "a", "other")
        async with locked(path):
            with pytest.raises(StoreError, match="is locked"):
                await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
        assert effects == []
        result = await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    assert (isinstance(result, RunResult), effects) == (True, ["post"])


async def test_a_new_file_that_another_process_locks_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    async with sqlite_store(path) as store:
        async with locked(path):
            write = asyncio.create_task(append(store, "a"))
            await asyncio.wait([write], timeout=0.3)
            assert not write.done(), write.exception()
        assert await write == 1


async def test_a_new_file_that_another_process_locks_is_an_error_and_becomes_a_store_later(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    async with ImpatientStore(path) as store:
        async with locked(path):
            with pytest.raises(StoreError, match="is locked"):
                await append(store, "a")
        assert await append(store, "b") == 1


# --- several processes, threads and event loops -------------------------------------------------------------------

APPENDS = """
import asyncio, sys
from holdfast import Message, sqlite_store
from holdfast.stores import Session

async def main(path, name, count):
    print("ready", flush=True)
    sys.stdin.readline()
    async with sqlite_store(path) as store:
        for number in range(count):
            message = Message(role="user", content=f"{name}{number}")
            await store.append_messages_atomic("s", [message], Session(id="s", agent_name="greeter"))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_processes_that_append_to_one_new_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path, count = tmp_path / "holdfast.db", 40
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", APPENDS, str(path), name, str(count),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        for name in "abc"
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    ended = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [error.decode() for _, error in ended] == [""] * 3
    async with sqlite_store(path) as store:
        written, session = await contents(store), await store.load_session("s")
    assert session is not None
    assert session.last_seq == 3 * count
    assert [[text for text in written if text[0] == name] for name in "abc"] == [
        [f"{name}{number}" for number in range(count)] for name in "abc"
    ]


async def test_stores_that_open_one_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    for attempt in range(10):
        stores = [sqlite_store(tmp_path / f"{attempt}.db") for _ in range(8)]
        ended = await asyncio.gather(*(append(store, "x") for store in stores), return_exceptions=True)
        await asyncio.gather(*(store.close() for store in stores))
        assert sorted(ended, key=str) == list(range(1, 9))


async def test_many_appends_at_once_all_land_though_one_of_them_fails(store: SQLiteStore) -> None:
    broken = Message.model_construct(role="user", content=object())
    writes: list[Awaitable[Any]] = [append(store, f"m{number}", f"s{number % 7}") for number in range(100)]
    writes.insert(50, store.append_messages_atomic("s3", [broken], SESSION))
    ended = await asyncio.gather(*writes, return_exceptions=True)
    assert [index for index, end in enumerate(ended) if isinstance(end, BaseException)] == [50]
    written = [text for number in range(7) for text in await contents(store, f"s{number}")]
    assert sorted(written) == sorted(f"m{number}" for number in range(100))
    for number in range(7):
        session = await store.load_session(f"s{number}")
        assert session is not None
        assert session.last_seq == len(await contents(store, f"s{number}"))


async def test_a_value_that_cannot_be_stored_is_an_error_of_holdfast(store: SQLiteStore) -> None:
    broken = Message.model_construct(role="user", content=object())
    with pytest.raises(StoreError, match="refused"):
        await store.append_messages_atomic("s", [broken], SESSION)


def test_a_store_serves_two_event_loops_one_after_the_other(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")
    assert asyncio.run(append(store, "a")) == 1
    assert asyncio.run(append(store, "b")) == 2
    assert asyncio.run(contents(store)) == ["a", "b"]
    asyncio.run(store.close())


def test_a_store_serves_two_event_loops_at_once(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")
    start = threading.Barrier(2)

    async def many(name: str) -> None:
        start.wait()
        await asyncio.gather(*(append(store, f"{name}{number}") for number in range(50)))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(many(name))) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = asyncio.run(contents(store))
    asyncio.run(store.close())
    assert sorted(written) == sorted(f"{name}{number}" for name in "ab" for number in range(50))


def test_an_event_loop_that_is_closed_in_the_middle_of_a_write_does_not_stop_the_store(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")

    async def leave() -> None:
        asyncio.get_running_loop().create_task(append(store, "left"))
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert asyncio.run(append(store, "next")) == 2
    asyncio.run(store.close())


# --- opening, closing, forgetting ---------------------------------------------------------------------------------


async def test_a_closed_store_opens_again_by_itself(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")
    await append(store, "a")
    await store.close()
    await store.close()
    assert (await append(store, "b"), await contents(store)) == (2, ["a", "b"])
    await store.close()


async def test_a_store_that_was_never_used_makes_no_file(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "holdfast.db"):
        pass
    assert os.listdir(tmp_path) == []


async def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "holdfast.db")
    writes = [asyncio.create_task(append(store, f"m{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    assert len(await contents(store)) == 20
    await store.close()


USED_WHILE_IT_CLOSES = """
import asyncio, os, sys, threading
from holdfast import Message
from holdfast.stores import Session, SQLiteStore

entered, leave = threading.Event(), threading.Event()

class SlowStore(SQLiteStore):
    async def wait(self):
        await self._do(lambda db: (entered.set(), leave.wait()))

def append(store, text):
    message = Message(role="user", content=text)
    return store.append_messages_atomic("s", [message], Session(id="s", agent_name="greeter"))

async def main():
    store = SlowStore(sys.argv[1])
    await append(store, "a")
    busy = asyncio.create_task(store.wait())
    await asyncio.to_thread(entered.wait)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    used = asyncio.create_task(append(store, "b"))
    await asyncio.sleep(0)
    leave.set()
    tasks = {"busy": busy, "closing": closing, "used": used}
    await asyncio.wait(tasks.values(), timeout=5)
    print([name for name, task in tasks.items() if not task.done()], flush=True)
    if not closing.done():
        os._exit(1)
    await store.close()

asyncio.run(main())
"""


async def test_a_store_that_is_used_while_it_closes_neither_hangs_nor_loses_anything(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    done = await asyncio.to_thread(python, USED_WHILE_IT_CLOSES, path)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    async with sqlite_store(path) as store:
        assert await contents(store) == ["a", "b"]


async def test_a_store_that_is_forgotten_closes_its_file_and_ends_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    store = sqlite_store(path)
    await append(store, "a")
    (thread,) = [thread for thread in threading.enumerate() if str(path) in thread.name]
    del store
    gc.collect()
    await asyncio.to_thread(thread.join, 10)
    assert (thread.is_alive(), os.listdir(tmp_path)) == (False, ["holdfast.db"])


async def test_a_cancelled_write_is_whole_or_not_there(store: SQLiteStore) -> None:
    await append(store, "a")
    write = asyncio.create_task(append(store, "b"))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await append(store, "c")
    session, written = await store.load_session("s"), await contents(store)
    assert session is not None
    assert written in (["a", "c"], ["a", "b", "c"])
    assert session.last_seq == len(written)


NOT_CLOSED = """
import asyncio, sys
from holdfast import Agent, run, sqlite_store
from holdfast.testing import ScriptedModel

store = sqlite_store(sys.argv[1])
asyncio.run(run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s"))
"""


async def test_a_process_that_exits_without_closing_its_store_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    done = await asyncio.to_thread(python, NOT_CLOSED, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    async with sqlite_store(path) as store:
        assert await contents(store) == ["hi", "yes"]


async def test_closed_stores_leave_no_file_descriptor_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for number in range(50):
        async with sqlite_store(tmp_path / f"{number % 5}.db") as store:
            await store.load_session("s")
    assert len(os.listdir("/dev/fd")) <= before
