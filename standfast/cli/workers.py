"""`standfast worker`: runs a worker for the agents and pipelines of a file, and serves its `/live` and `/ready`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.applications import load_application
from standfast.cli.commands import log_as_python_does, on_temporal
from standfast.cli.logs import LEVELS, LogFormat, OfTheSDK, log_safely
from standfast.cli.outputs import Output, shown
from standfast.cli.stores import store_option
from standfast.errors import InputError
from standfast.runtime.processes import until_stopped
from standfast.time_limits import time_limit

if TYPE_CHECKING:
    from temporalio.client import Client

STORE = store_option("Store of sessions", "the application's own `store`, or standfast.db")

PATIENCE = 5.0  # time limit in seconds for a check, or a client

Check = Callable[[], Awaitable[str | None]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], loop: asyncio.AbstractEventLoop, checks: dict[str, Check]) -> None:
        super().__init__(address, _Handler)
        self._loop, self._checks = loop, checks

    def problem(self, path: str) -> str | None:
        """Return the fault, from a check in the worker's event loop or its error."""

        async def ask() -> str | None:
            async with time_limit(PATIENCE):
                return await self._checks[path]()

        asking: Future[str | None] = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return asking.result(PATIENCE + 1)
        except TimeoutError:
            asking.cancel()
            return f"no answer within {PATIENCE:g} s"
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: the client is gone."""


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server: _Server

    def version_string(self) -> str:
        return "standfast"

    def do_GET(self) -> None:  # the name in the base class
        path = self.path.partition("?")[0]
        if path not in self.server._checks:
            status, text = 404, "There is /live and /ready"
        else:
            problem = self.server.problem(path)
            status, text = (200, "ok") if problem is None else (503, shown(problem.replace("\n", " ")))
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing: there is a request every few seconds."""


@contextmanager
def health(address: str | None, ready: Check) -> Iterator[str | None]:
    """Answer at `HOST:PORT` while the block runs, and yield the address with the actual port; do nothing for None.

    Args:
        ready: returns why the worker is not ready, or None if it is.

    Raises:
        InputError: the address cannot be used.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise click.UsageError(f"--health must be HOST:PORT, such as 0.0.0.0:8235, got {address!r:.80}")

    async def live() -> None:
        return None

    checks: dict[str, Check] = {"/live": live, "/ready": ready}
    try:
        server = _Server((host.strip("[]"), int(port)), asyncio.get_running_loop(), checks)
    except OSError as error:
        raise InputError(f"Cannot listen on {address}: {error.strerror or error}") from error
    thread = Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _check(*, deployment: str | None, build_id: str | None, metrics: str | None, **_: Any) -> None:
    if (deployment is None) != (build_id is None):
        raise click.UsageError("--deployment and --build-id go together.")
    log_as_python_does(metrics)


@click.command()
@click.argument("application", metavar="APP")
@STORE
@click.option("--task-queue", default="standfast", show_default=True, help="Queue that the worker serves.")
@click.option(
    "--stream", is_flag=True, help="Stream models' answers, so that the page shows their words as they arrive."
)
@click.option(
    "--retention", metavar="AGE", help="Delete the store's records of runs that the server has forgotten, after 90d."
)
@click.option(
    "--single-machine", is_flag=True, help="All workers run here, although the server does not: allows a SQLite file."
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Lowest level that is logged."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus at this address, path /metrics.")
@click.option("--health", "health_at", metavar="HOST:PORT", help="Answer /live and /ready at this address.")
@click.option("--deployment", metavar="NAME", help="Worker deployment of Temporal's worker versioning.")
@click.option("--build-id", metavar="ID", help="Version of the code in that deployment.")
@click.option(
    "--versioning",
    type=click.Choice(["pinned", "auto-upgrade"]),
    default="auto-upgrade",
    show_default=True,
    help="Whether a run stays with the version that it began with, or moves to the current one.",
)
@click.option(
    "--max-activities", type=click.IntRange(1), default=100, show_default=True, help="Calls that run at the same time."
)
@click.option(
    "--max-cached-runs",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Parked runs kept in memory, some 110 KB each.",
)
@partial(on_temporal, check=_check)
async def worker(
    client: "Client",
    output: Output,
    application: str,
    store: str | None,
    task_queue: str,
    stream: bool,
    retention: str | None,
    single_machine: bool,
    log_format: LogFormat,
    log_level: str,
    health_at: str | None,
    max_activities: int,
    max_cached_runs: int,
    **options: Any,
) -> None:
    """Run a worker of an application until Ctrl-C.

    APP is a file (app.py) or a module. The worker runs the top-level agents and pipelines of the module, which may also
    have a `store`, an `llm`, `tools` and `webhooks`, as in StandfastPlugin. Ctrl-C (or SIGTERM) lets it finish its
    current work; a second one does not wait.
    """
    from temporalio.worker import Worker

    from standfast.temporal import StandfastPlugin

    log_safely(OfTheSDK(), log_format, log_level)
    app = load_application(application, store)
    plugin = StandfastPlugin(
        agents=app.agents.values(),
        pipelines=app.pipelines.values(),
        store=app.store,
        llm=app.llm,
        tools=app.tools,
        webhooks=app.webhooks,
        stream=stream,
        retention=retention,
        single_machine=single_machine,
    )

    serving = Worker(
        client,
        task_queue=task_queue,
        plugins=[plugin],
        max_concurrent_activities=max_activities,
        max_cached_workflows=max_cached_runs,
        deployment_config=_deployment(**options),
    )
    is_stopping = False

    async def ready() -> str | None:
        if is_stopping or not serving.is_running:
            return "stopping" if is_stopping else "starting"
        await plugin.check_store(client)
        await plugin.check_queue(client, task_queue, note=False)
        await client.service_client.check_health()
        return None

    async def serve() -> None:
        await plugin.check_store(client)  # before it is reported as ready
        await plugin.check_queue(client, task_queue)
        async with serving:
            output.note(f"Worker of {', '.join([*app.agents, *app.pipelines])} on queue {task_queue} is ready")
            if options["deployment"] is not None:
                output.note(
                    "It takes runs once its version is the deployment's current one: temporal worker deployment "
                    "set-current-version --deployment-name {deployment} --build-id {build_id}".format(**options)
                )
            await asyncio.Event().wait()

    def stop() -> None:
        nonlocal is_stopping
        is_stopping = True
        output.note("Stopping; press Ctrl-C again to stop without waiting for current work.")

    with health(health_at, ready) as at:
        if at is not None:
            output.note(f"Health is at http://{at}/live and /ready")
        await until_stopped(serve(), stop)


def _deployment(deployment: str | None, build_id: str | None, versioning: str, **_: Any) -> Any:
    """Return the version of the code in Temporal's worker versioning; None without one."""
    if deployment is None or build_id is None:
        return None
    from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
    from temporalio.worker import WorkerDeploymentConfig

    version = WorkerDeploymentVersion(deployment_name=deployment, build_id=build_id)
    behaviour = VersioningBehavior.PINNED if versioning == "pinned" else VersioningBehavior.AUTO_UPGRADE
    return WorkerDeploymentConfig(version=version, use_worker_versioning=True, default_versioning_behavior=behaviour)
