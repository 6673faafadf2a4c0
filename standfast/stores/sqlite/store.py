"""Sessions, ledger and replies in one SQLite file."""

import os
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Self

from standfast.agent_loop import StandingApproval
from standfast.errors import InputError
from standfast.messages import Message
from standfast.stores.deletion import Dropped, Noted, NotedRun
from standfast.stores.kept_values import reading
from standfast.stores.locks import SessionLocks
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.protocol import (
    Append,
    DecisionRecord,
    LedgerEntry,
    RunningCall,
    Session,
)
from standfast.stores.rows import RUNNING, message_rows, named, read_decision, read_message, read_session
from standfast.stores.sqlite import deletion, standing, waits
from standfast.stores.sqlite import statements as sql
from standfast.stores.sqlite.identity import current_place, identity
from standfast.stores.sqlite.migrations import MIGRATIONS
from standfast.stores.sqlite.rows import (
    add_partial,
    append_rows,
    begin_call,
    begin_work,
    claim,
    end_work,
    find_entry,
    find_work,
    insert_messages,
    kept_reply,
    ledger_entry,
    load_partial,
    now,
    prune_rows,
    record_decision,
    save_reply,
    save_session,
    settle,
)
from standfast.stores.sqlite.tables import SQLiteTables
from standfast.stores.sqlite.thread import SQLiteThread
from standfast.stores.standing_approvals import StandingFilter
from standfast.stores.standing_rows import ended, revoked, selected
from standfast.stores.wait_rows import counted, page
from standfast.stores.waits import Board, ShownWait, Wait, WaitFilter, WaitPlace
from standfast.stores.workers import AtWork


