"""`standfast mcp serve`: serves agents and pipelines as tools of the Model Context Protocol."""

import signal
import sys
from contextlib import ExitStack, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING

import click

from standfast.cli.commands import on_temporal
from standfast.cli.inputs import who
from standfast.cli.logs import log_safely
from standfast.cli.outputs import Output
from standfast.cli.web import access_of, application_of, listening_at, serve_until_stopped
from standfast.cli.workers import STORE
from standfast.errors import InputError
from standfast.extras import install

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.agents import Agent
    from standfast.pipelines import Pipeline


def _check(*, http: bool, people: str | None, names: tuple[str, ...], **_: object) -> None:
    if not http and (people is not None or names):
        raise click.UsageError("--people and --name are for --http: over stdio, whoever starts this is the person.")


@click.command()
@click.option("--app", metavar="APP", help="File or module whose agents and pipelines can be started.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers that have these.")
@click.option("--allow-decisions", is_flag=True, help="Let the model at the other end approve, reject and answer.")
@click.option("--http", is_flag=True, help="Serve over streamable HTTP, at /mcp, instead of stdio.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; one that is not local needs --people."
)
@click.option("--port", type=int, default=8235, show_default=True, help="Port; 0 for a free one.")
@click.option("--name", "names", multiple=True, help="Host name of the server; may be repeated.")
@click.option(
    "--people", type=click.Path(exists=True, dir_okay=False), metavar="FILE.toml", help="People who may use it."
)
@click.option("--https", is_flag=True, help="People use https, which ends at a proxy.")
@STORE
@partial(on_temporal, check=_check)
async def serve(
    client: "Client",
    output: Output,
    app: str | None,
    task_queue: str,
    allow_decisions: bool,
    http: bool,
    host: str,
    port: int,
    names: tuple[str, ...],
    people: str | None,
    https: bool,
    store: str | None,
) -> None:
    """Serve agents and pipelines as tools of MCP: a model elsewhere starts runs, and reads what came of them.

    Runs are those of the workers, and go on without this server. Over stdio, which a client such as an editor starts,
    you are the person who acts, under your login name. Over HTTP people send a token, and FILE.toml says what they may
    do, as for `standfast web`.

    Without --allow-decisions nobody can approve anything here: a model could otherwise approve what it has asked for
    itself.
    """
    try:
        from standfast.web import Person
        from standfast.web.api.calls import Doors
        from standfast.web.api.senders import Senders
        from standfast.web.mcp_server import PATH, create_mcp_app, serve_stdio
        from standfast.web.mcp_tools import Offers
        from standfast.web.servers import Sparing, server_of
        from standfast.web.visitors import Visitors
    except ImportError as error:
        raise InputError(f"Serving MCP needs more ({error.name}): {install('mcp,web')}") from error

    local = Person(name=who(None), role="operator")
    access = access_of(people, None if people else local, https, None, (), output.note)
    with redirect_stdout(sys.stderr):  # standard output is the client's
        loaded = application_of(output, app, store)
    visitors = Visitors(access, loaded.store)
    items: dict[str, Agent | Pipeline] = {**loaded.agents, **loaded.pipelines}
    senders = Senders(access, visitors.rates)
    try:
        offers = Offers(Doors(client, loaded.store, senders, items, task_queue), allow_decisions=allow_decisions)
        if not http:
            # A thread that reads standard input cannot be stopped, and nothing is lost: a signal ends all at once.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            await serve_stdio(offers, local)
            return
        page = create_mcp_app(offers, senders, visitors, host=host, names=names)
        log_safely(Sparing())
        with ExitStack() as listening:
            listener = listening.enter_context(listening_at(host, port))
            at = listener.getsockname()
            output.note(f"MCP is served at http://{at[0]}:{at[1]}{PATH}")
            async with page.state.running():
                await serve_until_stopped(server_of(page), [listener])
    finally:
        if loaded.store is not None:
            await loaded.store.close()
