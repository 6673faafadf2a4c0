"""`standfast web`: serves the page on which people decide, answer and manage runs."""

import os
from functools import partial
from secrets import token_urlsafe
from typing import TYPE_CHECKING

import click

from standfast.cli.applications import Application, BrokenApplicationError, load_application
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import who
from standfast.cli.listening import access_of, check_proxy, listening_options, serve_until_stopped
from standfast.cli.outputs import Output
from standfast.cli.stores import check_workers_store, store_if_any
from standfast.cli.workers import STORE
from standfast.errors import InputError
from standfast.stores import open_store

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.web import SlackActions, TeamsActions


def _new_token(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from standfast.web.identity.people import token_digest

        token = token_urlsafe(24)
        click.echo(f"{token}\n\nThis is shown once: give it to its person. In FILE.toml:\n")
        click.echo(f'token = "{token_digest(token)}"')
        ctx.exit()


@click.command()
@listening_options("the page", 8234)
@click.option(
    "--new-token",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_new_token,
    help="Make a token for a person, and its line in FILE.toml.",
)
@click.option("--temporal-ui", metavar="URL", help="Address of Temporal Web, for links to it.")
@click.option("--app", metavar="APP", help="File or module whose agents and pipelines can be started from the page.")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of their workers.")
@STORE
@partial(on_temporal, check=check_proxy)
async def web(
    client: "Client",
    output: Output,
    host: str,
    port: int,
    names: tuple[str, ...],
    people: str | None,
    proxy_header: str | None,
    proxies: tuple[str, ...],
    root_path: str,
    cors: tuple[str, ...],
    https: bool,
    temporal_ui: str | None,
    app: str | None,
    task_queue: str,
    store: str | None,
) -> None:
    """Serve the page: waiting items, runs, decisions; with --app also forms to start runs.

    On this machine you may do everything, under your login name. Elsewhere people sign in, or a proxy identifies them;
    FILE.toml defines their rights:

    \b
    [people.ada]
    role = "approver"            # or "viewer", "operator"
    token = "sha256:…"           # --new-token makes both

    STANDFAST_SECRET signs cookies; without it everyone must sign in again after a restart. STANDFAST_LINK_SECRET is the
    secret of the workers that send approval links. With STANDFAST_SLACK_SIGNING_SECRET, and STANDFAST_SLACK_TOKEN for
    forms, people also decide with buttons in Slack; FILE.toml then has their ids: slack = "T024BE7LD/U0G9QF9C6". With
    STANDFAST_TEAMS_APP_ID and STANDFAST_TEAMS_TENANT_ID they do so in Microsoft Teams: teams = "TENANT/USER".
    """
    from standfast.web import Person, create_app

    local = None if people else Person(name=who(None), role="operator")
    access = access_of(people, local, https, proxy_header, proxies, output.note)
    loaded = application_of(output, app, store)
    await check_application_store(client, output, loaded, app, store, task_queue)
    page = create_app(
        client,
        access=access,
        store=loaded.store,
        host=host,
        names=names,
        temporal_ui=None if temporal_ui is None else temporal_ui.rstrip("/"),
        agents=loaded.agents.values(),
        pipelines=loaded.pipelines.values(),
        task_queue=task_queue,
        cors=cors,
        root_path=root_path,
        fill_context=loaded.fill_context,
        slack=_slack(),
        teams=_teams(),
    )
    try:
        root = root_path.rstrip("/")
        await serve_until_stopped(page, host, port, proxies, lambda at: output.note(f"The page is at {at}{root}"))
    finally:
        if loaded.store is not None:
            await loaded.store.close()


def application_of(output: Output, app: str | None, store: str | None) -> Application:
    """Return the application, and the store; a broken file does not keep people from deciding."""
    if app is not None:
        try:
            return load_application(app, store)
        except BrokenApplicationError as error:
            why = str(error).splitlines()[-1]
            output.note(f"{app} cannot be loaded, so the page cannot start runs: {why}")
    found = store_if_any(None) if store is None else open_store(store)
    if found is None:
        output.note("No store: --store FILE|URL adds transcripts, decisions and pictures, and remembers sign-outs.")
    return Application(store=found)


async def check_application_store(
    client: "Client", output: Output, loaded: Application, app: str | None, store: str | None, task_queue: str
) -> None:
    """Check that the store is the workers' store: the queue's if an application is served, otherwise any queue's.

    The server may start before the first worker of its application, in a namespace that other applications share.

    Raises:
        InputError: the workers have another store.
    """
    if loaded.store is not None:
        queue = None if app is None else task_queue
        await check_workers_store(client, output, store or loaded.store, loaded.store, task_queue=queue)


def _slack() -> "SlackActions | None":
    from standfast.web import SlackActions

    if not (secret := os.environ.get("STANDFAST_SLACK_SIGNING_SECRET")):
        return None
    return SlackActions(signing_secret=secret, token=os.environ.get("STANDFAST_SLACK_TOKEN") or None)


def _teams() -> "TeamsActions | None":
    from standfast.web import TeamsActions

    app, tenant = (os.environ.get(f"STANDFAST_TEAMS_{name}_ID") for name in ("APP", "TENANT"))
    if not app and not tenant:
        return None
    if not app or not tenant:
        raise InputError("STANDFAST_TEAMS_APP_ID and STANDFAST_TEAMS_TENANT_ID go together")
    return TeamsActions(app_id=app, tenant_id=tenant)
