"""Runs agents of the OpenAI Agents SDK on our loop, a turn of the model at a time; internal.

The SDK's runner gets the transcript as its input, calls the model once, and stops at the calls of tools, since each
tool that it is shown needs an approval. Our loop runs the tools and the handoffs. So nothing of the SDK's is kept from
turn to turn but the items of the model, which are in the transcript.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any

import openai
from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    FunctionToolResult,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    ItemHelpers,
    RunConfig,
    RunContextWrapper,
    Runner,
    WebSearchTool,
    handoff,
)
from agents.exceptions import AgentsException
from agents.items import ModelResponse
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext as TheirToolContext
from agents.tool_guardrails import ToolInputGuardrailData, ToolOutputGuardrailData
from openai.types.responses import ResponseFunctionToolCall
from pydantic_core import to_json

from standfast.errors import DefinitionError, ModelError, TerminalError
from standfast.integrations._foreign_agents import Declared, Gate, data_of, split, valued
from standfast.llm.prices import Price, priced
from standfast.messages import LLMResponse, Message, Reasoning, Usage, error_text
from standfast.messages import ToolCall as OurCall
from standfast.tools import Approval, ToolContext

PROVIDER = "openai-agents"
_HOSTED = (WebSearchTool, FileSearchTool, CodeInterpreterTool, ImageGenerationTool, HostedMCPTool)
_SPOKE = "standfast_agent"  # the type of an item that says which agent the turn's is


def agents_of(root: Agent[Any]) -> dict[str, Agent[Any]]:
    """Return an agent and those that it may hand over to, by name.

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
    """Return what an agent declares as handoffs, and the handoffs."""
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


def declare(agents: Mapping[str, Agent[Any]], declared: Declared, context: Any) -> None:
    """Declare the tools and handoffs of all agents.

    Raises:
        DefinitionError: naming an agent's tool that cannot be run.
    """
    for agent in agents.values():
        if agent.mcp_servers:
            raise DefinitionError(
                f"Agent '{agent.name}': tools of mcp_servers are made for each run, where nobody can tell their calls "
                "apart; give it function tools"
            )
        for tool in agent.tools:
            if isinstance(tool, FunctionTool):
                call = _ToolCall(agent, tool, context)
                declared.add(
                    tool, tool.name, tool.description, tool.params_json_schema, call.run, approval=_gate_of(tool)
                )
            elif not isinstance(tool, _HOSTED):
                raise DefinitionError(
                    f"Agent '{agent.name}': {type(tool).__name__} runs beside the model's call, where it cannot be "
                    "guarded; function tools and those that OpenAI hosts can be used"
                )
        for given, one in handoffs_of(agent):
            declared.add(
                _target(agent, given),
                one.tool_name,
                one.tool_description,
                one.input_json_schema,
                _HandoffCall(one, context).run,
                safe=given is not one,  # a Handoff may have a function that is called
            )


def _gate_of(tool: FunctionTool) -> Gate | None:
    """Return the gate of a tool that needs an approval. A function that cannot tell at once asks people."""
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


