"""The form in which statements are written for all SQL databases, and its translation for each of them.

`@` precedes the name of a table, and values have names, such as `:id`. `:now` is the time by the database's clock, as
ISO 8601 in UTC where times are texts. These words differ between databases:

- `AGE[column]`: the seconds since a time, by the database's clock.
- `AMONG[:names]`: a condition for a column that has one of several values.
- `BYTES[text]`: the length of a text.
- `DIGITS[text]`: whether a text has no other characters.
- `EACH[:names AS one]`: the values in a list, as a table with the column `value`.
- `NEWEST[column]`: the order of rows by a time, the last one first.
- `ROW[columns]`: the columns of a query in a plan; see `Executor.run`.
- `SINCE[column]`: a time; its age in seconds if the clocks of the database and its clients may differ.
- `SESSION_IN[reply]`: the session that a stored value names.
- `TIME[value]`: a time that can be compared with others.
- `LOCKED`: the rows of a query stay locked until the transaction ends.
"""

import json
import re
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

Row = tuple[Any, ...]
Query = tuple[str, dict[str, Any]]
"""A statement in the form of this module, and its values by name. A list is the value of a word such as `AMONG`."""

_NAME = re.compile(r"(?<!:):([a-z_]+[0-9]*)\b")
_TABLE = re.compile(r"@(?=[a-z])")
_LIST = re.compile(r"\b(?:AMONG|EACH)\[:(\w+)")
_PLAIN = re.compile(r":now\b|\binstr\(|\bLOCKED\b|\bLIMIT ALL\b")
_WORD = re.compile(r"\b(AGE|AMONG|BYTES|DIGITS|EACH|NEWEST|ROW|SESSION_IN|SINCE|TIME)\[([^\[\]]*)\]")
_GUARD, _VERBATIM = "GUARD ", "VERBATIM "

Rows = Sequence[Sequence[Any]]
Plan = Callable[[], Generator[list[Query], Sequence[Rows], list[Query]]]
"""Yields queries, takes their rows, and returns the statements that change the database. It may be run again."""


class RefusedByGuardError(Exception):
    """A guard did not hold, so its batch did nothing."""


def guard(condition: str, values: dict[str, Any]) -> Query:
    """Return a statement that fails, with its whole batch, unless a condition holds."""
    return f"{_GUARD}{condition}", values


def verbatim(sql: str) -> Query:
    """Return a statement that is already in the database's form."""
    return f"{_VERBATIM}{sql}", {}


class Statements(Protocol):
    """A connection that runs statements. Every method raises `StoreError` if the database refuses.

    Each method is one round trip, except that a batch is one per statement on PostgreSQL.
    """

    def rows(self, query: Query, *, again: bool = True) -> Awaitable[list[Row]]:
        """Return the rows of a statement.

        Args:
            again: whether it may safely run twice, so that it may be sent again if the answer is lost.
        """
        ...

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        """Run statements in one transaction, all or none, and return the rows of each.

        Raises:
            RefusedByGuardError: a guard did not hold.
        """
        ...

    async def close(self) -> None:
        """Finish the current operations, and close the database. The next operation opens it again."""
        ...


class Executor(Statements, Protocol):
    """A database that also runs plans, and knows its holds."""

    def holder(self, name: str) -> str | None:
        """Return the holder under which this process holds a session, a run or a worker; None if it does not, or if a
        hold cannot be lost. Writes under a hold are refused once it is lost.
        """
        ...

    async def run(self, plan: Plan, *, name: str, alone_on: str) -> None:
        """Run the queries of a plan and its changes, all or none, as if nothing else were written in the meantime.

        Args:
            name: what is changed, for messages.
            alone_on: the table that nothing else may write.
        """
        ...


class Prepared(NamedTuple):
    """A statement in a database's own form.

    Args:
        names: the names of its values, in the order of their places.
        lists: the names of the values that are lists.
        writes: whether the statement changes anything.
        is_guard: whether it fails unless its row is true.
    """

    sql: str
    names: tuple[str, ...]
    lists: frozenset[str]
    writes: bool
    is_guard: bool


