"""An agent of pydantic-ai that sells something: `shop FOLDER (bare | guarded) DEATHS [ADDRESS QUEUE (new | old)]`.

Without an address it runs in this process, and continues with the messages that an earlier one has kept. With one it is
a worker of Temporal, which starts the workflow, or joins it, and waits for its end.
"""

import asyncio
import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent, TemporalDurability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support.mortal_programs import charge_and_die
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from standfast import sqlite_store
from standfast.integrations.pydantic_ai import guarded
from standfast.temporal.client.connections import exit_cleanly

FOLDER, KIND, DEATHS, *ON_TEMPORAL = sys.argv[1:] if __name__ == "__main__" else ["", "bare", "0"]
ADDRESS, QUEUE, AGE = ON_TEMPORAL or ["", "", "new"]


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Charge, and say what was read of it."""
    read = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if read:
        return ModelResponse([TextPart(json.dumps(read[0].content))])
    return ModelResponse([ToolCallPart("charge", {"cents": 5}, tool_call_id="call_1")])


tools = FunctionToolset[None](id="tools")


@tools.tool_plain
async def charge(cents: int) -> dict[str, int]:
    return charge_and_die(FOLDER, int(DEATHS), cents)


quick = {"start_to_close_timeout": timedelta(seconds=3)}
durability = [TemporalDurability(activity_config=quick)] if AGE == "new" else []
agent: Any = Agent(FunctionModel(model), name="seller", toolsets=[tools], capabilities=durability)
if KIND == "guarded":
    guarded(agent, store=sqlite_store(Path(FOLDER, "store.db")))
if AGE == "old":
    with warnings.catch_warnings(action="ignore"):
        agent = TemporalAgent(agent, activity_config=quick)


@workflow.defn
class Purchase:
    @workflow.run
    async def run(self) -> str:
        result = await agent.run("Sell it.")
        return str(result.output)


async def here() -> str:
    kept = Path(FOLDER, "messages.json")
    history = ModelMessagesTypeAdapter.validate_json(kept.read_bytes()) if kept.exists() else None
    prompt = None if history else "Sell it."
    async with agent.iter(prompt, message_history=history, conversation_id="order-7") as run:
        async for node in run:
            if Agent.is_call_tools_node(node):  # before the tools run
                messages = [*run.all_messages()]
                assert isinstance(messages[0], ModelRequest)
                kept.write_bytes(ModelMessagesTypeAdapter.dump_json(messages))
    return str(run.result.output)


async def on_temporal() -> str:
    client = await Client.connect(ADDRESS, plugins=[PydanticAIPlugin()])
    async with Worker(client, task_queue=QUEUE, workflows=[Purchase], plugins=[AgentPlugin(agent)]):
        run = await client.start_workflow(
            Purchase.run, id=QUEUE, task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )
        return await run.result()


if __name__ == "__main__":
    exit_cleanly()
    sys.stdout.write(asyncio.run(on_temporal() if ADDRESS else here()))
