"""Statements of the PostgreSQL store that delete the rows of a session and the records of a run.

Keys are in collation "C", so that the keys under a name are adjacent in their index.
"""

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
from standfast.stores.postgres.database import Database
from standfast.stores.postgres.rows import aware
from standfast.stores.protocol import Session
from standfast.stores.sql.rows import named

_NOTED = "run_key AS journal_key, session_id, namespace, workflow_id, noted_at"
_UNDER = "(run_key = $1 OR run_key > $1 || '/' AND run_key < $2)"
_SINCE = "(SELECT timed_since FROM @store_identity)"
# The records that are counted and deleted under a name: table, bytes of their texts, time of a row.
_KINDS = {
    "calls": ("@tool_ledger", "octet_length(result)", f"coalesce(claimed_at, {_SINCE})"),
    "replies": ("@model_replies", "octet_length(reply)", f"coalesce(kept_at, {_SINCE})"),
    "partial_answers": ("@partial_answers", "octet_length(text)", "begun_at"),
    "decisions": ("@gate_decisions", "octet_length(concat(comment, edit))", "at"),
    "boards": ("@boards", "0", "at::timestamptz"),
}
_OLDER = f"{_KINDS['calls'][2]} < $3 AND substr(run_key, $4)::bigint < $5"


async def note_run(db: Database, run: NotedRun) -> None:
    await db.rows(
        "INSERT INTO @noted_runs AS known VALUES ($1, $2, $3, $4, clock_timestamp())"
        " ON CONFLICT (run_key) DO UPDATE SET namespace = excluded.namespace WHERE known.namespace = ''",
        run.journal_key,
        run.session_id,
        run.namespace,
        run.workflow_id,
    )


async def find_runs(db: Database, journal_keys: Sequence[str], session_id: str | None) -> list[NotedRun]:
    rows = await db.rows(
        f"SELECT {_NOTED} FROM @noted_runs WHERE run_key = ANY($1::text[]) OR session_id = $2",
        list(journal_keys),
        session_id,
    )
    return [NotedRun.model_validate(named(_NOTED, row)) for row in rows]


async def noted(db: Database) -> Noted:
    [(since, names)] = await db.rows(f"SELECT {_SINCE}, array(SELECT DISTINCT namespace FROM @noted_runs ORDER BY 1)")
    return Noted(since=since, namespaces=tuple(names))


async def list_records(db: Database, after: str, limit: int) -> list[str]:
    parts = " UNION ".join(
        f"(SELECT DISTINCT run_key FROM {table} WHERE run_key > $1 ORDER BY 1 LIMIT $2)"
        for table in ("@tool_ledger", "@model_replies", "@gate_decisions")
    )
    return [key for (key,) in await db.rows(f"{parts} ORDER BY 1 LIMIT $2", after, limit)]


async def drop_records(
    db: Database, name: str, before: datetime, below: int | None, decisions: bool, dry_run: bool
) -> Dropped:
    values: list[Any] = [name, next_after(name)]
    kinds, under = dict(_KINDS), _UNDER
    async with db.transaction():
        if below is not None:
            kinds, under = {"calls": _KINDS["calls"]}, f"{_UNDER} AND {_OLDER}"
            values += [aware(before), len(name) + 2, below]
        else:
            newer = " OR ".join(
                f"EXISTS (SELECT 1 FROM {table} WHERE {_UNDER} AND {at} >= $3)" for table, _, at in _KINDS.values()
            )
            if (await db.rows(f"SELECT {newer}", *values, aware(before)))[0][0]:
                return Dropped()
        if not decisions:
            kinds.pop("decisions", None)
        counts: dict[str, int] = {"bytes": 0}
        for kind, (table, size, _) in kinds.items():
            found = f"SELECT {size} AS bytes FROM {table} WHERE {under}"
            if not dry_run:
                found = f"DELETE FROM {table} WHERE {under} RETURNING {size} AS bytes"
            query = f"WITH found AS ({found}) SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM found"
            counts[kind], added = (await db.rows(query, *values))[0]
            counts["bytes"] += added
        if below is None and not dry_run:
            await db.rows("DELETE FROM @noted_runs WHERE run_key = $1", name)
        return Dropped(**counts)


# --- sessions ---


async def delete_session(db: Database, session_id: str, keep_decisions: bool) -> None:
    async with db.transaction():
        # An uncommitted claim would not be seen, nor would it see that the session's ledger is closed.
        await db.rows("LOCK TABLE @tool_ledger IN SHARE ROW EXCLUSIVE MODE")
        for one in [session_id, *await _called_by(db, session_id)]:
            await _delete(db, one, keep_decisions)


