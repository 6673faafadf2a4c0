"""Declares OpenAI Agents SDK agents, tools and handoffs as standfast's own, and runs their calls; internal.

People are asked here about OpenAI's calls of MCP servers that it hosts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    MCPToolApprovalRequest,
    RunConfig,
    RunContextWrapper,
    WebSearchTool,
    function_span,
    handoff,
    trace,
)
from agents.tool import invoke_function_tool, resolve_function_tool_failure_error_function
from agents.tool_context import ToolContext as TheirToolContext
from agents.tool_guardrails import ToolInputGuardrailData, ToolOutputGuardrailData
from agents.tracing import FunctionSpanData
from openai.types.responses import ResponseFunctionToolCall
from openai.types.responses.response_output_item import McpApprovalRequest

from standfast.errors import DefinitionError, TerminalError
from standfast.integrations._foreign_agents import Declared, Gate, valued
from standfast.integrations._guards import has_guard
from standfast.messages import JSONObject
from standfast.messages import ToolCall as OurCall
from standfast.tools import Approval, ToolContext
from standfast.tools.open_errors import leaves_open

_HOSTED = (WebSearchTool, FileSearchTool, CodeInterpreterTool, ImageGenerationTool)

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


def agents_of(root: Agent[Any]) -> dict[str, Agent[Any]]:
    """Return an agent and the agents that it may hand over to, by name.

    Raises:
        DefinitionError: one of them cannot be run.
    """
    found: dict[str, Agent[Any]] = {}
    waiting = [root]
    while waiting:
        agent = waiting.pop(0)
        if not isinstance(agent, Agent):
            raise DefinitionError(f"Of the OpenAI Agents SDK only an Agent can be run, got {type(agent).__name__}")
        if found.setdefault(agent.name, agent) is not agent:
            raise DefinitionError(f"Two agents that hand over to each other are named {agent.name!r}")
        if found[agent.name] is agent and agent not in waiting:
            others = [_target(agent, one) for one in agent.handoffs]
            waiting += [one for one in others if one.name not in found or found[one.name] is not one]
    return found


def handoffs_of(agent: Agent[Any]) -> list[tuple[Any, Handoff[Any, Any]]]:
    """Return an agent's declared handoffs, and the handoffs."""
    return [(one, one if isinstance(one, Handoff) else handoff(one)) for one in agent.handoffs]


def _target(agent: Agent[Any], given: Any) -> Any:
    if not isinstance(given, Handoff):
        return given
    what = f"Agent '{agent.name}', handoff '{given.tool_name}'"
    if given.input_filter is not None or given.nest_handoff_history:
        raise DefinitionError(f"{what}: input_filter and nest_handoff_history change the conversation, which is kept")
    target = None if given._agent_ref is None else given._agent_ref()
    if target is None:
        raise DefinitionError(f"{what}: it does not say to which agent; make it with handoff(…)")
    return target


@dataclass(frozen=True)
class RunSettings:
    """The user's settings for the SDK's runs: the context, as a value or a function, and the configuration."""

    context: Any
    config: RunConfig

    @contextmanager
    def traced(self, ctx: ToolContext, name: str, arguments: str) -> Iterator[FunctionSpanData]:
        """Trace a tool's call in the group of its run, as the SDK's runner does."""
        config = self.config
        with (
            trace(
                config.workflow_name,
                group_id=config.group_id or ctx.agent_id,
                metadata=config.trace_metadata,
                tracing=config.tracing,
                disabled=config.tracing_disabled,
            ),
            function_span(name, arguments if config.trace_include_sensitive_data else None) as span,
        ):
            yield span.span_data


