"""`standfast mcp serve`: serves agents and pipelines as tools of the Model Context Protocol."""

import signal
import sys
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.commands import on_temporal
from standfast.cli.inputs import who
from standfast.cli.listening import access_of, check_proxy, listening_options, serve_until_stopped
from standfast.cli.outputs import Output
from standfast.cli.web import application_of, check_application_store
from standfast.cli.workers import STORE

if TYPE_CHECKING:
    from temporalio.client import Client


def _check(*, http: bool, **options: Any) -> None:
    over_http = ("people", "names", "proxy_header", "proxies", "root_path", "cors", "https")
    if not http and (given := next((name for name in over_http if options[name]), None)):
        raise click.UsageError(
            f"{_WORDS.get(given, f'--{given}')} is for --http: over stdio, the person is the one who starts this."
        )
    check_proxy(**options)


_WORDS = {"names": "--name", "proxies": "--proxy-from", "proxy_header": "--proxy-header", "root_path": "--root-path"}


@click.command()
@click.option("--app", metavar="APP", help="File or module whose agents and pipelines can be started.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of their workers.")
@click.option("--allow-decisions", is_flag=True, help="Let the model at the other end approve, reject and answer.")
@click.option("--http", is_flag=True, help="Serve over streamable HTTP, at /mcp, instead of stdio.")
@listening_options("the server", 8235)
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
    proxy_header: str | None,
    proxies: tuple[str, ...],
    root_path: str,
    cors: tuple[str, ...],
    https: bool,
    store: str | None,
) -> None:
    """Serve agents and pipelines as MCP tools: a model elsewhere starts runs, and reads their results.

    Runs belong to the workers, and continue without this server. Over stdio, where a client such as an editor starts
    it, you are the person who acts, under your login name. Over HTTP people send a token, and FILE.toml defines their
    rights, as for `standfast web`.

    Without --allow-decisions nothing can be approved here: otherwise a model could approve its own requests.
    """
    from standfast.web import Person, create_mcp_app, mcp_protocol, serve_mcp_stdio  # noqa: F401  # needs the package
    from standfast.web.mcp_server import PATH

    local = Person(name=who(None), role="operator")
    with redirect_stdout(sys.stderr):  # standard output is the client's
        loaded = application_of(output, app, store)
    await check_application_store(client, output, loaded, app, store, task_queue)
    offered: dict[str, Any] = {
        "store": loaded.store,
        "agents": loaded.agents.values(),
        "pipelines": loaded.pipelines.values(),
        "task_queue": task_queue,
        "allow_decisions": allow_decisions,
        "fill_context": loaded.fill_context,
    }
    try:
        if not http:
            # A thread that reads standard input cannot be stopped, and nothing is lost: a signal ends the process at
            # once.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            await serve_mcp_stdio(client, person=local, **offered)
            return
        access = access_of(people, None if people else local, https, proxy_header, proxies, output.note)
        at: dict[str, Any] = {"host": host, "names": names, "cors": cors, "root_path": root_path}
        server, path = create_mcp_app(client, access=access, **at, **offered), f"{root_path.rstrip('/')}{PATH}"
        await serve_until_stopped(
            server, host, port, proxies, lambda where: output.note(f"MCP is served at {where}{path}")
        )
    finally:
        if loaded.store is not None:
            await loaded.store.close()
