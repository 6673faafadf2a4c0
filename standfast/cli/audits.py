"""Puts people's acts by commands on a store's audit trail before they are done, and shows the trail."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from standfast.cli.outputs import Output
from standfast.cli.stores import Named, existing_store, from_application, store_of_workers, store_option
from standfast.messages import JSONObject

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.temporal import StandfastClient
    from standfast.temporal.client.history.audits import Change

BY = click.option("--by", help="Person who does it.  [env: STANDFAST_USER; else the login name]")
AUDITED = from_application(
    store_option("Store whose audit trail records who did it", "standfast.db, if it exists", exists=True)
)


@asynccontextmanager
async def on_record(client: "Client", output: Output, named: Named | None) -> AsyncIterator["StandfastClient"]:
    """Return a client for runs that records each act before it is done."""
    from standfast.temporal import StandfastClient

    async with store_of_workers(client, output, named, is_record=True) as store:
        yield StandfastClient(client, store=store)


async def acts_of(store: Named, run: str, seen: JSONObject) -> list[JSONObject]:
    """Return the audit trail of a run, as JSON data; for a missing run, the acts that were meant to start it."""
    from standfast.temporal.client.history.audits import load_acts

    told = [part for part in (seen.get("state"), seen.get("result"), seen) if isinstance(part, dict)]
    keys = [str(part[name]) for part in told for name in ("journal_key", "first_run_id") if name in part]
    async with existing_store(store) as trail:
        found = await load_acts(trail, keys, run)
    hidden = {"journal_key", "key", "act_id"}
    return [
        row.model_dump(mode="json", exclude=hidden | {"changes"})
        | {"in_words": row.in_words}
        | ({} if row.changes is None else {"changes": [_plain(one) for one in row.changes]})
        for row in found
    ]


def _plain(change: "Change") -> JSONObject:
    """Return a change as JSON data, without absent values."""
    both = {"before": change.before, "after": change.after}
    both.pop({"added": "before", "removed": "after"}.get(change.how, ""), None)
    lines = {} if change.lines is None else {"lines": change.lines}
    return {"path": change.path, "how": change.how, **both, "in_words": change.in_words, **lines}


def write_acts(output: Output, acts: Iterable[JSONObject]) -> None:
    """Write who did what, and whether it counted."""
    for row in acts:
        words = [f"{row['at']}  {row.get('by') or 'someone'}: {row['in_words']}", row["gate"]]
        output.line(" ".join(filter(None, words)) + (f": {row['comment']}" if row.get("comment") else ""))
        for change in row.get("changes") or ():
            output.line(f"    {change['in_words']}")
            for line in change.get("lines", ()):
                output.line(f"      {line}")