class SQLiteStore:
    """A durable store in a SQLite file: WAL, synchronous=FULL, foreign keys. Safe to use from several processes.

    Next to it are SQLite's `-wal` and `-shm`, `-lock` with the holds of sessions, and `-mark`. The first operation
    opens the file. `await store.close()`, or leaving `async with store`, closes it. A store also closes when the last
    reference to it is gone.
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

    @property
    def path(self) -> str:
        """The path of the file, as given."""
        return self._path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish all operations and close the file. The next operation would open it again."""
        await self._thread.close()

    async def identity(self) -> str:
        return await self._do(lambda db: identity(db, self._path), writes=False)

    def tables(self) -> SQLiteTables:
        return SQLiteTables(self._path)

    async def place(self) -> str:
        return await self._do(lambda db: current_place(db, self._path), writes=False)

    @property
    def shares_holds(self) -> bool:
        return self._locks.shared

    async def hold(self, session_id: str) -> bool:
        if not self._is_ours:  # does not create a file next to it before it is known to be a store
            await self._do(lambda db: None, writes=False)
            self._is_ours = True
        return self._locks.take(session_id)

    async def let_go(self, session_id: str) -> None:
        self._locks.release(session_id)

    # --- sessions and messages ---

    async def load_session(self, session_id: str) -> Session | None:
        rows = await self._do(
            lambda db: db.execute(sql.SESSION_BY_ID, {"id": session_id}).fetchall(),
            writes=False,
        )
        with reading(f"session {session_id} in {self._path}"):
            return read_session(rows[0]) if rows else None

    async def save_session(self, session: Session) -> None:
        await self._do(lambda db: save_session(db, session, 0))

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        rows = await self._do(
            lambda db: db.execute(sql.MESSAGES, {"id": session_id, "after": after}).fetchall(),
            writes=False,
        )
        messages = []
        for place, row in enumerate(rows, 1):
            with reading(f"session {session_id}, message {place} of {len(rows)} in {self._path}"):
                messages.append(read_message(row))
        return messages

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        rows = message_rows(messages)

        def work(db: sqlite3.Connection) -> None:
            if db.execute(sql.COUNT_MESSAGES, {"id": session_id, "count": len(rows)}).rowcount == 0:
                raise InputError(f"Session {session_id} must be saved before messages are appended to it")
            (last,) = db.execute(sql.LAST_SEQ, {"id": session_id}).fetchone()
            insert_messages(db, session_id, last - len(rows), rows, session, None)

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
        rows = message_rows(messages)
        if session.id != session_id:
            session = session.model_copy(update={"id": session_id})
        return await self._do(lambda db: append_rows(db, session, rows, write_key, expected_seq, expected_version))

    async def prune_messages(self, session_id: str, keep: int) -> None:
        await self._do(lambda db: prune_rows(db, session_id, keep))

    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        await self._do(lambda db: deletion.delete_session(db, session_id, keep_decisions))

    async def list_sessions(
        self, *, agent_name: str | None = None, user_id: str | None = None, limit: int | None = None
    ) -> list[Session]:
        rows = await self._do(
            lambda db: db.execute(
                sql.SESSIONS,
                {"agent": agent_name, "user": user_id, "most": -1 if limit is None else limit},
            ).fetchall(),
            writes=False,
        )
        found = []
        for row in rows:
            with reading(f"session {row[0]} in {self._path}"):
                found.append(read_session(row))
        return found

    # --- ledger and replies ---

    async def claim(
        self, scope: str, call_key: str, *, owner: str, arguments_hash: str, running: RunningCall | None = None
    ) -> LedgerEntry:
        return await self._do(lambda db: claim(db, scope, call_key, owner, arguments_hash, running))

    async def take_over(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        def work(db: sqlite3.Connection) -> LedgerEntry:
            db.execute(sql.TAKE_OVER, {"scope": scope, "call": call_key, "owner": owner, "now": now()})
            return ledger_entry(db, scope, call_key)

        return await self._do(work)

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        def work(db: sqlite3.Connection) -> LedgerEntry:
            db.execute(sql.ABANDON, {"scope": scope, "call": call_key, "owner": owner})
            db.execute(sql.END_CALL, {"owner": owner})
            return ledger_entry(db, scope, call_key)

        return await self._do(work)

    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            values = {"scope": scope, "call": call_key, "owner": owner, "state": state, "result": result}
            is_done = db.execute(sql.FINISH, values).rowcount
            db.execute(sql.END_CALL, {"owner": owner})
            if is_done:
                return True
            entry = ledger_entry(db, scope, call_key)
            return (entry.owner, entry.state, entry.result) == (owner, state, result)

        return await self._do(work)

    async def begin_call(self, running: RunningCall) -> None:
        await self._do(lambda db: begin_call(db, running))

    async def end_call(self, owner: str) -> None:
        await self._do(lambda db: db.execute(sql.END_CALL, {"owner": owner}).rowcount)

    async def running_calls(self) -> list[RunningCall]:
        rows = await self._do(lambda db: db.execute(sql.RUNNING_CALLS).fetchall(), writes=False)
        calls = []
        for row in rows:
            with reading(f"running call {row[0]} in {self._path}"):
                calls.append(RunningCall(**named(RUNNING, row)))
        return calls

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        return await self._do(lambda db: settle(db, scope, call_key))

    async def load_entries(self, scope: str, call_keys: Sequence[str]) -> dict[str, LedgerEntry]:
        def work(db: sqlite3.Connection) -> dict[str, LedgerEntry]:
            found = ((key, find_entry(db, scope, key)) for key in call_keys)
            return {key: entry for key, entry in found if entry is not None}

        return await self._do(work, writes=False)

    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        rows = [message_rows(append.messages) for append in appends]

        def work(db: sqlite3.Connection) -> str:
            kept = save_reply(db, journal_key, turn, reply)
            if kept == reply:
                for append, its_rows in zip(appends, rows, strict=True):
                    append_rows(db, append.session, its_rows, append.write_key, append.expected_seq)
            return kept

        return await self._do(work)

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        return await self._do(lambda db: save_reply(db, journal_key, turn, reply))

    async def load_reply(self, journal_key: str, turn: int) -> str | None:
        return await self._do(lambda db: kept_reply(db, journal_key, turn), writes=False)

    # --- deletion ---

    async def note_run(self, run: NotedRun) -> None:
        await self._do(lambda db: deletion.note_run(db, run))

    async def find_runs(self, journal_keys: Sequence[str] = (), *, session_id: str | None = None) -> list[NotedRun]:
        return await self._do(lambda db: deletion.find_runs(db, journal_keys, session_id), writes=False)

    async def noted(self) -> Noted:
        return await self._do(deletion.noted, writes=False)

    async def list_records(self, after: str = "", *, limit: int = 500) -> list[str]:
        return await self._do(lambda db: deletion.list_records(db, after, limit), writes=False)

    async def drop_records(
        self, name: str, *, before: datetime, below: int | None = None, decisions: bool = False, dry_run: bool = False
    ) -> Dropped:
        return await self._do(
            lambda db: deletion.drop_records(db, name, before, below, decisions, dry_run), writes=not dry_run
        )

    # --- decisions ---

    async def record_decision(self, record: DecisionRecord) -> None:
        await self._do(lambda db: record_decision(db, record))

    async def load_decisions(self, journal_key: str) -> list[DecisionRecord]:
        rows = await self._do(
            lambda db: db.execute(sql.DECISIONS, {"run": journal_key}).fetchall(),
            writes=False,
        )
        decisions = []
        for place, row in enumerate(rows, 1):
            with reading(f"decision {place} of {len(rows)} of run {journal_key} in {self._path}"):
                decisions.append(read_decision(row))
        return decisions

    # --- workers and their sessions ---

    async def hold_scope(self) -> str:
        await self._do(lambda db: None, writes=False)
        return self._locks.scope()

    async def begin_work(self, work: AtWork, *, instead_of: AtWork | None = None) -> AtWork:
        return await self._do(lambda db: begin_work(db, work, instead_of))

    async def end_work(self, work: AtWork) -> None:
        await self._do(lambda db: end_work(db, work))

    async def find_work(self, session_id: str | None = None) -> list[AtWork]:
        return await self._do(lambda db: find_work(db, session_id), writes=False)

    async def add_worker(self, name: str) -> None:
        await self._do(lambda db: db.execute(sql.ADD_WORKER, {"name": name}).rowcount)

    async def drop_worker(self, name: str) -> None:
        await self._do(lambda db: db.execute(sql.DROP_WORKER, {"name": name}).rowcount)

    async def list_workers(self) -> list[str]:
        rows = await self._do(lambda db: db.execute(sql.WORKERS).fetchall(), writes=False)
        return [name for (name,) in rows]

    # --- the board ---

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        return await self._do(lambda db: waits.show_waits(db, board, put, keep))

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        return await self._do(lambda db: waits.waits(db, page(wanted, after, limit)), writes=False)

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        return await self._do(lambda db: waits.count_waits(db, counted(wanted)), writes=False)

    async def load_board(self, namespace: str, workflow_id: str) -> Board | None:
        return await self._do(lambda db: waits.load_board(db, namespace, workflow_id), writes=False)

    async def boards(self, namespace: str, *, after: str = "", limit: int = 500) -> list[tuple[Board, int]]:
        return await self._do(lambda db: waits.boards(db, namespace, after, limit), writes=False)

    async def forget_boards(self, namespace: str, before: datetime) -> None:
        await self._do(lambda db: waits.forget_boards(db, namespace, before))

    # --- standing approvals ---

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        await self._do(lambda db: standing.give(db, approval, record))

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        return await self._do(lambda db: standing.load(db, selected(wanted, limit)), writes=False)

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        await self._do(lambda db: standing.change(db, revoked(approval_id, at, by)))

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        return await self._do(lambda db: standing.change(db, ended(before, dry_run)), writes=not dry_run)

    # --- partial answers ---

    async def add_partial(self, journal_key: str, part: PartialAnswer) -> None:
        await self._do(lambda db: add_partial(db, journal_key, part))

    async def load_partial(self, journal_key: str, *, after: PartialAnswer | None = None) -> PartialAnswer | None:
        return await self._do(lambda db: load_partial(db, journal_key, after), writes=False)

    async def drop_partial(self, journal_key: str, *, turn: int, attempt: str) -> None:
        values = {"run": journal_key, "turn": turn, "attempt": attempt}
        await self._do(lambda db: db.execute(sql.DROP_WORDS, values).rowcount)


def sqlite_store(path: str | os.PathLike[str]) -> SQLiteStore:
    """Return a durable store in a SQLite file. ":memory:" keeps it in this object.

    If the file is not a database, is read-only, locked or full, or was written by a newer version of standfast, an
    operation raises `StoreError` and says what to do. Nothing is overwritten then.
    """
    return SQLiteStore(path)


def _checked(path: str) -> str:
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"sqlite_store needs the path of a file, or ':memory:', got {path!r}")
    # Absolute now: the file is opened later, when the process may have another working directory.
    return path if path == ":memory:" else os.path.realpath(path)
