"""An agent that writes notes, and the messages of its transcripts."""

from typing import Any

from standfast import Agent, Message, ToolCall, tool
from support.transcripts import call


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str = "", *calls: ToolCall) -> Message:
    return Message(role="assistant", content=text, tool_calls=calls or None)


def note(text: str) -> ToolCall:
    return call("note", f"c{text}", text=text)


def noted(text: str, **fields: Any) -> Message:
    return Message(role="tool", content=text, tool_call_id=f"c{text}", tool_name="note", **fields)


class Notebook:
    """An agent with a tool, and what the tool was called with."""

    def __init__(self, **options: Any) -> None:
        self.texts: list[str] = []

        @tool(name="note")
        async def write(text: str) -> str:
            self.texts.append(text)
            return text

        self.agent = Agent("notebook", tools=[write], **options)
