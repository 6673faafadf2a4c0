"""Does the jobs that wait for a SQLite file in one transaction, and tells those who wait."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Job:
    """Work that somebody waits for."""

    work: Callable[[sqlite3.Connection], Any]
    writes: bool
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = None


def work_off(db: sqlite3.Connection, jobs: list[Job]) -> None:
    """Do all writes in one transaction, so that one flush to disk serves them all; then the reads."""
    writers = [job for job in jobs if job.writes]
    if writers:
        _write(db, writers, _together)
    for job in jobs:
        if not job.writes:
            try:
                job.result = job.work(db)
            except Exception as error:
                job.error = error


def _write(db: sqlite3.Connection, jobs: list[Job], do: Callable[[sqlite3.Connection, list[Job]], None]) -> None:
    """Do jobs in one transaction. If one fails, do all again: each with a savepoint, or each by itself."""
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        # They have waited for the lock together, so they do not wait again one by one.
        for job in jobs:
            job.error = error
        return
    try:
        do(db, jobs)
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if not isinstance(error, Exception):
            raise
        if len(jobs) == 1:
            jobs[0].error = error
        elif do is _together:
            _write(db, jobs, _apart)
        else:  # a full disk undoes everything: one by one, large jobs do not make small ones fail
            for job in jobs:
                job.error = None
                _write(db, [job], _together)


def _together(db: sqlite3.Connection, jobs: list[Job]) -> None:
    for job in jobs:
        job.result = job.work(db)


def _apart(db: sqlite3.Connection, jobs: list[Job]) -> None:
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


def deliver(jobs: list[Job]) -> None:
    """Tell each job its result, from another thread than its loop's."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody listens
            loop.call_soon_threadsafe(tell, mine)


def tell(jobs: list[Job]) -> None:
    """Tell each job its result, on its loop."""
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
            job.error = None  # its traceback refers to the job
        else:
            job.future.set_result(job.result)
