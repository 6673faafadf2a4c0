"""`standfast store`: maintains a store, and deletes its records of runs that ended long ago."""

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import cast

import click

from standfast.cli.commands import ServerOptions, client_of, server_options, with_output
from standfast.cli.outputs import Output
from standfast.cli.stores import STORED, USUAL, existing_store, is_file, shown_address, store_option
from standfast.durations import WAYS, to_seconds
from standfast.errors import InputError
from standfast.messages import JSONObject
from standfast.runtime.restored_stores import begin_epoch, note_move
from standfast.runtime.retention import PrunedStore, Pruning, continued_runs, nobody_knows
from standfast.stores import open_store
from standfast.stores.copying import Movable, give_up_move, move_store
from standfast.stores.deletion import is_temporal_run
from standfast.stores.protocol import has_deletion
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


async def _restored(address: str) -> JSONObject:
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


async def _copied(output: Output, source: str, target: str) -> JSONObject:
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


def _say_moved(output: Output, found: JSONObject) -> None:
    if not found["tables"]:
        output.line(f"{found['from']} had already been moved to {found['to']}")
        return
    counts = {name: f"{its['rows']} rows, {its['digest']}" for name, its in found["tables"].items()}
    output.fields({"From": found["from"], "To": found["to"], "Identity": found["identity"], **counts})


async def _checked(address: str) -> JSONObject:
    async with existing_store(address) as store:
        return {
            "store": shown_address(address),
            "identity": await store.identity(),
            "sessions": len(await store.list_sessions()),
            "machines": "this one" if is_file(address) else "any number",
        }


@store.command()
@click.option(
    "--older-than", metavar="AGE", required=True, help="Delete only records older than this, for example 90d."
)
@click.option("--sessions", "also_sessions", is_flag=True, help="Also delete sessions without writes since then.")
@click.option("--keep-decisions", is_flag=True, help="Keep who decided what and when.")
@click.option("--in-process", is_flag=True, help="Ask no server, and keep everything that Temporal runs may need.")
@click.option("--dry-run", is_flag=True, help="Delete nothing, and count what would be deleted.")
@STORED
@server_options
@with_output
def prune(output: Output, store: str, server: ServerOptions, older_than: str, **wanted: bool) -> None:
    """Delete a store's records of ended runs: calls, models' replies, partial answers, decisions.

    The server is asked about each run: the records of a run that it still knows stay, and so do the calls of the run's
    session. Sessions stay unless --sessions is given, and so does the end of a transcript with open calls.
    """
    age = to_seconds(older_than)
    if age is None and older_than.isdigit():
        age = float(older_than)
    if age is None:
        raise click.UsageError(f"--older-than must be like {WAYS}, got {older_than!r}")
    found = asyncio.run(_prune(store, server, datetime.now(UTC) - timedelta(seconds=age), **wanted))
    output.item(found, lambda: _write(output, found))


async def _prune(
    address: str,
    server: ServerOptions,
    before: datetime,
    *,
    also_sessions: bool,
    keep_decisions: bool,
    in_process: bool,
    dry_run: bool,
) -> JSONObject:
    async with existing_store(address) as opened:
        if not has_deletion(opened):
            raise InputError(f"The store {shown_address(address)} keeps all records: it does not support deleting runs")
        store = cast(PrunedStore, opened)
        pruning = Pruning(store, before, nobody_knows, decisions=not keep_decisions, dry_run=dry_run)
        if in_process:
            pruning.is_older_known = not (await store.noted()).namespaces and not [
                name async for name in pruning.names() if is_temporal_run(name)
            ]
        else:
            from standfast.temporal.client.queues.retention import Forgotten

            forgotten = Forgotten(await client_of(server), store, await continued_runs(store))
            await forgotten.check_namespace()
            pruning.is_forgotten, pruning.is_older_known = forgotten, True
        if also_sessions:
            await pruning.prune_sessions()
        await pruning.prune()
    found = pruning.dropped.model_dump()
    return {**found, "sessions": pruning.sessions, "kept": pruning.living, "dry_run": dry_run}


def _write(output: Output, found: JSONObject) -> None:
    words = {
        "calls": "Calls",
        "replies": "Replies",
        "partial_answers": "Partial answers",
        "decisions": "Decisions",
        "standing_approvals": "Standing approvals",
        "sessions": "Sessions",
        "bytes": "Bytes of text",
    }
    output.line("Would be deleted:" if found["dry_run"] else "Deleted:")
    output.fields({f"  {words[name]}": str(found[name]) for name in words})
    if found["kept"]:
        output.note(f"{found['kept']} runs and sessions were kept, since one of their runs may continue or come back.")
