"""Asks people here about OpenAI's calls of MCP servers that it hosts; internal."""

import json
from collections.abc import Mapping
from inspect import isawaitable
from typing import Any

from agents import HostedMCPTool, MCPToolApprovalRequest, RunContextWrapper
from openai.types.responses.response_output_item import McpApprovalRequest

from standfast.integrations._foreign_agents import valued
from standfast.messages import JSONObject
from standfast.messages import ToolCall as OurCall
from standfast.tools import Approval, ToolContext

HOSTED = "hosted_mcp_call"  # represents OpenAI's call of a server's tool, once it is approved
HOSTED_TEXT = "A call of an MCP server that OpenAI makes, once it is approved."
HOSTED_SCHEMA = {
    "properties": {"server": {"type": "string"}, "name": {"type": "string"}, "arguments": {}},
    "required": ["server", "name", "arguments"],
}


class HostedReview:
    """Decides on the calls of servers that OpenAI hosts, by the user's function or by asking people."""

    def __init__(self, tools: Mapping[str | None, HostedMCPTool], context: Any) -> None:
        self._tools, self._context = tools, context

    def gate(self, call: OurCall) -> Approval | None:
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        server, name = arguments.get("server"), arguments.get("name")
        return Approval(message=f"Run {name} of {server}?") if self._asked(server) is None else None

    def _asked(self, server: Any) -> Any:
        return self._tools[server].on_approval_request if server in self._tools else None

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        ask = self._asked(arguments["server"])
        if ask is None:
            return {"approve": True}  # the gate has approved it
        request = McpApprovalRequest(
            type="mcp_approval_request",
            id=ctx.tool_call_id,
            name=arguments["name"],
            server_label=arguments["server"],
            arguments=json.dumps(arguments["arguments"]),
        )
        said: Any = ask(MCPToolApprovalRequest(RunContextWrapper(valued(self._context, ctx)), request))
        return dict(await said if isawaitable(said) else said)
