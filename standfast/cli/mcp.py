"""`standfast mcp`: logs in at MCP servers, shows and accepts their tool declarations, and serves runs as tools."""

import asyncio
import json
import shlex
import signal
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.applications import load_application
from standfast.cli.audits import BY
from standfast.cli.commands import on_temporal, with_output
from standfast.cli.inputs import PORT, who
from standfast.cli.listening import access_of, check_proxy, listening_options, serve_until_stopped
from standfast.cli.outputs import Output, shown
from standfast.cli.stores import BOARD, Named, existing_store, store_option
from standfast.cli.web import application_of, check_application_store
from standfast.cli.workers import STORE
from standfast.errors import InputError
from standfast.mcp import MCPToolset, OAuth
from standfast.mcp.browser_logins import login as log_in
from standfast.mcp.known_tools import KnownTool, KnownTools, known_servers
from standfast.mcp.schemas import digest_of
from standfast.mcp.stored_logins import Logins
from standfast.messages import JSONObject, changed_lines
from standfast.stores import open_store

if TYPE_CHECKING:
    from temporalio.client import Client

_APP = click.option("--app", metavar="APP", help="File or module whose agents use the server, with its store.")
_STORE = store_option("Store of the workers", "the application's, or standfast.db")
_USER = click.option("--user", help="User who logs in.  [default: a shared login]")
_TENANT = click.option("--tenant", help="Tenant of the user.")


@click.group()
def mcp() -> None:
    """Log in at MCP servers, review their tool declarations, and serve agents as tools."""


@mcp.command()
@click.argument("url")
@_APP
@_STORE
@_USER
@_TENANT
@click.option("--port", type=PORT, default=0, help="Port of this machine for the browser's redirect; 0: any.")
@click.option(
    "--issuer", metavar="URL", help="Authorization server of URL.  [default: the one that URL names, if you agree]"
)
@with_output
def login(
    output: Output,
    url: str,
    app: str | None,
    store: str | None,
    user: str | None,
    tenant: str | None,
    port: int,
    issuer: str | None,
) -> None:
    """Log a user in at the MCP server URL, and save the token in the workers' store.

    Open the shown address in a browser on this machine. The token is encrypted with STANDFAST_MCP_KEY, which the
    workers also need.
    """

    def show(page: str) -> None:
        output.note(f"Open this page in a browser: {page}")

    async def logged_in() -> None:
        kept, oauth = _place(url, app, store)
        oauth = oauth if issuer is None else replace(oauth, issuer=issuer)
        consent = (lambda words: click.confirm(shown(f"{words}. Go on?"), err=True)) if sys.stdin.isatty() else None
        try:
            await log_in(
                url, store=kept, show=show, user_id=user, tenant_id=tenant, oauth=oauth, port=port, consent=consent
            )
        finally:
            await kept.close()

    asyncio.run(logged_in())
    output.item({"server": url, "user": user, "tenant": tenant}, lambda: output.line(f"Logged in at {url}"))


@mcp.command()
@click.argument("url")
@_APP
@_STORE
@_USER
@_TENANT
@with_output
def logout(output: Output, url: str, app: str | None, store: str | None, user: str | None, tenant: str | None) -> None:
    """Delete a user's token for the MCP server URL."""

    async def forgotten() -> bool:
        kept, oauth = _place(url, app, store)
        try:
            return await Logins(kept, url, oauth.key).forget((tenant, user))
        finally:
            await kept.close()

    was_there = asyncio.run(forgotten())
    text = f"Logged out at {url}" if was_there else f"There was no login at {url}"
    output.item({"server": url, "was_logged_in": was_there}, lambda: output.line(text))


@mcp.command()
@click.argument("server", required=False)
@BOARD
@with_output
def tools(output: Output, server: str | None, store: Named) -> None:
    """List accepted MCP tools, and those that are held back or left out, with the reasons."""
    found = asyncio.run(_tools(store, server))
    columns = {
        "Server": lambda row: row["server"],
        "Tool": lambda row: row["tool"],
        "Accepted": _accepted_by,
        "Held back": lambda row: row["held"] or ("left out" if row["left_out"] else ""),
    }
    output.rows(found, columns, nothing="No MCP server is known.")
    for row in found:
        if row["left_out"] is not None:
            output.note(f"\n{row['server']}: {row['tool']} is left out: {row['left_out']}")
        elif row["held"] is not None:
            output.note(
                f"\n{row['server']} has changed {row['tool']}; accept it with\n  {row['accept']}\n{row['diff']}"
            )


