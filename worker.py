"""The application's worker process: connects and runs the agents and pipelines. It contains no logic.

    python worker.py

Reads TEMPORAL_* (address, namespace, TLS, profile) like the `temporal` command, STANDFAST_STORE for the database of
sessions, STANDFAST_TASK_QUEUE, and the settings of the tools in `activities`.
"""

import asyncio
import logging
import os
import signal
import sys

from temporalio.worker import Worker

from standfast import StandfastError
from standfast.stores import open_store
from standfast.temporal import StandfastPlugin, connect
from workflows import AGENTS, PIPELINES
from workflows.models import choose_model


async def main() -> None:
    """Run until SIGTERM or SIGINT, then finish the running activities."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log the addresses of webhooks, which are secrets
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    client = await connect()
    store = open_store(os.environ.get("STANDFAST_STORE", "standfast.db"))
    async with choose_model() as llm:
        plugin = StandfastPlugin(agents=AGENTS, pipelines=PIPELINES, store=store, llm=llm)
        queue = os.environ.get("STANDFAST_TASK_QUEUE", "standfast")
        async with store, Worker(client, task_queue=queue, plugins=[plugin]):
            logging.info("Worker of %s on queue %s is ready", ", ".join(agent.name for agent in AGENTS), queue)
            await stop.wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except StandfastError as error:  # before the worker took any run
        sys.exit(f"Error: {error}")
