"""Statements of the PostgreSQL store for its ledger, audit trail, workers and partial answers.

Each is atomic, and one round trip in the usual case.
"""

from standfast.errors import InputError, StoreError
from standfast.stores.deletion import CLOSED, closed
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.postgres.database import Database
from standfast.stores.postgres.rows import has_hold
from standfast.stores.protocol import LedgerEntry, RunningCall
from standfast.stores.sql import statements as sql
from standfast.stores.sql.rows import RUNNING, fields, read_entry

# The age of a claim instead of its time: the clocks of the database and of its clients may differ.
_AGE = "extract(epoch FROM clock_timestamp() - claimed_at)::float8"
_ENTRY = f"state, owner, arguments_hash, result, {_AGE}"
_FOUND = f"SELECT {_ENTRY} FROM @tool_ledger WHERE run_key = $1 AND call_key = $2"
# A call begins only in the name of a worker that is not declared dead. Until the call is written, nothing can declare
# it dead.
_OURS = "ours AS (SELECT 1 FROM @holds WHERE name = {worker} AND holder = {fence} FOR SHARE)"
_IS_OURS = "({fence}::text IS NULL OR EXISTS (SELECT 1 FROM ours))"
_RUN = (
    f"INSERT INTO @running_calls ({RUNNING}) {{values}} ON CONFLICT (owner) DO UPDATE SET worker = excluded.worker,"
    " task_token = excluded.task_token, workflow_id = excluded.workflow_id, run_id = excluded.run_id"
)
_CLAIM = (
    f"WITH {_OURS}, made AS (INSERT INTO @tool_ledger (run_key, call_key, state, owner, arguments_hash, claimed_at)"
    " SELECT $1::text, $2::text, 'claimed', $3::text, $4::text, clock_timestamp()"
    f" WHERE {_IS_OURS} AND NOT EXISTS (SELECT 1 FROM @tool_ledger WHERE run_key = $10 AND call_key = '{CLOSED}')"
    f" ON CONFLICT DO NOTHING RETURNING {_ENTRY}),"
    f" entry AS (SELECT * FROM made UNION ALL {_FOUND} AND {_IS_OURS}), running AS ("
    + _RUN.format(
        values="SELECT $3::text, $5::text, $6::text, $7::text, $8::text FROM entry"
        " WHERE $5::text IS NOT NULL AND (state = 'abandoned' OR arguments_hash = $4)"
    )
    + ") SELECT * FROM entry"
).format(worker="$5", fence="$9")
_BEGIN = (
    f"WITH {_OURS} "
    + _RUN.format(values=f"SELECT $1::text, $2::text, $3::text, $4::text, $5::text WHERE {_IS_OURS}")
    + " RETURNING 1"
).format(worker="$2", fence="$6")
_ENDED = f"WITH ended AS ({sql.END_CALL})"
ABANDON = f"{_ENDED} {sql.ABANDON} RETURNING {sql.ENTRY_COLUMNS}"
FINISH = f"{_ENDED} {sql.FINISH} RETURNING 1"
_SETTLE = (
    "WITH made AS (INSERT INTO @tool_ledger (run_key, call_key, state) SELECT $1::text, $2::text, 'abandoned'"
    f" WHERE NOT EXISTS ({_FOUND}) AND NOT EXISTS"
    f" (SELECT 1 FROM @tool_ledger WHERE run_key = $3 AND call_key = '{CLOSED}')"
    f" ON CONFLICT DO NOTHING RETURNING {_ENTRY})"
    f" SELECT * FROM made UNION ALL {_FOUND}"
)


async def claim(
    db: Database,
    scope: str,
    call_key: str,
    owner: str,
    arguments_hash: str,
    running: RunningCall | None,
    fence: str | None,
    store: str,
) -> LedgerEntry:
    """Claim a call.

    Args:
        fence: the required holder of the worker's name, if there is one.
    """
    call = (None,) * 4 if running is None else (running.worker, running.task_token, running.workflow_id, running.run_id)
    while (row := await db.row(_CLAIM, scope, call_key, owner, arguments_hash, *call, fence, _name(scope))) is None:
        # Else the call was claimed after the statement began; the next statement sees that.
        if running is not None and fence is not None:
            await _check_worker(db, running.worker, fence)
        await _check_open(db, scope, call_key)
    entry = read_entry(row, scope, call_key, store)
    if entry.state != "abandoned" and entry.arguments_hash != arguments_hash:
        raise InputError(f"Call {call_key} of run {scope} was claimed with other arguments; it is not run")
    return entry


