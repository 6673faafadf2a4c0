"""An agent whose MCP server asks its model: `python -m support.mcp_sampling_program DIRECTORY SESSION [ADDRESS QUEUE]`.

With an address it is a worker, else a run in process, in the store of the directory. There `asked` gets a line for each
time the server has the model asked, which answers when there is a file `answer`; see `mcp_old_sampler.py` for `heard`
and `heard.hold`.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from temporalio.worker import Worker

from standfast import Agent, run, sqlite_store
from standfast.mcp import mcp_server
from standfast.temporal import StandfastPlugin, connect
from standfast.testing import ScriptedModel
from support.heartbeats import give_up_after
from support.transcripts import asks_for, call, says

SERVER = Path(__file__).with_name("mcp_old_sampler.py")


class Program:
    def __init__(self, directory: Path) -> None:
        self._directory, self.store = directory, sqlite_store(directory / "standfast.db")
        process = StdioServerParameters(command=sys.executable, args=[str(SERVER), str(directory / "heard")])
        self.agent = Agent("a", tools=[mcp_server(process, sampling=True, safe_to_retry={"think": True})])
        self.model = ScriptedModel(self._answer)

    async def _answer(self, messages: Any, tools: Any) -> Any:
        if tools:
            last = messages[-1]
            return says(last.content) if last.role == "tool" else asks_for(call("think", "c1", text="?"))
        with (self._directory / "asked").open("a") as file:
            file.write("asked\n")
        while not (self._directory / "answer").exists():
            await asyncio.sleep(0.05)
        return says("a thought", 100)


async def main(directory: str, session: str, address: str = "", queue: str = "") -> None:
    program = Program(Path(directory))
    if not address:
        is_new = await program.store.load_session(session) is None
        message = "go" if is_new else None
        ended = await run(program.agent, message=message, session_id=session, store=program.store, llm=program.model)
        used = None if ended.usage is None else ended.usage.total_tokens
        sys.stdout.write(f"{ended.status} {ended.response} {used}")
        return
    give_up_after(5)
    plugin = StandfastPlugin(agents=[program.agent], store=program.store, llm=lambda _: program.model)
    async with Worker(await connect(address), task_queue=queue, plugins=[plugin]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
