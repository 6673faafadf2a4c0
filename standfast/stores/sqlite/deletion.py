"""Deletes the rows of a session and the records of a run from the SQLite store."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from standfast.stores.deletion import Dropped, Noted, NotedRun
from standfast.stores.sql.dialect import now
from standfast.stores.sql.rows import named
from standfast.stores.sqlite import deletion_statements as sql


def note_run(db: sqlite3.Connection, run: NotedRun) -> None:
    db.execute(sql.NOTE_RUN, {**dict(run), "now": now()})


def find_runs(db: sqlite3.Connection, journal_keys: Sequence[str], session_id: str | None) -> list[NotedRun]:
    rows = [] if session_id is None else db.execute(sql.RUNS_OF_SESSION, {"id": session_id}).fetchall()
    rows += db.execute(sql.RUNS_BY_KEY, _written({"keys": list(journal_keys)})).fetchall()
    return [NotedRun.model_validate(named(sql.NOTED_RUN, row)) for row in rows]


def noted(db: sqlite3.Connection) -> Noted:
    (since,) = db.execute(sql.SINCE).fetchone()
    return Noted(since=datetime.fromisoformat(since), namespaces=tuple(name for (name,) in db.execute(sql.NAMESPACES)))


def list_records(db: sqlite3.Connection, after: str, limit: int) -> list[str]:
    return [key for (key,) in db.execute(sql.RECORDS, {"after": after, "most": limit})]


def drop_records(
    db: sqlite3.Connection, name: str, before: datetime, below: int | None, decisions: bool, dry_run: bool
) -> Dropped:
    drop = sql.drop(name, before, below, decisions)
    if not db.execute(f"SELECT {drop.condition}", drop.values).fetchone()[0]:
        return Dropped()
    found = {kind: db.execute(count, drop.values).fetchone() for kind, count in drop.counts.items()}
    for delete in () if dry_run else drop.deletes:
        db.execute(delete, drop.values)
    return Dropped(**{kind: rows for kind, (rows, _) in found.items()}, bytes=sum(size for _, size in found.values()))


def delete_session(db: sqlite3.Connection, session_id: str, keep_decisions: bool) -> None:
    plan = sql.deletion(session_id, keep_decisions)
    asked = next(plan)
    try:
        while True:
            asked = plan.send([_found(db, statement, values) for statement, values in asked])
    except StopIteration as planned:
        for statement, values in planned.value:
            db.execute(statement, _written({**values, "now": now()}))


def _found(db: sqlite3.Connection, statement: str, values: dict[str, Any]) -> list[list[Any]]:
    return [json.loads(found) for (found,) in db.execute(statement, _written(values))]


def _written(values: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in values.items()}
