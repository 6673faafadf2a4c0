"""Commands that move runs as files: out of Temporal, and into Temporal."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from standfast.cli.audits import AUDITED
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import read_json_option, who
from standfast.cli.outputs import Output
from standfast.cli.runs import RUN, tell_if_failed
from standfast.cli.stores import Named, store_of_workers
from standfast.stores.private_files import private

if TYPE_CHECKING:
    from temporalio.client import Client


@click.command("export")
@RUN
@click.option(
    "-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="File to write.  [default: standard output]"
)
@on_temporal
async def export_run(client: "Client", output: Output, run: str, file: Path | None) -> None:
    """Write a run as a checkpoint, plain JSON.

    `import` or `run(checkpoint=…)` continues from it. If the store has the session, the run continues in that session,
    once this run has ended. With another store, cancel this run first, or both will run the next steps. If a run is
    calling a tool, the export waits for the call.
    """
    from standfast.temporal import StandfastClient
    from standfast.temporal.client.runs import looked_at

    if away := (await looked_at(client, run)).get("unreachable"):
        output.note(f"{away}. The export waits until one does; Ctrl-C ends it")
    text = (await StandfastClient(client).export(run)).model_dump_json(indent=2)
    if file is None:
        click.echo(text)
        return
    with open(file, "w", opener=private) as written:  # noqa: ASYNC230  # a command does one thing
        written.write(text + "\n")
    output.note(f"Wrote {file}")


@click.command("import")
@click.argument("agent")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("-s", "--session", help="Session to continue.  [default: the exported run's, or a new one]")
@click.option("--user", help="User who owns the session.  [env: STANDFAST_USER; else the login name]")
@click.option("--tenant", help="Tenant of that user.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers.")
@AUDITED
@on_temporal
async def import_run(
    client: "Client",
    output: Output,
    agent: str,
    file: str,
    session: str | None,
    user: str | None,
    tenant: str | None,
    task_queue: str,
    store: Named | None,
) -> None:
    """Start a run that continues from a checkpoint.

    FILE is the output of `export`; - reads standard input.
    """
    from standfast.temporal import OnRecord, start_agent

    data = read_json_option("FILE", "-" if file == "-" else f"@{file}")
    if isinstance(data, dict) and "signature" not in data:
        data.pop("session_id", None)  # the run begins a new one
    async with store_of_workers(client, output, store, task_queue=task_queue, is_record=True) as trail:
        handle = await start_agent(
            client,
            agent,
            checkpoint=data,
            session_id=session,
            user_id=who(user),
            tenant_id=tenant,
            task_queue=task_queue,
            on_record=OnRecord(store=trail, by=who(None)),
        )
    await tell_if_failed(client, output, handle.id)
    output.item({"workflow_id": handle.id}, lambda: output.line(f"Started {handle.id}"))
