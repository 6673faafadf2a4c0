"""Statements that delete the rows of a session and the records of a run.

The keys under a name are adjacent in their index. PostgreSQL has them in collation "C".
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from standfast.stores.deletion import CLOSED, DELETED, called_by, next_after
from standfast.stores.protocol import Session
from standfast.stores.sql.dialect import Plan, Query, Rows

NOTED_RUN = "run_key AS journal_key, session_id, namespace, workflow_id, noted_at"
NOTE_RUN = (
    "INSERT INTO @noted_runs AS known VALUES (:journal_key, :session_id, :namespace, :workflow_id, :now)"
    " ON CONFLICT (run_key) DO UPDATE SET namespace = excluded.namespace WHERE known.namespace = ''"
)
RUNS = f"SELECT {NOTED_RUN} FROM @noted_runs WHERE run_key AMONG[:keys] OR session_id = :id"
_SINCE = "(SELECT timed_since FROM @store_identity)"
NOTED = (
    "SELECT known.timed_since, noted.namespace FROM @store_identity AS known"
    " LEFT JOIN (SELECT DISTINCT namespace FROM @noted_runs) AS noted ON true ORDER BY 2"
)
RECORDS = (
    " UNION ".join(
        f"SELECT * FROM (SELECT DISTINCT run_key FROM {table} WHERE run_key > :after ORDER BY 1 LIMIT :most) AS {name}"
        for table, name in (("@tool_ledger", "calls"), ("@model_replies", "replies"), ("@gate_decisions", "decisions"))
    )
    + " ORDER BY 1 LIMIT :most"
)
_DROP_RUN = "DELETE FROM @noted_runs WHERE run_key = :name"

_UNDER = "(run_key = :name OR run_key > :name || '/' AND run_key < :end)"
# The records that are counted and deleted under a name: table, texts, time of a row.
_KINDS = {
    "calls": ("@tool_ledger", "coalesce(result, '')", f"coalesce(claimed_at, {_SINCE})"),
    "replies": ("@model_replies", "reply", f"coalesce(kept_at, {_SINCE})"),
    "partial_answers": ("@partial_answers", "text", "begun_at"),
    "decisions": ("@gate_decisions", "coalesce(comment, '') || coalesce(edit, '')", "at"),
    "boards": ("@boards", "''", "at"),
}
_NUMBER = "substr(run_key, :start)"
_OLDER = (
    f"TIME[{_KINDS['calls'][2]}] < TIME[:before]"
    f" AND CAST(CASE WHEN {_NUMBER} <> '' AND DIGITS[{_NUMBER}] THEN {_NUMBER} ELSE '0' END AS bigint) < :below"
)
_NOTHING_NEWER = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} WHERE {_UNDER} AND TIME[{at}] >= TIME[:before])"
    for table, _, at in _KINDS.values()
)


@dataclass(frozen=True, slots=True)
class Drop:
    """The statements that drop the records under a name.

    Args:
        condition: if it does not hold, nothing is dropped.
        counts: by kind, returns the number of rows and the bytes of their texts.
        deletes: the statements that delete them.
        values: the values of all statements.
    """

    condition: str
    counts: dict[str, str]
    deletes: list[str]
    values: dict[str, Any]


def drop(name: str, before: datetime, below: int | None, decisions: bool) -> Drop:
    """Return the statements that drop records; see `Deletion.drop_records`."""
    kinds, under, condition = dict(_KINDS), _UNDER, _NOTHING_NEWER
    if below is not None:
        kinds, under, condition = {"calls": _KINDS["calls"]}, f"{_UNDER} AND {_OLDER}", "true"
    if not decisions:
        kinds.pop("decisions", None)
    counts = {
        kind: "SELECT count(*) AS number, coalesce(sum(bytes), 0) AS bytes FROM"
        f" (SELECT BYTES[{text}] AS bytes FROM {table} WHERE {under} LOCKED) AS found"
        for kind, (table, text, _) in kinds.items()
    }
    deletes = [f"DELETE FROM {table} WHERE {under}" for table, _, _ in kinds.values()]
    moment = before.astimezone(UTC).isoformat()
    values = {"name": name, "end": next_after(name), "start": len(name) + 2, "before": moment, "below": below}
    return Drop(condition, counts, deletes if below is not None else [*deletes, _DROP_RUN], values)


# --- sessions ---

_MADE = "SELECT ROW[created_at] FROM @agent_sessions WHERE id = :id"
_CALLED = (
    "SELECT DISTINCT ROW[called.session_id] FROM @noted_runs AS its CROSS JOIN @noted_runs AS called"
    " WHERE its.session_id = :id AND called.workflow_id > its.workflow_id || '/'"
    " AND called.workflow_id < its.workflow_id || '0' AND called.session_id <> :id"
    " AND substr(called.session_id, 1, length(CAST(:beginning AS text))) = :beginning ORDER BY 1"
)
# The session first, in the order of all its writers: so no writer waits for us while we wait for it.
_SESSIONS = (
    f"SELECT ROW[id, agent_name, workflow_id, run_key, created_at, created_at < {_SINCE}] FROM @agent_sessions"
    " WHERE id AMONG[:ids] ORDER BY 1 LOCKED"
)
_NOTED = "SELECT ROW[session_id, run_key, workflow_id] FROM @noted_runs WHERE session_id AMONG[:ids] ORDER BY 1"
# The names of the calls and messages of sessions, and of earlier sessions with their ids; see `name_of`.
_NAMES = (
    "SELECT DISTINCT ROW[id, id || substr(rest, 1, 22)] FROM"
    " (SELECT id, substr(key, length(id) + 1) AS rest FROM ("
    # Each key once, before any computation on it: a message may have many calls. LIMIT preserves that order.
    + " UNION ".join(
        f"SELECT DISTINCT one.value AS id, kept.run_key AS key FROM EACH[:ids AS one] CROSS JOIN {table} AS kept"
        " WHERE kept.run_key > one.value || '@' AND kept.run_key < one.value || 'A'"
        for table in ("@tool_ledger", "@model_replies")
    )
    + " LIMIT ALL) AS keys) AS cut WHERE DIGITS[substr(rest, 2, 8)] AND substr(rest, 10, 1) = 'T'"
    " AND DIGITS[substr(rest, 11, 12)] AND substr(rest, 23, 1) = '/' AND substr(rest, 24) <> ''"
    " AND (substr(rest, 24) IN ('said', 'heard') OR DIGITS[substr(rest, 24)]) ORDER BY 1"
)
# Runs opened by versions that did not note them. This reads all records.
_NOT_NOTED = (
    "SELECT ROW[id, run] FROM (SELECT SESSION_IN[reply] AS id, substr(run_key, 1, length(run_key) - 5) AS run"
    " FROM @model_replies WHERE turn = 0 AND substr(run_key, length(run_key) - 4) = '/open') AS opened"
    " WHERE id AMONG[:ids] ORDER BY 1"
)


def _under(table: str, names: str) -> str:
    """Return a condition for rows under one of the names in a list."""
    return (
        f"run_key IN (SELECT kept.run_key FROM EACH[:{names} AS one] CROSS JOIN {table} AS kept"
        " WHERE kept.run_key >= one.value AND kept.run_key < one.value || '0'"
        " AND (kept.run_key = one.value OR substr(kept.run_key, length(one.value) + 1, 1) = '/'))"
    )


_DELETE = (
    "DELETE FROM @boards WHERE session_id AMONG[:ids]",
    "DELETE FROM @standing_approvals WHERE session_id AMONG[:ids] AND scope_key <> ''",
    "DELETE FROM @agent_sessions WHERE id AMONG[:ids]",
    f"DELETE FROM @model_replies WHERE {_under('@model_replies', 'names')}",
    (
        "INSERT INTO @model_replies (run_key, turn, reply, kept_at)"
        " SELECT value || '/open', 0, :deleted, :now FROM EACH[:runs AS one] WHERE true"
        " ON CONFLICT (run_key, turn) DO UPDATE SET reply = excluded.reply"
    ),
    # Few rows, whose keys PostgreSQL does not have in collation "C".
    (
        "DELETE FROM @partial_answers WHERE EXISTS (SELECT 1 FROM EACH[:names AS one] WHERE run_key = one.value"
        " OR substr(run_key, 1, length(one.value) + 1) = one.value || '/')"
    ),
    f"DELETE FROM @tool_ledger WHERE {_under('@tool_ledger', 'over')}",
    (
        "UPDATE @tool_ledger SET state = CASE state WHEN 'abandoned' THEN state ELSE 'claimed' END,"
        " owner = CASE state WHEN 'abandoned' THEN NULL ELSE 'deleted' END, arguments_hash = NULL, result = NULL"
        f" WHERE {_under('@tool_ledger', 'fenced')}"
    ),
    (
        "INSERT INTO @tool_ledger (run_key, call_key, state, claimed_at)"
        f" SELECT value, '{CLOSED}', 'abandoned', :now FROM EACH[:fenced AS one] WHERE true ON CONFLICT DO NOTHING"
    ),
)
_KEEP_DECISIONS = "UPDATE @gate_decisions SET comment = NULL, edit = 'null' WHERE run_key AMONG[:trails]"
_DELETE_DECISIONS = "DELETE FROM @gate_decisions WHERE run_key AMONG[:trails] AND decision <> 'delete'"


def deletion(session_id: str, keep_decisions: bool) -> Plan:
    """Return the plan that deletes a session, unless it was deleted and created again since the plan's first run."""
    seen = list[Rows]()

    def plan() -> Generator[list[Query], Sequence[Rows], list[Query]]:
        beginning = {"id": session_id, "beginning": called_by(session_id)}
        made, called = yield [(_MADE, {"id": session_id}), (_CALLED, beginning)]
        seen.append(made)
        if made != seen[0]:
            return []
        ids = [session_id, *(one for (one,) in called)]
        which = {"ids": ids}
        sessions, noted, names = yield [(_SESSIONS, which), (_NOTED, which), (_NAMES, which)]
        old = [one for one, *_, is_old in sessions if is_old]
        not_noted: Rows = []
        if old:
            [not_noted] = yield [(_NOT_NOTED, {"ids": old})]
        values = {"ids": ids, "deleted": DELETED, **_lists(ids, sessions, noted, names, not_noted)}
        decisions = _KEEP_DECISIONS if keep_decisions else _DELETE_DECISIONS
        return [(statement, values) for statement in (*_DELETE, decisions)]

    return plan