@mcp.command()
@click.argument("server")
@click.argument("tool")
@click.option("--digest", help="Accept only the declaration that `standfast mcp tools` showed with this digest.")
@BY
@BOARD
@with_output
def accept(output: Output, server: str, tool: str, digest: str | None, by: str | None, store: Named) -> None:
    """Accept an MCP server's current declaration of a tool. Workers offer it from the next call on."""
    row = asyncio.run(_accepted(store, server, tool, digest, who(by)))
    output.item(row, lambda: output.line(f"{tool} of {server} is accepted as {row['accepted']}"))


def _place(url: str, app: str | None, store: str | None) -> tuple[Any, OAuth]:
    """Return the store of logins, and a server's login settings."""
    if app is None:
        return open_store(store or "standfast.db"), OAuth()
    application = load_application(app, store)
    sets = (one for agent in application.agents.values() for one in agent.toolsets if isinstance(one, MCPToolset))
    found = next((one for one in sets if one.server == url), None)
    if found is None or not isinstance(found.auth, OAuth):
        raise InputError(f"No agent of {app} has mcp_server({url!r}, auth=OAuth(…))")
    return application.store, found.auth


async def _tools(address: Named, server: str | None) -> list[JSONObject]:
    async with existing_store(address) as store:
        servers = await known_servers(store)
        wanted = servers if server is None else {server: _server(servers, server)}
        found = []
        for name, known in wanted.items():
            left_out = await known.left_out()
            found += [_row(name, tool) for tool in (await known.load()).values() if tool.name not in left_out]
            of_none = {"server": name, "accepted": None, "by": None, "held": None}
            found += [{**of_none, "tool": tool, "left_out": why} for tool, why in left_out.items()]
        return found


def _accepted_by(row: JSONObject) -> str:
    if row["accepted"] is None:
        return ""
    return f"{row['accepted']} by {row['by']}" if row["by"] else f"{row['accepted']} at first"


async def _accepted(address: Named, server: str, tool: str, digest: str | None, by: str) -> JSONObject:
    async with existing_store(address) as store:
        known = _server(await known_servers(store), server)
        return _row(server, await known.accept(tool, by, digest))


def _server(servers: dict[str, KnownTools], name: str) -> KnownTools:
    if name not in servers:
        raise InputError(f"The store knows no MCP server {name!r}; it knows {', '.join(servers) or 'none'}")
    return servers[name]


def _row(server: str, tool: KnownTool) -> JSONObject:
    accepted = {"accepted": digest_of(tool.accepted), "by": tool.by}
    row = {"server": server, "tool": tool.name, **accepted, "held": None, "left_out": None}
    if tool.held is None:
        return row
    digest = digest_of(tool.held)
    before, now = (json.dumps(said, indent=2, sort_keys=True) for said in (tool.accepted, tool.held))
    diff = "\n".join(["--- accepted", "+++ now", *(f"{line[0]}{line[2:]}" for line in changed_lines(before, now))])
    return row | {
        "held": digest,
        "diff": diff,
        "accept": shlex.join(["standfast", "mcp", "accept", server, tool.name, "--digest", digest]),
    }


def _check(*, http: bool, **options: Any) -> None:
    over_http = ("people", "names", "proxy_header", "proxies", "root_path", "cors", "https")
    if not http and (given := next((name for name in over_http if options[name]), None)):
        raise click.UsageError(
            f"{_WORDS.get(given, f'--{given}')} is for --http: over stdio, the person is the one who starts this."
        )
    check_proxy(**options)


_WORDS = {"names": "--name", "proxies": "--proxy-from", "proxy_header": "--proxy-header", "root_path": "--root-path"}


@mcp.command()
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
    from standfast.web import Person, create_mcp_app, serve_mcp_stdio  # needs the package
    from standfast.web.mcp.server import PATH

    local = Person(name=who(None), role="operator")
    with redirect_stdout(sys.stderr):  # standard output is the client's
        loaded = application_of(output, app, store)
    await check_application_store(client, output, loaded, app, store, task_queue)
    offered: JSONObject = {
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
