"""An agent of pydantic-ai whose MCP server ends the process behind a charge; see `support.foreign_shops`."""

import json
import sys
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from support import foreign_mcp_server
from support.foreign_shops import sell


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Charge, and say what was read."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    read = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    charge = ToolCallPart("charge", {"cents": 5}, tool_call_id="c1")
    return ModelResponse([TextPart(json.dumps(read)) if read else charge])


def make(folder: Path) -> Any:
    command = [str(Path(foreign_mcp_server.__file__)), str(folder), "kill"]
    return Agent(FunctionModel(model), name="desk", toolsets=[MCPToolset(StdioTransport(sys.executable, command))])


if __name__ == "__main__":
    sell(make)
