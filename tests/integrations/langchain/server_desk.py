"""A graph of LangChain's whose tools are an MCP server's, which ends this process; see `support.foreign_shops`.

With `bare` after the folder, LangGraph runs the graph alone, and resumes its thread when it is started again.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from integrations.langchain.desk import Seller, saver_of
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from support import foreign_mcp_server
from support.foreign_shops import note, noted, sell

from standfast.integrations.langchain import as_agent

CALLS = (("charge", {"cents": 5}), ("price", {}))


def connection(folder: Path, *modes: str) -> Any:
    """Return how to reach a folder's server: by HTTP if there is one, or else one that each call starts."""
    if port := noted(folder, "port"):
        return {"transport": "streamable_http", "url": f"http://127.0.0.1:{port[0]}/mcp"}
    command = [str(Path(foreign_mcp_server.__file__)), str(folder), *modes]
    return {"transport": "stdio", "command": sys.executable, "args": command}


def graph_of(folder: Path, saver: Any) -> Any:
    note(folder, "users", str(os.getpid()))
    tools = asyncio.run(MultiServerMCPClient({"till": connection(folder, "kill")}).get_tools())
    model = Seller(messages=iter(()), folder=folder, calls=CALLS)
    return create_agent(model, tools, checkpointer=saver, name="desk")


def make(folder: Path) -> Any:
    return as_agent(graph_of(folder, saver_of(folder)), safe_to_retry=["price"])


async def bare(folder: Path, graph: Any) -> Any:
    async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.db")) as saver:
        graph.checkpointer = saver
        given = None if noted(folder, "begun") else {"messages": [HumanMessage("Sell it.")]}
        note(folder, "begun")
        state = await graph.ainvoke(given, {"configurable": {"thread_id": "order-7"}}, durability="sync")
        return {"response": state["messages"][-1].content}


if __name__ == "__main__":
    if sys.argv[2:] == ["bare"]:
        sys.stdout.write(json.dumps(asyncio.run(bare(Path(sys.argv[1]), graph_of(Path(sys.argv[1]), None)))))
    else:
        sell(make)