def _lists(ids: Sequence[str], sessions: Rows, noted: Rows, names: Rows, not_noted: Rows) -> dict[str, list[str]]:
    """Return the lists of the statements that delete.

    Under the names of `over`, a Temporal run can no longer come back; the names of `fenced` are closed.
    """
    its_runs: dict[str, set[str]] = {one: set() for one in ids}
    its_names: dict[str, set[str]] = {one: set() for one in ids}
    trails, last, is_old = set[str](), set[str](), dict[str, bool]()
    for one, run, workflow in noted:
        its_runs[one].add(run)
        trails |= {run, workflow}
    for one, run in not_noted:
        its_runs[one].add(run)
        trails.add(run)
    for one, agent, workflow, its_last, made, its_age in sessions:
        is_old[one] = bool(its_age)
        its_names[one].add(
            Session(
                id=one, agent_name=agent, created_at=datetime.fromisoformat(made) if isinstance(made, str) else made
            ).key
        )
        trails |= {f"{agent}/{one}", *filter(None, [workflow])}
        if its_last is not None:
            last.add(its_last)
        if its_last is not None and "/" in its_last:
            its_runs[one].add(run := its_last.rpartition("/")[0])
            trails.add(run)
    for one, name in names:
        its_names[one].add(name)
    over = {name for one in ids if not its_runs[one] and not is_old.get(one) for name in its_names[one]}
    runs, kept = set().union(*its_runs.values()), set().union(*its_names.values())
    lists = {"names": runs | kept | last, "runs": runs, "over": over, "fenced": kept - over, "trails": trails}
    return {name: sorted(its) for name, its in lists.items()}
