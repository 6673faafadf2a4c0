"""The tables of a D1 store, for moving it; see `tables`."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from standfast.stores.d1.database import D1Binding, Database
from standfast.stores.d1.statements import chunks, statement
from standfast.stores.sql.dialect import Query, Row
from standfast.stores.sql.tables import SQLTables
from standfast.stores.tables import BATCH_BYTES, TIMES, check_times, moment

_OWN = ("write_key", "gate_decisions")  # columns that only this store has, for repeated writes


class Connection:
    """A separate binding."""

    def __init__(self, connect: Callable[[], D1Binding], name: str) -> None:
        self._binding = connect()
        self._db = Database(self._binding, name)

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        return (await self.batch([query]))[0]

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        return await self._db.batch([statement(sql, **values) for sql, values in queries])

    async def close(self) -> None:
        if (close := getattr(self._binding, "close", None)) is not None:
            await close()


class D1Tables(SQLTables):
    """The tables of a database."""

    _batch_bytes = BATCH_BYTES // 4  # an answer is one text in JSON

    def __init__(self, connect: Callable[[], D1Binding], name: str) -> None:
        super().__init__(Connection(connect, name), name)

    async def columns(self, table: str) -> list[str]:
        return [name for name in await super().columns(table) if (name, table) != _OWN]

    async def _inserts(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> list[Query]:
        if table == "agent_sessions":
            check_times(columns, rows)
        made: list[Query] = []
        for _, part in chunks([list(map(self._value, columns, row)) for row in rows]):
            if len(part) == 1:  # unchanged: as JSON it may be too large
                made += await super()._inserts(table, columns, [tuple(part[0])])
            else:
                places = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(columns)))
                into = f"INSERT INTO @{table} ({', '.join(columns)})"
                made.append(
                    (f"{into} SELECT {places} FROM json_each(:rows) WHERE true ON CONFLICT DO NOTHING", {"rows": part})
                )
        return made

    def _value(self, column: str, value: Any) -> Any:
        if column in TIMES and isinstance(value, datetime | str):  # D1 compares times as texts
            at = moment(value)
            return None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")
        return super()._value(column, value)
