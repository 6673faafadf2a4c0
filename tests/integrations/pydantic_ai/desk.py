"""An agent of pydantic-ai that standfast runs; see `support.foreign_shops`."""

import json
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support.foreign_shops import charged, note, sell, stamped

from standfast.integrations.pydantic_ai import as_agent


def make(folder: Path) -> Any:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Charge, stamp, and say what was read of both."""
        note(folder, "answers")
        parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
        read = [part.content for part in parts if isinstance(part, ToolReturnPart)]
        steps = [ToolCallPart("charge", {"cents": 5}, tool_call_id="c1"), ToolCallPart("stamp", {}, tool_call_id="c2")]
        return ModelResponse([steps[len(read)] if len(read) < 2 else TextPart(json.dumps(read))])

    agent = Agent(FunctionModel(model), name="desk", instructions="Sell.", deps_type=Path)

    @agent.tool
    async def charge(ctx: RunContext[Path], cents: int) -> str:
        """Charge a card."""
        return charged(ctx.deps, cents)

    @agent.tool(metadata={"safe_to_retry": True})
    async def stamp(ctx: RunContext[Path]) -> str:
        """Stamp the receipt."""
        return stamped(ctx.deps)

    return as_agent(agent, deps=folder)


if __name__ == "__main__":
    sell(make)
