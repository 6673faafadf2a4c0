"""Rows of the SQLite store that are deleted: those of a session, and those that are kept for a run."""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.stores.deletion import (
    CLOSED,
    DELETED,
    Dropped,
    Noted,
    NotedRun,
    called_by,
    name_of,
    next_after,
    session_of,
)
from standfast.stores.protocol import Session
from standfast.stores.rows import named

_NOTED = "run_key AS journal_key, session_id, namespace, workflow_id, noted_at"
_UNDER = "(run_key = :name OR run_key > :name || '/' AND run_key < :end)"
_SINCE = "(SELECT timed_since FROM store_identity)"
_BYTES = "coalesce(sum(length(CAST({} AS BLOB))), 0)"
# What is counted and deleted under a name: table, its texts, when a row was kept.
_KINDS = {
    "calls": ("tool_ledger", "result", f"coalesce(claimed_at, {_SINCE})"),
    "replies": ("model_replies", "reply", f"coalesce(kept_at, {_SINCE})"),
    "partial_answers": ("partial_answers", "text", "replace(begun_at, ' ', 'T')"),
    "decisions": ("gate_decisions", "coalesce(comment, '') || coalesce(edit, '')", "at"),
}


def note_run(db: sqlite3.Connection, run: NotedRun) -> None:
    db.execute(
        "INSERT INTO noted_runs VALUES (:journal_key, :session_id, :namespace, :workflow_id, :noted_at)"
        " ON CONFLICT (run_key) DO UPDATE SET namespace = excluded.namespace WHERE namespace = ''",
        {**dict(run), "noted_at": datetime.now(UTC).isoformat()},
    )


def find_runs(db: sqlite3.Connection, journal_keys: Sequence[str], session_id: str | None) -> list[NotedRun]:
    query = f"SELECT {_NOTED} FROM noted_runs WHERE "
    rows = [] if session_id is None else db.execute(f"{query} session_id = ?", (session_id,)).fetchall()
    for key in journal_keys:
        rows += db.execute(f"{query} run_key = ?", (key,)).fetchall()
    return [NotedRun.model_validate(named(_NOTED, row)) for row in rows]


def noted(db: sqlite3.Connection) -> Noted:
    (since,) = db.execute(f"SELECT {_SINCE}").fetchone()
    names = tuple(name for (name,) in db.execute("SELECT DISTINCT namespace FROM noted_runs ORDER BY 1"))
    return Noted(since=datetime.fromisoformat(since), namespaces=names)


def list_records(db: sqlite3.Connection, after: str, limit: int) -> list[str]:
    parts = " UNION ".join(
        f"SELECT * FROM (SELECT DISTINCT run_key FROM {table} WHERE run_key > :after ORDER BY 1 LIMIT :most)"
        for table in ("tool_ledger", "model_replies", "gate_decisions")
    )
    rows = db.execute(f"{parts} ORDER BY 1 LIMIT :most", {"after": after, "most": limit})
    return [key for (key,) in rows]


def drop_records(
    db: sqlite3.Connection, name: str, before: datetime, below: int | None, decisions: bool, dry_run: bool
) -> Dropped:
    values = {
        "name": name,
        "end": next_after(name),
        "start": len(name) + 2,
        "before": before.astimezone(UTC).isoformat(),
        "below": below,
    }
    kinds = dict(_KINDS) if below is None else {"calls": _KINDS["calls"]}
    under = _UNDER
    if below is not None:
        under = f"{_UNDER} AND {_KINDS['calls'][2]} < :before AND CAST(substr(run_key, :start) AS INTEGER) < :below"
    elif any(
        db.execute(f"SELECT 1 FROM {table} WHERE {_UNDER} AND {at} >= :before LIMIT 1", values).fetchone()
        for table, _, at in _KINDS.values()
    ):
        return Dropped()
    if not decisions:
        kinds.pop("decisions", None)
    counts: dict[str, Any] = {"bytes": 0}
    for kind, (table, text, _) in kinds.items():
        query = f"SELECT count(*), {_BYTES.format(text)} FROM {table} WHERE {under}"
        counts[kind], size = db.execute(query, values).fetchone()
        counts["bytes"] += size
        if counts[kind] and not dry_run:
            db.execute(f"DELETE FROM {table} WHERE {under}", values)
    if below is None and not dry_run:
        db.execute("DELETE FROM noted_runs WHERE run_key = ?", (name,))
    return Dropped(**counts)


# --- sessions ---


def delete_session(db: sqlite3.Connection, session_id: str, keep_decisions: bool) -> None:
    for one in [session_id, *_called_by(db, session_id)]:
        _delete(db, one, keep_decisions)


