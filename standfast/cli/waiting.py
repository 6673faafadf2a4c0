"""The command that shows people their waiting items: in one run, or in all of them, by filters."""

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.commands import on_temporal
from standfast.cli.outputs import Output, ago
from standfast.cli.stores import BOARD, Named, existing_store, needs_server, store_of_workers
from standfast.cli.waiting_items import write_waiting
from standfast.errors import InputError

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.stores import AgentStore
    from standfast.temporal import StandfastClient

KINDS = ("approval", "question", "unknown", "pause", "worker", "store")


def people_of(client: "Client", store: "AgentStore | None" = None) -> "StandfastClient":
    from standfast.temporal import StandfastClient

    return StandfastClient(client, store=store)


@click.command()
@click.argument("run", required=False)
@click.option("--full", is_flag=True, help="Read values from the store that are too large for a list.")
@click.option("--text", help="Only items in which these words occur.")
@click.option("--kind", type=click.Choice(KINDS), help="Only items of this kind.")
@click.option("--agent", help="Only items of this agent or pipeline.")
@click.option("--group", help="Only items that ask this group.")
@click.option("--person", help="Only items that this person may end.")
@click.option("--tenant", help="Only items of this tenant.")
@click.option(
    "--longer-than", "waits_longer_than", metavar="AGE", help="Only items that have waited longer, such as 2h."
)
@click.option("--limit", type=click.IntRange(1), help="Maximum number, the nearest deadlines first.")
@BOARD
@partial(on_temporal, needs_server=needs_server)
async def pending(
    client: "Client", output: Output, run: str | None, full: bool, limit: int | None, store: Named, **filters: Any
) -> None:
    """Show the items that wait for people, for one RUN or for all, the nearest deadline first.

    They are read from the board in the store, even without a running worker. Without a store, each run is queried
    instead, and only --group and --limit can be used. A RUN that begins with in-process: is only in the store, and does
    not need a server.
    """
    if run is not None and any(value is not None for value in (limit, *filters.values())):
        raise InputError("Filters are for all runs: leave out RUN, or the filters")
    async with store_of_workers(client, output, store, run=run) as board:
        people = people_of(client, board)
        if run is None:
            items = await people.waiting(limit=limit, **filters)
        else:
            items = [{**item, "workflow_id": run} for item in await people.pending(run)]
    if full:
        items = [await whole_item(item, store) for item in items]
    if not output.is_text or (run is None and len(items) > 1):
        output.rows(
            items,
            {
                "RUN": lambda item: item["workflow_id"],
                "KIND": lambda item: item["kind"],
                "NAME": lambda item: item["name"],
                "WHAT": lambda item: item["message"],
                "SINCE": lambda item: ago(item.get("since")),
                "UNTIL": lambda item: ago(item.get("deadline")),
            },
            nothing="Nothing is waiting.",
        )
        return
    if not items:
        output.note("Nothing is waiting.")
    for item in items:
        write_waiting(output, item, store=store)


async def whole_item(item: dict[str, Any], store: Named) -> dict[str, Any]:
    """Return an item with its full contents; large values are in the store."""
    from standfast.temporal.client.asked import is_cut, load_item

    if not is_cut(item):
        return item
    async with existing_store(store) as opened:
        return await load_item(opened, item)
