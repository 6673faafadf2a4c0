"""Moves everything in a store to another one, so that runs continue there.

Both stores are closed during the move: neither can be opened, and processes with the old one open cannot write to it.
The progress is noted in the new store together with the rows, so an interrupted move continues when it is started
again. In the end, the new store has the rows of the old one, verified by the number and a digest of the rows of each
table, and its identity. The old one stays closed, and names its new place.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from standfast.errors import InputError, StoreError
from standfast.stores.protocol import AgentStore
from standfast.stores.tables import KEYS, LEFT_OUT, Progress, Row, Sum, Tables

_SHOWN = 5
_MOVED = "was moved to "
_AT_ONCE = 16  # names checked at the same time


class Movable(AgentStore, Protocol):
    """A store that can be moved."""

    def tables(self) -> Tables: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move.

    Args:
        identity: the identity of both stores.
        tables: the number of rows and their digest, by table; empty if the store had already been moved.
    """

    identity: str
    tables: dict[str, Sum]


Tell = Callable[[str, int], None]
"""Takes the name of a table and the number of its rows that were copied."""


async def move_store(source: Movable, target: Movable, tell: Tell = lambda table, rows: None) -> Moved:
    """Move everything in a store into an empty one, or continue that move.

    Raises:
        InputError: the new store has its own rows, or the old one is in use or was moved elsewhere; or one of them is
            of a kind that cannot be moved.
        StoreError: one of them refuses, or they differ in the end.
    """
    _check_kinds(source, target)
    async with source.tables() as old, target.tables() as new:
        if old.name == new.name:
            raise InputError(f"The store {old.name} cannot be moved to itself")
        moving = f"is being moved to {new.name}: run `standfast store copy` again to go on, or with --give-up to stay"
        words, has_words = await old.closed(), await new.closed() is not None
        if words not in (None, moving, _MOVED + new.name):
            raise InputError(f"The store {old.name} {words}")
        if words is not None and not has_words and await _has_taken_over(old, new):
            await old.close(_MOVED + new.name)
            return Moved(await new.identity(), {})
        if words is not None and not has_words:
            raise StoreError(f"The store {old.name} {words}; but {new.name} is not what it was moved to")
        if words is None:
            identity = await _prepared(source, old)
            await _begin(target, new, identity, f"is being filled from {old.name}: run `standfast store copy` again")
            await old.close(moving)
        identity = await old.identity()
        if await new.source() != identity:
            raise InputError(f"The store {new.name} is being filled from another store; give an empty one")
        sums = {table: await _copied(old, new, table, tell) for table in KEYS}
        for table, its in sums.items():
            if (found := await _sum_of(new, table)) != its:
                raise StoreError(
                    f"The store {new.name} has {found.rows} rows in {table} that differ from the {its.rows} in "
                    f"{old.name}. Nothing was moved: give another empty store, after --give-up"
                )
        await new.finish(identity)
        await old.close(_MOVED + new.name)
        return Moved(identity, sums)


async def give_up_move(source: Movable, target: Movable) -> None:
    """Reopen a store whose move has not ended. The other one stays closed, and can be deleted.

    Raises:
        InputError: the store is not being moved there, or has already been moved.
    """
    _check_kinds(source, target)
    async with source.tables() as old, target.tables() as new:
        words = await old.closed()
        if words is None:
            raise InputError(f"The store {old.name} is not being moved")
        if await new.closed() is None and await _has_taken_over(old, new):
            raise InputError(f"The store {old.name} {_MOVED}{new.name}, and both must not be used")
        if not words.startswith(f"is being moved to {new.name}:"):
            raise InputError(f"The store {old.name} {words}")
        await old.reopen()


def _check_kinds(*stores: Movable) -> None:
    for store in stores:
        if not hasattr(store, "tables"):
            raise InputError(f"{store!r} is of a kind that cannot be moved; only SQLite files, PostgreSQL and D1 can")


async def _has_taken_over(old: Tables, new: Tables) -> bool:
    """Whether a store has the identity of another one. It gets that identity when everything is copied."""
    return "store_identity" in await new.names() and await new.identity() == await old.identity()


async def _prepared(source: Movable, old: Tables) -> str:
    """Return the identity of a store that can be moved.

    Raises:
        InputError: the store is in use.
    """
    identity = await source.identity()  # opens the store, and migrates its tables
    used = await _in_use(source, await old.held_names())
    if not used and await old.has_holds():
        used = ["a run"]
    await source.close()
    if used:
        raise InputError(
            f"The store {old.name} is in use by {', '.join(used[:_SHOWN])}{' and others' if used[_SHOWN:] else ''}: "
            "end the workers and runs that have it, then try again. Nothing was changed."
        )
    if unknown := sorted(await old.names() - KEYS.keys() - LEFT_OUT):
        raise StoreError(f"The store {old.name} has the table {unknown[0]}, of which this version knows nothing")
    return identity


async def _in_use(store: AgentStore, names: list[str]) -> list[str]:
    """Return the held names of sessions, runs and workers."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def is_free(name: str) -> bool:
        async with slots:
            if not await store.hold(name):
                return False
            await store.let_go(name)
            return True

    free = await asyncio.gather(*map(is_free, names))
    return [name for name, is_its in zip(names, free, strict=True) if not is_its]


async def _begin(target: Movable, new: Tables, identity: str, words: str) -> None:
    """Close an empty store before it is filled. If filling from the same store has already begun, it continues.

    Raises:
        InputError: the store has its own rows.
    """
    if await new.closed() is not None:
        if await new.source() != identity:
            raise InputError(f"The store {new.name} {await new.closed()}; give an empty one")
        return
    await target.identity()  # creates the store
    await target.close()
    if not await new.is_empty():
        raise InputError(
            f"The store {new.name} has sessions or calls of its own, and two stores cannot become one: give an empty "
            "store. Nothing was changed."
        )
    await new.begin(identity, words)


async def _copied(old: Tables, new: Tables, table: str, tell: Tell) -> Sum:
    """Copy the remaining rows of a table, and return the sum of all its rows."""
    columns = await old.columns(table)
    if set(columns) != set(await new.columns(table)):
        raise StoreError(f"The table {table} has other columns in {new.name} than in {old.name}")
    places = [columns.index(name) for name in KEYS[table]]
    progress = await new.progress(table)
    while rows := await old.read(table, columns, progress.after):
        progress = Progress(_key(rows[-1], places), progress.sum.plus(columns, rows))
        await new.write(table, columns, rows, progress)
        tell(table, progress.sum.rows)
    return progress.sum


async def _sum_of(tables: Tables, table: str) -> Sum:
    columns = await tables.columns(table)
    places = [columns.index(name) for name in KEYS[table]]
    found, after = Sum(), None
    while rows := await tables.read(table, columns, after):
        found, after = found.plus(columns, rows), _key(rows[-1], places)
    return found


def _key(row: Row, places: list[int]) -> tuple[Any, ...]:
    return tuple(row[place] for place in places)
