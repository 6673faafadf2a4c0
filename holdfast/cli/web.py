"""`holdfast web`: the page on which people decide, answer, and look after runs."""

import asyncio
import os
import socket
import tomllib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.applications import Application, BrokenApplicationError, load_application
from holdfast.cli.commands import on_temporal
from holdfast.cli.outputs import Output
from holdfast.cli.people import who
from holdfast.cli.processes import until_stopped
from holdfast.cli.workers import STORE
from holdfast.errors import DefinitionError, InputError
from holdfast.stores import sqlite_store

if TYPE_CHECKING:
    from temporalio.client import Client

    from holdfast.web import Access


def _check(*, people: str | None, proxy_header: str | None, **_: Any) -> None:
    if proxy_header is not None and people is None:
        raise click.UsageError("--proxy-header needs --people: it says who they are, not what they may do.")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; elsewhere only with --people.")
@click.option("--port", type=int, default=8234, show_default=True, help="Port; 0 for a free one.")
@click.option("--name", "names", multiple=True, help="Name under which people ask for it; may be repeated.")
@click.option("--people", type=click.Path(exists=True, dir_okay=False), metavar="FILE.toml", help="Who may use it.")
@click.option("--proxy-header", metavar="HEADER", help="Header in which a proxy says who it is, once it has signed in.")
@click.option(
    "--proxy", "proxies", multiple=True, metavar="ADDRESS", help="Address of that proxy.  [default: this machine]"
)
@click.option("--https", is_flag=True, help="People use https, which a proxy ends: cookies are for that alone.")
@click.option("--temporal-ui", metavar="URL", help="Address of Temporal Web, for links.")
@click.option("--app", metavar="APP", help="File or module whose agents and pipelines can be started from the page.")
@click.option("--task-queue", default="holdfast", show_default=True, help="Queue of the workers that have them.")
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
    https: bool,
    temporal_ui: str | None,
    app: str | None,
    task_queue: str,
    store: str | None,
) -> None:
    """Serve the page: what waits for people, runs, decisions; with --app also what can be started.

    On this machine whoever sits at it may do everything, by their login name. Elsewhere people sign in, or a proxy says
    who they are; FILE.toml says what they may do:

    \b
    [people.ada]
    role = "approver"            # or "viewer", "operator"
    token = "at least 20 characters"

    HOLDFAST_SECRET signs cookies; without it everybody signs in again after a restart. HOLDFAST_LINK_SECRET is that of
    workers that send approval links.
    """
    try:
        import uvicorn

        from holdfast.web import Person, create_app
    except ImportError as error:
        raise InputError(f"The page needs more ({error.name}): pip install 'holdfast[web]'") from error

    local = None if people else Person(name=who(None), role="operator")
    access = _access(people, local, https, proxy_header, proxies)
    loaded = _loaded(output, app, store)
    page = create_app(
        client, access=access, store=loaded.store, host=host, names=names,
        temporal_ui=None if temporal_ui is None else temporal_ui.rstrip("/"),
        agents=loaded.agents.values(), pipelines=loaded.pipelines.values(), task_queue=task_queue,
    )  # fmt: skip
    with _listening(host, port) as listener:
        config = uvicorn.Config(
            page,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # we take them
        at = listener.getsockname()
        output.note(f"The page is at http://{at[0]}:{at[1]}")

        async def serve() -> None:
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                page.state.close()
                server.should_exit = True
                await asyncio.wait({serving})
                raise

        try:
            await until_stopped(serve())
        finally:
            if loaded.store is not None:
                await loaded.store.close()


def _loaded(output: Output, app: str | None, store: str | None) -> Application:
    """Return what can be started, and the store; a file that is broken keeps nobody from deciding."""
    if app is not None:
        try:
            return load_application(app, store)
        except BrokenApplicationError as error:
            why = str(error).splitlines()[-1]
            output.note(f"{app} cannot be loaded, so nothing can be started from the page: {why}")
    path = store or ("holdfast.db" if Path("holdfast.db").is_file() else None)
    if path is None:
        output.note("No store: --store FILE shows transcripts, decisions and pictures of pipelines, too.")
    return Application(store=None if path is None else sqlite_store(path))


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"Nothing can listen at {host}:{port}: {error.strerror or error}") from error


def _access(
    people: str | None, local: Any, https: bool, proxy_header: str | None, proxies: tuple[str, ...]
) -> "Access":
    from holdfast.web import Access, Person

    given: dict[str, Any] = {"people": [], "local": local, "https": https, "proxy_header": proxy_header}
    if proxies:
        given["proxies"] = proxies
    for name, variable in (("secret", "HOLDFAST_SECRET"), ("link_secret", "HOLDFAST_LINK_SECRET")):
        if secret := os.environ.get(variable):
            given[name] = secret
    if people is not None:
        try:
            read = tomllib.loads(Path(people).read_text())["people"]
            given["people"] = [Person(name=name, **rules) for name, rules in read.items()]
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{people}: must have tables [people.NAME] with role and token: {error}") from error
        except DefinitionError as error:
            raise InputError(f"{people}: {error}") from error
    return Access(**given)
