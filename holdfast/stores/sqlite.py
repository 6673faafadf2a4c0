"""Sessions, ledger and replies in one SQLite file."""

import json
import os
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic_core import to_json

from holdfast.checkpoints import Question
from holdfast.errors import InputError, SessionConflictError, StoreError
from holdfast.messages import Message, ToolCall, Usage
from holdfast.stores.locks import SessionLocks
from holdfast.stores.protocol import LedgerEntry, Session, kept_from
from holdfast.stores.sqlite_thread import SQLiteThread

MIGRATIONS = (
    """
    CREATE TABLE agent_sessions (
      id TEXT PRIMARY KEY, agent_name TEXT NOT NULL, state TEXT NOT NULL, user_id TEXT, tenant_id TEXT,
      questions TEXT, last_seq INTEGER NOT NULL, version INTEGER NOT NULL,
      last_write TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL
    ) STRICT;
    CREATE TABLE agent_messages (
      session_id TEXT NOT NULL REFERENCES agent_sessions (id) ON DELETE CASCADE, seq INTEGER NOT NULL,
      role TEXT NOT NULL, content TEXT NOT NULL, tool_calls TEXT, tool_call_id TEXT, tool_name TEXT, status TEXT,
      usage TEXT, cost REAL, user_id TEXT, tenant_id TEXT, write_key TEXT,
      PRIMARY KEY (session_id, seq)
    ) STRICT;
    CREATE UNIQUE INDEX agent_messages_write ON agent_messages (session_id, write_key) WHERE write_key IS NOT NULL;
    CREATE TABLE tool_ledger (
      run_key TEXT NOT NULL, call_key TEXT NOT NULL, state TEXT NOT NULL, owner TEXT, arguments_hash TEXT, result TEXT,
      PRIMARY KEY (run_key, call_key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE model_replies (
      run_key TEXT NOT NULL, turn INTEGER NOT NULL, reply TEXT NOT NULL, PRIMARY KEY (run_key, turn)
    ) STRICT, WITHOUT ROWID;
    """,
)
"""One script per schema version, applied in order and never edited."""

_SESSION = "id, agent_name, state, user_id, tenant_id, questions, last_seq, version, created_at, updated_at"
_MESSAGE = "role, content, tool_calls, tool_call_id, tool_name, status, usage, cost"


