"""An agent of Microsoft's framework whose tool dies behind its charge: `shop FOLDER (bare | guarded) DEATHS`.

It asks for an approval, and keeps its session and the question in a file. The next process approves, and
prints what the model has read.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)
from support.mortal_programs import charge_and_die

from standfast import sqlite_store
from standfast.integrations.agent_framework import AtMostOnce

Answer = str | tuple[str, dict[str, Any], str]


class ScriptedClient(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """Answers with texts, and with calls: a name, arguments and an id."""

    def __init__(self, *script: Answer) -> None:
        super().__init__()
        self.script = list(script)

    def _inner_get_response(self, **given: Any) -> Any:
        async def answer() -> ChatResponse:
            said = self.script.pop(0)
            if isinstance(said, str):
                return ChatResponse(messages=[Message("assistant", [said])])
            name, arguments, call_id = said
            call = Content.from_function_call(call_id, name, arguments=arguments)
            return ChatResponse(messages=[Message("assistant", [call])])

        return answer()


def seller(script: list[Answer], function: Callable[[int], Any], *middleware: Any, **options: Any) -> Any:
    @tool(name="charge", **options)
    def charge(cents: int) -> Any:
        """Charge the card."""
        return function(cents)

    return Agent(client=ScriptedClient(*script), tools=[charge], middleware=[*middleware])


def results(response: Any) -> list[Content]:
    """Return what the model has read of its calls."""
    return [part for message in response.messages for part in message.contents if part.type == "function_result"]


async def main(folder: Path, kind: str, deaths: int) -> None:
    guards = [AtMostOnce(sqlite_store(folder / "effects.db"))] if kind == "guarded" else []

    def charge(cents: int) -> str:
        charge_and_die(str(folder), deaths, cents)
        return f"charged {cents}"

    agent = seller([("charge", {"cents": 5}, "call_1")], charge, *guards, approval_mode="always_require")
    waits = folder / "waits.json"
    if not waits.exists():
        session = AgentSession(session_id="order-7")
        [asked] = (await agent.run("Charge it.", session=session)).user_input_requests
        waits.write_text(json.dumps({"session": session.to_dict(), "asked": asked.to_dict()}))
    kept = json.loads(waits.read_text())
    approved = Content.from_dict(kept["asked"]).to_function_approval_response(approved=True)
    agent.client.script = ["done"]
    response = await agent.run(Message("user", [approved]), session=AgentSession.from_dict(kept["session"]))
    [read] = results(response)
    print(json.dumps({"read": read.result, "said": response.text}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