class _ToolCall:
    """Runs the calls of a function tool as the SDK's runner does, with its guardrails and the agent's hooks."""

    def __init__(self, agent: Agent[Any], tool: FunctionTool, context: Any) -> None:
        self._agent, self._tool, self._context = agent, tool, context

    async def run(self, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        tool, agent, written = self._tool, self._agent, json.dumps(arguments)
        call = ResponseFunctionToolCall(
            type="function_call", call_id=ctx.tool_call_id, name=tool.name, arguments=written
        )
        context = TheirToolContext(
            valued(self._context, ctx),
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
        return written_result(result)


def _said(name: str, checked: Any) -> str | None:
    """Return what a guardrail lets the model read in the place of a result, if anything."""
    match checked.behavior:
        case {"type": "reject_content", "message": message}:
            return str(message)
        case {"type": "raise_exception"}:
            raise TerminalError(f"Guardrail {name} has stopped the call: {checked.output_info}")
    return None


class _HandoffCall:
    """Makes a handoff, whose result names the agent that speaks next."""

    def __init__(self, one: Handoff[Any, Any], context: Any) -> None:
        self._handoff, self._context = one, context

    async def run(self, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        written = json.dumps(arguments) if self._handoff.input_json_schema else ""
        target = await self._handoff.on_invoke_handoff(RunContextWrapper(valued(self._context, ctx)), written)
        return {"assistant": target.name}


def written_result(result: Any) -> Any:
    """Return a tool's result as JSON: structured output as it is, and what the SDK would make a text as that text."""
    if hasattr(result, "model_dump") and hasattr(result, "type"):
        return result.model_dump(mode="json", exclude_none=True)
    if isinstance(result, list | tuple):
        return [written_result(part) for part in result]
    return result if isinstance(result, dict | str | int | float | None) else str(result)


class OpenAIRun:
    """The adapter of an agent: each call is one of its model."""

    def __init__(
        self,
        root: Agent[Any],
        agents: Mapping[str, Agent[Any]],
        context: Any,
        run_config: RunConfig | None,
        price: Price | None,
    ) -> None:
        self._root, self._agents, self._context, self._price = root, agents, context, price
        self._config = run_config or RunConfig()
        # By the agent's name, then the tool's.
        self._handoffs = {name: {one.tool_name for _, one in handoffs_of(agent)} for name, agent in agents.items()}
        self._shown = {name: _shown_tools(agent) for name, agent in agents.items()}

    async def chat(self, messages: Sequence[Message], tools: Any, **settings: Any) -> LLMResponse:
        runner, said = split(messages)
        context = valued(self._context, runner)
        asked, agent = self._turn_of(said)
        if asked is not None and (final := await self._final_of_tools(self._agents[asked], said, context)) is not None:
            return LLMResponse(text=final)
        config = replace(self._config, group_id=self._config.group_id or runner.agent.id)
        try:
            result: Any = await Runner.run(
                self._for_turn(agent, said), self._items(said), context=context, run_config=config, max_turns=1
            )
        except AgentsException as error:
            raise ModelError(f"{type(error).__name__} of agent '{agent.name}': {_reason(error)}") from error
        except openai.APIConnectionError as error:
            raise ModelError(error_text(error), transient=True) from error
        return self._response(agent, result)

    # --- who speaks ---

    def _turn_of(self, said: Sequence[Message]) -> tuple[str | None, Agent[Any]]:
        """Return the agent that made the calls whose results are last, if any are, and the agent that speaks now."""
        name, asked = self._root.name, None
        for message in said:
            if message.role == "assistant":
                name = next((item["name"] for item in _kept(message) if item.get("type") == _SPOKE), name)
                name = name if name in self._agents else self._root.name
                asked, moved = name, False
            elif message.role == "user":
                asked = None
            elif asked and not moved and message.tool_name in self._handoffs[asked] and message.status == "completed":
                found = data_of(message.content)
                target = found.get("assistant") if isinstance(found, dict) else None
                if target not in self._agents:
                    raise ModelError(f"Agent '{asked}' has handed over to {target!r}, which it does not declare")
                name, moved = target, True
        return asked, self._agents[name]

    def _for_turn(self, agent: Agent[Any], said: Sequence[Message]) -> Agent[Any]:
        """Return an agent that calls the model once, and no tool."""
        since = list[Message]()
        for message in reversed(said):
            if message.role == "user":
                break
            since.append(message)
        changed: dict[str, Any] = {"tools": self._shown[agent.name], "handoffs": []}
        if since:  # the user's words were checked when they came
            changed["input_guardrails"] = []
        if agent.reset_tool_choice and any(message.tool_calls for message in since):
            changed["model_settings"] = replace(agent.model_settings, tool_choice=None)
        changed["tool_use_behavior"] = "run_llm_again"
        return agent.clone(**changed)

    async def _final_of_tools(self, agent: Agent[Any], said: Sequence[Message], context: Any) -> str | None:
        """Return the final answer if the agent takes it from its tools, by its `tool_use_behavior`."""
        behavior = agent.tool_use_behavior
        if behavior == "run_llm_again":
            return None
        tools = {tool.name: tool for tool in agent.tools if isinstance(tool, FunctionTool)}
        results = list[FunctionToolResult]()
        for message in reversed(said):
            if message.role != "tool":
                break
            if message.tool_name in tools and message.status == "completed":
                results.insert(0, FunctionToolResult(tools[message.tool_name], data_of(message.content), None))
        if not results:
            return None
        if behavior == "stop_on_first_tool":
            return _text_of(results[0].output)
        if isinstance(behavior, dict):
            names = behavior.get("stop_at_tool_names", [])
            return next((_text_of(one.output) for one in results if one.tool.name in names), None)
        decided: Any = behavior(RunContextWrapper(context), results)
        decided = await decided if isawaitable(decided) else decided
        return _text_of(decided.final_output) if decided.is_final_output else None

    # --- the conversation ---

    def _items(self, said: Sequence[Message]) -> list[Any]:
        """Return a transcript as the SDK's input."""
        items = list[Any]()
        for message in said:
            match message.role:
                case "user":
                    items.append({"role": "user", "content": _user_content(message)})
                case "assistant":
                    items += _answer_items(message)
                case "tool":
                    call = ResponseFunctionToolCall(
                        type="function_call",
                        call_id=message.tool_call_id or "",
                        name=message.tool_name or "",
                        arguments="{}",
                    )
                    output = data_of(message.content)
                    structured = isinstance(output, dict | list) and _is_structured(output)
                    items.append(ItemHelpers.tool_call_output_item(call, output if structured else message.content))
        return items

    def _response(self, agent: Agent[Any], result: Any) -> LLMResponse:
        answer: ModelResponse = result.raw_responses[-1]
        items = [item for item in answer.to_input_items() if isinstance(item, dict)]
        calls = [item for item in items if item.get("type") == "function_call"]
        if calls and not result.interruptions:
            calls = []
        text = "".join(ItemHelpers.extract_text(item) or "" for item in answer.output if item.type == "message")
        if not calls:
            text = _text_of(result.final_output)
        used = result.context_wrapper.usage
        response = LLMResponse(
            text=text,
            tool_calls=tuple(
                OurCall(id=item["call_id"], name=item["name"], arguments=item["arguments"]) for item in calls
            ),
            usage=Usage(
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                cached_tokens=used.input_tokens_details.cached_tokens or None,
                reasoning_tokens=used.output_tokens_details.reasoning_tokens or None,
            ),
            reasoning=Reasoning(provider=PROVIDER, blocks=({"type": _SPOKE, "name": agent.name}, *items)),
        )
        model = model_name(agent)
        return response if model is None else priced(response, provider="openai", model=model, price=self._price)


def model_name(agent: Agent[Any]) -> str | None:
    """Return the name of an agent's model, if it has one."""
    name = agent.model if isinstance(agent.model, str) else getattr(agent.model, "model", None)
    return name if isinstance(name, str) and name else None


def output_of(agents: Iterable[Agent[Any]]) -> Any:
    """Return the type of the agents' final answers; None if that is text, or they differ."""
    found = {one.output_type for one in agents}
    output = found.pop() if len(found) == 1 else None
    if isinstance(output, AgentOutputSchema):
        output = output.output_type
    return None if output is str or isinstance(output, AgentOutputSchemaBase) else output


def _shown_tools(agent: Agent[Any]) -> list[Any]:
    """Return the tools as the model sees them: at each call of one the runner stops."""
    shown = list[Any]()
    for tool in agent.tools:
        if not isinstance(tool, FunctionTool):
            shown.append(tool)
            continue
        shown.append(
            _stub(tool.name, tool.description, tool.params_json_schema, tool.strict_json_schema, tool.is_enabled)
        )
    for _, one in handoffs_of(agent):
        schema = one.input_json_schema or {"type": "object", "properties": {}, "additionalProperties": False}
        shown.append(_stub(one.tool_name, one.tool_description, schema, one.strict_json_schema, one.is_enabled))
    return shown


def _stub(name: str, description: str, schema: dict[str, Any], strict: bool, is_enabled: Any) -> FunctionTool:
    async def never(context: Any, arguments: str) -> str:
        raise RuntimeError(f"tool {name} is called by standfast alone")

    return FunctionTool(name, description, schema, never, strict, is_enabled, needs_approval=True)


def _kept(message: Message) -> Sequence[dict[str, Any]]:
    kept = message.reasoning
    return kept.blocks if kept is not None and kept.provider == PROVIDER else ()


def _answer_items(message: Message) -> list[Any]:
    """Return the items of an answer: as the model gave them, with the ids that their calls have here."""
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
        }
        for call in message.tool_calls or ()
    ]
    kept = [item for item in _kept(message) if item.get("type") != _SPOKE]
    if not kept:
        said = [{"role": "assistant", "content": message.content}] if message.content else []
        return [*said, *calls]
    items = list[Any]()
    for item in kept:
        if item.get("type") != "function_call":
            items.append(item)
        elif calls:
            items.append({**item, **calls.pop(0)})
    return [*items, *calls]


def _user_content(message: Message) -> Any:
    if not message.images:
        return message.content
    images = [{"type": "input_image", "detail": "auto", "image_url": image.address} for image in message.images]
    return [*([{"type": "input_text", "text": message.content}] if message.content else []), *images]


def _is_structured(output: dict[str, Any] | list[Any]) -> bool:
    parts = output if isinstance(output, list) else [output]
    return bool(parts) and all(
        isinstance(part, dict) and part.get("type") in ("text", "image", "file") for part in parts
    )


def _text_of(final: Any) -> str:
    return final if isinstance(final, str) else "" if final is None else to_json(final).decode()


def _reason(error: AgentsException) -> str:
    found = getattr(getattr(error, "guardrail_result", None), "output", None)
    info = getattr(found, "output_info", None)
    return error_text(error) if info is None else f"{error_text(error)}: {info}"
