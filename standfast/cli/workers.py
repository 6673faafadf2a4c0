"""`standfast worker`: runs a worker for the agents and pipelines of a file."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.applications import load_application
from standfast.cli.commands import log_as_python_does, on_temporal
from standfast.cli.health import health
from standfast.cli.logs import LEVELS, LogFormat, OfTheSDK, log_safely
from standfast.cli.outputs import Output
from standfast.cli.stores import store_option
from standfast.runtime.processes import until_stopped

if TYPE_CHECKING:
    from temporalio.client import Client

STORE = store_option("Store of sessions", "the application's own `store`, or standfast.db")


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
