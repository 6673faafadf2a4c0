"""A worker of Temporal with a graph of LangGraph's, whose tool dies behind its charge.

`on_temporal FOLDER (bare | guarded) DEATHS ADDRESS QUEUE` starts the workflow, or joins it, and prints what the model
has read.
"""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from integrations.langchain.shop import asks, charging
from langchain_core.messages import AIMessage, ToolMessage, convert_to_messages
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.langgraph import LangGraphPlugin, graph
from temporalio.worker import Worker

from standfast import sqlite_store
from standfast.integrations.langchain import AtMostOnce
from standfast.temporal.client.connections import exit_cleanly


async def model(state: MessagesState) -> dict[str, Any]:
    read = isinstance(convert_to_messages(state["messages"])[-1], ToolMessage)
    return {"messages": [AIMessage("done") if read else asks("charge", cents=5)]}


async def after_model(state: MessagesState) -> str:
    """Say what comes next: in a workflow, LangGraph's own `tools_condition` would need a thread."""
    return tools_condition(state)


class Shop:
    """A graph whose nodes are activities, with one tool."""

    def __init__(self, folder: Path, kind: str, deaths: int) -> None:
        guard = AtMostOnce(sqlite_store(folder / "effects.db"))
        wraps: Any = {"wrap_tool_call": guard.wrap_tool_call, "awrap_tool_call": guard.awrap_tool_call}
        self.node = ToolNode([charging(folder, deaths)], **(wraps if kind == "guarded" else {}))

    async def tools(self, state: MessagesState) -> Any:
        return await self.node.ainvoke({"messages": convert_to_messages(state["messages"])})  # they come as JSON

    def graph(self) -> StateGraph[Any, Any, Any, Any]:
        quick = {"execute_in": "activity", "start_to_close_timeout": timedelta(seconds=3)}
        built: Any = StateGraph(MessagesState).add_node("model", model, metadata=quick)
        built.add_node("tools", self.tools, metadata=quick).add_edge(START, "model").add_edge("tools", "model")
        built.add_conditional_edges("model", after_model)
        return built


@workflow.defn(sandboxed=False)
class Purchase:
    @workflow.run
    async def run(self) -> dict[str, str]:
        state = await graph("shop").compile().ainvoke({"messages": [("user", "Charge it.")]})
        [read] = [message for message in state["messages"] if isinstance(message, ToolMessage)]
        return {"read": str(read.content), "said": str(state["messages"][-1].content)}


async def main(folder: str, kind: str, deaths: str, address: str, queue: str) -> None:
    plugin = LangGraphPlugin(graphs={"shop": Shop(Path(folder), kind, int(deaths)).graph()})
    client = await Client.connect(address, plugins=[plugin])
    async with Worker(client, task_queue=queue, workflows=[Purchase]):
        run = await client.start_workflow(
            Purchase.run, id=queue, task_queue=queue, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )
        print(json.dumps(await run.result()))


if __name__ == "__main__":
    from integrations.langchain import on_temporal  # the plugin needs the name of the module that nodes are in

    exit_cleanly()
    asyncio.run(on_temporal.main(*sys.argv[1:]))