async def _called_by(db: Database, session_id: str) -> list[str]:
    """Return the sessions of agents that this session's runs have called, and of the agents that those have called."""
    rows = await db.rows("SELECT DISTINCT workflow_id FROM @noted_runs WHERE session_id = $1", session_id)
    found: set[str] = set()
    for (workflow,) in rows:
        called = await db.rows(
            "SELECT DISTINCT session_id FROM @noted_runs WHERE workflow_id > $1 AND workflow_id < $2",
            f"{workflow}/",
            next_after(workflow),
        )
        found |= {one for (one,) in called if one is not None and one.startswith(called_by(session_id))}
    return sorted(found - {session_id})


async def _delete(db: Database, session_id: str, keep_decisions: bool) -> None:
    # The session first, in the order of all its writers: so no writer waits for us while we wait for it.
    row = await db.row(
        "DELETE FROM @agent_sessions WHERE id = $1"
        f" RETURNING agent_name, workflow_id, run_key, created_at, created_at < {_SINCE}",
        session_id,
    )
    agent, workflow, last, made, is_old = row or (None, None, None, None, False)
    await db.rows("DELETE FROM @boards WHERE session_id = $1", session_id)
    await db.rows("DELETE FROM @standing_approvals WHERE session_id = $1 AND scope_key <> ''", session_id)
    noted = await db.rows("SELECT run_key, workflow_id FROM @noted_runs WHERE session_id = $1", session_id)
    runs = {run for run, _ in noted} | await _before_they_were_noted(db, session_id, last, is_old)
    trails = {*runs, *(workflow for _, workflow in noted), *filter(None, [workflow])}
    trails |= {f"{agent}/{session_id}"} if agent is not None else set()
    here = [] if made is None else [Session(id=session_id, agent_name=agent, created_at=made.astimezone(UTC)).key]
    for name in dict.fromkeys([*here, *await _names_of(db, session_id)]):
        await _fence(db, name, for_good=not runs and not is_old)
    for run in sorted(runs):
        under = (run, next_after(run))
        await db.rows(f"DELETE FROM @model_replies WHERE {_UNDER} AND run_key <> $1 || '/open'", *under)
        await db.rows(
            "INSERT INTO @model_replies (run_key, turn, reply) VALUES ($1, 0, $2)"
            " ON CONFLICT (run_key, turn) DO UPDATE SET reply = excluded.reply",
            f"{run}/open",
            DELETED,
        )
        await db.rows(f"DELETE FROM @partial_answers WHERE {_UNDER}", *under)
    if last is not None:
        await db.rows(f"DELETE FROM @partial_answers WHERE {_UNDER}", last, next_after(last))
    change = "DELETE FROM @gate_decisions WHERE decision <> 'delete' AND"
    if keep_decisions:
        change = "UPDATE @gate_decisions SET comment = NULL, edit = 'null' WHERE"
    await db.rows(f"{change} run_key = ANY($1::text[])", sorted(trails))


async def _before_they_were_noted(db: Database, session_id: str, last: str | None, is_old: bool) -> set[str]:
    """Return the runs of a session opened by versions that did not note them. This reads all records."""
    found = {last.rpartition("/")[0]} if last is not None and "/" in last else set()
    if is_old:
        rows = await db.rows(
            "SELECT run_key FROM @model_replies WHERE turn = 0 AND right(run_key, 5) = '/open'"
            " AND strpos(reply, $1) > 0",
            f'"session":"{session_id}"',  # without any character that JSON or LIKE would change
        )
        found |= {key.removesuffix("/open") for (key,) in rows}
    return found


async def _names_of(db: Database, session_id: str) -> list[str]:
    """Return the names of the calls and messages of a session, and of earlier sessions with its id."""
    rows = await db.rows(
        "SELECT run_key FROM @tool_ledger WHERE run_key > $1 AND run_key < $2"
        " UNION SELECT run_key FROM @model_replies WHERE run_key > $1 AND run_key < $2 ORDER BY 1",
        f"{session_id}@",
        f"{session_id}A",  # the character after `@`
    )
    names = dict.fromkeys(name_of(key) for (key,) in rows)
    return [name for name in names if name is not None and session_of(name) == session_id]


async def _fence(db: Database, name: str, *, for_good: bool) -> None:
    under = (name, next_after(name))
    await db.rows(f"DELETE FROM @model_replies WHERE {_UNDER}", *under)
    if for_good:  # no Temporal run can come back
        await db.rows(f"DELETE FROM @tool_ledger WHERE {_UNDER}", *under)
        return
    await db.rows(
        "UPDATE @tool_ledger SET state = CASE state WHEN 'abandoned' THEN state ELSE 'claimed' END,"
        " owner = CASE state WHEN 'abandoned' THEN NULL ELSE 'deleted' END, arguments_hash = NULL, result = NULL"
        f" WHERE {_UNDER}",
        *under,
    )
    await db.rows(
        "INSERT INTO @tool_ledger (run_key, call_key, state, claimed_at)"
        " VALUES ($1, $2, 'abandoned', clock_timestamp()) ON CONFLICT DO NOTHING",
        name,
        CLOSED,
    )
