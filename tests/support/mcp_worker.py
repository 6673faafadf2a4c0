"""A worker with an MCP server: `python -m support.mcp_worker ADDRESS QUEUE STORE (safe | effects) (URL | FILE)`.

With a FILE it starts the server of `mcp_server.py` itself, which writes there.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from temporalio.worker import Worker

from standfast import Agent
from standfast.mcp import mcp_server
from standfast.stores import open_store
from standfast.temporal import StandfastPlugin, connect
from standfast.testing import ScriptedModel
from support.heartbeats import give_up_after
from support.transcripts import asks_for, call

ADDRESS, QUEUE, STORE, KIND, WHERE = sys.argv[1:6] if __name__ == "__main__" else [""] * 5
SERVER = Path(__file__).with_name("mcp_server.py")


def answer(messages: Any, tools: Any) -> Any:
    last = messages[-1]
    return last.content if last.role == "tool" else asks_for(call("linger", "c1", text="hi"))


async def main() -> None:
    give_up_after(5)
    process = StdioServerParameters(command=sys.executable, args=[str(SERVER), WHERE])
    server = mcp_server(WHERE if "://" in WHERE else process, safe_to_retry={"linger": KIND == "safe"})
    plugin = StandfastPlugin(
        agents=[Agent("a", tools=[server])], store=open_store(STORE), llm=lambda _: ScriptedModel(answer)
    )
    async with Worker(await connect(ADDRESS), task_queue=QUEUE, plugins=[plugin]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
