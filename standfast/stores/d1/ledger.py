"""The ledger of the D1 store, its audit trail and its partial answers. Each write is one batch."""

from uuid import uuid4

from standfast.errors import InputError, StoreError
from standfast.stores.d1.database import TRIES, Database, crowded
from standfast.stores.d1.holds import fence, has_hold
from standfast.stores.d1.statements import guard, statement
from standfast.stores.deletion import closed
from standfast.stores.protocol import DecisionRecord, LedgerEntry, RunningCall
from standfast.stores.sql import statements as sql
from standfast.stores.sql.dialect import Query, RefusedByGuardError, Row
from standfast.stores.sql.rows import decision_values, read_entry

_HAS_ARGUMENTS = (
    "EXISTS (SELECT 1 FROM @tool_ledger WHERE run_key = :scope AND call_key = :call"
    " AND (state = 'abandoned' OR arguments_hash = :arguments_hash))"
)
_RECORD_DECISION = sql.RECORD_DECISION.replace(" (run_key", " (write_key, run_key").replace(
    "VALUES (", "VALUES (:write_key, "
)


def _entry(db: Database, rows: list[Row], scope: str, call_key: str) -> LedgerEntry:
    if not rows:
        raise InputError(f"Call {call_key} of run {scope} is not in the ledger")
    return read_entry(rows[0], scope, call_key, db.name)


async def claim(
    db: Database,
    scope: str,
    call_key: str,
    owner: str,
    arguments_hash: str,
    running: RunningCall | None,
    holder: str | None,
) -> LedgerEntry:
    """Claim a call.

    Args:
        holder: the required holder of the worker's name, if any.
    """
    values = {**_at(scope, call_key), "owner": owner, "arguments_hash": arguments_hash}
    found_at = statement(sql.ENTRY, **values)
    begin = [] if running is None else [statement(sql.BEGIN_CALL, **dict(running))]
    before = [] if running is None else fence(running.worker, holder)
    for _ in range(TRIES):
        try:
            # The last result is the entry, which names its owner.
            *_, rows = await db.batch(
                [
                    *before,
                    guard(sql.IS_OPEN, **values),
                    statement(sql.CLAIM, **values),
                    guard(_HAS_ARGUMENTS, **values),
                    *begin,
                    found_at,
                ]
            )
            return _entry(db, rows, scope, call_key)
        except RefusedByGuardError:
            if running is not None:
                await _check_worker(db, running.worker, holder)
            await _check_open(db, scope, call_key)
            if (rows := await db.one(found_at)) and rows[0][0] != "abandoned" and rows[0][2] != arguments_hash:
                raise InputError(
                    f"Call {call_key} of run {scope} was claimed with other arguments; it is not run"
                ) from None
    raise crowded(db.name, f"call {call_key} of run {scope}")


def _at(scope: str, call_key: str) -> dict[str, str]:
    return {"scope": scope, "call": call_key, "session": scope.rpartition("/")[0]}


async def _check_open(db: Database, scope: str, call_key: str) -> None:
    """Refuse a call that has no entry and belongs to a deleted session.

    Raises:
        SessionConflictError: the call belongs to a deleted session.
    """
    if not (await db.one(statement(f"SELECT {sql.IS_OPEN} AS is_open", **_at(scope, call_key))))[0][0]:
        raise closed(scope)


async def _check_worker(db: Database, worker: str, holder: str | None) -> None:
    """Refuse a worker that others have declared dead.

    Raises:
        StoreError: the worker has lost its hold, and takes it again as soon as it can.
    """
    if holder is not None and not await has_hold(db, worker, holder):
        raise StoreError(
            f"The worker {worker} had not renewed its hold in the store in time, so another worker reports its calls "
            "as lost just now. Nothing was begun; try again in a second"
        )


async def begin_call(db: Database, running: RunningCall, holder: str | None) -> None:
    for _ in range(TRIES):
        try:
            await db.batch([*fence(running.worker, holder), statement(sql.BEGIN_CALL, **dict(running))])
            return
        except RefusedByGuardError:
            await _check_worker(db, running.worker, holder)
    raise crowded(db.name, f"the running call {running.owner}")


def decision(record: DecisionRecord) -> Query:
    """Return the statement that records a decision exactly once, however often it is sent."""
    return _RECORD_DECISION, decision_values(record) | {"write_key": uuid4().hex}
