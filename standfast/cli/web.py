"""`standfast web`: serves the page on which people decide, answer and look after runs."""

import asyncio
import os
import socket
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.applications import Application, BrokenApplicationError, load_application
from standfast.cli.commands import on_temporal
from standfast.cli.inputs import who
from standfast.cli.logs import log_safely
from standfast.cli.outputs import Output
from standfast.cli.stores import store_if_any
from standfast.cli.workers import STORE
from standfast.errors import DefinitionError, InputError
from standfast.extras import install
from standfast.runtime.processes import until_stopped

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.web import Access, SlackActions, TeamsActions


def _check(*, people: str | None, proxy_header: str | None, proxies: tuple[str, ...], **_: Any) -> None:
    if proxy_header is not None and people is None:
        raise click.UsageError("--proxy-header needs --people: the header says who they are, not what they may do.")
    if proxy_header is not None and not proxies:
        raise click.UsageError("--proxy-header needs --proxy-from: from anywhere else, anybody could send the header.")


def _new_token(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from standfast.web.access import token_digest

        token = token_urlsafe(24)
        click.echo(f"{token}\n\nThis is shown once: give it to the person it is for. In FILE.toml:\n")
        click.echo(f'token = "{token_digest(token)}"')
        ctx.exit()


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; one that is not local needs --people."
)
@click.option("--port", type=int, default=8234, show_default=True, help="Port; 0 for a free one.")
@click.option("--name", "names", multiple=True, help="Host name of the page; may be repeated.")
@click.option(
    "--people", type=click.Path(exists=True, dir_okay=False), metavar="FILE.toml", help="People who may use the page."
)
@click.option("--proxy-header", metavar="HEADER", help="Header in which a proxy names the person who has signed in.")
@click.option(
    "--proxy-from",
    "proxies",
    multiple=True,
    metavar="ADDRESS|unix:PATH",
    help="Address of that proxy, or a socket for it alone, whose X-Forwarded-* headers count; may be repeated.",
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    help="Path below which a proxy has the page, such as /ops; the proxy may pass it on or remove it.",
)
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="Origin whose pages may use the API by a token; may be repeated."
)
@click.option("--https", is_flag=True, help="People use https, which ends at a proxy; cookies are for https alone.")
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
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers that have these.")
@STORE
@partial(on_temporal, check=_check)
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
    """Serve the page: what waits for people, runs, decisions; with --app also forms to start runs.

    On this machine you may do everything, under your login name. Elsewhere people sign in, or a proxy says who they
    are; FILE.toml says what they may do:

    \b
    [people.ada]
    role = "approver"            # or "viewer", "operator"
    token = "sha256:…"           # --new-token makes both

    STANDFAST_SECRET signs cookies; without it everybody signs in again after a restart. STANDFAST_LINK_SECRET is
    the secret of the workers that send approval links. With STANDFAST_SLACK_SIGNING_SECRET, and STANDFAST_SLACK_TOKEN
    for forms, people also decide by buttons in Slack; FILE.toml then has their ids: slack = "T024BE7LD/U0G9QF9C6".
    With STANDFAST_TEAMS_APP_ID and STANDFAST_TEAMS_TENANT_ID they do so in Microsoft Teams: teams = "TENANT/USER".
    """
    try:
        from standfast.web import Person, create_app
        from standfast.web.servers import Sparing, server_of
    except ImportError as error:
        raise InputError(f"The page needs more ({error.name}): {install('web')}") from error

    local = None if people else Person(name=who(None), role="operator")
    access = access_of(people, local, https, proxy_header, proxies, output.note)
    loaded = application_of(output, app, store)
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
        slack=_slack(),
        teams=_teams(),
    )
    log_safely(Sparing())
    with ExitStack() as listening:
        listeners = [listening.enter_context(listening_at(host, port))]
        listeners += [listening.enter_context(_at_socket(one[5:])) for one in proxies if one.startswith("unix:")]
        server = server_of(page)
        at = listeners[0].getsockname()
        output.note(f"The page is at http://{at[0]}:{at[1]}{root_path.rstrip('/')}")

        try:
            await serve_until_stopped(server, listeners, page.state.close)
        finally:
            if loaded.store is not None:
                await loaded.store.close()


async def serve_until_stopped(
    server: Any, listeners: Sequence[socket.socket], close: Callable[[], object] = lambda: None
) -> None:
    """Serve until somebody stops this process.

    Args:
        close: ends what would keep the server from ending.
    """

    async def serve() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=list(listeners)))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            close()
            server.should_exit = True
            await asyncio.wait({serving})
            raise

    await until_stopped(serve())


def application_of(output: Output, app: str | None, store: str | None) -> Application:
    """Return the application, and the store; a broken file does not keep people from deciding."""
    if app is not None:
        try:
            return load_application(app, store)
        except BrokenApplicationError as error:
            why = str(error).splitlines()[-1]
            output.note(f"{app} cannot be loaded, so nothing can be started from the page: {why}")
    found = store_if_any(store)
    if found is None:
        output.note(
            "No store: --store FILE|URL adds transcripts, decisions and pictures, and remembers who has signed out."
        )
    return Application(store=found)


def listening_at(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"Cannot listen on {host}:{port}: {error.strerror or error}") from error


@contextmanager
def _at_socket(path: str) -> Iterator[socket.socket]:
    """Listen at a socket of the file system for its owner and group, and remove it at the end."""
    with suppress(ConnectionRefusedError, FileNotFoundError), socket.socket(socket.AF_UNIX) as other:
        other.connect(path)
        raise InputError(f"Another process already listens on {path}")
    with suppress(FileNotFoundError):  # of a process that was killed
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o117)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        try:
            yield listener
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


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


def access_of(
    people: str | None,
    local: Any,
    https: bool,
    proxy_header: str | None,
    proxies: tuple[str, ...],
    note: Callable[[str], None],
) -> "Access":
    from standfast.web import Access, Person
    from standfast.web.access import is_digest, token_digest

    given: dict[str, Any] = {"people": [], "local": local, "https": https, "proxy_header": proxy_header}
    given["proxies"] = proxies
    for name, variable in (("secret", "STANDFAST_SECRET"), ("link_secret", "STANDFAST_LINK_SECRET")):
        if secret := os.environ.get(variable):
            given[name] = secret
    if people is not None:
        try:
            read = tomllib.loads(Path(people).read_text())["people"]
            given["people"] = [Person(name=name, **rules) for name, rules in read.items()]
            for person in given["people"]:
                if person.token is not None and not is_digest(person.token):
                    note(
                        f"{people} has the token of {person.name} in the clear. Put in its place: "
                        f'token = "{token_digest(person.token)}"'
                    )
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{people}: must have tables [people.NAME] with role and token: {error}") from error
        except DefinitionError as error:
            raise InputError(f"{people}: {error}") from error
    return Access(**given)
