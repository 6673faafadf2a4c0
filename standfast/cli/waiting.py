"""The command that shows people their waiting items, and how an item is written: in one run, or in all of them."""

import shlex
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.commands import on_temporal
from standfast.cli.outputs import Output, ago, shown
from standfast.cli.stores import BOARD, USUAL, Named, existing_store, needs_server, shown_address, store_of_workers
from standfast.errors import InputError
from standfast.messages import JSONObject, line_difference, visible_json, waiting_edit_in_words

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.stores import AgentStore
    from standfast.temporal import StandfastClient

KINDS = ("approval", "question", "unknown", "pause", "worker", "store")

_HOW = {
    "approval": "standfast approve {run} {name}  or: standfast reject {run} {name}",
    "question": "standfast answer {run} TEXT",
    "unknown": "standfast resolve {run} {name} --happened JSON | --not-happened | --leave",
    "pause": "standfast resume {run}  or: standfast resume {run} --abort",
    "worker": "start a worker that has it, or: standfast cancel {run}",
    "skip": "start a worker that has it, or: standfast resume {run} --skip --name {name} --reason TEXT",
    "store": "fix the store of its workers; the run then continues automatically",
}


def write_waiting(output: Output, item: JSONObject, *, how: bool = True, store: Named = USUAL) -> None:
    """Write a waiting item: everything that is decided on, who may decide, until when, and how.

    Args:
        store: the store of an in-process run.
    """
    name = f" {item['name']}" if item["name"] else ""
    given = item.get("approved_by") or ()
    of = f"{len(given)} of {item['quorum']}" if "quorum" in item else ""
    asked = f"Waits for {item['kind']}{name}: {item['message']}"
    output.line(asked.replace("\n", "\n      "), style="bold")  # so that none of its lines looks like a field
    output.fields(
        {
            "  Tool": item.get("tool"),
            "  Arguments": item.get("arguments"),
            "  Edited": waiting_edit_in_words(item["edited_by"], item.get("changes")) if "edited_by" in item else None,
            "  Approvers": ", ".join(item.get("approvers") or ()),
            "  Approved": ": ".join(filter(None, [of, ", ".join(given)])),
            "  Since": item.get("since") and f"{ago(item['since'])} ago",
            "  Until": item.get("deadline") and f"{item['deadline']} ({ago(item['deadline'])})",
            "  Then": item.get("then"),
            "  Again": _again(item),
            "  How": _HOW.get("skip" if item.get("can_skip") else item["kind"], "").format(
                run=shlex.quote(item["workflow_id"]), name=shlex.quote(item["name"]) + _where(item, store)
            )
            if how and item["workflow_id"].isprintable()
            else None,
        }
    )
    for one in item.get("shown", ()):
        label = shown(one.get("label") or "Shown").replace("\n", "\n      ")
        output.line(f"  {label} ({one['kind']}):", style="bold")
        for line in _lines(one):
            output.line(f"    {shown(line)}")


def _where(item: Mapping[str, Any], store: Named) -> str:
    """Return the option that commands need to find an in-process run."""
    from standfast.runtime.stored_gates import is_in_process

    if store == USUAL or not is_in_process(item["workflow_id"]):
        return ""
    return f" --store {shlex.quote(shown_address(store))}"


def _again(item: Mapping[str, Any]) -> str | None:
    """Return when a temporary pause is retried; `standfast show` has the exact time of each attempt."""
    if "retry_at" not in item:
        return None
    soon = ago(item["retry_at"])
    first = f"{soon}, then " if soon.startswith("in ") else ""
    return f"automatically, {first}at growing intervals, at least every {max(1, round(item['retry_every'] / 60))} min"


def _lines(one: Mapping[str, Any]) -> list[str]:
    """Return a value that a gate shows as lines for a terminal."""
    match one["kind"]:
        case "text" | "markdown":
            return str(one["text"]).split("\n")
        case "json":
            return visible_json(one["value"]).split("\n")
        case "table":
            rows = [one["columns"], *one["rows"]] if one["columns"] else one["rows"]
            return [" | ".join(map(_cell, row)) for row in rows]
        case "diff":
            return line_difference(one["before"], one["after"])
        case "image":
            return [f"{one['media_type']}, {len(one['data']) * 3 // 4:,} bytes: see it on the page"]
    return [f"{one['size']:,} bytes: read them with --full"]


def _cell(value: Any) -> str:
    """Return a cell that cannot be mistaken for two cells or two rows."""
    return value if isinstance(value, str) and "|" not in value and value.isprintable() else _json(value)


def _json(value: Any) -> str:
    return visible_json(value, indent=None)


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


async def whole_item(item: JSONObject, store: Named) -> JSONObject:
    """Return an item with its full contents; large values are in the store."""
    from standfast.temporal.client.board.gate_contents import is_cut, load_item

    if not is_cut(item):
        return item
    async with existing_store(store) as opened:
        return await load_item(opened, item)
