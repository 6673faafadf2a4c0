"""Statements of the PostgreSQL store. Each is atomic; an operation of several statements has a transaction.

The usual case of every write is one statement, and so one round trip. A statement that meets an unusual state, such as
another writer, changes nothing. A transaction then looks closer. All run as READ COMMITTED: each sees the rows that
were committed before it began. An UPDATE or ON CONFLICT also sees rows that were committed while it waited for a row.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.errors import SessionConflictError
from standfast.stores.postgres.database import Database
from standfast.stores.sql import waits
from standfast.stores.sql.dialect import Query
from standfast.stores.sql.rows import MESSAGE, OF_ANOTHER_RUN, WRITTEN, Write, conflict, session_values, superseded
from standfast.stores.waits import Board, Wait

UNIQUE_VIOLATION = "23505"
_VALUES = ("id", "agent_name", *(name for name in WRITTEN if name != "updated_at"))  # $1 to $9
_SET = ", ".join(f"{name} = ${place}" for place, name in enumerate(_VALUES, 1) if name in WRITTEN)
# By the database's clock, which is the same for all. It never goes back, even after a failover.
_ADVANCE = (
    f"{_SET}, last_write = $10, version = s.version + $11, updated_at = greatest(s.updated_at, clock_timestamp())"
)
_NEW = (
    f"INSERT INTO @agent_sessions AS s ({', '.join(_VALUES)}, last_write, version, last_seq, created_at, updated_at)"
    f" SELECT {', '.join(f'${place}::text' for place in range(1, 10))}, $10::text, $11::bigint, $12::bigint,"
    " coalesce($13::timestamptz, clock_timestamp()), clock_timestamp()"
)
# The holder of a session may write only until another process takes its hold. The row stays locked until the write is
# done.
_OURS = "ours AS (SELECT 1 FROM @holds WHERE name = $1 AND holder = $14 FOR SHARE)"
# The mark is locked until the write is done. The next run marks the session before it reads it, so it reads this write.
_AT_WORK = (
    "at_work AS MATERIALIZED"
    " (SELECT run_key FROM @sessions_at_work WHERE session_id = $1 AND $8::text IS NOT NULL FOR SHARE)"
)
_IS_LAST = f"NOT EXISTS (SELECT 1 FROM at_work WHERE {OF_ANOTHER_RUN.format('$8::text')})"
_IS_OURS = "($14::text IS NULL OR EXISTS (SELECT 1 FROM ours))"
_KINDS = ["text"] * 7 + ["float8", "text"]  # of the columns in MESSAGE
_ADD = (
    f"INSERT INTO @agent_messages (session_id, seq, user_id, tenant_id, write_key, {MESSAGE})"
    " SELECT {of}, written.last_seq - $12 + m.n, {user}, {tenant}, m.write_key, "
    + ", ".join(f"m.{name}" for name in MESSAGE.split(", "))
    + " FROM written, unnest("
    + "{arrays}"
    + f") WITH ORDINALITY AS m (write_key, {MESSAGE}, n)"
)


def _add(first: int, of: str = "$1", user: str = "$4", tenant: str = "$5") -> str:
    """Return the statement that adds messages. Their columns are the array parameters from `first` on."""
    arrays = ", ".join(f"${first + place}::{kind}[]" for place, kind in enumerate(["text", *_KINDS]))
    return _ADD.format(of=of, user=user, tenant=tenant, arrays=arrays)


_SUPERSEDED_BY = (
    f"SELECT workflow_id FROM @sessions_at_work WHERE session_id = $1 AND {OF_ANOTHER_RUN.format('$2::text')} FOR SHARE"
)
_CREATE = (
    f"WITH {_OURS}, {_AT_WORK}, written AS"
    f" ({_NEW} WHERE {_IS_OURS} AND {_IS_LAST} ON CONFLICT DO NOTHING RETURNING last_seq),"
    f" added AS ({_add(15)}) SELECT last_seq FROM written"
)
_NOT_YET = (
    "($10::text IS NULL OR s.last_write IS DISTINCT FROM $10) AND NOT EXISTS"
    " (SELECT 1 FROM @agent_messages WHERE session_id = $1 AND write_key = ANY(array_append($15::text[], $10)))"
)
_GO_ON = (
    f"WITH {_OURS}, {_AT_WORK}, written AS (UPDATE @agent_sessions AS s SET {_ADVANCE}, last_seq = s.last_seq + $12"
    " WHERE id = $1 AND last_seq = $25 AND version = coalesce($26, version)"
    f" AND created_at = coalesce($13, created_at) AND $2::text IS NOT NULL AND {_NOT_YET} AND {_IS_OURS} AND {_IS_LAST}"
    "{also} RETURNING last_seq),"
    f" added AS ({_add(15)}) {{then}}SELECT last_seq FROM written"
)
_CONTINUE = _GO_ON.format(also="", then="")
_CONTINUE_WITH_REPLY = _GO_ON.format(
    also=" AND NOT EXISTS (SELECT 1 FROM @model_replies WHERE run_key = $27 AND turn = $28)",
    # If another worker stores a reply at the same time, the statement fails, and nothing is written.
    then=", kept AS (INSERT INTO @model_replies SELECT $27, $28, $29 FROM written) ",
)


def aware(at: datetime | None) -> datetime | None:
    """Return a time with its zone. A time without a zone is UTC."""
    return at if at is None or at.tzinfo is not None else at.replace(tzinfo=UTC)


def _values(write: Write, keys: list[str | None] | None = None, count: int = 1) -> list[Any]:
    """Return the values of a write.

    Args:
        keys: the key of each message, if the write consists of several.
        count: how many writes it consists of.
    """
    session = session_values(write.session)
    by_column = [list(column) for column in zip(*write.rows, strict=True)] or [[] for _ in _KINDS]
    return [
        *(session[name] for name in _VALUES),
        write.write_key,
        count,
        len(write.rows),
        aware(write.session.created_at),
        write.holder,
        [write.write_key, *[None] * len(write.rows)][: len(write.rows)] if keys is None else keys,
        *by_column,
    ]


async def append_rows(db: Database, write: Write) -> int:
    """Save the session and its next messages, once by their key, and return the number of its last message."""
    if write.expected_seq:
        done = await db.row(_CONTINUE, *_values(write), write.expected_seq, write.expected_version)
    elif write.expected_seq == 0 and not write.expected_version:
        done = await db.row(_CREATE, *_values(write))
    else:
        done = None
    if done is not None:
        return int(done[0])
    async with db.transaction():
        return await append_closely(db, write)


async def append_closely(db: Database, write: Write) -> int:
    """Do the same in a transaction that the caller has begun, and give the reason if it is refused."""
    session_id = write.session.id
    await check_fence(db, session_id, write.holder)
    while True:
        row = await db.row(
            "SELECT last_seq, version, created_at, last_write FROM @agent_sessions WHERE id = $1 FOR UPDATE", session_id
        )
        last, version, created, last_write = row or (0, 0, None, None)
        key = write.write_key
        if key is not None and (key == last_write or await _has_key(db, session_id, key)):
            return int(last)
        if at_work := await db.row(_SUPERSEDED_BY, session_id, write.session.journal_key):
            raise superseded(session_id, at_work[0])
        made_anew = created is not None and write.expected_seq is not None and write.session.created_at is not None
        made_anew = made_anew and aware(write.session.created_at) != created
        if write.expected_seq not in (None, last) or write.expected_version not in (None, version) or made_anew:
            raise conflict(session_id, last, write.expected_seq)
        if row is None:
            done = await db.row(_CREATE, *_values(write))
        else:
            values = _values(write)
            values[12] = None  # the key of a writer without expectations need not be the session's
            done = await db.row(_CONTINUE, *values, last, version)
        if done is not None:
            return int(done[0])  # else another process has just created the session


async def _has_key(db: Database, session_id: str, write_key: str) -> bool:
    found = "SELECT 1 FROM @agent_messages WHERE session_id = $1 AND write_key = $2"
    return await db.row(found, session_id, write_key) is not None


async def check_fence(db: Database, name: str, fence: str | None) -> None:
    """Refuse a writer whose hold another holder has taken. Otherwise, lock the hold until the transaction ends.

    Raises:
        SessionConflictError: the writer has lost the hold.
    """
    if fence is not None and not await has_hold(db, name, fence):
        raise SessionConflictError(
            f"{name} was taken over by another run, since this process had lost its connection to the store. "
            "Nothing was written; run again to go on from there."
        )


async def has_hold(db: Database, name: str, holder: str) -> bool:
    return await db.row("SELECT 1 FROM @holds WHERE name = $1 AND holder = $2 FOR SHARE", name, holder) is not None


async def append_more(db: Database, write: Write) -> int | None:
    """Append to a session without saving it. Return its last number, or None if there is none."""
    found = await db.row(
        f"WITH {_OURS}, written AS (UPDATE @agent_sessions SET last_seq = last_seq + $12, version = version + 1"
        f" WHERE id = $1 AND {_IS_OURS} RETURNING last_seq), added AS ({_add(2, user='$13', tenant='$15')})"
        " SELECT last_seq FROM written",
        write.id,
        [None] * len(write.rows),
        *([list(column) for column in zip(*write.rows, strict=True)] or [[] for _ in _KINDS]),
        len(write.rows),
        write.session.user_id,
        write.holder,
        write.session.tenant_id,
    )
    if found is None:
        await check_fence(db, write.id, write.holder)
        return None
    return int(found[0])


async def save_session(db: Database, write: Write) -> None:
    done = await db.row(
        f"WITH {_OURS} {_NEW} WHERE {_IS_OURS} ON CONFLICT (id) DO UPDATE SET {_ADVANCE} RETURNING 1",
        *_values(write)[:14],
    )
    if done is None:
        await check_fence(db, write.id, write.holder)


# --- replies ---


async def save_reply(db: Database, journal_key: str, turn: int, reply: str, fence: tuple[str, str] | None) -> str:
    """Store a reply unless there is one, and return the stored one.

    Args:
        fence: the name of a hold, and its required holder.
    """
    name, holder = fence or (None, None)
    while True:
        found = await db.row(
            "WITH ours AS (SELECT 1 FROM @holds WHERE name = $4 AND holder = $5 FOR SHARE), made AS"
            " (INSERT INTO @model_replies SELECT $1::text, $2::bigint, $3::text"
            " WHERE $5::text IS NULL OR EXISTS (SELECT 1 FROM ours) ON CONFLICT DO NOTHING RETURNING reply)"
            " SELECT reply FROM made UNION ALL SELECT reply FROM @model_replies WHERE run_key = $1 AND turn = $2",
            journal_key,
            turn,
            reply,
            name,
            holder,
        )
        if found is not None:
            return str(found[0])
        # Another worker has stored one since this statement began; the next statement sees it.
        if name is not None:
            async with db.transaction():
                await check_fence(db, name, holder)


async def append_reply(db: Database, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
    """Store a reply and make the writes in order, all or nothing. Return the stored reply."""
    together = _together(writes)
    if together is not None and together.expected_seq:
        keys = [key for write in writes for key in (write.write_key, *[None] * (len(write.rows) - 1))]
        values = (*_values(together, keys, len(writes)), together.expected_seq, None, journal_key, turn, reply)
        try:
            if await db.row(_CONTINUE_WITH_REPLY, *values) is not None:
                return reply
        except Exception as error:
            if getattr(error, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
    async with db.transaction():
        kept = await save_reply(db, journal_key, turn, reply, None)
        if kept == reply:
            for write in writes:
                await append_closely(db, write)
        return kept


def _together(writes: Sequence[Write]) -> Write | None:
    """Return consecutive appends to one session as one write."""
    if not writes:
        return None
    first, last = writes[0], writes[-1]
    after = first.expected_seq
    for write in writes:
        if write.session.id != first.session.id or write.expected_seq != after or not write.rows:
            return None
        after = (after or 0) + len(write.rows)
    rows = [row for write in writes for row in write.rows]
    return Write(last.session, rows, last.write_key, first.expected_seq, None, first.holder)


# --- the board ---

# The result is read first: a statement does not see its own changes.
_SHOW = (
    "WITH gone AS (DELETE FROM @waits WHERE namespace = :namespace AND workflow_id = :workflow_id"
    f" AND NOT (key AMONG[:keys]) AND {waits.IS_OURS}),"
    f" added AS (INSERT INTO @waits ({waits.WAIT_COLUMNS}) SELECT * FROM"
    f" unnest({', '.join(f':{name}::text[]' for name in waits.PLACES)}) WHERE {waits.IS_OURS} ON CONFLICT DO NOTHING)"
    f" {waits.KEYS}"
)


def show(board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
    """Return the statements that write a board. The first one locks it, so the second sees the rows of earlier
    writers.
    """
    values = waits.board_values(board)
    added = [waits.wait_row(board, wait) for wait in put]
    by_column = {name: [row[place] for row in added] for place, name in enumerate(waits.PLACES)}
    return [(waits.SAVE_BOARD, values), (_SHOW, {**values, **by_column, "keys": keys})]
