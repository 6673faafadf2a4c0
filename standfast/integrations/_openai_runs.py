"""Runs OpenAI Agents SDK agents on our loop, one turn of the model at a time; internal.

The SDK's runner gets the transcript as its input, calls the model once, and stops at tool calls, since each tool in its
view needs an approval. Our loop runs the tools and the handoffs. So the only SDK data kept between turns is the model's
items, which are in the transcript.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import isawaitable
from typing import Any

import openai
from agents import (
    Agent,
    FunctionTool,
    FunctionToolResult,
    ItemHelpers,
    RunContextWrapper,
    RunHooks,
    Runner,
)
from agents.exceptions import AgentsException, ModelBehaviorError
from agents.items import ModelResponse
from agents.usage import Usage as TheirUsage
from openai.types.responses import ResponseFunctionToolCall
from pydantic_core import to_json

from standfast.errors import ModelError
from standfast.integrations._foreign_agents import Declared, data_of, json_of, split, valued
from standfast.integrations._openai_servers import ServerTools
from standfast.integrations._openai_tools import HOSTED, RunSettings, handoffs_of, model_name, shown_tools
from standfast.llm.prices import Price, priced
from standfast.messages import JSONObject, LLMResponse, Message, Reasoning, Usage, error_text
from standfast.messages import ToolCall as OurCall

PROVIDER = "openai-agents"
_CALLS = 5  # most model calls in a turn: it is called again only after thoughts without text
_ASKS = "mcp_approval_request"  # the type of an item with which OpenAI asks whether it may call a server
_SPOKE = "standfast_agent"  # the type of an item that names the turn's agent


class _Heard(RunHooks[Any]):
    """Keeps the answers of a turn's model, including answers that the SDK cannot use."""

    def __init__(self) -> None:
        self.answers: list[ModelResponse] = []

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        self.answers.append(response)


