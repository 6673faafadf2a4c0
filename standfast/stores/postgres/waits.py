"""Statements of the PostgreSQL store for its board, with the items that runs wait for."""

from collections.abc import Sequence
from datetime import datetime

from standfast.stores import wait_rows as sql
from standfast.stores.postgres.database import Database, Row
from standfast.stores.wait_rows import Query, board_values, moment_text, read_board, read_shown, wait_row, with_places
from standfast.stores.waits import Board, ShownWait, Wait

# The result is read first: a statement does not see its own changes.
_SHOW = (
    "WITH gone AS (DELETE FROM @waits WHERE namespace = $1 AND workflow_id = $2 AND key <> ALL($3::text[])),"
    f" added AS (INSERT INTO @waits ({sql.WAIT_COLUMNS}) SELECT * FROM"
    f" unnest({', '.join(f'${place}::text[]' for place in range(4, 15))}) ON CONFLICT DO NOTHING)"
    " SELECT key FROM @waits WHERE namespace = $1 AND workflow_id = $2"
)


async def rows_of(db: Database, query: Query) -> list[Row]:
    """Return the rows of a statement of every SQL store, whose values have names."""
    statement, values = query
    placed, ordered = with_places(statement.replace("instr(", "strpos("), values, lambda place: f"${place}")
    return await db.rows(placed, *ordered)


async def show_waits(db: Database, board: Board, put: Sequence[Wait], keep: Sequence[str]) -> list[str]:
    rows = [wait_row(board, wait) for wait in put]
    async with db.transaction():
        # This locks the board, so the next statement sees the rows of earlier writers.
        if not await rows_of(db, (sql.SAVE_BOARD, board_values(board))):
            return []
        keys = [*keep, *(wait.key for wait in put)]
        added = [[row[place] for row in rows] for place in range(11)]
        there = {key for (key,) in await db.rows(_SHOW, board.namespace, board.workflow_id, keys, *added)}
    return [key for key in keep if key not in there]


async def waits(db: Database, query: Query) -> list[ShownWait]:
    return [read_shown(row) for row in await rows_of(db, query)]


async def count_waits(db: Database, query: Query) -> dict[str, int]:
    return {kind: number for kind, number in await rows_of(db, query)}  # noqa: C416


async def load_board(db: Database, namespace: str, workflow_id: str) -> Board | None:
    rows = await rows_of(db, (sql.LOAD_BOARD, {"namespace": namespace, "workflow_id": workflow_id}))
    return read_board(rows[0]) if rows else None


async def boards(db: Database, namespace: str, after: str, limit: int) -> list[tuple[Board, int]]:
    values = {"namespace": namespace, "after": after, "most": limit}
    return [(read_board(row[:-1]), row[-1]) for row in await rows_of(db, (sql.LIST_BOARDS, values))]


async def forget_boards(db: Database, namespace: str, before: datetime) -> None:
    await rows_of(db, (sql.FORGET, {"namespace": namespace, "before": moment_text(before)}))