def declare(agents: Mapping[str, Agent[Any]], declared: Declared, settings: RunSettings) -> None:
    """Declare the tools and handoffs of all agents.

    Raises:
        DefinitionError: naming an agent's tool that cannot be run.
    """
    hosted = list[HostedMCPTool]()
    for agent in agents.values():
        for tool in agent.tools:
            if isinstance(tool, FunctionTool):
                call = FunctionCall(agent, tool, settings, is_safe=declared.is_safe(tool.name))
                declared.add(
                    tool,
                    tool.name,
                    tool.description,
                    tool.params_json_schema,
                    call.run,
                    approval=gate_of(tool),
                    timeout=_time_of(tool),
                    has_guard=has_guard(tool, tool.on_invoke_tool),
                )
            elif isinstance(tool, HostedMCPTool):
                hosted.append(tool)
            elif not isinstance(tool, _HOSTED):
                raise DefinitionError(
                    f"Agent '{agent.name}': {type(tool).__name__} runs beside the model's call, where it cannot be "
                    "guarded; use function tools or tools that OpenAI hosts"
                )
        for given, one in handoffs_of(agent):
            declared.add(
                _target(agent, given),
                one.tool_name,
                one.tool_description,
                one.input_json_schema,
                _HandoffCall(one, settings.context).run,
                safe=given is not one,  # a Handoff may call a function
            )
    if hosted:
        review = HostedReview({one.tool_config.get("server_label"): one for one in hosted}, settings.context)
        declared.add(hosted, HOSTED, HOSTED_TEXT, HOSTED_SCHEMA, review.run, approval=review.gate, safe=True)


def _time_of(tool: FunctionTool) -> float | None:
    """Return the time limit of a call: above the SDK's, so that the SDK reports the timeout."""
    return None if tool.timeout_seconds is None else tool.timeout_seconds + 5


def gate_of(tool: FunctionTool) -> Gate | None:
    """Return the gate of a tool that needs approval. A function that cannot decide at once asks people."""
    needs, gate = tool.needs_approval, Approval(message=f"Run {tool.name}?")
    if not callable(needs):
        return gate if needs else None

    def ask(call: OurCall) -> Approval | None:
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        asking: Any = needs(RunContextWrapper(context=None), arguments, call.id)
        try:
            asking.send(None)
        except StopIteration as ended:
            return gate if ended.value else None
        except Exception:  # it needs the context, for example
            return gate
        asking.close()
        return gate

    return ask


class FunctionCall:
    """Runs the calls of a function tool as the SDK's runner does, with its guardrails and the agent's hooks.

    Args:
        is_safe: its timeout is then a result, unless the tool says otherwise; if not, the outcome is unknown.
    """

    def __init__(self, agent: Agent[Any], tool: FunctionTool, settings: RunSettings, *, is_safe: bool) -> None:
        tool = raising(tool)
        self._tool = tool if is_safe else replace(tool, timeout_behavior="raise_exception")
        self._agent, self._settings = agent, settings

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        written = json.dumps(arguments)
        with self._settings.traced(ctx, self._tool.name, written) as span:
            result = await self._run(written, ctx)
            if self._settings.config.trace_include_sensitive_data:
                span.output = result
        return written_result(result)

    async def _run(self, written: str, ctx: ToolContext) -> Any:
        tool, agent = self._tool, self._agent
        call = ResponseFunctionToolCall(
            type="function_call", call_id=ctx.tool_call_id, name=tool.name, arguments=written
        )
        context = TheirToolContext(
            valued(self._settings.context, ctx),
            tool_name=tool.name,
            tool_call_id=ctx.tool_call_id,
            tool_arguments=written,
            tool_call=call,
            agent=agent,
        )
        for before in tool.tool_input_guardrails or ():
            checked = await before.run(ToolInputGuardrailData(context=context, agent=agent))
            if (said := _said(before.get_name(), checked)) is not None:
                return said
        if agent.hooks is not None:
            await agent.hooks.on_tool_start(context, agent, tool)
        result = await invoke_function_tool(function_tool=tool, context=context, arguments=written)
        for after in tool.tool_output_guardrails or ():
            checked = await after.run(ToolOutputGuardrailData(context=context, agent=agent, output=result))
            if (said := _said(after.get_name(), checked)) is not None:
                result = said
                break
        if agent.hooks is not None:
            await agent.hooks.on_tool_end(context, agent, tool, result)
        return result


