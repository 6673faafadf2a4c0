"""The operations that are the same in every SQL store: each is a statement, or a batch of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Self

from standfast.agent_loop import StandingApproval
from standfast.errors import InputError
from standfast.messages import Message
from standfast.stores.deletion import Dropped, Noted, NotedRun, closed
from standfast.stores.kept_values import reading
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.protocol import (
    Append,
    DecisionRecord,
    LedgerEntry,
    RunningCall,
    Session,
    StandingFilter,
    first_kept_index,
)
from standfast.stores.sql import deletion, standing, waits
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import Executor, Query, RefusedByGuardError, Row, guard
from standfast.stores.sql.rows import (
    RUNNING,
    WORK,
    Write,
    decision_values,
    message_rows,
    named,
    read_decision,
    read_entry,
    read_message,
    read_session,
)
from standfast.stores.waits import Board, ShownWait, Wait, WaitFilter, WaitPlace
from standfast.stores.workers import AtWork


class SQLStore(ABC):
    """The part of a durable store that is the same in every SQL database.

    Args:
        executor: runs the statements.
        name: the store's name in messages.
    """

    durable = True
    _finds_keys_first = False  # see `waits.page`

    def __init__(self, executor: Executor, name: str) -> None:
        self._executor, self._name = executor, name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish all operations, end all holds and close the database. The next operation opens it again."""
        await self._executor.close()

    # --- sessions and messages ---

    async def load_session(self, session_id: str) -> Session | None:
        found = await self._executor.rows((sql.SESSION_BY_ID, {"id": session_id}))
        with reading(f"session {session_id} in {self._name}"):
            return read_session(found[0]) if found else None

    async def load_messages(self, session_id: str, *, after: int = 0) -> list[Message]:
        found = await self._executor.rows((sql.MESSAGES, {"id": session_id, "after": after}))
        messages = []
        for place, row in enumerate(found, 1):
            with reading(f"session {session_id}, message {place} of {len(found)} in {self._name}"):
                messages.append(read_message(row))
        return messages

    async def list_sessions(
        self, *, agent_name: str | None = None, user_id: str | None = None, limit: int | None = None
    ) -> list[Session]:
        values = {"agent": agent_name, "user": user_id, "most": limit}
        sessions = []
        for row in await self._executor.rows((sql.SESSIONS if limit is None else sql.SOME_SESSIONS, values)):
            with reading(f"session {row[0]} in {self._name}"):
                sessions.append(read_session(row))
        return sessions

    def _write(
        self,
        session_id: str,
        messages: Sequence[Message],
        session: Session,
        write_key: str | None = None,
        expected_seq: int | None = None,
        expected_version: int | None = None,
    ) -> Write:
        if session.id != session_id:
            session = session.model_copy(update={"id": session_id})
        holder = self._executor.holder(session_id)
        return Write(session, message_rows(messages), write_key, expected_seq, expected_version, holder)

    @abstractmethod
    async def _append(self, write: Write) -> int:
        """Save the session and its next messages, once by their key, and return the number of its last message."""

    @abstractmethod
    async def _append_more(self, write: Write) -> int | None:
        """Append to a session without saving it. Return its last number, or None if there is none."""

    async def append_messages(self, session_id: str, messages: Sequence[Message], session: Session) -> None:
        if await self._append_more(self._write(session_id, messages, session)) is None:
            raise InputError(f"Session {session_id} must be saved before messages are appended to it")

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
        return await self._append(self._write(session_id, messages, session, write_key, expected_seq, expected_version))

    async def prune_messages(self, session_id: str, keep: int) -> None:
        rows = await self._executor.rows((sql.ROLES, {"id": session_id}))
        if first := first_kept_index([role for _, role, *_ in rows], keep):
            before = rows[first][0] if first < len(rows) else rows[-1][0] + 1
            _, _, created, last = rows[0]
            values = {"id": session_id, "before": before, "created": created, "last": last}
            await self._executor.rows((sql.PRUNE, values))

    # --- ledger and replies ---

    @staticmethod
    def _key(call_key: str) -> str:
        """Return the key of a call as the store keeps it."""
        return call_key

    async def take_over(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        values = {"scope": scope, "call": self._key(call_key), "owner": owner}
        found = await self._executor.rows((sql.TAKE_OVER, values))
        return self._read_entry(found, scope, call_key) if found else await self._entry(scope, call_key)

    async def _entry(self, scope: str, call_key: str) -> LedgerEntry:
        found = await self._executor.rows((sql.ENTRY, {"scope": scope, "call": self._key(call_key)}))
        return self._read_entry(found, scope, call_key)

    def _read_entry(self, found: list[Row], scope: str, call_key: str) -> LedgerEntry:
        if not found:
            raise InputError(f"Call {call_key} of run {scope} is not in the ledger")
        return read_entry(found[0], scope, call_key, self._name)

    async def load_entries(self, scope: str, call_keys: Sequence[str]) -> dict[str, LedgerEntry]:
        keys = {self._key(key): key for key in call_keys}
        found = await self._executor.rows((sql.ENTRIES, {"scope": scope, "calls": list(keys)}))
        return {keys[key]: read_entry(row, scope, keys[key], self._name) for key, *row in found}

    async def abandon(self, scope: str, call_key: str, *, owner: str) -> LedgerEntry:
        values = {"scope": scope, "call": self._key(call_key), "owner": owner}
        *_, found = await self._executor.batch([(text, values) for text in (sql.ABANDON, sql.END_CALL, sql.ENTRY)])
        return self._read_entry(found, scope, call_key)

    async def finish(
        self, scope: str, call_key: str, *, owner: str, state: Literal["done", "failed"], result: str
    ) -> bool:
        call = self._key(call_key)
        values = {"scope": scope, "call": call, "owner": owner, "state": state, "result": result}
        if await self._finish(values):
            return True
        entry = await self._entry(scope, call_key)
        return (entry.owner, entry.state, entry.result) == (owner, state, result)

    async def _finish(self, values: dict[str, Any]) -> bool:
        """Record the result of a call; False if it has one, or another owner."""
        done, _ = await self._executor.batch([(f"{sql.FINISH} RETURNING 1 AS done", values), (sql.END_CALL, values)])
        return bool(done)

    async def settle(self, scope: str, call_key: str) -> LedgerEntry:
        values = {"scope": scope, "call": call_key, "session": scope.rpartition("/")[0]}
        settle = [guard(sql.IS_OPEN, values), (sql.SETTLE, values), (sql.ENTRY, values)]
        try:
            *_, found = await self._executor.batch(settle)
        except RefusedByGuardError:
            raise closed(scope) from None
        return self._read_entry(found, scope, call_key)

    async def end_call(self, owner: str) -> None:
        await self._executor.rows((sql.END_CALL, {"owner": owner}))

    async def running_calls(self) -> list[RunningCall]:
        calls = []
        for row in await self._executor.rows((sql.RUNNING_CALLS, {})):
            with reading(f"running call {row[0]} in {self._name}"):
                calls.append(RunningCall(**named(RUNNING, row)))
        return calls

    @abstractmethod
    async def _append_reply(self, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
        """Store a reply and make the writes in order, all or nothing. Return the stored reply."""

    @abstractmethod
    async def _save_reply(self, journal_key: str, turn: int, reply: str, held: tuple[str, str] | None) -> str:
        """Store a reply unless there is one, and return the stored one.

        Args:
            held: the name of a hold, and its required holder.
        """

    async def append_reply(self, appends: Sequence[Append], *, journal_key: str, turn: int, reply: str) -> str:
        writes = [
            self._write(one.session.id, one.messages, one.session, one.write_key, one.expected_seq) for one in appends
        ]
        return await self._append_reply(writes, journal_key, turn, reply)

    async def save_reply(self, journal_key: str, turn: int, reply: str) -> str:
        return await self._save_reply(journal_key, turn, reply, self._held_above(journal_key))

    def _held_above(self, journal_key: str) -> tuple[str, str] | None:
        """Return the name and the holder of the run that a journal key belongs to, if this process holds it."""
        name = journal_key
        while name:
            if (holder := self._executor.holder(name)) is not None:
                return name, holder
            name = name.rpartition("/")[0]
        return None

    async def load_reply(self, journal_key: str, turn: int) -> str | None:
        found = await self._executor.rows((sql.REPLY, {"run": journal_key, "turn": turn}))
        return str(found[0][0]) if found else None

    # --- deletion ---

    async def note_run(self, run: NotedRun) -> None:
        await self._executor.rows((deletion.NOTE_RUN, dict(run)))

    async def find_runs(self, journal_keys: Sequence[str] = (), *, session_id: str | None = None) -> list[NotedRun]:
        found = await self._executor.rows((deletion.RUNS, {"keys": list(journal_keys), "id": session_id}))
        return [NotedRun.model_validate(named(deletion.NOTED_RUN, row)) for row in found]

    async def noted(self) -> Noted:
        found = await self._executor.rows((deletion.NOTED, {}))
        namespaces = tuple(name for _, name in found if name is not None)
        return Noted.model_validate({"since": found[0][0], "namespaces": namespaces})

    async def list_records(self, after: str = "", *, limit: int = 500) -> list[str]:
        return [key for (key,) in await self._executor.rows((deletion.RECORDS, {"after": after, "most": limit}))]

    async def drop_records(
        self, name: str, *, before: datetime, below: int | None = None, decisions: bool = False, dry_run: bool = False
    ) -> Dropped:
        drop = deletion.drop(name, before, below, decisions)
        changes = [*drop.counts.values(), *(() if dry_run else drop.deletes)]
        may = guard(drop.condition, drop.values)
        try:
            _, *found = await self._executor.batch([may, *((change, drop.values) for change in changes)])
        except RefusedByGuardError:
            return Dropped()
        counts = [rows[0] for rows in found[: len(drop.counts)]]
        by_kind = {kind: number for kind, (number, _) in zip(drop.counts, counts, strict=True)}
        return Dropped(**by_kind, bytes=sum(size for _, size in counts))

    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        plan = deletion.deletion(session_id, keep_decisions)
        # PostgreSQL: an uncommitted claim would not be seen, nor would it see that the session's ledger is closed.
        await self._executor.run(plan, name=f"session {session_id}", alone_on="tool_ledger")

    # --- decisions ---

    def _decision(self, record: DecisionRecord) -> Query:
        """Return the statement that records a decision."""
        return sql.RECORD_DECISION, decision_values(record)

    async def record_decision(self, record: DecisionRecord) -> None:
        await self._executor.rows(self._decision(record), again=record.key is not None)

    async def load_decisions(self, journal_key: str) -> list[DecisionRecord]:
        found = await self._executor.rows((sql.DECISIONS, {"run": journal_key}))
        decisions = []
        for place, row in enumerate(found, 1):
            with reading(f"decision {place} of {len(found)} of run {journal_key} in {self._name}"):
                decisions.append(read_decision(row))
        return decisions

    # --- workers and their sessions ---

    async def begin_work(self, work: AtWork, *, instead_of: AtWork | None = None) -> AtWork:
        before = {f"old_{name}": value for name, value in dict(instead_of or work).items()}
        while True:
            is_ours = await self._executor.rows((sql.BEGIN_WORK, {**dict(work), **before}))
            # A mark that came after that statement began is visible only to the next one.
            if found := [work] if is_ours else await self.find_work(work.session_id):
                return found[0]

    async def end_work(self, work: AtWork) -> None:
        await self._executor.rows((sql.END_WORK, dict(work)))

    async def find_work(self, session_id: str | None = None) -> list[AtWork]:
        found = await self._executor.rows((sql.WORK_ON, {"id": session_id}))
        return [AtWork(**named(WORK, row)) for row in found]

    async def add_worker(self, name: str) -> None:
        await self._executor.rows((sql.ADD_WORKER, {"name": name}))

    async def drop_worker(self, name: str) -> None:
        await self._executor.rows((sql.DROP_WORKER, {"name": name}))

    async def list_workers(self) -> list[str]:
        return [name for (name,) in await self._executor.rows((sql.WORKERS, {}))]

    # --- the board ---

    def _show(self, board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
        """Return the statements that write a board; the first writes nothing if the board is older than the known one,
        and the last one reads the keys.
        """
        return waits.show(board, put, keys)

    async def show_waits(self, board: Board, put: Sequence[Wait], keep: Sequence[str] = ()) -> list[str]:
        keys = [*keep, *(wait.key for wait in put)]
        written, *_, found = await self._executor.batch(self._show(board, put, keys))
        there = {key for (key,) in found}
        return [key for key in keep if key not in there] if written else []

    async def waits(
        self, wanted: WaitFilter, *, after: WaitPlace | None = None, limit: int | None = None
    ) -> list[ShownWait]:
        query = waits.page(wanted, after, limit, keys_first=self._finds_keys_first)
        return [waits.read_shown(row) for row in await self._executor.rows(query)]

    async def count_waits(self, wanted: WaitFilter) -> dict[str, int]:
        return {kind: number for kind, number in await self._executor.rows(waits.counted(wanted))}  # noqa: C416

    async def load_board(self, namespace: str, workflow_id: str) -> Board | None:
        found = await self._executor.rows((waits.LOAD_BOARD, {"namespace": namespace, "workflow_id": workflow_id}))
        return waits.read_board(found[0]) if found else None

    async def boards(self, namespace: str, *, after: str = "", limit: int = 500) -> list[tuple[Board, int]]:
        values = {"namespace": namespace, "after": after, "most": limit}
        found = await self._executor.rows((waits.LIST_BOARDS, values))
        return [(waits.read_board(row[:-1]), row[-1]) for row in found]

    async def forget_boards(self, namespace: str, before: datetime) -> None:
        values = {"namespace": namespace, "before": waits.moment_text(before)}
        await self._executor.rows((waits.FORGET, values))

    # --- standing approvals ---

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        give = standing.GIVE, standing.values_of(approval)
        await self._executor.batch([self._decision(record), give], again=record.key is not None)

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        return [standing.read(row) for row in await self._executor.rows(standing.selected(wanted, limit))]

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        await self._executor.rows(standing.revoked(approval_id, at, by))

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        return len(await self._executor.rows(standing.ended(before, dry_run)))

    # --- partial answers ---

    async def add_partial(self, journal_key: str, part: PartialAnswer) -> None:
        values = {**dict(part), "run": journal_key}
        begin: list[Query] = [(sql.DROP_OLD_WORDS, {}), (sql.BEGIN_WORDS, values)] if part.offset == 0 else []
        await self._executor.batch([(sql.EXTEND_WORDS, values), *begin])

    async def load_partial(self, journal_key: str, *, after: PartialAnswer | None = None) -> PartialAnswer | None:
        turn, attempt, end = (0, "", 0) if after is None else (after.turn, after.attempt, after.end)
        values = {"run": journal_key, "turn": turn, "attempt": attempt, "end": end}
        found = await self._executor.rows((sql.WORDS, values))
        if not found:
            return None
        turn, attempt, offset, text = found[0]
        return PartialAnswer(turn=turn, attempt=attempt, offset=offset, text=text)

    async def drop_partial(self, journal_key: str, *, turn: int, attempt: str) -> None:
        await self._executor.rows((sql.DROP_WORDS, {"run": journal_key, "turn": turn, "attempt": attempt}))