def _name(scope: str) -> str:
    """Return the name of the session in a scope."""
    return scope.rpartition("/")[0]


async def _check_open(db: Database, scope: str, call_key: str) -> None:
    """Refuse a call that has no entry and belongs to a deleted session.

    Raises:
        SessionConflictError: the call belongs to a deleted session.
    """
    is_closed = "SELECT 1 FROM @tool_ledger WHERE run_key = $1 AND call_key = $2"
    if await db.row(is_closed, _name(scope), CLOSED) and not await db.row(_FOUND, scope, call_key):
        raise closed(scope)


async def settle(db: Database, scope: str, call_key: str, store: str) -> LedgerEntry:
    while (row := await db.row(_SETTLE, scope, call_key, _name(scope))) is None:
        await _check_open(db, scope, call_key)  # else the call was claimed after the statement began
    return read_entry(row, scope, call_key, store)


async def begin_call(db: Database, running: RunningCall, fence: str | None) -> None:
    done = await db.row(_BEGIN, *(getattr(running, name) for name in fields(RUNNING)), fence)
    if done is None and fence is not None:
        await _check_worker(db, running.worker, fence)


async def _check_worker(db: Database, worker: str, fence: str) -> None:
    """Refuse a worker that others have declared dead.

    Raises:
        StoreError: the worker has lost its hold, and takes it again as soon as it can.
    """
    if not await has_hold(db, worker, fence):
        raise StoreError(
            f"The worker {worker} had lost its connection to the store, so another worker reports its calls as lost "
            "just now. Nothing was begun; try again in a second"
        )


# --- partial answers ---

# Four bytes per character, so that offsets in the text are offsets in the bytes.
_CODE = "utf-32-le"
_WIDTH = 4


async def add_partial(db: Database, journal_key: str, part: PartialAnswer, news: tuple[str, str]) -> None:
    """Add a part of an answer; the first part of a later attempt replaces the earlier attempt.

    Args:
        news: the channel and the topic that notify viewers, in the same statement.
    """
    text = part.text.encode(_CODE, "surrogatepass")
    added = await db.row(
        "UPDATE @partial_answers SET text = substr(text, 1, $4) || $5"
        " WHERE run_key = $1 AND turn = $2 AND attempt = $3 RETURNING pg_notify($6, $7)",
        journal_key,
        part.turn,
        part.attempt,
        part.offset * _WIDTH,
        text,
        *news,
    )
    if added is None and part.offset == 0:
        # Rows whose workers died and whose runs ended before another worker came.
        await db.rows("DELETE FROM @partial_answers WHERE begun_at < clock_timestamp() - interval '1 day'")
        await db.rows(
            "INSERT INTO @partial_answers AS known (run_key, turn, attempt, text) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (run_key) DO UPDATE SET turn = excluded.turn, attempt = excluded.attempt,"
            " text = excluded.text, begun_at = excluded.begun_at"
            " WHERE (excluded.turn, excluded.attempt) > (known.turn, known.attempt) RETURNING pg_notify($5, $6)",
            journal_key,
            part.turn,
            part.attempt,
            text,
            *news,
        )


async def load_partial(db: Database, journal_key: str, after: PartialAnswer | None) -> PartialAnswer | None:
    turn, attempt, end = (0, "", 0) if after is None else (after.turn, after.attempt, after.end)
    row = await db.row(
        "SELECT turn, attempt, at, substr(text, at * 4 + 1) FROM (SELECT *, CASE WHEN turn = $2 AND attempt = $3"
        " THEN $4::integer ELSE 0 END AS at FROM @partial_answers WHERE run_key = $1) AS known",
        journal_key,
        turn,
        attempt,
        end,
    )
    if row is None:
        return None
    text = row[3].decode(_CODE, "surrogatepass")
    return PartialAnswer(turn=row[0], attempt=row[1], offset=row[2], text=text)
