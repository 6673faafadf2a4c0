"""`standfast store`: looks after a store."""

import asyncio
from typing import Any

import click

from standfast.cli.commands import with_output
from standfast.cli.outputs import Output
from standfast.cli.stores import STORED, existing_store, is_file, shown_address


@click.group()
def store() -> None:
    """Look after a store: what it is, and how much it keeps."""


@store.command()
@STORED
@with_output
def check(output: Output, store: str) -> None:
    """Open a store, bring its tables up to date, and say what it is.

    The tables of a PostgreSQL schema or a D1 database that has none are made. A SQLite file has to be there.
    """
    found = asyncio.run(_checked(store))
    output.item(found, lambda: output.fields({name.capitalize(): value for name, value in found.items()}))


async def _checked(address: str) -> dict[str, Any]:
    async with existing_store(address) as store:
        return {
            "store": shown_address(address),
            "identity": await store.identity(),
            "sessions": len(await store.list_sessions()),
            "machines": "this one" if is_file(address) else "any number",
        }
