"""The form in which statements are written for all SQL databases, and its translation for each of them.

`@` precedes the name of a table, and values have names, such as `:id`. `:now` is the time by the database's clock, as
ISO 8601 in UTC where times are texts.
These words differ between databases, and look like functions:

- `AGE(column)`: the seconds since a time, by the database's clock.
- `AMONG(:names)`: a condition for a column that has one of several values.
- `NEWEST(column)`: the order of rows by a time, the last one first.
"""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

Row = tuple[Any, ...]
Query = tuple[str, dict[str, Any]]
"""A statement in the form of this module, and its values by name. A list is the value of a word such as `AMONG`."""

_NAME = re.compile(r"(?<!:):([a-z_]+[0-9]*)\b")
_TABLE = re.compile(r"@(?=[a-z])")


class Executor(Protocol):
    """A database that runs statements. Every method raises `StoreError` if the database refuses.

    Each method is one round trip, except that a batch is one per statement on PostgreSQL.
    """

    async def rows(self, query: Query, *, again: bool = True) -> list[Row]:
        """Return the rows of a statement.

        Args:
            again: whether it may safely run twice, so that it may be sent again if the answer is lost.
        """
        ...

    async def batch(self, queries: Sequence[Query], *, again: bool = True) -> list[list[Row]]:
        """Run statements in one transaction, all or none, and return the rows of each."""
        ...

    async def close(self) -> None:
        """Finish the current operations, and close the database. The next operation opens it again."""
        ...


class Prepared(NamedTuple):
    """A statement in a database's own form.

    Args:
        names: the names of its values, in the order of their places.
        lists: the names of the values that are lists.
    """

    sql: str
    names: tuple[str, ...]
    lists: frozenset[str]
    writes: bool


class Dialect:
    """The translation of statements for a database. Each statement is translated once.

    Args:
        words: the words that differ, as regular expressions, and their replacements.
        place: precedes the number of a value; `:` keeps its name.
        prefix: precedes the name of a table.
    """

    def __init__(self, words: dict[str, str], *, place: str, prefix: str = "") -> None:
        self._words = [(re.compile(word), replacement) for word, replacement in words.items()]
        self._place, self._prefix = place, prefix
        self.prepared = lru_cache(maxsize=1_000)(self._prepare)

    def _prepare(self, text: str) -> Prepared:
        lists = frozenset(re.findall(r"AMONG\(:(\w+)\)", text))
        for word, replacement in self._words:
            text = word.sub(replacement, text)
        text = _TABLE.sub(self._prefix, text)
        names: dict[str, int] = {}
        places = _NAME.sub(lambda found: f"{self._place}{names.setdefault(found[1], len(names) + 1)}", text)
        return Prepared(text if self._place == ":" else places, tuple(names), lists, not text.startswith("SELECT"))

    def in_order(self, query: Query) -> tuple[str, list[Any]]:
        """Return a statement in the database's form, and its values in their order."""
        text, values = query
        found = self.prepared(text)
        return found.sql, [values[name] for name in found.names]

    def named(self, query: Query) -> tuple[str, dict[str, Any], bool]:
        """Return a statement in SQLite's form, its values with lists as JSON, and whether it writes."""
        text, values = query
        found = self.prepared(text)
        if "now" in found.names:
            values = values | {"now": now()}
        if found.lists:
            values = values | {name: json.dumps(values[name]) for name in found.lists}
        return found.sql, values, found.writes


def now() -> str:
    """Return the time as SQLite keeps it. A SQLite file has one clock, that of its machine."""
    return datetime.now(UTC).isoformat()


# The database's clock is the same for all writers. It has six digits, as in Python: times are compared as text.
_NOW_OF_D1 = {r":now\b": "strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')"}
_OF_SQLITE = {
    r"AGE\((\w+)\)": r"((julianday('now') - julianday(\1)) * 86400)",
    r"AMONG\((:\w+)\)": r"IN (SELECT value FROM json_each(\1))",
    r"NEWEST\((\w+)\)": r"\1 DESC, rowid DESC",  # two writes may have the same time
}
_OF_POSTGRES = {
    r":now\b": "clock_timestamp()",
    r"AGE\((\w+)\)": r"extract(epoch FROM clock_timestamp() - \1)::float8",
    r"AMONG\((:\w+)\)": r"= ANY(\1::text[])",
    r"NEWEST\((\w+)\)": r"\1 DESC",
    r"\binstr\(": "strpos(",
}
SQLITE = Dialect(_OF_SQLITE, place=":")
D1 = Dialect(_NOW_OF_D1 | _OF_SQLITE, place="?")


def postgres(schema: str) -> Dialect:
    return Dialect(_OF_POSTGRES, place="$", prefix=f'"{schema}".')
