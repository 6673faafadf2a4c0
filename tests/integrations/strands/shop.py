"""A Strands agent whose tool dies behind its charge: `shop FOLDER (bare | guarded) DEATHS`.

Started again, it continues from its session without a prompt, and prints what the model has read.
"""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager
from support.mortal_programs import charge_and_die

from standfast import sqlite_store
from standfast.integrations.strands import AtMostOnce


class ScriptedModel(Model):
    """Answers with texts, and with calls: a name, arguments and an id."""

    def __init__(self, *script: str | tuple[str, dict[str, Any], str]) -> None:
        self.script = list(script)

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def stream(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        answer = self.script.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(answer, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer}}}
        else:
            name, arguments, call_id = answer
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": call_id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(answer, str) else "tool_use"}}


def results(agent: Agent) -> list[dict[str, Any]]:
    """Return what the model has read of its calls."""
    blocks = [block for message in agent.messages for block in message["content"]]
    return [dict(block["toolResult"]) for block in blocks if "toolResult" in block]


def main(folder: Path, kind: str, deaths: int) -> None:
    begun = (folder / "begun").exists()
    (folder / "begun").touch()

    @tool
    def charge(cents: int) -> str:
        """Charge the card."""
        charge_and_die(str(folder), deaths, cents)
        return f"charged {cents}"

    agent = Agent(
        model=ScriptedModel("done") if begun else ScriptedModel(("charge", {"cents": 5}, "call_1"), "done"),
        tools=[charge],
        plugins=[AtMostOnce(sqlite_store(folder / "effects.db"))] if kind == "guarded" else [],
        session_manager=FileSessionManager("order-7", str(folder)),
        callback_handler=None,
    )
    said = agent(None if begun else "Charge it.")
    [read] = results(agent)
    print(json.dumps({"read": read["content"][0]["text"], "status": read["status"], "said": str(said).strip()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
