"""Standing approvals of the SQLite store."""

import sqlite3

from standfast.agent_loop import StandingApproval
from standfast.stores import standing_rows as sql
from standfast.stores.protocol import DecisionRecord
from standfast.stores.sqlite.rows import record_decision
from standfast.stores.sqlite.waits import plain
from standfast.stores.wait_rows import Query


def give(db: sqlite3.Connection, approval: StandingApproval, record: DecisionRecord) -> None:
    record_decision(db, record)
    db.execute(plain(sql.GIVE), sql.values_of(approval))


def load(db: sqlite3.Connection, query: Query) -> list[StandingApproval]:
    statement, values = query
    return [sql.read(row) for row in db.execute(plain(statement), values)]


def change(db: sqlite3.Connection, query: Query) -> int:
    """Run a statement, and return the number of rows that it returns."""
    statement, values = query
    return len(db.execute(plain(statement), values).fetchall())