class SQLiteStore:
    """A durable store in a SQLite file: WAL, synchronous=FULL, foreign keys. Safe to use from several processes.

    Beside the file stand SQLite's `-wal` and `-shm`, and `-lock`, by which processes know who runs a session. The file
    is opened by the first operation. `await store.close()`, or leaving `async with store`, closes it; a store that
    nobody holds any more closes itself.
    """

    durable = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = _checked(os.fspath(path))
        self._thread = SQLiteThread(self._path, MIGRATIONS)
        self._do = self._thread.do
        self._locks = SessionLocks(None if self._path == ":memory:" else self._path)
        self._is_ours = False

    def __repr__(self) -> str:
        return f"sqlite_store({self._path!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was asked for and close the file. The next operation would open it again."""
        await self._thread.close()

    async def hold(self, session_id: str) -> bool:
        if not self._is_ours:  # nothing is put beside a file before it is known to be a store
            await self._do(lambda db: None, writes=False)
            self._is_ours = True
        return self._locks.take(session_id)

    async def let_go(self, session_id: str) -> None:
        self._locks.release(session_id)

    # --- sessions and messages ---

    async def load_session(self, session_id: str) -> Session | None:
        rows = await self._do(
            lambda db: db.execute(f"SELECT {_SESSION} FROM agent_sessions WHERE id = ?", (session_id,)).fetchall(),
            writes=False,
        )
        return _read_session(rows[0]) if rows else None

    async def save_session(self, session: Session) -> None:
        await self._do(lambda db: _save_session(db, session, 0))

    async def load_messages(self, session_id: str) -> list[Message]:
        rows = await self._do(
            lambda db: db.execute(
                f"SELECT {_MESSAGE} FROM agent_messages WHERE session_id = ? ORDER BY seq", (session_id,)
            ).fetchall(),
            writes=False,
        )
        try:
            return [_read_message(row) for row in rows]
        except ValueError as error:
            raise StoreError(f"The store {self._path} is damaged at session {session_id}: {error}") from error

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        rows = _message_rows(messages)

        def work(db: sqlite3.Connection) -> None:
            found = db.execute(
                "UPDATE agent_sessions SET last_seq = last_seq + ?, version = version + 1 WHERE id = ?"
                " RETURNING last_seq",
                (len(rows), session_id),
            ).fetchall()
            if not found:
                raise InputError(f"Session {session_id} must be saved before messages are appended to it")
            _insert_messages(db, session_id, found[0][0] - len(rows), rows, session, None)

        await self._do(work)

    async def append_messages_atomic(
        self,
        session_id: str,
        messages: Sequence[Message],
        session: Session,
        *,
        write_key: str | None = None,
        expected_seq: int | None = None,
        expected_version: int | None = None,
    ) -> int:
        rows = _message_rows(messages)

        def work(db: sqlite3.Connection) -> int:
            last = _advance(db, session_id, session, len(rows), write_key, expected_seq, expected_version)
            if last is None:
                return int(db.execute("SELECT last_seq FROM agent_sessions WHERE id = ?", (session_id,)).fetchone()[0])
            _insert_messages(db, session_id, last - len(rows), rows, session, write_key)
            return last

        return await self._do(work)

    async def prune_messages(self, session_id: str, keep: int) -> None:
        def work(db: sqlite3.Connection) -> None:
            rows = db.execute(
                "SELECT seq, role FROM agent_messages WHERE session_id = ? ORDER BY seq", (session_id,)
            ).fetchall()
            first = kept_from([role for _, role in rows], keep)
            if first:
                before = rows[first][0] if first < len(rows) else rows[-1][0] + 1
                db.execute("DELETE FROM agent_messages WHERE session_id = ? AND seq < ?", (session_id, before))

        await self._do(work)

    async def delete_session(self, session_id: str) -> None:
        await self._do(lambda db: db.execute("DELETE FROM agent_sessions WHERE id = ?", (session_id,)).rowcount)

    async def list_sessions(
        self, *, agent_name: str | None = None, user_id: str | None = None, limit: int | None = None
    ) -> list[Session]:
        rows = await self._do(
            lambda db: db.execute(
                f"SELECT {_SESSION} FROM agent_sessions WHERE (:agent IS NULL OR agent_name = :agent)"
                " AND (:user IS NULL OR user_id = :user) ORDER BY updated_at DESC, rowid DESC LIMIT :most",
                {"agent": agent_name, "user": user_id, "most": -1 if limit is None else limit},
            ).fetchall(),
            writes=False,
        )
        return [_read_session(row) for row in rows]

    # --- ledger and replies ---

    async def claim(self, run_key: str, call_key: str, *, owner: str, arguments_hash: str) -> LedgerEntry:
        def work(db: sqlite3.Connection) -> LedgerEntry:
            db.execute(
                "INSERT INTO tool_ledger (run_key, call_key, state, owner, arguments_hash)"
                " VALUES (?, ?, 'claimed', ?, ?) ON CONFLICT DO NOTHING",
                (run_key, call_key, owner, arguments_hash),
            )
            entry = _entry(db, run_key, call_key)
            if entry.state != "abandoned" and entry.arguments_hash != arguments_hash:
                raise InputError(f"Call {call_key} of run {run_key} was claimed with other arguments; it is not run")
            return entry

        return await self._do(work)

    async def take_over(self, run_key: str, call_key: str, *, owner: str) -> LedgerEntry:
        def work(db: sqlite3.Connection) -> LedgerEntry:
            db.execute(
                "UPDATE tool_ledger SET owner = ? WHERE run_key = ? AND call_key = ? AND state = 'claimed'",
                (owner, run_key, call_key),
            )
            return _entry(db, run_key, call_key)

        return await self._do(work)

    async def finish(
        self, run_key: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            db.execute(
                "UPDATE tool_ledger SET state = ?, result = ?"
                " WHERE run_key = ? AND call_key = ? AND owner = ? AND state = 'claimed'",
                (state, result, run_key, call_key, owner),
            )
            entry = _entry(db, run_key, call_key)
            return (entry.owner, entry.state, entry.result) == (owner, state, result)

        return await self._do(work)

    async def settle(self, run_key: str, call_key: str) -> LedgerEntry:
        def work(db: sqlite3.Connection) -> LedgerEntry:
            db.execute(
                "INSERT INTO tool_ledger (run_key, call_key, state) VALUES (?, ?, 'abandoned') ON CONFLICT DO NOTHING",
                (run_key, call_key),
            )
            return _entry(db, run_key, call_key)

        return await self._do(work)

    async def save_reply(self, run_key: str, turn: int, reply: str) -> str:
        def work(db: sqlite3.Connection) -> str:
            db.execute(
                "INSERT INTO model_replies (run_key, turn, reply) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (run_key, turn, reply),
            )
            return _reply(db, run_key, turn) or reply

        return await self._do(work)

    async def load_reply(self, run_key: str, turn: int) -> str | None:
        return await self._do(lambda db: _reply(db, run_key, turn), writes=False)


def sqlite_store(path: str | os.PathLike[str]) -> SQLiteStore:
    """Return a durable store in a SQLite file; ":memory:" keeps it in this object.

    Every operation raises `StoreError`, with what to do, when the file is no database, is read-only, locked or full,
    or was written by a newer version of holdfast. Nothing is overwritten then.
    """
    return SQLiteStore(path)


def _checked(path: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"sqlite_store needs the path of a file, or ':memory:', got {path!r}")
    # Absolute now: the file is opened later, and the process may have moved by then.
    return path if path == ":memory:" else os.path.realpath(path)


# --- rows ---------------------------------------------------------------------------------------------------------


def _advance(
    db: sqlite3.Connection,
    session_id: str,
    session: Session,
    count: int,
    write_key: str | None,
    expected_seq: int | None,
    expected_version: int | None,
) -> int | None:
    """Save the session and move its last number on; return it, or None if the write key was used before."""
    if expected_seq:  # the common case in one statement: the session is there and nobody else wrote
        done = db.execute(
            "UPDATE agent_sessions SET state = ?, user_id = ?, tenant_id = ?, questions = ?, updated_at = ?,"
            " last_write = ?, last_seq = last_seq + ?, version = version + 1 WHERE id = ? AND last_seq = ?"
            " AND created_at = coalesce(?, created_at) AND version = coalesce(?, version)",
            (session.state, session.user_id, session.tenant_id, _write_questions(session), _now(), write_key, count,
             session_id, expected_seq, _created(session), expected_version),
        ).rowcount  # fmt: skip
        if done:
            return expected_seq + count
    row = db.execute(
        "SELECT last_seq, version, created_at, last_write FROM agent_sessions WHERE id = ?", (session_id,)
    ).fetchone()
    last, version, created, last_write = row or (0, 0, None, None)
    if write_key is not None and (write_key == last_write or _has_key(db, session_id, write_key)):
        return None
    made_anew = created is not None and expected_seq is not None and _created(session) not in (None, created)
    if expected_seq not in (None, last) or expected_version not in (None, version) or made_anew:
        raise SessionConflictError(
            f"Session {session_id} is at message {last}, this run knows of {expected_seq}: another run has written to "
            "it. Nothing was written; run again to go on from there."
        )
    return _save_session(db, session.model_copy(update={"id": session_id}), count, write_key)


def _has_key(db: sqlite3.Connection, session_id: str, write_key: str) -> bool:
    row = db.execute("SELECT 1 FROM agent_messages WHERE session_id = ? AND write_key = ?", (session_id, write_key))
    return row.fetchone() is not None


def _save_session(db: sqlite3.Connection, session: Session, count: int, write_key: str | None = None) -> int:
    now = _now()
    row = db.execute(
        f"INSERT INTO agent_sessions ({_SESSION}, last_write) VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET state = excluded.state, user_id = excluded.user_id,"
        " tenant_id = excluded.tenant_id, questions = excluded.questions, last_seq = last_seq + excluded.last_seq,"
        " version = version + 1, last_write = excluded.last_write, updated_at = excluded.updated_at"
        " RETURNING last_seq",
        (session.id, session.agent_name, session.state, session.user_id, session.tenant_id, _write_questions(session),
         count, _created(session) or now, now, write_key),
    ).fetchall()  # fmt: skip
    return int(row[0][0])


def _message_rows(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return [
        (
            message.role,
            message.content,
            None if message.tool_calls is None else to_json([_plain(call) for call in message.tool_calls]).decode(),
            message.tool_call_id,
            message.tool_name,
            message.status,
            None if message.usage is None else message.usage.model_dump_json(),
            message.cost,
        )
        for message in messages
        if message.role != "system"
    ]


def _plain(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _insert_messages(
    db: sqlite3.Connection,
    session_id: str,
    last: int,
    rows: list[tuple[Any, ...]],
    session: Session,
    write_key: str | None,
) -> None:
    db.executemany(
        f"INSERT INTO agent_messages (session_id, seq, user_id, tenant_id, write_key, {_MESSAGE})"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (session_id, seq, session.user_id, session.tenant_id, write_key if seq == last + 1 else None, *row)
            for seq, row in enumerate(rows, last + 1)
        ],
    )


def _read_session(row: tuple[Any, ...]) -> Session:
    names = _SESSION.split(", ")
    fields = dict(zip(names, row, strict=True))
    if fields["questions"] is not None:
        fields["questions"] = tuple(Question.model_validate(item) for item in json.loads(fields["questions"]))
    return Session.model_validate(fields)


def _write_questions(session: Session) -> str | None:
    return json.dumps([question.model_dump() for question in session.questions]) if session.questions else None


def _read_message(row: tuple[Any, ...]) -> Message:
    role, content, tool_calls, tool_call_id, tool_name, status, usage, cost = row
    return Message(
        role=role,
        content=content,
        tool_calls=None if tool_calls is None else tuple(ToolCall(**call) for call in json.loads(tool_calls)),
        tool_call_id=tool_call_id,
        tool_name=tool_name,
        status=status,
        usage=None if usage is None else Usage.model_validate_json(usage),
        cost=cost,
    )


def _entry(db: sqlite3.Connection, run_key: str, call_key: str) -> LedgerEntry:
    row = db.execute(
        "SELECT state, owner, arguments_hash, result FROM tool_ledger WHERE run_key = ? AND call_key = ?",
        (run_key, call_key),
    ).fetchone()
    if row is None:
        raise InputError(f"Call {call_key} of run {run_key} is not in the ledger")
    state, owner, arguments_hash, result = row
    return LedgerEntry(state=state, owner=owner, arguments_hash=arguments_hash, result=result)


def _reply(db: sqlite3.Connection, run_key: str, turn: int) -> str | None:
    row = db.execute("SELECT reply FROM model_replies WHERE run_key = ? AND turn = ?", (run_key, turn)).fetchone()
    return None if row is None else str(row[0])


def _created(session: Session) -> str | None:
    return None if session.created_at is None else session.created_at.isoformat()


def _now() -> str:
    return datetime.now(UTC).isoformat()
