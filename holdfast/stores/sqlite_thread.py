"""One thread that owns a SQLite connection.

Whatever waits for it when it is free goes into one transaction (group commit), so that many runs share the cost of a
flush to disk; a caller hears of success only after that commit.
"""

import asyncio
import contextlib
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from holdfast.errors import HoldfastError, StoreError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

_MEANINGS = {
    "SQLITE_BUSY": "is locked by another process; end that one or wait, then try again",
    "SQLITE_LOCKED": "is locked by another connection; try again",
    "SQLITE_FULL": "cannot grow: the disk is full; free some space, then try again",
    "SQLITE_READONLY": "is read-only; give this process the right to write to the file and its folder",
    "SQLITE_NOTADB": "is not a SQLite database; give another path",
    "SQLITE_CORRUPT": "is damaged; restore it from a backup",
    "SQLITE_CANTOPEN": "cannot be opened; check that the folder exists and may be written to",
    "SQLITE_IOERR": "cannot be read or written: the disk reports an error, or is full",
}


class SQLiteThread:
    """Runs work on a connection of its own. The file is opened by the first work, and again after `close`."""

    def __init__(self, path: str, migrations: tuple[str, ...], *, busy_timeout: float = 5.0) -> None:
        self._path = path
        self._migrations = migrations
        self._busy_timeout = busy_timeout
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    async def do(self, work: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> T:
        """Run work in a transaction and return what it returns, once that is committed."""
        loop = asyncio.get_running_loop()
        job = _Job(work, writes, loop, loop.create_future())
        with self._lock:  # so that nothing gets behind the end of a queue that closes
            if self._thread is None or not self._thread.is_alive():  # a fork leaves threads behind
                self._start()
            self._jobs.put(job)
        return cast(T, await job.future)

    async def close(self) -> None:
        """Finish what was asked for and close the file."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._jobs.put(None)
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _start(self) -> None:
        # Each thread has a queue of its own: one that closes does not take the end of the next.
        self._jobs = SimpleQueue()
        thread = threading.Thread(
            target=_serve,
            args=(self._path, self._migrations, self._busy_timeout, self._jobs),
            name=f"sqlite {self._path}",
            daemon=True,
        )
        thread.start()
        self._thread = thread
        # The thread holds the queue, not this object: when it is forgotten, its thread ends.
        weakref.finalize(self, self._jobs.put, None)


@dataclass(slots=True, eq=False)
class _Job:
    work: Work
    writes: bool
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = None


def _serve(path: str, migrations: tuple[str, ...], busy_timeout: float, jobs: "SimpleQueue[_Job | None]") -> None:
    db: sqlite3.Connection | None = None
    closing = False
    while not closing:
        batch = [jobs.get()]
        while len(batch) < 1_000 and not jobs.empty():
            batch.append(jobs.get())
        closing = None in batch
        todo = [job for job in batch if job is not None]
        try:
            db = db or _open(path, migrations, busy_timeout)
            _work_off(db, todo)
        except Exception as error:
            for job in todo:
                job.error = error
        for job in todo:
            if job.error is not None:
                job.error = _translated(job.error, path)
        _deliver(todo)
    if db is not None:
        db.close()


def _work_off(db: sqlite3.Connection, jobs: list[_Job]) -> None:
    """Do all that writes in one transaction, so that one flush to disk serves them all; then what only reads."""
    writers = [job for job in jobs if job.writes]
    if writers:
        _write(db, writers)
    for job in jobs:
        if not job.writes:
            try:
                job.result = job.work(db)
            except Exception as error:
                job.error = error


def _write(db: sqlite3.Connection, jobs: list[_Job]) -> None:
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        # They have waited for the lock together, and do not wait again one after the other.
        for job in jobs:
            job.error = error
        return
    try:
        for job in jobs:
            job.result = job.work(db)
        db.execute("COMMIT")
    except Exception as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if len(jobs) == 1:
            jobs[0].error = error
        else:
            _write_apart(db, jobs)


def _write_apart(db: sqlite3.Connection, jobs: list[_Job]) -> None:
    """Do all jobs in one transaction again, each so that it can be undone alone."""
    try:
        db.execute("BEGIN IMMEDIATE")
        for job in jobs:
            db.execute("SAVEPOINT job")
            try:
                job.result = job.work(db)
            except Exception as error:
                job.error = error
                if not db.in_transaction:  # a full disk undoes everything
                    raise
                db.execute("ROLLBACK TO job")
            db.execute("RELEASE job")
        db.execute("COMMIT")
    except Exception:
        # A full disk undoes everything: each by itself then, so that the large ones do not take the small ones down.
        if db.in_transaction:
            db.execute("ROLLBACK")
        for job in jobs:
            job.error = None
            _write(db, [job])


def _deliver(jobs: list[_Job]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody listens
            loop.call_soon_threadsafe(_tell, mine)


def _tell(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def _open(path: str, migrations: tuple[str, ...], busy_timeout: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None)
    try:
        # Looked at before anything is changed: what is no database, or newer, stays as it is.
        _refuse_foreign(db, path)
        _version(db, path, len(migrations))
        _switch_to_wal(db, busy_timeout)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        _migrate(db, path, migrations)
    except BaseException:
        db.close()
        raise
    return db


def _switch_to_wal(db: sqlite3.Connection, busy_timeout: float) -> None:
    """SQLite does not wait by itself here, and several processes may open a new file at once."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _refuse_foreign(db: sqlite3.Connection, path: str) -> None:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables and "holdfast_schema" not in tables:
        raise StoreError(
            f"The store {path} is the database of another program (it has the table {min(tables)!r}); give another "
            "path. Nothing was changed."
        )


def _version(db: sqlite3.Connection, path: str, newest: int) -> int:
    has_schema = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_schema'").fetchone()
    version = int(db.execute("SELECT max(version) FROM holdfast_schema").fetchone()[0] or 0) if has_schema else 0
    if version > newest:
        raise StoreError(
            f"The store {path} has schema version {version}, written by a newer holdfast; this one knows {newest}. "
            "Upgrade holdfast. Nothing was changed."
        )
    return version


def _migrate(db: sqlite3.Connection, path: str, migrations: tuple[str, ...]) -> None:
    if _version(db, path, len(migrations)) == len(migrations):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("CREATE TABLE IF NOT EXISTS holdfast_schema (version INTEGER NOT NULL)")
        # Asked again under the lock: another process may have migrated meanwhile.
        done = _version(db, path, len(migrations))
        for version, script in enumerate(migrations[done:], done + 1):
            for statement in script.split(";"):
                db.execute(statement)
            db.execute("INSERT INTO holdfast_schema (version) VALUES (?)", (version,))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _translated(error: Exception, path: str) -> Exception:
    if isinstance(error, HoldfastError) or not isinstance(error, sqlite3.Error):
        return error
    # What Python cannot decode has no code of SQLite's: the text was torn.
    name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT" if "decode" in str(error) else "")
    meaning = next((text for code, text in _MEANINGS.items() if name.startswith(code)), f"refused: {error}")
    translated = StoreError(f"The store {path} {meaning} ({error})")
    translated.__cause__ = error
    return translated
