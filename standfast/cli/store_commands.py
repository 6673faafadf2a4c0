"""`standfast store`: maintains a store."""

import asyncio
import os
import time
from typing import Any, cast

import click

from standfast.cli.commands import with_output
from standfast.cli.outputs import Output
from standfast.cli.stores import STORED, USUAL, existing_store, is_file, shown_address, store_option
from standfast.errors import InputError
from standfast.runtime.restores import begin_epoch, note_move
from standfast.stores import open_store
from standfast.stores.copying import Movable, give_up_move, move_store
from standfast.stores.sqlite.files import restore_file
from standfast.stores.sqlite.migrations import MIGRATIONS

_NOT_THERE = ": FROM is the store to move, TO the empty one"


@click.group()
def store() -> None:
    """Maintain a store: show its identity, place and size, move it, and restore it."""


@store.command()
@STORED
@with_output
def check(output: Output, store: str) -> None:
    """Open a store, migrate its tables, and show its identity.

    The tables of an empty PostgreSQL schema or D1 database are created. A SQLite file must exist.
    """
    found = asyncio.run(_checked(store))
    output.item(found, lambda: output.fields({name.capitalize(): value for name, value in found.items()}))


@store.command()
@STORED
@with_output
def restored(output: Output, store: str) -> None:
    """Report that a store was restored from a backup, before workers use it again.

    Data written after the backup is lost. Calls of earlier runs that are missing from the store count from now on as
    calls of unknown outcome, and not as calls that never ran.
    """
    found = asyncio.run(_restored(store))
    output.item(found, lambda: output.fields({name.capitalize(): value for name, value in found.items()}))


@store.command()
@click.argument("backup", metavar="FILE")
@store_option("Store to restore", default=USUAL)
@with_output
def restore(output: Output, backup: str, store: str) -> None:
    """Restore a SQLite store from the backup FILE, and begin an epoch: see `restored`.

    Stop all workers and runs first; the command refuses a store that is in use, and a backup of another store. If the
    command is killed, the store is either unchanged or restored: run it again.
    """
    if not is_file(store):
        raise InputError(
            f"{shown_address(store)} is not a SQLite file: restore it with its own tools, then run "
            "`standfast store restored`"
        )
    restore_file(backup, os.path.realpath(store), MIGRATIONS)
    found = asyncio.run(_restored(store))
    output.item(found, lambda: output.fields({name.capitalize(): value for name, value in found.items()}))


async def _restored(address: str) -> dict[str, Any]:
    async with existing_store(address) as store:
        return {"store": shown_address(address), "epoch": await begin_epoch(store)}


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--give-up", is_flag=True, help="Reopen FROM, if its move has not ended.")
@with_output
def copy(output: Output, source: str, target: str, give_up: bool) -> None:
    """Move everything in the store FROM to the empty store TO: sessions, calls, replies, decisions, its identity.

    Both are the path of a SQLite file, postgresql://… or d1://…. End all workers and runs that use FROM first. If it is
    interrupted, run it again: it continues. In the end FROM is closed, and names the new place of its data.
    """
    if give_up:
        asyncio.run(_given_up(source, target))
        output.item(
            {"store": shown_address(source), "moved": False},
            lambda: output.line(f"{shown_address(source)} is open again"),
        )
        return
    found = asyncio.run(_copied(output, source, target))
    output.item(found, lambda: _say_moved(output, found))


async def _given_up(source: str, target: str) -> None:
    async with existing_store(source, _NOT_THERE) as old, open_store(target) as new:
        await give_up_move(cast(Movable, old), cast(Movable, new))


async def _copied(output: Output, source: str, target: str) -> dict[str, Any]:
    told = time.monotonic()

    def tell(table: str, rows: int) -> None:
        nonlocal told
        if time.monotonic() - told > 1:
            told = time.monotonic()
            output.note(f"{table}: {rows} rows")

    async with existing_store(source, _NOT_THERE) as old, open_store(target) as new:
        moved = await move_store(cast(Movable, old), cast(Movable, new), tell)
        if moved.tables:
            await note_move(new)
    tables = {name: {"rows": its.rows, "digest": f"{its.digest:032x}"} for name, its in moved.tables.items()}
    names = {"from": shown_address(source), "to": shown_address(target), "identity": moved.identity}
    return {**names, "tables": tables}


def _say_moved(output: Output, found: dict[str, Any]) -> None:
    if not found["tables"]:
        output.line(f"{found['from']} had already been moved to {found['to']}")
        return
    counts = {name: f"{its['rows']} rows, {its['digest']}" for name, its in found["tables"].items()}
    output.fields({"From": found["from"], "To": found["to"], "Identity": found["identity"], **counts})


async def _checked(address: str) -> dict[str, Any]:
    async with existing_store(address) as store:
        return {
            "store": shown_address(address),
            "identity": await store.identity(),
            "sessions": len(await store.list_sessions()),
            "machines": "this one" if is_file(address) else "any number",
        }