class Dialect:
    """The translation of statements for a database. Each statement is translated once.

    Args:
        words: the words that differ, and their replacements, in which `\\1` is the word's operand.
        place: precedes the number of a value; `:` keeps its name.
        prefix: precedes the name of a table.
        guard: the statement for the condition of a guard.
    """

    def __init__(self, words: dict[str, str], *, place: str, prefix: str = "", guard: str = "SELECT {}") -> None:
        self._words = words
        self._place, self._prefix, self._guard = place, prefix, guard
        self.prepared = lru_cache(maxsize=1_000)(self._prepare)

    def _prepare(self, text: str) -> Prepared:
        if text.startswith(_VERBATIM):
            return Prepared(text.removeprefix(_VERBATIM), (), frozenset(), writes=True, is_guard=False)
        lists = frozenset(_LIST.findall(text))
        if is_guard := text.startswith(_GUARD):
            text = self._guard.format(text.removeprefix(_GUARD))
        text, count = _PLAIN.sub(self._plain, text), 1
        while count:  # operands may also have words
            text, count = _WORD.subn(self._with_operand, text)
        text = _TABLE.sub(self._prefix, text)
        names: dict[str, int] = {}
        places = _NAME.sub(lambda found: f"{self._place}{names.setdefault(found[1], len(names) + 1)}", text)
        sql = text if self._place == ":" else places
        return Prepared(sql, tuple(names), lists, not text.startswith("SELECT"), is_guard)

    def _plain(self, found: re.Match[str]) -> str:
        return self._words.get(found[0], found[0])

    def _with_operand(self, found: re.Match[str]) -> str:
        operand, _, alias = found[2].partition(" AS ") if found[1] == "EACH" else (found[2], "", "")
        return self._words[found[1]].replace(r"\1", operand).replace(r"\2", alias)

    def in_order(self, query: Query) -> tuple[Prepared, list[Any]]:
        """Return a statement in the database's form, and its values in their order."""
        text, values = query
        found = self.prepared(text)
        return found, [values[name] for name in found.names]

    def named(self, query: Query) -> tuple[Prepared, dict[str, Any]]:
        """Return a statement in SQLite's form, and its values with lists as JSON."""
        text, values = query
        found = self.prepared(text)
        if "now" in found.names:
            values = values | {"now": now()}
        if found.lists:
            values = values | {name: json.dumps(values[name]) for name in found.lists}
        return found, values


def now() -> str:
    """Return the time as SQLite keeps it. A SQLite file has one clock, its machine's."""
    return datetime.now(UTC).isoformat()


# The database's clock is the same for all writers. It has six digits, as in Python: times are compared as text.
_OF_SQLITE = {
    "AGE": r"((julianday('now') - julianday(\1)) * 86400)",
    "AMONG": r"IN (SELECT value FROM json_each(\1))",
    "BYTES": r"length(CAST(\1 AS BLOB))",
    "DIGITS": r"\1 NOT GLOB '*[^0-9]*'",
    "EACH": r"json_each(\1) AS \2",
    "NEWEST": r"\1 DESC, rowid DESC",  # two writes may have the same time
    "ROW": r"json_array(\1) AS found",
    "SESSION_IN": r"iif(json_valid(\1), json_extract(\1, '$.session'), NULL)",
    "TIME": r"strftime('%Y-%m-%dT%H:%M:%f', \1)",
    "LOCKED": "",
    "LIMIT ALL": "LIMIT -1",
}
_OF_POSTGRES = {
    ":now": "clock_timestamp()",
    "instr(": "strpos(",
    "AGE": r"extract(epoch FROM clock_timestamp() - \1)::float8",
    "AMONG": r"= ANY(\1::text[])",
    "BYTES": r"octet_length(\1)",
    "DIGITS": r"\1 !~ '[^0-9]'",
    "EACH": r"unnest(\1::text[]) AS \2 (value)",
    "NEWEST": r"\1 DESC",
    "SINCE": r"extract(epoch FROM clock_timestamp() - \1)::float8",
    "ROW": r"\1",
    "SESSION_IN": r"""substring(\1 FROM '"session": ?"([^"]*)"')""",
    "TIME": r"(\1)::text::timestamptz",
    "LOCKED": "FOR UPDATE",
}
SQLITE = Dialect({**_OF_SQLITE, "SINCE": r"\1"}, place=":")
# D1 does not have a statement that raises an error. It has a function that does: `json` of a text that is not JSON.
_OF_D1 = {":now": "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')", "SINCE": _OF_SQLITE["AGE"]}
D1 = Dialect(_OF_SQLITE | _OF_D1, place="?", guard="SELECT json(iif({}, 'null', 'refused')) AS ok")


def postgres(schema: str) -> Dialect:
    return Dialect(_OF_POSTGRES, place="$", prefix=f'"{schema}".')
