"""`standfast store prune`: deletes a store's records of runs that ended long ago."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import click

from standfast.cli.commands import client_of, server_options, with_output
from standfast.cli.outputs import Output
from standfast.cli.stores import STORED, existing_store, shown_address
from standfast.durations import WAYS, to_seconds
from standfast.errors import InputError
from standfast.runtime.retention import PrunedStore, Pruning, continued_runs, nobody_knows
from standfast.stores.capabilities import has_deletion
from standfast.stores.deletion import is_temporal_run


@click.command()
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
def prune(output: Output, store: str, server: dict[str, Any], older_than: str, **wanted: bool) -> None:
    """Delete a store's records of ended runs: calls, models' replies, partial answers, decisions.

    The server is asked about each run: the records of a run that it still knows stay, and so do the calls of the run's
    session. Sessions stay unless --sessions is given, and so does the end of a transcript with open calls.
    """
    age = to_seconds(older_than)
    if age is None and older_than.isdigit():
        age = float(older_than)
    if age is None:
        raise InputError(f"--older-than must be like {WAYS}, got {older_than!r}")
    found = asyncio.run(_prune(store, server, datetime.now(UTC) - timedelta(seconds=age), **wanted))
    output.item(found, lambda: _write(output, found))


async def _prune(
    address: str,
    server: dict[str, Any],
    before: datetime,
    *,
    also_sessions: bool,
    keep_decisions: bool,
    in_process: bool,
    dry_run: bool,
) -> dict[str, Any]:
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
            from standfast.temporal.client.forgotten import Forgotten

            forgotten = Forgotten(await client_of(server), store, await continued_runs(store))
            await forgotten.check_namespace()
            pruning.is_forgotten, pruning.is_older_known = forgotten, True
        if also_sessions:
            await pruning.prune_sessions()
        await pruning.prune()
    found = pruning.dropped.model_dump()
    return {**found, "sessions": pruning.sessions, "kept": pruning.living, "dry_run": dry_run}


def _write(output: Output, found: dict[str, Any]) -> None:
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
