"""An agent of the OpenAI Agents SDK whose MCP server ends the process behind a charge; see `support.foreign_shops`."""

import sys
from pathlib import Path
from typing import Any

from agents import Agent, set_tracing_disabled
from agents.items import ModelResponse
from agents.mcp import MCPServerStdio
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from support import foreign_mcp_server
from support.foreign_shops import sell

set_tracing_disabled(True)


class Seller(Model):
    """Charges, and says what it has read."""

    async def get_response(self, system_instructions: Any, *given: Any, **options: Any) -> ModelResponse:
        items = given[0] if given else options["input"]
        read = [item["output"] for item in items if item.get("type") == "function_call_output"]
        said = assistant_message(read[0]) if read else function_call("charge", {"cents": 5}, call_id="c1")
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def make(folder: Path) -> Any:
    command = [str(Path(foreign_mcp_server.__file__)), str(folder), "kill"]
    server = MCPServerStdio({"command": sys.executable, "args": command}, name="till")
    return Agent[Any]("desk", mcp_servers=[server], model=Seller())


if __name__ == "__main__":
    sell(make)
