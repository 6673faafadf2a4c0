"""Records in the store's audit trail who did something by a command."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli.outputs import Output
from standfast.errors import StandfastError
from standfast.stores import sqlite_store
from standfast.stores.protocol import Act

if TYPE_CHECKING:
    from temporalio.client import Client

BY = click.option("--by", help="Who does it.  [env: STANDFAST_USER; else the login name]")
AUDITED = click.option(
    "--store", metavar="FILE", envvar="STANDFAST_STORE",
    help="SQLite store whose audit trail records who did it.  [env: STANDFAST_STORE; else standfast.db, if it exists]",
)  # fmt: skip


async def put_on_record(
    client: "Client",
    output: Output,
    path: str | None,
    run: str,
    act: Act,
    *,
    by: str,
    of: str = "",
    comment: str | None = None,
) -> None:
    """Put on the audit trail what was done, which cannot be undone if that fails."""
    from temporalio.service import RPCError

    from standfast.temporal.client.audits import record_act

    path = path or ("standfast.db" if Path("standfast.db").is_file() else None)
    if path is None:
        return
    try:
        async with sqlite_store(path) as store:
            await record_act(client, store, run, act, by=by, of=of, comment=comment)
    except (StandfastError, RPCError) as error:
        output.note(f"It was done, but is not on the audit trail of {path}: {error}")
