"""A graph of two steps without tools, whose process dies in the second; see `support.foreign_shops`."""

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from support.foreign_shops import note, noted, sell


def make(folder: Path) -> Any:
    async def draft(state: MessagesState) -> Any:
        note(folder, "drafts")
        return {"messages": [AIMessage("a draft")]}

    async def review(state: MessagesState) -> Any:
        note(folder, "reviews")
        if len(noted(folder, "reviews")) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"messages": [AIMessage(f"reviewed: {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("draft", draft)
    builder.add_node("review", review)
    builder.add_edge(START, "draft")
    builder.add_edge("draft", "review")
    saver = SqliteSaver(sqlite3.connect(folder / "threads.db", check_same_thread=False))
    return builder.compile(checkpointer=saver, name="writer")


if __name__ == "__main__":
    sell(make)
