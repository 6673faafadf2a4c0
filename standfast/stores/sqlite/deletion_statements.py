"""Statements that delete, for the SQLite and D1 stores: they have the same tables, and values by name.

A list value is passed as JSON. `:now` is the time; see `statements`.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from standfast.stores.deletion import CLOSED, DELETED, called_by, next_after
from standfast.stores.protocol import Session

Ask = tuple[str, dict[str, Any]]

NOTED_RUN = "run_key AS journal_key, session_id, namespace, workflow_id, noted_at"
NOTE_RUN = (
    "INSERT INTO noted_runs VALUES (:journal_key, :session_id, :namespace, :workflow_id, :now)"
    " ON CONFLICT (run_key) DO UPDATE SET namespace = excluded.namespace WHERE namespace = ''"
)
RUNS_BY_KEY = f"SELECT {NOTED_RUN} FROM noted_runs WHERE run_key IN (SELECT value FROM json_each(:keys))"
RUNS_OF_SESSION = f"SELECT {NOTED_RUN} FROM noted_runs WHERE session_id = :id"
SINCE = "SELECT timed_since FROM store_identity"
NAMESPACES = "SELECT DISTINCT namespace FROM noted_runs ORDER BY 1"
RECORDS = (
    " UNION ".join(
        f"SELECT * FROM (SELECT DISTINCT run_key FROM {table} WHERE run_key > :after ORDER BY 1 LIMIT :most)"
        for table in ("tool_ledger", "model_replies", "gate_decisions")
    )
    + " ORDER BY 1 LIMIT :most"
)
DROP_RUN = "DELETE FROM noted_runs WHERE run_key = :name"

_UNDER = "(run_key = :name OR run_key > :name || '/' AND run_key < :end)"
# The records that are counted and deleted under a name: table, texts, time of a row.
_KINDS = {
    "calls": ("tool_ledger", "result", f"coalesce(claimed_at, ({SINCE}))"),
    "replies": ("model_replies", "reply", f"coalesce(kept_at, ({SINCE}))"),
    "partial_answers": ("partial_answers", "text", "replace(begun_at, ' ', 'T')"),
    "decisions": ("gate_decisions", "coalesce(comment, '') || coalesce(edit, '')", "at"),
    "boards": ("boards", "''", "at"),
}
_OLDER = f"{_KINDS['calls'][2]} < :before AND CAST(substr(run_key, :start) AS INTEGER) < :below"
_NOTHING_NEWER = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} WHERE {_UNDER} AND {at} >= :before)" for table, _, at in _KINDS.values()
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
        kind: f"SELECT count(*) AS number, coalesce(sum(length(CAST({text} AS BLOB))), 0) AS bytes"
        f" FROM {table} WHERE {under}"
        for kind, (table, text, _) in kinds.items()
    }
    deletes = [f"DELETE FROM {table} WHERE {under}" for table, _, _ in kinds.values()]
    moment = before.astimezone(UTC).isoformat()
    values = {"name": name, "end": next_after(name), "start": len(name) + 2, "before": moment, "below": below}
    return Drop(condition, counts, deletes if below is not None else [*deletes, DROP_RUN], values)


# --- sessions ---

_IDS = "(SELECT value FROM json_each(:ids))"
# Each row is one text, so that a store can compare it with a later result.
_CALLED = (
    "SELECT DISTINCT json_array(called.session_id) AS found FROM noted_runs AS its CROSS JOIN noted_runs AS called"
    " WHERE its.session_id = :id AND called.workflow_id > its.workflow_id || '/'"
    " AND called.workflow_id < its.workflow_id || '0' AND called.session_id <> :id"
    " AND substr(called.session_id, 1, length(:beginning)) = :beginning ORDER BY 1"
)
_SESSIONS = (
    f"SELECT json_array(id, agent_name, workflow_id, run_key, created_at, created_at < ({SINCE})) AS found"
    f" FROM agent_sessions WHERE id IN {_IDS} ORDER BY 1"
)
_NOTED = (
    f"SELECT json_array(session_id, run_key, workflow_id) AS found FROM noted_runs WHERE session_id IN {_IDS}"
    " ORDER BY 1"
)
# The names of the calls and messages of sessions, and of earlier sessions with their ids; see `name_of`.
_NO_DIGITS = "GLOB '*[^0-9]*'"  # D1 patterns have at most 50 bytes
_NAMES = (
    "SELECT DISTINCT json_array(id, id || substr(rest, 1, 22)) AS found FROM"
    " (SELECT id, substr(key, length(id) + 1) AS rest FROM ("
    # Each key once, before any computation on it: a message may have many calls. LIMIT preserves that order.
    + " UNION ".join(
        f"SELECT DISTINCT one.value AS id, kept.run_key AS key FROM json_each(:ids) AS one CROSS JOIN {table} AS kept"
        " WHERE kept.run_key > one.value || '@' AND kept.run_key < one.value || 'A'"
        for table in ("tool_ledger", "model_replies")
    )
    + f" LIMIT -1)) WHERE substr(rest, 2, 8) NOT {_NO_DIGITS} AND substr(rest, 10, 1) = 'T'"
    f" AND substr(rest, 11, 12) NOT {_NO_DIGITS} AND substr(rest, 23, 1) = '/' AND substr(rest, 24) <> ''"
    f" AND (substr(rest, 24) IN ('said', 'heard') OR substr(rest, 24) NOT {_NO_DIGITS}) ORDER BY 1"
)
# Runs opened by versions that did not note them. This reads all records.
_NOT_NOTED = (
    "SELECT json_array(json_extract(reply, '$.session'), substr(run_key, 1, length(run_key) - 5)) AS found"
    " FROM model_replies WHERE turn = 0 AND substr(run_key, -5) = '/open'"
    f" AND iif(json_valid(reply), json_extract(reply, '$.session'), NULL) IN {_IDS} ORDER BY 1"
)


def _under(table: str, names: str) -> str:
    """Return a condition for rows under one of the names in a list."""
    return (
        f"run_key IN (SELECT kept.run_key FROM json_each(:{names}) AS one CROSS JOIN {table} AS kept"
        " WHERE kept.run_key >= one.value AND kept.run_key < one.value || '0'"
        " AND (kept.run_key = one.value OR substr(kept.run_key, length(one.value) + 1, 1) = '/'))"
    )


_DELETE = (
    f"DELETE FROM boards WHERE session_id IN {_IDS}",
    f"DELETE FROM standing_approvals WHERE session_id IN {_IDS} AND scope_key <> ''",
    f"DELETE FROM agent_sessions WHERE id IN {_IDS}",
    f"DELETE FROM model_replies WHERE {_under('model_replies', 'names')}",
    (
        "INSERT INTO model_replies (run_key, turn, reply, kept_at)"
        " SELECT value || '/open', 0, :deleted, :now FROM json_each(:runs)"
    ),
    f"DELETE FROM partial_answers WHERE {_under('partial_answers', 'names')}",
    f"DELETE FROM tool_ledger WHERE {_under('tool_ledger', 'over')}",
    (
        "UPDATE tool_ledger SET state = iif(state = 'abandoned', state, 'claimed'),"
        " owner = iif(state = 'abandoned', NULL, 'deleted'), arguments_hash = NULL, result = NULL"
        f" WHERE {_under('tool_ledger', 'fenced')}"
    ),
    (
        "INSERT INTO tool_ledger (run_key, call_key, state, claimed_at)"
        f" SELECT value, '{CLOSED}', 'abandoned', :now FROM json_each(:fenced) WHERE true ON CONFLICT DO NOTHING"
    ),
)
_TRAILS = "run_key IN (SELECT value FROM json_each(:trails))"
_KEEP_DECISIONS = f"UPDATE gate_decisions SET comment = NULL, edit = 'null' WHERE {_TRAILS}"
_DELETE_DECISIONS = f"DELETE FROM gate_decisions WHERE {_TRAILS} AND decision <> 'delete'"

Rows = list[list[Any]]


def deletion(session_id: str, keep_decisions: bool) -> Generator[list[Ask], list[Rows], list[Ask]]:
    """Yield the queries, take their rows, and return the statements that delete a session.

    Either all of it is one transaction, or the statements run only if the queries would return the same again.
    """
    [called] = yield [(_CALLED, {"id": session_id, "beginning": called_by(session_id)})]
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
        its_names[one].add(Session(id=one, agent_name=agent, created_at=datetime.fromisoformat(made)).key)
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
