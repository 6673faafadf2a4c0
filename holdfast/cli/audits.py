"""Who does what by a command, and the audit trail of the store that keeps it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.outputs import Output
from holdfast.errors import HoldfastError
from holdfast.stores import sqlite_store
from holdfast.stores.protocol import Act

if TYPE_CHECKING:
    from temporalio.client import Client

BY = click.option("--by", help="Who does it.  [env: HOLDFAST_USER; else the login name]")
AUDITED = click.option(
    "--store", metavar="FILE", envvar="HOLDFAST_STORE",
    help="SQLite store whose audit trail is to say who did it; else holdfast.db, if it is here.  [env: HOLDFAST_STORE]",
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

    from holdfast.temporal.audits import record_act

    path = path or ("holdfast.db" if Path("holdfast.db").is_file() else None)
    if path is None:
        return
    try:
        async with sqlite_store(path) as store:
            await record_act(client, store, run, act, by=by, of=of, comment=comment)
    except (HoldfastError, RPCError) as error:
        output.note(f"It was done, but is not on the audit trail of {path}: {error}")
