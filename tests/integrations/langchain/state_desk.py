"""A graph of LangChain's whose tools read and change its state, and whose process dies; see `support.foreign_shops`.

It dies behind the charge, behind the stamp, and once more when the stamp's change is kept, before the graph continues.
"""

import os
import signal
from pathlib import Path
from typing import Annotated, Any

from integrations.langchain.desk import Seller, saver_of
from langchain.agents import create_agent
from langchain.agents.middleware import AgentState
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId
from langgraph.prebuilt import InjectedState
from langgraph.types import Command
from support.foreign_shops import charged, note, noted, sell, stamped


class Till(AgentState[Any]):
    total: int
    stamps: int


class Dying(Seller):
    """Dies when it is asked the third time, before it answers."""

    def _generate(self, messages: Any, *arguments: Any, **options: Any) -> Any:
        if len(noted(self.folder, "answers")) == 2 and not noted(self.folder, "died"):
            note(self.folder, "died")
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._generate(messages, *arguments, **options)


def make(folder: Path) -> Any:
    @tool
    def charge(cents: int, call: Annotated[str, InjectedToolCallId], state: Annotated[Any, InjectedState]) -> Any:
        """Charge the card."""
        said = ToolMessage(charged(folder, cents), tool_call_id=call)
        return Command(update={"total": state.get("total", 0) + cents, "messages": [said]})

    @tool
    async def stamp(runtime: ToolRuntime[Any, Any]) -> Any:
        """Stamp the receipt."""
        said = ToolMessage(stamped(folder), tool_call_id=runtime.tool_call_id)
        return Command(update={"stamps": runtime.state.get("stamps", 0) + 1, "messages": [said]})

    stamp.metadata = {"safe_to_retry": True}
    model = Dying(messages=iter(()), folder=folder)
    return create_agent(model, [charge, stamp], checkpointer=saver_of(folder), state_schema=Till, name="desk")


if __name__ == "__main__":
    sell(make)
