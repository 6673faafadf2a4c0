"""Runs jobs on a connection, many in one transaction, and tells each its result."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

Work = Callable[[sqlite3.Connection], Any]


class Queue:
    """What a thread has been asked to do."""

    __slots__ = ("asked", "done", "is_open", "is_slow", "jobs")

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.asked = 0
        self.done = 0
        self.is_open = False  # the thread has found the file to be a store, and migrated it
        self.is_slow = False  # the last that was written, here or on the loop, took longer than `STALL`


@dataclass(slots=True, eq=False)
class Job:
    """Work that somebody waits for."""

    work: Work
    writes: bool
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = None
    error: Exception | None = None


def work_off(db: sqlite3.Connection, jobs: list[Job]) -> None:
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


def _write(db: sqlite3.Connection, jobs: list[Job]) -> None:
    try:
        db.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        # They have waited for the lock together, so they do not wait again one by one.
        for job in jobs:
            job.error = error
        return
    try:
        for job in jobs:
            job.result = job.work(db)
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if not isinstance(error, Exception):
            raise
        if len(jobs) == 1:
            jobs[0].error = error
        else:
            _write_apart(db, jobs)


def _write_apart(db: sqlite3.Connection, jobs: list[Job]) -> None:
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
    except BaseException as error:
        # A full disk undoes everything: then one by one, so that the large ones do not make the small ones fail.
        if db.in_transaction:
            db.execute("ROLLBACK")
        if not isinstance(error, Exception):
            raise
        for job in jobs:
            job.error = None
            _write(db, [job])


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
