"""The board of the D1 store, with the items that runs wait for. A write is one batch."""

from collections.abc import Sequence
from datetime import datetime

from standfast.stores import wait_rows as sql
from standfast.stores.d1.database import Database
from standfast.stores.d1.statements import chunks, statement
from standfast.stores.sqlite.waits import plain
from standfast.stores.wait_rows import Query, board_values, moment_text, read_board, read_shown, wait_row
from standfast.stores.waits import Board, ShownWait, Wait

_IS_OURS = (
    "EXISTS (SELECT 1 FROM boards WHERE namespace = :namespace AND workflow_id = :workflow_id"
    " AND run_id = :run_id AND at = :at)"
)
_TAKE_OUT = (
    "DELETE FROM waits WHERE namespace = :namespace AND workflow_id = :workflow_id"
    f" AND key NOT IN (SELECT value FROM json_each(:keys)) AND {_IS_OURS}"
)
_PUT = (
    f"INSERT INTO waits ({sql.WAIT_COLUMNS}) SELECT {', '.join(f'value ->> {n}' for n in range(11))}"
    f" FROM json_each(:rows) WHERE {_IS_OURS} ON CONFLICT DO NOTHING"
)


async def show_waits(db: Database, board: Board, put: Sequence[Wait], keep: Sequence[str]) -> list[str]:
    values = board_values(board)
    keys = [*keep, *(wait.key for wait in put)]
    found = await db.batch(
        [
            statement(plain(sql.SAVE_BOARD), **values),
            statement(_TAKE_OUT, **values, keys=keys),
            *(
                statement(_PUT, **values, rows=rows)
                for _, rows in chunks([list(wait_row(board, wait)) for wait in put])
            ),
            statement(plain(sql.KEYS), **values),
        ]
    )
    there = {key for (key,) in found[-1]}
    return [key for key in keep if key not in there] if found[0] else []


async def waits(db: Database, query: Query) -> list[ShownWait]:
    asked, values = query
    return [read_shown(row) for row in await db.one(statement(plain(asked), **values))]


async def count_waits(db: Database, query: Query) -> dict[str, int]:
    asked, values = query
    return dict(await db.one(statement(plain(asked), **values)))


async def load_board(db: Database, namespace: str, workflow_id: str) -> Board | None:
    rows = await db.one(statement(plain(sql.LOAD_BOARD), namespace=namespace, workflow_id=workflow_id))
    return read_board(rows[0]) if rows else None


async def boards(db: Database, namespace: str, after: str, limit: int) -> list[tuple[Board, int]]:
    asked = statement(plain(sql.LIST_BOARDS), namespace=namespace, after=after, most=limit)
    return [(read_board(row[:-1]), row[-1]) for row in await db.one(asked)]


async def forget_boards(db: Database, namespace: str, before: datetime) -> None:
    await db.one(statement(plain(sql.FORGET), namespace=namespace, before=moment_text(before)))
