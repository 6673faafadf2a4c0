"""`standfast dev`: runs a Temporal server and a worker for development, until it is stopped."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, NamedTuple

import click

from standfast.cli.inputs import PORT
from standfast.errors import StandfastError
from standfast.extras import install
from standfast.runtime.processes import child_process, until_stopped
from standfast.stores.file_holds import private

_STANDFAST = (sys.executable, "-P", "-m", "standfast")  # -P: not a file of that name in the current folder
DRAIN = 120.0  # seconds for a worker that is asked to stop; a longer tool call is cut off
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds before a worker that has ended is restarted
HEALTHY = 10.0  # seconds; a worker that has lived this long is not in a restart loop


@click.command()
@click.argument("app", required=False)
@click.option(
    "--db-filename",
    type=click.Path(dir_okay=False),
    default="temporal.db",
    show_default=True,
    help="File that keeps the workflows; they continue when this command is started again.",
)
@click.option("--port", type=PORT, default=7233, show_default=True, help="Port of the server; 0 for a free one.")
@click.option("--ui-port", type=PORT, default=8233, show_default=True, help="Port of the Web UI; 0 for a free one.")
@click.option("--web-port", type=PORT, default=8234, show_default=True, help="Port of the page; 0 for a free one.")
@click.option("--web/--no-web", default=True, help="Also serve the page on which people decide; needs the extra web.")
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False, writable=True),
    help="File to which the server's log is appended.  [default: none; the worker's log goes to the terminal]",
)
@click.option(
    "--worker",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH.py",
    help="Program that runs the worker. It finds the server by TEMPORAL_ADDRESS, is restarted when it ends, and is "
    "stopped by SIGTERM.  [default: ./worker.py if there is one]",
)
@click.option("--reload/--no-reload", default=True, help="Restart the worker when a Python file beside it changes.")
def dev(
    app: str | None,
    db_filename: str,
    port: int,
    ui_port: int,
    web_port: int,
    web: bool,
    log_file: str | None,
    worker: Path | None,
    reload: bool,
) -> None:
    """Run a Temporal server, its Web UI, the page, and a worker, until Ctrl-C.

    The worker has the agents and pipelines of APP, a file or a module, as with `standfast worker`; or it is your own
    program. Ctrl-C (or SIGTERM) lets the worker finish its current work, then stops the server; a second one does not
    wait. Nothing keeps running. Unfinished work continues at the next start.
    """
    if app is not None and worker is not None:
        raise click.UsageError("Give APP or --worker, not both.")
    if app is not None and app.endswith(".py") and not Path(app).is_file():
        raise click.UsageError(f"There is no file {app!r}.")
    server = {"db_filename": db_filename, "port": port, "ui_port": ui_port, "log_file": log_file}
    with _alone(db_filename):
        work = _serve(server, app, _program(app, worker), reload=reload, web_port=web_port if web else None)
        asyncio.run(until_stopped(work, _tell_stopping))
    click.echo("Stopped.")


@contextmanager
def _alone(db_filename: str) -> Iterator[None]:
    """Keep two servers from sharing one file: each would miss the other's writes.

    Raises:
        StandfastError: another server uses it.
    """
    with open(f"{db_filename}-lock", "a", opener=private) as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not on this system
            pass
        except BlockingIOError as error:
            raise StandfastError(
                f"Another `standfast dev` keeps its workflows in {db_filename}: end that one, or give --db-filename"
            ) from error
        yield


class _Program(NamedTuple):
    """The worker's program: its name, its command, and the folder of its files."""

    name: str
    command: tuple[str, ...]
    folder: Path


def _program(app: str | None, worker: Path | None) -> _Program | None:
    if app is not None:
        command = (*_STANDFAST, "worker", app, "--stream")
        return _Program(app, command, Path(app).parent if Path(app).is_file() else Path())
    if worker is None and Path("worker.py").is_file():
        worker = Path("worker.py")
    return None if worker is None else _Program(str(worker), (sys.executable, str(worker)), worker.parent)


