"""Statements and rows of the board, with the items that runs wait for.

Times are texts of one length in UTC, so that every database orders them alike.
Lists are texts with a line of JSON for each value. A value cannot contain a line break, so a line can be matched
unchanged.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.messages import person
from standfast.stores.sql.dialect import Query
from standfast.stores.sql.rows import columns, named
from standfast.stores.waits import Board, ShownWait, Wait, WaitFilter, WaitPlace

BOARD = (
    "namespace, workflow_id, run_id, first_run_id, run_key AS journal_key, agent, task_queue, at,"
    " session_id AS session, tenant_id, user_id, parent, is_watched"
)
_WAIT = "key, kind, name, since, due AS deadline, people, groups, words, item"
_NEVER = "9999"  # sorts after every time
_NOBODY = "\n"

_COLUMNS = [*columns(BOARD).split(", "), "owner"]
SAVE_BOARD = (
    f"INSERT INTO @boards AS known ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)})"
    " ON CONFLICT (namespace, workflow_id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[2:])}"
    " WHERE excluded.at >= known.at RETURNING 1 AS done"
)
PLACES = [f"value{place}" for place in range(11)]
WAIT_COLUMNS = "namespace, workflow_id, key, kind, name, since, due, people, groups, words, item"
IS_OURS = (
    "EXISTS (SELECT 1 FROM @boards WHERE namespace = :namespace AND workflow_id = :workflow_id"
    " AND run_id = :run_id AND at = :at)"
)
TAKE_OUT = (
    "DELETE FROM @waits WHERE namespace = :namespace AND workflow_id = :workflow_id AND NOT (key AMONG[:keys])"
    f" AND {IS_OURS}"
)
_PUT = (
    f"INSERT INTO @waits ({WAIT_COLUMNS}) SELECT {', '.join(f':{name}' for name in PLACES)}"
    f" WHERE {IS_OURS} ON CONFLICT DO NOTHING"
)
KEYS = "SELECT key FROM @waits WHERE namespace = :namespace AND workflow_id = :workflow_id"
LOAD_BOARD = f"SELECT {BOARD} FROM @boards WHERE namespace = :namespace AND workflow_id = :workflow_id"
FORGET = (
    "DELETE FROM @boards AS b WHERE namespace = :namespace AND at < :before AND NOT EXISTS"
    " (SELECT 1 FROM @waits AS w WHERE w.namespace = b.namespace AND w.workflow_id = b.workflow_id)"
)
LIST_BOARDS = (
    f"SELECT {BOARD}, (SELECT count(*) FROM @waits AS w WHERE w.namespace = b.namespace AND"
    " w.workflow_id = b.workflow_id) FROM @boards AS b WHERE namespace = :namespace AND workflow_id > :after"
    " ORDER BY workflow_id LIMIT :most"
)
_FROM = "FROM @waits AS w JOIN @boards AS b ON b.namespace = w.namespace AND b.workflow_id = w.workflow_id"
# A person with few visible runs must not wait for a scan of all others. So the boards come first, since SQLite keeps
# the order of a CROSS JOIN, and by tenant or owner, since an index does not help to find an expression.
_FROM_FEW = "FROM @boards AS b CROSS JOIN @waits AS w"
_JOINED = "b.namespace || '' = :namespace AND w.workflow_id = b.workflow_id"
_ORDER = "w.due, w.since, w.workflow_id, w.key"


def _selected(table: str, columns: str) -> str:
    return ", ".join(f"{table}.{one}" for one in columns.split(", "))


def moment_text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def _due(deadline: datetime | None) -> str:
    return _NEVER if deadline is None else moment_text(deadline)


def _lines(values: Iterable[str]) -> str:
    return "".join(f"\n{json.dumps(value)}" for value in values) + "\n"


def _read_lines(text: str) -> tuple[str, ...]:
    return tuple(json.loads(line) for line in text.split("\n") if line)


def board_values(board: Board) -> dict[str, Any]:
    """Return the columns of a board."""
    data = dict(board)
    data |= {"run_key": data.pop("journal_key"), "session_id": data.pop("session")}
    data["owner"] = None if board.user_id is None else person(board.user_id)
    return data | {"at": moment_text(board.at), "is_watched": int(board.is_watched)}


def wait_row(board: Board, wait: Wait) -> tuple[Any, ...]:
    """Return the row of an item, in the order of `WAIT_COLUMNS`."""
    people = "" if wait.people is None else _lines(wait.people) if wait.people else _NOBODY
    groups = _lines(wait.groups) if wait.groups else ""
    place, times = (board.namespace, board.workflow_id, wait.key), (moment_text(wait.since), _due(wait.deadline))
    return (*place, wait.kind, wait.name, *times, people, groups, wait.words, wait.item)


def show(board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
    """Return the statements that write a board. Without the first one's row, the others do not change anything."""
    values = board_values(board)
    puts = [(_PUT, {**values, **dict(zip(PLACES, wait_row(board, wait), strict=True))}) for wait in put]
    return [(SAVE_BOARD, values), (TAKE_OUT, {**values, "keys": keys}), *puts, (KEYS, values)]


