"""The issue feed: a SQLite file with the issues of Saltmarsh, a fictional read-later server.

`load_feed` creates the file from `feed.json`; the tools in `issues` read and change it.
"""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS issues (
    id TEXT PRIMARY KEY, title TEXT NOT NULL, body TEXT NOT NULL, author TEXT NOT NULL, created_at TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed'))
);
CREATE TABLE IF NOT EXISTS labels (issue_id TEXT NOT NULL, label TEXT NOT NULL, PRIMARY KEY (issue_id, label));
CREATE TABLE IF NOT EXISTS comments (
    id INTEGER PRIMARY KEY, issue_id TEXT NOT NULL, author TEXT NOT NULL, body TEXT NOT NULL, created_at TEXT NOT NULL,
    idempotency_key TEXT UNIQUE
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (issue_id UNINDEXED, title, body, tokenize = 'porter unicode61');
"""


def load_feed(path: str | Path) -> None:
    """Create the issue feed at `path`. Existing issues stay unchanged, with their labels and comments."""
    feed = json.loads(Path(__file__).with_name("feed.json").read_text(encoding="utf-8"))
    with closing(sqlite3.connect(path, timeout=10)) as database:
        database.executescript(SCHEMA)
        with database:
            database.execute("BEGIN IMMEDIATE")  # two concurrent loads must not both find it empty
            for issue in feed:
                _insert(database, issue)


def _insert(database: sqlite3.Connection, issue: dict[str, Any]) -> None:
    values = ":id, :title, :body, :author, :created_at, :state"
    if not database.execute(f"INSERT OR IGNORE INTO issues VALUES ({values})", issue).rowcount:
        return
    database.execute("INSERT INTO words VALUES (:id, :title, :body)", issue)
    database.executemany("INSERT INTO labels VALUES (?, ?)", [(issue["id"], label) for label in issue["labels"]])
    database.executemany(
        "INSERT INTO comments (issue_id, author, body, created_at) VALUES (:id, :author, :body, :created_at)",
        [{"id": issue["id"], **comment} for comment in issue["comments"]],
    )


@contextmanager
def open_feed() -> Iterator[sqlite3.Connection]:
    """Open the feed that `STANDFAST_ISSUES` names (default `issues.db`); changes are committed at the end.

    Raises:
        FileNotFoundError: it does not exist. SQLite itself would create an empty file.
    """
    path = Path(os.environ.get("STANDFAST_ISSUES", "issues.db"))
    if not path.is_file():
        raise FileNotFoundError(
            f"No issue feed at {path}: create one with activities.load_feed({str(path)!r}), or set STANDFAST_ISSUES"
        )
    with closing(sqlite3.connect(path, timeout=10, isolation_level="IMMEDIATE")) as database, database:
        database.row_factory = sqlite3.Row
        yield database