def _called_by(db: sqlite3.Connection, session_id: str) -> list[str]:
    """Return the sessions of agents that this one's runs have called, and of those that these have called."""
    found: list[str] = []
    for (workflow,) in db.execute(
        "SELECT DISTINCT workflow_id FROM noted_runs WHERE session_id = ?", (session_id,)
    ).fetchall():
        rows = db.execute(
            "SELECT DISTINCT session_id FROM noted_runs WHERE workflow_id > ? AND workflow_id < ?",
            (f"{workflow}/", next_after(workflow)),
        )
        found += [one for (one,) in rows if one is not None and one.startswith(called_by(session_id))]
    return list(dict.fromkeys(found))


def _delete(db: sqlite3.Connection, session_id: str, keep_decisions: bool) -> None:
    row = db.execute(
        f"SELECT agent_name, workflow_id, run_key, created_at, created_at < {_SINCE} FROM agent_sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    agent, workflow, last, made, is_old = row or (None, None, None, None, False)
    db.execute("DELETE FROM agent_sessions WHERE id = ?", (session_id,))
    noted = db.execute("SELECT run_key, workflow_id FROM noted_runs WHERE session_id = ?", (session_id,)).fetchall()
    runs = {run for run, _ in noted} | _before_they_were_noted(db, session_id, last, is_old)
    trails = {*runs, *(workflow for _, workflow in noted), *filter(None, [workflow])}
    trails |= {f"{agent}/{session_id}"} if agent is not None else set()
    here = (
        []
        if made is None
        else [Session(id=session_id, agent_name=str(agent), created_at=datetime.fromisoformat(made)).key]
    )
    for name in dict.fromkeys([*here, *_names_of(db, session_id)]):
        _fence(db, name, for_good=not runs and not is_old)
    for run in runs:
        under = {"name": run, "end": next_after(run)}
        db.execute(f"DELETE FROM model_replies WHERE {_UNDER}", under)
        db.execute(
            "INSERT INTO model_replies (run_key, turn, reply, kept_at) VALUES (?, 0, ?, ?)",
            (f"{run}/open", DELETED, datetime.now(UTC).isoformat()),
        )
        db.execute(f"DELETE FROM partial_answers WHERE {_UNDER}", under)
    db.execute("DELETE FROM partial_answers WHERE run_key = ?", (last,))
    for trail in trails:
        if keep_decisions:
            db.execute("UPDATE gate_decisions SET comment = NULL, edit = 'null' WHERE run_key = ?", (trail,))
        else:
            db.execute("DELETE FROM gate_decisions WHERE run_key = ? AND decision <> 'delete'", (trail,))


def _before_they_were_noted(db: sqlite3.Connection, session_id: str, last: str | None, is_old: bool) -> set[str]:
    """Return the runs of a session that versions have opened which did not note them: all records are looked at."""
    found = {last.rpartition("/")[0]} if last is not None and "/" in last else set()
    if is_old:
        rows = db.execute(
            "SELECT run_key FROM model_replies WHERE turn = 0 AND substr(run_key, -5) = '/open' AND json_valid(reply)"
            " AND json_extract(reply, '$.session') = ?",
            (session_id,),
        )
        found |= {key.removesuffix("/open") for (key,) in rows}
    return found


def _names_of(db: sqlite3.Connection, session_id: str) -> list[str]:
    """Return the names under which calls and messages of a session, and of earlier ones with its id, are kept."""
    keys = [
        key
        for table in ("tool_ledger", "model_replies")
        for (key,) in db.execute(
            f"SELECT DISTINCT run_key FROM {table} WHERE run_key > ? AND run_key < ?",
            (f"{session_id}@", f"{session_id}A"),  # which comes after `@`
        )
    ]
    names = dict.fromkeys(name_of(key) for key in keys)
    return [name for name in names if name is not None and session_of(name) == session_id]


def _fence(db: sqlite3.Connection, name: str, *, for_good: bool) -> None:
    under = {"name": name, "end": next_after(name)}
    db.execute(f"DELETE FROM model_replies WHERE {_UNDER}", under)
    if for_good:  # no run on Temporal can come back
        db.execute(f"DELETE FROM tool_ledger WHERE {_UNDER}", under)
        return
    db.execute(
        "UPDATE tool_ledger SET state = iif(state = 'abandoned', state, 'claimed'),"
        f" owner = iif(state = 'abandoned', NULL, 'deleted'), arguments_hash = NULL, result = NULL WHERE {_UNDER}",
        under,
    )
    db.execute(
        "INSERT INTO tool_ledger (run_key, call_key, state, claimed_at) VALUES (?, ?, 'abandoned', ?)"
        " ON CONFLICT DO NOTHING",
        (name, CLOSED, datetime.now(UTC).isoformat()),
    )
