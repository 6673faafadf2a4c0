"""A worker of Temporal with a Strands agent, whose tool is an activity that dies behind its charge.

`on_temporal FOLDER (bare | guarded) DEATHS ADDRESS QUEUE` starts the workflow, or joins it, and prints what the model
has read.
"""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from integrations.strands.shop import ScriptedModel, results
from support.mortal_programs import charge_and_die
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.strands_agents import StrandsPlugin, TemporalAgent
from temporalio.strands_agents.workflow import activity_as_tool
from temporalio.worker import Worker

from standfast import sqlite_store
from standfast.effects import effect
from standfast.temporal.client.connections import exit_cleanly

FOLDER, KIND, DEATHS, ADDRESS, QUEUE = sys.argv[1:] if __name__ == "__main__" else [".", "bare", "0", "", ""]


class Seller(ScriptedModel):
    """Calls the tool, and says that it is done when it has read of it."""

    async def stream(self, messages: Any, *given: Any, **options: Any) -> Any:
        self.script = ["done"] if len(messages) > 1 else [("charge", {"cents": 5}, "call_1")]
        async for event in super().stream(messages, *given, **options):
            yield event


async def charge(cents: int) -> str:
    """Charge the card."""
    charge_and_die(FOLDER, int(DEATHS), cents)
    return f"charged {cents}"


if KIND == "guarded":
    charge = effect(sqlite_store(Path(FOLDER, "effects.db")), on_unknown="return")(charge)
charge = activity.defn(charge)


@workflow.defn(sandboxed=False)
class Purchase:
    def __init__(self) -> None:
        tool = activity_as_tool(charge, start_to_close_timeout=timedelta(seconds=3))
        self.agent = TemporalAgent(
            model="scripted", tools=[tool], start_to_close_timeout=timedelta(seconds=10), callback_handler=None
        )

    @workflow.run
    async def run(self) -> dict[str, str]:
        said = await self.agent.invoke_async("Charge it.")
        [read] = results(self.agent)
        return {"read": read["content"][0]["text"], "said": str(said).strip()}


async def main() -> None:
    plugin = StrandsPlugin(models={"scripted": Seller})
    client = await Client.connect(ADDRESS, plugins=[plugin])
    async with Worker(client, task_queue=QUEUE, workflows=[Purchase], activities=[charge]):
        run = await client.start_workflow(
            Purchase.run, id=QUEUE, task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )
        print(json.dumps(await run.result()))


if __name__ == "__main__":
    exit_cleanly()
    asyncio.run(main())