class OpenAIRun:
    """The adapter of an agent: each call is one call of its model."""

    may_answer_nothing = True  # its framework decides when a run has ended

    def __init__(
        self,
        root: Agent[Any],
        agents: Mapping[str, Agent[Any]],
        settings: RunSettings,
        price: Price | None,
        declared: Declared,
    ) -> None:
        self._root, self._agents, self._price, self._declared = root, agents, price, declared
        self._context, self._config = settings.context, settings.config
        # By the agent's name, then the tool's.
        self._handoffs = {name: {one.tool_name for _, one in handoffs_of(agent)} for name, agent in agents.items()}
        self._shown = {name: shown_tools(agent) for name, agent in agents.items()}

    def with_tools(self, found: Mapping[Any, ServerTools]) -> "OpenAIRun":
        """Return the adapter that also shows the tools of MCP servers."""
        self._declared.check_found(found.values())
        twin = copy.copy(self)
        twin._shown = {
            name: [*(tool for one in found.values() for tool in one.shown.get(name, ())), *tools]
            for name, tools in self._shown.items()
        }
        return twin

    async def chat(self, messages: Sequence[Message], tools: Any, **settings: Any) -> LLMResponse:
        runner, said = split(messages)
        context = valued(self._context, runner)
        asked, agent = self._turn_of(said)
        if asked is not None and (final := await self._final_of_tools(self._agents[asked], said, context)) is not None:
            return LLMResponse(text=final)
        config = replace(self._config, group_id=self._config.group_id or runner.agent.id)
        heard, final = _Heard(), None
        try:
            result = await Runner.run(
                self._for_turn(agent, said),
                self._items(said),
                context=context,
                hooks=heard,
                run_config=config,
                max_turns=_CALLS,
            )
            final = result.final_output
        except ModelBehaviorError as error:
            if not heard.answers:
                raise ModelError(f"Agent '{agent.name}': {error_text(error)}") from error
            # Our loop tells the model of its mistake: an unknown tool, or an invalid answer.
        except AgentsException as error:
            raise ModelError(f"{type(error).__name__} of agent '{agent.name}': {_reason(error)}") from error
        except openai.APIConnectionError as error:
            raise ModelError(error_text(error), transient=True) from error
        return self._response(agent, heard.answers, final)

    # --- the current agent ---

    def _turn_of(self, said: Sequence[Message]) -> tuple[str | None, Agent[Any]]:
        """Return the agent that made the calls whose results come last, if any, and the current agent."""
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
        """Return an agent that calls the model once, without tools."""
        since = list[Message]()
        for message in reversed(said):
            if message.role == "user":
                break
            since.append(message)
        changed: dict[str, Any] = {"tools": self._shown[agent.name], "handoffs": [], "mcp_servers": []}
        if since:  # the user's messages were checked when they arrived
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
        items, asked = list[Any](), dict[str, str]()
        for message in said:
            match message.role:
                case "user":
                    items.append({"role": "user", "content": _user_content(message)})
                case "assistant":
                    items += _answer_items(message)
                    asked = _approvals_asked(message)
                case "tool" if message.tool_name == HOSTED:
                    items.append(_approval_response(message, asked))
                case "tool":
                    call_id, name = message.tool_call_id or "", message.tool_name or ""
                    call = ResponseFunctionToolCall(type="function_call", call_id=call_id, name=name, arguments="{}")
                    items.append(ItemHelpers.tool_call_output_item(call, _output_of(message.content)))
        return items

    def _response(self, agent: Agent[Any], answers: Sequence[ModelResponse], final: Any) -> LLMResponse:
        """Return the model's answer; `final` is the answer as parsed by the SDK, if it could parse it."""
        items = [item for answer in answers for item in answer.to_input_items() if isinstance(item, dict)]
        calls = [item for item in items if item.get("type") in ("function_call", _ASKS)]
        text = "".join(ItemHelpers.extract_text(item) or "" for item in answers[-1].output if item.type == "message")
        if not calls and final is not None:
            text = _text_of(final)
        used = TheirUsage()
        for answer in answers:
            used.add(answer.usage)
        response = LLMResponse(
            text=text,
            tool_calls=tuple(map(_our_call, calls)),
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


def _kept(message: Message) -> Sequence[JSONObject]:
    kept = message.reasoning
    return kept.blocks if kept is not None and kept.provider == PROVIDER else ()


def _answer_items(message: Message) -> list[Any]:
    """Return the items of an answer as the model gave them, with the ids that their calls have here."""
    calls = [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
        }
        for call in message.tool_calls or ()
        if call.name != HOSTED
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


def _our_call(item: Mapping[str, Any]) -> OurCall:
    if item["type"] == "function_call":
        return OurCall(id=item["call_id"], name=item["name"], arguments=item["arguments"])
    shown = {"server": item["server_label"], "name": item["name"], "arguments": data_of(item["arguments"])}
    return OurCall(id=item["id"], name=HOSTED, arguments=shown)


def _approvals_asked(message: Message) -> dict[str, str]:
    """Return OpenAI's approval requests by the ids of their calls here."""
    calls = [call.id for call in message.tool_calls or () if call.name == HOSTED]
    return dict(zip(calls, (item["id"] for item in _kept(message) if item.get("type") == _ASKS), strict=False))


def _approval_response(message: Message, asked: Mapping[str, str]) -> JSONObject:
    said, call = data_of(message.content), message.tool_call_id or ""
    is_let_through = message.status == "completed" and isinstance(said, dict) and said.get("approve") is True
    reason = said.get("reason") if isinstance(said, dict) and message.status == "completed" else message.content
    response = {"type": "mcp_approval_response", "approval_request_id": asked.get(call, call)}
    return {**response, "approve": is_let_through, **({} if is_let_through or not reason else {"reason": reason})}


def _user_content(message: Message) -> Any:
    if not message.images:
        return message.content
    images = [{"type": "input_image", "detail": "auto", "image_url": image.address} for image in message.images]
    return [*([{"type": "input_text", "text": message.content}] if message.content else []), *images]


def _output_of(content: str) -> Any:
    """Return a tool's result for the model: texts, images and files in their own form, with people's changes."""
    output, read = data_of(content), json_of(content)
    if not _is_structured(output):
        return content
    if output == read:
        return output
    note = {key: value for key, value in read.items() if key != "result"}
    return [*(output if isinstance(output, list) else [output]), {"type": "text", "text": to_json(note).decode()}]


def _is_structured(output: Any) -> bool:
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