def raising(tool: FunctionTool, invoke: Any = None) -> FunctionTool:
    """Return a copy of a tool that raises errors which leave its outcome open.

    The SDK turns an error into a result, by default "An error occurred … Please try again".

    Args:
        invoke: invokes the copy; by default the function that invokes the tool.
    """

    def failure(context: RunContextWrapper[Any], error: Exception) -> Any:
        explain = resolve_function_tool_failure_error_function(tool, context)
        if explain is None or leaves_open(error):
            raise error
        return explain(context, error)

    invoke = tool.on_invoke_tool if invoke is None else invoke
    failing: Any = {"_failure_error_function": failure, "_use_default_failure_error_function": False}
    return replace(tool, on_invoke_tool=invoke, **failing)


def _said(name: str, checked: Any) -> str | None:
    """Return a guardrail's replacement for a result, if any."""
    match checked.behavior:
        case {"type": "reject_content", "message": message}:
            return str(message)
        case {"type": "raise_exception"}:
            raise TerminalError(f"Guardrail {name} has stopped the call: {checked.output_info}")
    return None


class _HandoffCall:
    """Makes a handoff, whose result names the next agent."""

    def __init__(self, one: Handoff[Any, Any], context: Any) -> None:
        self._handoff, self._context = one, context

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        written = json.dumps(arguments) if self._handoff.input_json_schema else ""
        target = await self._handoff.on_invoke_handoff(RunContextWrapper(valued(self._context, ctx)), written)
        return {"assistant": target.name}


def written_result(result: Any) -> Any:
    """Return a tool's result as JSON: structured output unchanged, other values as the text that the SDK would make."""
    if hasattr(result, "model_dump") and hasattr(result, "type"):
        return result.model_dump(mode="json", exclude_none=True)
    if isinstance(result, list | tuple):
        return [written_result(part) for part in result]
    return result if isinstance(result, dict | str | int | float | None) else str(result)


def output_of(agents: Iterable[Agent[Any]]) -> Any:
    """Return the type of the agents' final answers; None if it is text, or they differ."""
    found = {one.output_type for one in agents}
    output = found.pop() if len(found) == 1 else None
    if isinstance(output, AgentOutputSchema):
        output = output.output_type
    return None if output is str or isinstance(output, AgentOutputSchemaBase) else output


def model_name(agent: Agent[Any]) -> str | None:
    """Return the name of an agent's model, if it has one."""
    name = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
    return name if isinstance(name, str) and name else None


def shown_tools(agent: Agent[Any]) -> list[Any]:
    """Return the tools as the model sees them: the runner stops at each of their calls."""
    shown = list[Any]()
    for tool in agent.tools:
        if isinstance(tool, HostedMCPTool):
            shown.append(replace(tool, on_approval_request=None))  # our loop asks instead
        else:
            shown.append(stub(tool, tool.is_enabled) if isinstance(tool, FunctionTool) else tool)
    for _, one in handoffs_of(agent):
        schema = one.input_json_schema or {"type": "object", "properties": {}, "additionalProperties": False}
        shown.append(_stub(one.tool_name, one.tool_description, schema, one.strict_json_schema, one.is_enabled))
    return shown


def stub(tool: FunctionTool, is_enabled: Any) -> FunctionTool:
    """Return a tool as the model sees it."""
    return _stub(tool.name, tool.description, tool.params_json_schema, tool.strict_json_schema, is_enabled)


def _stub(name: str, description: str, schema: JSONObject, strict: bool, is_enabled: Any) -> FunctionTool:
    async def never(context: Any, arguments: str) -> str:
        raise RuntimeError(f"tool {name} is called only by standfast")

    return FunctionTool(name, description, schema, never, strict, is_enabled, needs_approval=True)
