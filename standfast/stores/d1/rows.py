"""Sessions, messages and replies of the D1 store. The usual case of every write is one batch, and so one round trip.

A batch begins with a guard for the state that its writer expects, such as the number of the last message. If the guard
fails, nothing was done. The writer then looks closer, and raises an error or tries again.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from standfast.errors import SessionConflictError
from standfast.stores.d1.database import TRIES, Database, crowded
from standfast.stores.d1.holds import OURS, fence, has_hold
from standfast.stores.d1.statements import Statement, chunks, guard, statement
from standfast.stores.protocol import Session
from standfast.stores.sql import statements as sql
from standfast.stores.sql import waits
from standfast.stores.sql.dialect import Query, RefusedByGuardError, Row
from standfast.stores.sql.rows import MESSAGE, Write, conflict, session_values, superseded
from standfast.stores.waits import Board, Wait

_FIELDS = MESSAGE.split(", ")
_SAVE_SESSION = (
    sql.SAVE_SESSION.replace("updated_at = :now", "updated_at = max(updated_at, :now)") + " RETURNING last_seq"
)
_COUNT_MESSAGES = f"{sql.COUNT_MESSAGES} RETURNING last_seq"
_HAS_KEY = "EXISTS (SELECT 1 FROM agent_messages WHERE session_id = :id AND write_key = :last_write)"
_MAY_APPEND = (
    "NOT EXISTS (SELECT 1 FROM agent_sessions WHERE id = :id AND (last_seq <> coalesce(:seq, last_seq) OR version <>"
    " coalesce(:version, version) OR (:seq IS NOT NULL AND created_at <> coalesce(:created, created_at))"
    f" OR last_write = :last_write)) AND NOT {_HAS_KEY} AND (coalesce(:seq, 0) + coalesce(:version, 0) = 0"
    " OR EXISTS (SELECT 1 FROM agent_sessions WHERE id = :id))"
)
_IS_LAST = f"NOT EXISTS ({sql.SUPERSEDED_BY})"
_IS_HELD = f"(:holder IS NULL OR {OURS})"
_STATE = (
    f"SELECT last_seq, version, created_at, last_write IS :last_write OR {_HAS_KEY} AS has_key"
    " FROM agent_sessions WHERE id = :id"
)
_INTO = f"INSERT INTO agent_messages (session_id, seq, user_id, tenant_id, write_key, {MESSAGE})"
# `:left` messages follow the first one of a statement.
_ADD_MANY = (
    f"{_INTO} SELECT :id, s.last_seq - :left + m.key, :user, :tenant, "
    + ", ".join(f"json_extract(m.value, '$[{place}]')" for place in range(len(_FIELDS) + 1))
    + " FROM agent_sessions AS s, json_each(:rows) AS m WHERE s.id = :id"
)
_ADD_ONE = (
    f"{_INTO} SELECT :id, last_seq - :left, :user, :tenant, "
    + ", ".join(f":m{place}" for place in range(len(_FIELDS) + 1))
    + " FROM agent_sessions WHERE id = :id"
)


def keyed(write: Write) -> Write:
    """Return a write with a key, so that it changes nothing when it is sent again."""
    return write if write.write_key else replace(write, write_key=f"once:{uuid4().hex}")


def _statements(write: Write) -> list[Statement]:
    """Return the statements of a write. The second one returns the number of its last message."""
    values = _values(write.session, write.rows, write.write_key)
    expected = {"seq": write.expected_seq, "version": write.expected_version}
    return [
        guard(f"{_MAY_APPEND} AND {_IS_LAST} AND {_IS_HELD}", **values, **expected, held=write.id, holder=write.holder),
        statement(_SAVE_SESSION, **values),
        *_adds(write.session, write.rows, write.write_key),
    ]


def _values(session: Session, rows: list[Row], write_key: str | None) -> dict[str, Any]:
    more = {"count": len(rows), "created": _created(session.created_at), "last_write": write_key}
    return {**session_values(session), **more}


def _created(at: datetime | None) -> str | None:
    """Return a time as the database writes it. A time without a zone is UTC."""
    if at is None:
        return None
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")


def _adds(session: Session, rows: list[Row], write_key: str | None) -> list[Statement]:
    """Return the statements that add messages to a session whose last number already counts them."""
    keyed = [[write_key if place == 0 else None, *row] for place, row in enumerate(rows)]
    made = []
    for first, part in chunks(keyed):
        values = {"id": session.id, "left": len(rows) - 1 - first, "user": session.user_id, "tenant": session.tenant_id}
        if len(part) == 1:  # unchanged: as JSON it may be too large
            alone = {f"m{place}": value for place, value in enumerate(part[0])}
            made.append(statement(_ADD_ONE, **values, **alone))
        else:
            made.append(statement(_ADD_MANY, **values, rows=part))
    return made


async def append_rows(db: Database, write: Write) -> int:
    """Save the session and its next messages, once by their key, and return the number of its last message."""
    for _ in range(TRIES):
        try:
            found = await db.batch(_statements(write))
            return int(found[1][0][0])
        except RefusedByGuardError:
            if (last := (await _look(db, [write]))[0]) is not None:
                return last
    raise crowded(db.name, write.id)


async def _look(db: Database, writes: Sequence[Write]) -> list[int | None]:
    """For each write, return the number of its session's last message if the write has landed, else None.

    Raises:
        SessionConflictError: one of them can never succeed.
    """
    asked = [statement(_STATE, id=write.id, last_write=write.write_key) for write in writes]
    asked += [
        statement(
            f"SELECT {_IS_HELD} AS is_held, ({sql.SUPERSEDED_BY}) AS at_work",
            held=write.id,
            holder=write.holder,
            id=write.id,
            run_key=write.session.journal_key,
        )
        for write in writes
    ]
    found = await db.batch(asked)
    after: dict[str, tuple[int, int]] = {}  # a session's expected state after the previous writes
    seen: list[int | None] = []
    for write, state, ((is_held, at_work),) in zip(writes, found[: len(writes)], found[len(writes) :], strict=True):
        last, version, created, has_key = state[0] if state else (0, 0, None, False)
        seen.append(int(last) if has_key else None)
        if has_key:
            continue
        check_held(write.id, bool(is_held))
        if at_work is not None:
            raise superseded(write.id, at_work)
        last, version = after.get(write.id, (last, version))
        ours = _created(write.session.created_at)
        made_anew = write.expected_seq is not None and None not in (created, ours) and created != ours
        if write.expected_seq not in (None, last) or write.expected_version not in (None, version) or made_anew:
            raise conflict(write.id, last, write.expected_seq)
        after[write.id] = (last + len(write.rows), version + 1)
    return seen


def check_held(name: str, is_held: bool) -> None:
    """Refuse a writer whose hold another holder has taken.

    Raises:
        SessionConflictError: the writer has lost the hold.
    """
    if not is_held:
        raise SessionConflictError(
            f"{name} was taken over by another run, since this process had not renewed its hold in time. "
            "Nothing was written; run again to go on from there."
        )


async def append_more(db: Database, write: Write) -> int | None:
    """Append to a session without saving it. Return its last number, or None if there is none."""
    values = {"id": write.id, "last_write": write.write_key}
    may = guard(f"NOT {_HAS_KEY} AND {_IS_HELD}", **values, held=write.id, holder=write.holder)
    count = statement(_COUNT_MESSAGES, id=write.id, count=len(write.rows))
    try:
        found = (await db.batch([may, count, *_adds(write.session, write.rows, write.write_key)]))[1]
        return int(found[0][0]) if found else None
    except RefusedByGuardError:  # its hold is lost, or it was sent twice
        return (await _look(db, [write]))[0]


# --- replies ---


async def save_reply(db: Database, journal_key: str, turn: int, reply: str, held: tuple[str, str] | None) -> str:
    """Store a reply unless there is one, and return the stored one.

    Args:
        held: the name of a hold, and its required holder.
    """
    for _ in range(TRIES):
        try:
            *_, found = await db.batch(
                [
                    *(fence(*held) if held else ()),
                    statement(sql.SAVE_REPLY, run=journal_key, turn=turn, reply=reply),
                    statement(sql.REPLY, run=journal_key, turn=turn),
                ]
            )
            return str(found[0][0])
        except RefusedByGuardError:
            if held is not None:
                check_held(held[0], await has_hold(db, *held))
    raise crowded(db.name, f"the reply to turn {turn} of {journal_key}")


async def append_reply(db: Database, writes: Sequence[Write], journal_key: str, turn: int, reply: str) -> str:
    """Store a reply and make the writes in order, all or nothing. Return the stored reply."""
    at = {"run": journal_key, "turn": turn}
    keep = [
        guard("NOT EXISTS (SELECT 1 FROM model_replies WHERE run_key = :run AND turn = :turn)", **at),
        statement(sql.SAVE_REPLY, **at, reply=reply),
    ]
    left: list[Write] = list(writes)
    for _ in range(TRIES):
        try:
            await db.batch([*keep, *(one for write in left for one in _statements(write))])
            return reply
        except RefusedByGuardError:
            found = await db.one(statement(sql.REPLY, **at))
        if found and found[0][0] != reply:
            return str(found[0][0])
        keep = [] if found else keep
        seen = await _look(db, left) if left else []
        left = [write for write, last in zip(left, seen, strict=True) if last is None]
        if found and not left:
            return reply
    raise crowded(db.name, f"the reply to turn {turn} of {journal_key}")


# --- the board ---

_PUT = (
    f"INSERT INTO @waits ({waits.WAIT_COLUMNS}) SELECT {', '.join(f'value ->> {n}' for n in range(11))}"
    f" FROM json_each(:rows) WHERE {waits.IS_OURS} ON CONFLICT DO NOTHING"
)


def show(board: Board, put: Sequence[Wait], keys: list[str]) -> list[Query]:
    """Return the statements that write a board; see `waits.show`."""
    save, take_out, *_, read = waits.show(board, [], keys)
    added = [list(waits.wait_row(board, wait)) for wait in put]
    return [save, take_out, *((_PUT, {**save[1], "rows": part}) for _, part in chunks(added)), read]
