"""Statements in D1's form, and batches of them, each of which is one transaction.

A batch is sent whole, so its writer cannot read the results of one statement before the next. A *guard* replaces that:
a statement that fails if a condition does not hold, and the whole batch with it. D1 does not have a statement that
raises an error. It has a function that does: `json` of a text that is not JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from standfast.errors import InputError
from standfast.stores.kept_values import without_nul
from standfast.stores.sql import dialect
from standfast.stores.sql.dialect import D1

LARGEST = 2_000_000  # bytes of a row or a value: D1's limit
CHUNK = 500_000  # bytes of rows in one statement


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with its values in order; a list becomes JSON, for `json_each`."""

    sql: str
    values: list[Any]


def statement(sql: str, **values: Any) -> Statement:
    """Return a statement whose values have names, such as `:id`."""
    found, ordered = D1.in_order((sql, values))
    return Statement(found.sql, ordered)


def plain_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def guard(condition: str, **values: Any) -> Statement:
    """Return a statement that fails, and its whole batch with it, unless a condition holds."""
    text, _ = dialect.guard(condition, values)
    return statement(text, **values)


def values_to_send(asked: Statement, store: str) -> list[Any]:
    """Return a statement's values in D1's form.

    Raises:
        InputError: the row is too large for D1.
    """
    values = [plain_json(value) if isinstance(value, list) else value for value in map(without_nul, asked.values)]
    size = sum(len(value.encode()) for value in values if isinstance(value, str))
    if size > LARGEST:
        raise InputError(
            f"The store {store} cannot keep {size:,} bytes in one row, since D1 keeps at most {LARGEST:,}. Nothing was "
            "written. Make the value shorter, or keep it elsewhere and refer to it"
        )
    return values


def chunks(rows: Sequence[list[Any]]) -> list[tuple[int, list[list[Any]]]]:
    """Return rows in parts that fit into a statement as JSON, each with the place of its first row.

    A large row is alone in its part.
    """
    parts: list[tuple[int, list[list[Any]]]] = []
    room = 0
    for place, row in enumerate(rows):
        size = sum(len(value.encode()) for value in row if isinstance(value, str)) + 8 * len(row)
        if not parts or size > room:
            parts.append((place, []))
            room = CHUNK
        parts[-1][1].append(row)
        room -= size
    return parts
