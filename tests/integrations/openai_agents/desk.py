"""An agent of the OpenAI Agents SDK that standfast runs; see `support.foreign_shops`."""

import json
from pathlib import Path
from typing import Any

from agents import Agent, FunctionTool, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from support.foreign_shops import charged, note, sell, stamped

from standfast.integrations.openai_agents import as_agent

set_tracing_disabled(True)


class Seller(Model):
    """Charges, stamps, and says what it has read of both."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def get_response(self, system_instructions: Any, *given: Any, **options: Any) -> ModelResponse:
        note(self._folder, "answers")
        items = given[0] if given else options["input"]
        read = [item["output"] for item in items if item.get("type") == "function_call_output"]
        steps = [function_call("charge", {"cents": 5}, call_id="c1"), function_call("stamp", {}, call_id="c2")]
        said = steps[len(read)] if len(read) < 2 else assistant_message(json.dumps(read))
        usage = Usage(requests=1, input_tokens=10, output_tokens=2, total_tokens=12)
        return ModelResponse(output=[said], usage=usage, response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def make(folder: Path) -> Any:
    async def charge(cents: int) -> str:
        """Charge a card."""
        return charged(folder, cents)

    async def stamp() -> str:
        """Stamp the receipt."""
        return stamped(folder)

    tools: list[FunctionTool] = [function_tool(charge), function_tool(stamp)]
    agent = Agent[Any]("desk", instructions="Sell.", tools=list(tools), model=Seller(folder))
    return as_agent(agent, safe_to_retry=["stamp"])


if __name__ == "__main__":
    sell(make)
