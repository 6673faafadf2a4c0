"""`standfast worker`: runs a worker of the agents and pipelines of a file."""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.applications import load_application
from standfast.cli.commands import SDK_LOG, on_temporal
from standfast.cli.outputs import Output, shown
from standfast.runtime.processes import until_stopped

if TYPE_CHECKING:
    from temporalio.client import Client

STORE = click.option(
    "--store",
    metavar="FILE",
    envvar="STANDFAST_STORE",
    help="SQLite store of sessions.  [env: STANDFAST_STORE; else the application's own `store`, or standfast.db]",
)
_STOPS = "temporalio.worker._worker"  # the log in which the SDK says that a worker stops


class _Safe(logging.Formatter):
    """Writes each message on one line, whatever models and servers have put into it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name in the base class
        record.message = shown(record.message.replace("\n", "\\n"))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return shown(super().formatException(ei))


def log_safely(which: logging.Filter) -> None:
    """Let this process write its log to standard error, as far as a filter allows."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Safe("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(which)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _OfTheSDK(logging.Filter):
    """Reports once a minute that the server does not answer; the SDK does so for each poller and attempt.

    The SDK's lines about a worker that stops are left out, since the command says so itself.
    """

    _told = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        from standfast.temporal.client.connections import reason_of

        if record.name == _STOPS and record.levelno == logging.INFO:
            return False
        if record.name != SDK_LOG or " retried " not in record.msg:
            return True
        if record.created < self._told + 60:
            return False
        self._told = record.created
        record.msg = f"The Temporal server does not answer: {reason_of(record.msg)}. It is asked until it does"
        return True


@click.command()
@click.argument("application", metavar="APP")
@STORE
@click.option("--task-queue", default="standfast", show_default=True, help="Queue that the worker serves.")
@click.option("--stream", is_flag=True, help="Ask models to stream, so that the page shows their words as they come.")
@on_temporal
async def worker(
    client: "Client", output: Output, application: str, store: str | None, task_queue: str, stream: bool
) -> None:
    """Run a worker of an application until Ctrl-C.

    APP is a file (app.py) or a module. The worker runs the agents and pipelines at the top of the module, which may
    also have a `store`, an `llm`, `tools` and `webhooks`, as StandfastPlugin takes them. Ctrl-C (or SIGTERM) lets it
    finish what runs; a second one does not wait.
    """
    from temporalio.worker import Worker

    from standfast.temporal import StandfastPlugin

    log_safely(_OfTheSDK())
    app = load_application(application, store)
    plugin = StandfastPlugin(
        agents=app.agents.values(),
        pipelines=app.pipelines.values(),
        store=app.store,
        llm=app.llm,
        tools=app.tools,
        webhooks=app.webhooks,
        stream=stream,
    )

    async def serve() -> None:
        await plugin.check_store()  # before it is reported as ready
        async with Worker(client, task_queue=task_queue, plugins=[plugin]):
            output.note(f"Worker of {', '.join([*app.agents, *app.pipelines])} on queue {task_queue} is ready")
            await asyncio.Event().wait()

    await until_stopped(
        serve(), lambda: output.note("Stopping; press Ctrl-C again to stop without waiting for what runs.")
    )