def read_board(row: Sequence[Any]) -> Board:
    data = named(BOARD, row)
    return Board(**{**data, "at": datetime.fromisoformat(data["at"]), "is_watched": bool(data["is_watched"])})


def read_shown(row: Sequence[Any]) -> ShownWait:
    """Return an item from a row of `page`."""
    places = len(BOARD.split(", "))
    data = named(_WAIT, row[places:])
    people, due = data["people"], data["deadline"]
    read = {
        "since": datetime.fromisoformat(data["since"]),
        "deadline": None if due == _NEVER else datetime.fromisoformat(due),
        "people": None if people == "" else _read_lines(people),
        "groups": _read_lines(data["groups"]),
    }
    return ShownWait(board=read_board(row[:places]), wait=Wait(**{**data, **read}))


def page(wanted: WaitFilter, after: WaitPlace | None, limit: int | None, *, keys_first: bool = False) -> Query:
    """Return the statement that reads a page of items, and its values.

    Args:
        keys_first: find the keys of the page before reading anything else. Without statistics, PostgreSQL sorts all
            items, and whole rows are long. SQLite always gets the order from the index.
    """
    where, values = _where(wanted)
    if after is not None:
        where += f" AND ({_ORDER}) > (:after_due, :after_since, :after_workflow, :after_key)"
        values |= {"after_due": _due(after.deadline), "after_since": moment_text(after.since)}
        values |= {"after_workflow": after.workflow_id, "after_key": after.key}
    most = "" if limit is None else " LIMIT :most"
    values |= {} if limit is None else {"most": limit}
    selected = f"SELECT {_selected('b', BOARD)}, {_selected('w', _WAIT)}"
    if not keys_first:
        return f"{selected} {_tables(wanted, _FROM)} WHERE {where} ORDER BY {_ORDER}{most}", values
    keys = f"SELECT w.namespace, {_ORDER} {_tables(wanted, _narrow(wanted))} WHERE {where} ORDER BY {_ORDER}{most}"
    same = "w.namespace = k.namespace AND w.workflow_id = k.workflow_id AND w.key = k.key"
    joined = "b.namespace = k.namespace AND b.workflow_id = k.workflow_id"
    found = f"FROM ({keys}) AS k JOIN @waits AS w ON {same} JOIN @boards AS b ON {joined}"
    return f"{selected} {found} ORDER BY {_ORDER.replace('w.', 'k.')}", values


def counted(wanted: WaitFilter) -> Query:
    """Return the statement that counts items by kind, and its values."""
    where, values = _where(wanted)
    tables = _tables(wanted, _narrow(wanted))
    # A column outside all indexes. Otherwise SQLite would read one index of all runs instead of looking up a few.
    number = "count(w.item)" if _is_of_few(wanted) else "count(*)"
    return f"SELECT w.kind, {number} AS number {tables} WHERE {where} GROUP BY w.kind", values


def _narrow(wanted: WaitFilter) -> str:
    """Return the tables that a filter needs."""
    return "FROM @waits AS w" if wanted.agent is wanted.tenant_id is None else _FROM


def _tables(wanted: WaitFilter, usual: str) -> str:
    return _FROM_FEW if _is_of_few(wanted) else usual


def _is_of_few(wanted: WaitFilter) -> bool:
    return wanted.tenants is not None or wanted.owner is not None


def _where(wanted: WaitFilter) -> Query:
    values: dict[str, Any] = {"namespace": wanted.namespace}
    parts = ["w.namespace = :namespace"]
    if _is_of_few(wanted):
        parts.append(_JOINED)
    for column, value in {
        "w.kind": wanted.kind,
        "w.workflow_id": wanted.workflow_id,
        "b.agent": wanted.agent,
        "b.tenant_id": wanted.tenant_id,
        "b.owner": wanted.owner,
    }.items():
        if value is not None:
            parts.append(f"{column} = :{column[2:]}")
            values[column[2:]] = value
    if wanted.tenants is not None:
        tenants = [f"tenant{place}" for place in range(len(wanted.tenants))]
        values |= dict(zip(tenants, wanted.tenants, strict=True))
        parts.append(f"b.tenant_id IN ({', '.join(f':{tenant}' for tenant in tenants) or 'NULL'})")
    if wanted.group is not None:
        parts.append("instr(w.groups, :asked_group) > 0")
        values["asked_group"] = _lines([wanted.group])
    if wanted.before is not None:
        parts.append("w.since <= :before")
        values["before"] = moment_text(wanted.before)
    for place, word in enumerate(wanted.words):
        parts.append(f"instr(w.words, :word{place}) > 0")
        values[f"word{place}"] = word
    if wanted.person is not None:
        theirs = "(w.people = '' OR instr(w.people, :person) > 0)"
        values["person"] = _lines([wanted.person])
        if wanted.person_kinds is not None:
            kinds = [f"kind{place}" for place in range(len(wanted.person_kinds))]
            values |= dict(zip(kinds, wanted.person_kinds, strict=True))
            theirs += f" AND w.kind IN ({', '.join(f':{kind}' for kind in kinds) or 'NULL'})"
        parts.append(f"NOT ({theirs})" if wanted.others else theirs)
    return " AND ".join(parts), values
