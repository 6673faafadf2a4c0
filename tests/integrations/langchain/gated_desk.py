"""A graph of LangChain's whose calls wait for people, and that is killed; see `support.gated_runs`."""

import sqlite3
from typing import Any

from integrations.langchain.shop import ScriptedModel
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from support.gated_runs import Desk, play, running

from standfast import Approval, InterruptError
from standfast.integrations.langchain import as_agent


class Seller(ScriptedModel):
    desk: Any

    def _generate(self, messages: Any, *arguments: Any, **options: Any) -> ChatResult:
        calls = self.desk.answer([message.content for message in messages if isinstance(message, ToolMessage)])
        asked: Any = [{"id": id_, "name": name, "args": arguments} for id_, name, arguments in calls]
        said = AIMessage("" if asked else "sold", tool_calls=asked)
        return ChatResult(generations=[ChatGeneration(message=said)])


def make(desk: Desk) -> Any:
    @tool
    def charge(cents: int) -> str:
        """Charge the card."""
        return str(desk.charge(cents))

    @tool
    async def ask() -> str:
        """Ask which card to charge."""
        raise InterruptError("Which card?")

    saver = None
    if "with" in desk.folder.parts:
        saver = SqliteSaver(sqlite3.connect(desk.folder / "threads.db", check_same_thread=False))
    model = Seller(messages=iter(()), desk=desk)
    graph = create_agent(model, [charge, ask], checkpointer=saver, name="shop")
    return as_agent(graph, approval={"charge": Approval(message="Charge?")})


if __name__ == "__main__":
    play(running(make))
