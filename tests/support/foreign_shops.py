"""Programs in which an agent of another framework sells something, in this process or as a worker of Temporal.

`MODULE FOLDER` runs in process; `MODULE FOLDER ADDRESS QUEUE` is a worker that starts the run, or joins it. The process
dies behind the charge, which has effects, and once more behind the stamp, which is safe to repeat.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from temporalio.worker import Worker

from standfast import SessionConflictError, run, sqlite_store
from standfast.temporal import StandfastPlugin, connect, start_agent
from support.mortal_programs import charge_and_die


def charged(folder: Path, cents: int) -> str:
    """Charge a card; the process dies behind the first charge."""
    charge_and_die(str(folder), 1, cents)
    return f"charged {cents}"


def stamped(folder: Path) -> str:
    """Stamp the receipt; the process dies behind the first stamp."""
    note(folder, "stamps")
    if len(noted(folder, "stamps")) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "stamped"


def note(folder: Path, what: str, line: str = "") -> None:
    with (folder / what).open("a") as file:
        file.write(f"{line}\n")


def noted(folder: Path, what: str) -> list[str]:
    return (folder / what).read_text().splitlines() if (folder / what).exists() else []


async def _here(agent: Any, folder: Path) -> dict[str, Any]:
    async with sqlite_store(folder / "store.db") as store:
        message = None if (folder / "begun").exists() else "Sell it."
        (folder / "begun").touch()
        result = await run(agent, message=message, session_id="order-7", store=store)
        return {"status": result.status, "response": result.response}


async def _on_temporal(agent: Any, folder: Path, address: str, queue: str) -> dict[str, Any]:
    client, name = await connect(address), getattr(agent, "name", "")
    async with sqlite_store(folder / "store.db") as store:
        plugin = StandfastPlugin(agents=[agent], store=store)
        async with Worker(client, task_queue=queue, plugins=[plugin]):
            with contextlib.suppress(SessionConflictError):
                await start_agent(client, agent, message="Sell it.", session_id=queue, task_queue=queue)
            found: dict[str, Any] = await client.get_workflow_handle(f"{name}/{queue}").result()
            return found


def sell(make_agent: Any) -> None:
    """Run the program of a module whose function makes the agent for a folder."""
    folder, *on_temporal = sys.argv[1:]
    agent = make_agent(Path(folder))
    going = _on_temporal(agent, Path(folder), *on_temporal) if on_temporal else _here(agent, Path(folder))
    sys.stdout.write(json.dumps(asyncio.run(going)))
