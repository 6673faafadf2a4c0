"""An agent of the OpenAI Agents SDK that sells something: `shop FOLDER (bare | guarded) DEATHS [ADDRESS QUEUE]`.

Without an address it runs in this process: the state of the run that waits for an approval is in a file, and the next
process continues it and approves. With one it is a Temporal worker, which starts the workflow, or joins it, and waits
for its end.
"""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from agents import Agent, FunctionTool, RunConfig, Runner, RunState, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from support.mortal_programs import charge_and_die
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.testing import TestModelProvider
from temporalio.openai_agents.workflow import activity_as_tool
from temporalio.worker import Worker

from standfast import sqlite_store
from standfast.integrations.openai_agents import guarded, guarded_activity
from standfast.temporal.client.connections import exit_cleanly

FOLDER, KIND, DEATHS, *ON_TEMPORAL = sys.argv[1:] if __name__ == "__main__" else [".", "bare", "0"]
ADDRESS, QUEUE = ON_TEMPORAL or ["", ""]


class Seller(Model):
    """Calls the tool, and says what it read of it."""

    async def get_response(self, system_instructions: Any, *given: Any, **options: Any) -> ModelResponse:
        items = given[0] if given else options["input"]
        read = [item for item in items if isinstance(item, dict) and item.get("type") == "function_call_output"]
        call = function_call("charge", {"cents": 5}, call_id="call_1")
        said = assistant_message(read[-1]["output"]) if read else call
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


async def charge(cents: int) -> dict[str, int]:
    """Charge a card."""
    return charge_and_die(FOLDER, int(DEATHS), cents)


if KIND == "guarded":
    store = sqlite_store(Path(FOLDER, "store.db"))
    in_activity: Any = activity.defn(guarded_activity(store)(charge))
else:
    in_activity = activity.defn(charge)


@workflow.defn(sandboxed=False)
class Purchase:
    @workflow.run
    async def run(self) -> str:
        tool = activity_as_tool(in_activity, start_to_close_timeout=timedelta(seconds=3))
        result = await Runner.run(Agent("seller", tools=[tool]), "Sell it.")
        return str(result.final_output)


async def here() -> str:
    set_tracing_disabled(True)
    tool: FunctionTool = function_tool(needs_approval=True)(charge)
    agent = Agent[Any]("seller", tools=[tool], model=Seller())
    if KIND == "guarded":
        guarded(agent, store=store, key=lambda call: f"order-7/{call.tool_call_id}")
    waits = Path(FOLDER, "state.json")
    if not waits.exists():
        asked = await Runner.run(agent, "Sell it.")
        waits.write_text(asked.to_state().to_string())
    state: Any = await RunState.from_string(agent, waits.read_text())
    for question in state.get_interruptions():
        state.approve(question)
    return str((await Runner.run(agent, state, run_config=RunConfig(tracing_disabled=True))).final_output)


async def on_temporal() -> str:
    quick = ModelActivityParameters(start_to_close_timeout=timedelta(seconds=10))
    plugin = OpenAIAgentsPlugin(model_params=quick, model_provider=TestModelProvider(Seller()))
    client = await Client.connect(ADDRESS, plugins=[plugin])
    async with Worker(client, task_queue=QUEUE, workflows=[Purchase], activities=[in_activity]):
        run = await client.start_workflow(
            Purchase.run, id=QUEUE, task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )
        return await run.result()


if __name__ == "__main__":
    exit_cleanly()
    sys.stdout.write(json.dumps(asyncio.run(on_temporal() if ADDRESS else here())))
