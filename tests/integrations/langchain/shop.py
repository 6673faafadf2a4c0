"""An agent of LangChain whose tool dies behind its charge: `shop FOLDER (bare | guarded) (async | plain) DEATHS`.

Started again, it resumes its
thread from LangGraph's checkpoint, as LangGraph's documents say, and prints what the model has read.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from support.mortal_programs import charge_and_die

from standfast import sqlite_store
from standfast.integrations.langchain import AtMostOnce

CONFIG: Any = {"configurable": {"thread_id": "order-7"}}


class ScriptedModel(GenericFakeChatModel):
    """LangChain's own test model, which `create_agent` can give tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def asks(name: str, *, id: str = "call_0", **arguments: Any) -> AIMessage:  # noqa: A002
    return AIMessage("", tool_calls=[{"id": id, "name": name, "args": arguments}])


def charging(folder: Path, deaths: int) -> BaseTool:
    @tool
    def charge(cents: int) -> str:
        """Charge the card."""
        charge_and_die(str(folder), deaths, cents)
        return f"charged {cents}"

    return charge


def main(folder: Path, kind: str, way: str, deaths: int) -> None:
    guards = [AtMostOnce(sqlite_store(folder / "effects.db"))] if kind == "guarded" else []
    begun = folder / "begun"
    script = [AIMessage("done")] if begun.exists() else [asks("charge", cents=5), AIMessage("done")]
    given = None if begun.exists() else {"messages": [HumanMessage("Charge it.")]}
    begun.touch()

    def agent(saver: Any) -> Any:
        return create_agent(
            ScriptedModel(messages=iter(script)), [charging(folder, deaths)], middleware=guards, checkpointer=saver
        )

    async def run() -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as saver:
            return await agent(saver).ainvoke(given, CONFIG, durability="sync")

    if way == "async":
        state = asyncio.run(run())
    else:
        with SqliteSaver.from_conn_string(str(folder / "threads.db")) as saver:
            state = agent(saver).invoke(given, CONFIG, durability="sync")
    [read] = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    print(json.dumps({"read": read.content, "status": read.status, "said": state["messages"][-1].content}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
