"""Deletes the rows of a session and the records of a run from the D1 store."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from standfast.stores import nul_texts
from standfast.stores.d1.database import Database, RefusedByGuardError
from standfast.stores.d1.rows import TRIES, crowded
from standfast.stores.d1.statements import Statement, guard, statement
from standfast.stores.deletion import Dropped, Noted, NotedRun
from standfast.stores.sql.rows import named
from standfast.stores.sqlite import deletion_statements as sql

_MADE = "SELECT created_at FROM agent_sessions WHERE id = :id"


async def note_run(db: Database, run: NotedRun) -> None:
    await db.one(statement(sql.NOTE_RUN, **dict(run)))


async def find_runs(db: Database, journal_keys: Sequence[str], session_id: str | None) -> list[NotedRun]:
    asked = [] if session_id is None else [statement(sql.RUNS_OF_SESSION, id=session_id)]
    asked += [statement(sql.RUNS_BY_KEY, keys=list(journal_keys))] if journal_keys else []
    found = await db.batch(asked) if asked else []
    return [NotedRun.model_validate(named(sql.NOTED_RUN, row)) for rows in found for row in rows]


async def noted(db: Database) -> Noted:
    [[(since,)], names] = await db.batch([statement(sql.SINCE), statement(sql.NAMESPACES)])
    return Noted(since=datetime.fromisoformat(since), namespaces=tuple(name for (name,) in names))


async def list_records(db: Database, after: str, limit: int) -> list[str]:
    return [key for (key,) in await db.one(statement(sql.RECORDS, after=after, most=limit))]


async def drop_records(
    db: Database, name: str, before: datetime, below: int | None, decisions: bool, dry_run: bool
) -> Dropped:
    """Drop records in one batch. If its answer is lost and it is sent again, the dropped rows are not counted."""
    drop = sql.drop(name, before, below, decisions)
    deletes = [] if dry_run else [statement(delete, **drop.values) for delete in drop.deletes]
    try:
        _, *found = await db.batch(
            [
                guard(drop.condition, **drop.values),
                *(statement(count, **drop.values) for count in drop.counts.values()),
                *deletes,
            ]
        )
    except RefusedByGuardError:
        return Dropped()
    counts = [rows[0] for rows in found[: len(drop.counts)]]
    by_kind = {kind: rows for kind, (rows, _) in zip(drop.counts, counts, strict=True)}
    return Dropped(**by_kind, bytes=sum(size for _, size in counts))


async def delete_session(db: Database, session_id: str, keep_decisions: bool) -> None:
    """Delete a session in one batch, unless it was deleted and created again in the meantime."""
    made = await db.one(statement(_MADE, id=session_id))
    for _ in range(TRIES):
        unchanged, deletes = await _planned(db, session_id, keep_decisions)
        try:
            await db.batch([*unchanged, *deletes])
            return
        except RefusedByGuardError:
            # Sent again, since its answer was lost, or another process has written in between.
            if await db.one(statement(_MADE, id=session_id)) != made:
                return
    raise crowded(db, f"session {session_id}")


async def _planned(db: Database, session_id: str, keep_decisions: bool) -> tuple[list[Statement], list[Statement]]:
    """Return guards that fail once the rows in the store have changed, and the statements that delete."""
    plan = sql.deletion(session_id, keep_decisions)
    asked = next(plan)
    unchanged: list[Statement] = []
    try:
        while True:
            found = await db.batch([statement(one, **values) for one, values in asked])
            for (one, values), rows in zip(asked, found, strict=True):
                seen = "\n".join(text for (text,) in rows)
                same = f"coalesce((SELECT group_concat(found, char(10)) FROM ({one})), '') = :seen"
                unchanged.append(guard(same, **values, seen=seen))
            asked = plan.send([[_read(text) for (text,) in rows] for rows in found])
    except StopIteration as planned:
        return unchanged, [statement(one, **values) for one, values in planned.value]


def _read(text: str) -> list[Any]:
    return [nul_texts.read(value) for value in json.loads(text)]
