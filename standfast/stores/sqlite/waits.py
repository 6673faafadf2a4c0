"""The board of the SQLite store, with the items that runs wait for."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime

from standfast.stores import wait_rows as sql
from standfast.stores.wait_rows import Query, board_values, moment_text, read_board, read_shown, wait_row
from standfast.stores.waits import Board, ShownWait, Wait


def plain(statement: str) -> str:
    """Return a statement for a database without schemas."""
    return statement.replace("@", "")


_SAVE_BOARD, _KEYS, _FORGET, _LIST = map(plain, (sql.SAVE_BOARD, sql.KEYS, sql.FORGET, sql.LIST_BOARDS))
_TAKE_OUT = (
    "DELETE FROM waits WHERE namespace = :namespace AND workflow_id = :workflow_id"
    " AND key NOT IN (SELECT value FROM json_each(:keys))"
)
_PUT = f"INSERT INTO waits ({sql.WAIT_COLUMNS}) VALUES ({', '.join('?' * 11)}) ON CONFLICT DO NOTHING"


def show_waits(db: sqlite3.Connection, board: Board, put: Sequence[Wait], keep: Sequence[str]) -> list[str]:
    values = board_values(board)
    if not db.execute(_SAVE_BOARD, values).fetchall():
        return []
    keys = json.dumps([*keep, *(wait.key for wait in put)])
    db.execute(_TAKE_OUT, {**values, "keys": keys})
    db.executemany(_PUT, [wait_row(board, wait) for wait in put])
    there = {key for (key,) in db.execute(_KEYS, values)}
    return [key for key in keep if key not in there]


def waits(db: sqlite3.Connection, query: Query) -> list[ShownWait]:
    statement, values = query
    return [read_shown(row) for row in db.execute(plain(statement), values)]


def count_waits(db: sqlite3.Connection, query: Query) -> dict[str, int]:
    statement, values = query
    return dict(db.execute(plain(statement), values).fetchall())


def load_board(db: sqlite3.Connection, namespace: str, workflow_id: str) -> Board | None:
    row = db.execute(plain(sql.LOAD_BOARD), {"namespace": namespace, "workflow_id": workflow_id}).fetchone()
    return None if row is None else read_board(row)


def boards(db: sqlite3.Connection, namespace: str, after: str, limit: int) -> list[tuple[Board, int]]:
    values = {"namespace": namespace, "after": after, "most": limit}
    return [(read_board(row[:-1]), row[-1]) for row in db.execute(_LIST, values)]


def forget_boards(db: sqlite3.Connection, namespace: str, before: datetime) -> None:
    db.execute(_FORGET, {"namespace": namespace, "before": moment_text(before)})
