"""A graph of LangChain's that standfast runs, with a checkpointer or without; see `support.foreign_shops`."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from integrations.langchain.shop import ScriptedModel
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from support.foreign_shops import charged, note, sell, stamped


class Seller(ScriptedModel):
    """Makes two calls, and says what it has read of both."""

    folder: Path
    calls: Any = (("charge", {"cents": 5}), ("stamp", {}))

    def _generate(self, messages: Any, *arguments: Any, **options: Any) -> ChatResult:
        note(self.folder, "answers")
        read = [message.content for message in messages if isinstance(message, ToolMessage)]
        used: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        if len(read) < 2:
            name, arguments_ = self.calls[len(read)]
            asked: Any = [{"id": f"c{len(read)}", "name": name, "args": arguments_}]
            said = AIMessage("", tool_calls=asked, usage_metadata=used)
        else:
            said = AIMessage(json.dumps(read), usage_metadata=used)
        return ChatResult(generations=[ChatGeneration(message=said)])


def make(folder: Path) -> Any:
    @tool
    def charge(cents: int) -> str:
        """Charge the card."""
        return charged(folder, cents)

    @tool
    async def stamp() -> str:
        """Stamp the receipt."""
        return stamped(folder)

    stamp.metadata = {"safe_to_retry": True}
    model = Seller(messages=iter(()), folder=folder)
    return create_agent(model, [charge, stamp], checkpointer=saver_of(folder), name="desk")


def saver_of(folder: Path) -> Any:
    if "without" in folder.name:
        return None
    return SqliteSaver(sqlite3.connect(folder / "threads.db", check_same_thread=False))


if __name__ == "__main__":
    sell(make)