async def _serve(
    options: dict[str, Any], app: str | None, worker: _Program | None, *, reload: bool, web_port: int | None
) -> None:
    from standfast.temporal import dev_server  # half a second, which `--help` need not wait for

    async with dev_server(ui=True, **options) as server:
        click.echo(f"Temporal   {server.address}, kept in {options['db_filename']}")
        click.echo(f"Web UI     {server.ui_url}")
        gone = asyncio.ensure_future(_watch(server.address))
        environment = server.environment()
        try:
            page = _page(app, web_port, server.ui_url, environment)
            async with _served(page, environment, None if worker is None or not reload else worker.folder):
                if worker is None:
                    click.echo("Worker     none: no APP and no --worker was given, and there is no ./worker.py")
                    await gone
                else:
                    await _keep_running(worker, environment, gone, reload=reload)
        finally:
            gone.cancel()


def _page(
    app: str | None, port: int | None, temporal_ui: str | None, environment: dict[str, str]
) -> tuple[str, ...] | None:
    """Return the command that serves the page, if the page can be served."""
    if port is None:
        return None
    if find_spec("starlette") is None:
        click.echo(f"Page       none: {install('web')}")
        return None
    of = ("--store", environment.get("STANDFAST_STORE") or "standfast.db") if app is None else ("--app", app)
    ui = () if temporal_ui is None else ("--temporal-ui", temporal_ui)
    return (*_STANDFAST, "web", "--port", str(port), *of, *ui)


@asynccontextmanager
async def _served(
    page: tuple[str, ...] | None, environment: dict[str, str], folder: Path | None
) -> AsyncIterator[None]:
    """Serve the page; the other processes continue if that fails. Restart it when the files of a folder change."""

    async def serve(words: tuple[str, ...]) -> None:
        # So that an open form can also be sent to the next process.
        secret = {"STANDFAST_SECRET": token_urlsafe(32)} | environment
        while True:
            async with child_process(*words, environment=secret):
                await _changed(folder)

    serving = None if page is None else asyncio.ensure_future(serve(page))
    try:
        yield
    finally:
        if serving is not None:
            serving.cancel()
            await asyncio.wait({serving})


def _tell_stopping() -> None:
    click.echo("Stopping; press Ctrl-C again to stop without waiting for the worker.")


async def _keep_running(
    worker: _Program, environment: dict[str, str], gone: "asyncio.Future[None]", *, reload: bool
) -> None:
    """Start the worker, and restart it whenever it ends or its files change, until the server is gone."""
    delay = FIRST_DELAY
    while True:
        begun = time.monotonic()
        changed: asyncio.Future[None] = asyncio.ensure_future(_changed(worker.folder if reload else None))
        try:
            async with child_process(*worker.command, environment=environment, patience=DRAIN) as process:
                click.echo(f"Worker     {worker.name}, process {process.pid}")
                ended = asyncio.ensure_future(process.wait())
                either: set[asyncio.Future[Any]] = {ended, gone, changed}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    gone.result()
                is_changed = changed.done()
                if is_changed:
                    changed.result()
                    click.echo("Worker     its files have changed: it restarts when its current work is done")
            if time.monotonic() - begun >= HEALTHY or is_changed:
                delay = FIRST_DELAY
            if is_changed:
                continue
            how = _how(ended.result())
            click.echo(f"Worker     process {process.pid} {how}; it restarts in {delay:g} s")
            await asyncio.wait({gone, changed}, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            delay = min(2 * delay, LONGEST_DELAY)
        finally:
            changed.cancel()


async def _changed(folder: Path | None) -> None:
    """Wait until a Python file of a folder changes; for ever without a folder."""
    if folder is None:
        await asyncio.Event().wait()
        return
    from watchfiles import PythonFilter, awatch

    async for _ in awatch(folder, watch_filter=PythonFilter(), recursive=True):
        return


def _how(code: int) -> str:
    return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


async def _watch(address: str) -> None:
    """Wait until the server ends, which is an error.

    Raises:
        StandfastError: the server no longer listens.
    """
    host, _, port = address.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError as error:
            raise StandfastError(
                "The Temporal server has ended. Its workflows continue when you start this again"
            ) from error
        writer.close()
        await asyncio.sleep(1)
