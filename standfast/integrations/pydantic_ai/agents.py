"""Runs pydantic-ai agents on our loop, one model request at a time: `as_agent`.

Each request is a run of pydantic-ai's agent that stops at the model's calls. Its tools are external, so none runs in
it. Our loop gates and runs them, and the next run gets their results. Instructions, history processors, dependencies
and output validators are pydantic-ai's. The only data kept between turns is the model's messages, in the transcript.
"""

import copy
import logging
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Unpack

from pydantic_ai import AbstractToolset, Agent, DeferredToolResults, RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.exceptions import AgentRunError, ApprovalRequired, CallDeferred, ModelHTTPError, ModelRetry
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import to_json

from standfast.agents import Agent as OurAgent
from standfast.errors import (
    DefinitionError,
    ModelError,
    RetryableError,
    StandfastError,
    TerminalError,
    ToolDurabilityError,
)
from standfast.integrations._foreign_agents import Declared, Gate, Options, json_of, make_agent, name_of, split, valued
from standfast.integrations._guards import has_guard
from standfast.integrations.pydantic_ai.found_toolsets import (
    FoundTools,
    PydanticAIToolset,
    context_of,
    split_toolsets,
    with_unknown,
)
from standfast.integrations.pydantic_ai.toolsets import check_unguarded, has_timed_out, is_safe
from standfast.integrations.pydantic_ai.transcripts import arguments_of
from standfast.messages import JSONObject, LLMResponse, Message, Reasoning, ToolCall, Usage, error_text
from standfast.tools import Approval, Duration, ToolContext

_LOG = logging.getLogger("standfast")

_PROVIDER = "pydantic-ai-agent"
_BUSY = (408, 409, 425, 429)


def as_agent(
    agent: Agent[Any, Any],
    *,
    name: str | None = None,
    deps: Any = None,
    approval: Mapping[str, Gate | None] | None = None,
    safe_to_retry: Sequence[str] = (),
    timeout: Mapping[str, Duration] | None = None,
    trust_hints: bool = False,
    usage_limits: UsageLimits | None = None,
    **options: Unpack[Options],
) -> OurAgent[Any]:
    """Return a standfast agent. pydantic-ai runs it, one model request at a time, and standfast runs its tools.

    Args:
        name: by default the agent's own.
        deps: the dependencies of runs: a value, or a function that returns it. Its argument is an `AgentContext` for a
            request of the model and a `ToolContext` for a tool's call.
        approval: gates by tool name; None removes the gate of its `requires_approval`.
        safe_to_retry: names of tools that may run twice, besides those declared in their metadata.
        timeout: of calls, by tool name; by default the usual one.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.
        usage_limits: for each turn, from the user's message to the agent's answer.
        options: `description`, `formerly`, `loop`, `access` and the hooks of an `Agent`.

    Raises:
        DefinitionError: naming the invalid part: a name, or tools that run elsewhere. Faults that only a toolset
            reveals are found when a run or a worker begins.
    """
    if not isinstance(agent, AbstractAgent):
        raise DefinitionError(f"as_agent needs an agent of pydantic-ai, got {agent!r:.80}")
    name = name_of(agent, name, getattr(agent, "name", None))
    declared = Declared(name, approval, safe_to_retry, timeout, trust_hints)
    check_unguarded(name, "our loop", *agent.toolsets)
    known, later = split_toolsets(agent, name)
    for toolset in known:
        for tool in toolset.tools.values():
            definition = tool.tool_def
            safe = is_safe(tool, trust_hints=False)
            gate = Approval(message=f"Run {tool.name}?") if tool.requires_approval else None
            called = declared.is_safe(tool.name, safe), declared.is_gated(tool.name, gate)
            declared.add(
                tool,
                tool.name,
                definition.description,
                definition.parameters_json_schema,
                _Call(agent, toolset, tool.name, deps, *called).run,
                approval=gate,
                safe=safe,
                has_guard=has_guard(tool.function),
            )

    def handler(within: AbstractToolset[Any], name: str, safe: bool, gated: bool) -> Any:
        return _Call(agent, within, name, deps, safe, gated).run

    output = agent.output_type
    is_text = not isinstance(output, type) or output is str
    return make_agent(
        name,
        PydanticAIRun(agent, deps, declared, usage_limits),
        declared.check([PydanticAIToolset(one, agent, declared, deps, handler) for one in later]),
        model=None,
        output=None if is_text else output,
        options=options,
    )


class PydanticAIRun:
    """The adapter of an agent: each call is one request of its model, or more if an output is invalid."""

    may_answer_nothing = True  # pydantic-ai asks again itself

    def __init__(self, agent: Agent[Any, Any], deps: Any, declared: Declared, limits: UsageLimits | None) -> None:
        self._agent, self._deps, self._declared, self._limits = agent, deps, declared, limits
        self._found: Mapping[Any, AbstractToolset[Any]] = {}  # by the purpose for which they are found

    def with_tools(self, found: Mapping[Any, FoundTools]) -> "PydanticAIRun":
        """Return the adapter whose requests show the found tools."""
        self._declared.check_found(found.values())
        twin = copy.copy(self)
        twin._found = {id(one.toolset): tools.within for one, tools in found.items()}
        return twin

    async def chat(self, messages: Sequence[Message], tools: Any, **settings: Any) -> LLMResponse:
        runner, said = split(messages)
        history, results, prompt = _conversation(said)
        outside, before = _Outside({tool.name for tool in tools}), RunUsage() if self._limits is None else _used(said)
        toolsets = [self._found.get(id(one), one) for one in self._agent.toolsets[1:]]
        override: Any = self._agent.override(toolsets=toolsets) if self._found else nullcontext()
        try:
            with override:
                async with self._agent.iter(
                    prompt,
                    message_history=history,
                    deferred_tool_results=results,
                    deps=valued(self._deps, runner),
                    usage=copy.copy(before),
                    usage_limits=self._limits,
                    capabilities=[ReinjectSystemPrompt(), outside],
                ) as going:
                    async for node in going:
                        if Agent.is_call_tools_node(node) and outside.ends_at(node.model_response):
                            self._check_calls(said, node.model_response)
                            return _response(going, before, node.model_response, None)
                    assert going.result is not None
                    return _response(going, before, going.result.response, going.result.output)
        except ModelHTTPError as error:
            transient = error.status_code >= 500 or error.status_code in _BUSY
            raise ModelError(error_text(error), transient=transient) from error
        except AgentRunError as error:
            raise ModelError(f"{type(error).__name__} of agent '{self._agent.name}': {error_text(error)}") from error

    def _check_calls(self, said: Sequence[Message], answer: ModelResponse) -> None:
        """Check the limit of calls, as pydantic-ai does before it makes them."""
        if self._limits is not None:
            made = sum(message.role == "tool" for message in _turn(said))
            self._limits.check_before_tool_call(RunUsage(tool_calls=made + len(answer.tool_calls)))


class _Outside(AbstractCapability[Any]):
    """Ensures that no tool runs here: our loop runs them.

    Args:
        ours: the names of the tools that the loop runs.
    """

    def __init__(self, ours: Set[str]) -> None:
        self._ours = ours
        self._tools, self._outputs = set[str](), set[str]()

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        for one in tool_defs:
            if one.name not in self._ours:
                _LOG.warning(
                    "Tool %r did not exist when this run or worker began, so the model does not see it: tools "
                    "that a toolset has only for some users are not found",
                    one.name,
                )
        tool_defs = [one for one in tool_defs if one.name in self._ours]
        self._tools.update(one.name for one in tool_defs)
        return [replace(one, kind="external") for one in tool_defs]

    async def prepare_output_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        self._outputs.update(one.name for one in tool_defs)
        return tool_defs

    def ends_at(self, response: ModelResponse) -> bool:
        """Whether a response asks for tools, and does not include the output beside them."""
        names = {call.tool_name for call in response.tool_calls}
        return bool(names & self._tools) and not names & self._outputs


@dataclass(frozen=True, slots=True)
class _Call:
    """The handler of a tool: validates the arguments as pydantic-ai does, and calls it in its toolset."""

    agent: Agent[Any, Any]
    toolset: AbstractToolset[Any]
    name: str
    deps: Any
    is_safe: bool
    is_gated: bool

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        called = {"tool_name": self.name, "tool_call_id": ctx.tool_call_id, "tool_call_approved": self.is_gated}
        run = context_of(self.agent, self.deps, ctx, **called)
        toolset = await self.toolset.for_run(run)
        async with toolset:
            toolset = with_unknown(await toolset.for_run_step(run))
            tool = (await toolset.get_tools(run)).get(self.name)
            if tool is None:
                raise StandfastError(f"Tool '{self.name}' is not there for this call: its toolset has left it out")
            if tool.tool_def.kind == "unapproved" and not self.is_gated:  # its definition differs from step to step
                raise self._unasked("must be approved")
            given = tool.args_validator.validate_python(arguments, context=run.validation_context)
            if tool.args_validator_func is not None and (made := tool.args_validator_func(run, **given)) is not None:
                await made
            try:
                found = await toolset.call_tool(self.name, given, run, tool)
            except (ApprovalRequired, CallDeferred) as error:
                raise self._unasked(f"has raised {type(error).__name__}") from None
            except ModelRetry as error:
                if has_timed_out(error) and not self.is_safe:
                    raise ToolDurabilityError(self.name, ctx.tool_call_id, reason=error.message) from None
                raise
            except ToolDurabilityError as error:
                if self.is_safe:
                    raise RetryableError(error.reason) from None
                raise
        return found.return_value if isinstance(found, ToolReturn) else found

    def _unasked(self, why: str) -> TerminalError:
        return TerminalError(
            f"Tool '{self.name}' {why}: here, ask people before it runs with as_agent(…, approval={{'{self.name}': "
            "Approval(…)})"
        )


# --- the conversation ---


def _conversation(said: Sequence[Message]) -> tuple[list[ModelMessage], DeferredToolResults | None, Any]:
    """Return a transcript as history up to the model's last answer, the results of its calls, and what follows."""
    last = max((place for place, message in enumerate(said) if message.role == "assistant"), default=-1)
    history = list[ModelMessage]()
    for message in said[: last + 1]:
        if message.role == "assistant":
            history += _answer(message)
        elif history and isinstance(history[-1], ModelRequest) and not _is_final(history[-1]):
            history[-1].parts = [*history[-1].parts, _part(message)]
        else:
            history.append(ModelRequest(parts=[_part(message)]))
    results = {
        message.tool_call_id: ToolReturn(json_of(message.content))
        for message in said[last + 1 :]
        if message.role == "tool" and message.tool_call_id
    }
    prompts = [_content(message) for message in said[last + 1 :] if message.role == "user"]
    prompt = None if not prompts else prompts[0] if len(prompts) == 1 else _joined(prompts)
    return history, DeferredToolResults(calls=dict(results)) if results else None, prompt


def _answer(message: Message) -> list[ModelMessage]:
    """Return an answer as the model gave it, with the ids that its calls have here."""
    kept = message.reasoning
    calls = list(message.tool_calls or ())
    if kept is None or kept.provider != _PROVIDER:
        text = [TextPart(message.content)] if message.content else []
        own = [ToolCallPart(call.name, call.arguments, tool_call_id=call.id) for call in calls]
        return [ModelResponse(parts=[*text, *own])] if text or own else []
    messages: list[ModelMessage] = JSON_CODEC.load(list[ModelMessage], list(kept.blocks))
    answer = next(one for one in reversed(messages) if isinstance(one, ModelResponse))
    if calls:
        ids = iter(call.id for call in calls)
        answer.parts = [
            replace(part, tool_call_id=next(ids, part.tool_call_id)) if isinstance(part, ToolCallPart) else part
            for part in answer.parts
        ]
    return messages


def _is_final(request: ModelRequest) -> bool:
    """Whether a request only closes an output tool's answer."""
    return any(isinstance(part, ToolReturnPart) and part.content == "Final result processed." for part in request.parts)


def _part(message: Message) -> UserPromptPart | ToolReturnPart:
    if message.role == "tool":
        return ToolReturnPart(message.tool_name or "", json_of(message.content), message.tool_call_id or "")
    return UserPromptPart(_content(message))


def _content(message: Message) -> Any:
    if not message.images:
        return message.content
    images = [
        BinaryContent.from_data_uri(one.address) if one.url is None else ImageUrl(one.url) for one in message.images
    ]
    return [*([message.content] if message.content else []), *images]


def _joined(prompts: Sequence[Any]) -> list[Any]:
    return [part for prompt in prompts for part in ([prompt] if isinstance(prompt, str) else prompt)]


def _turn(said: Sequence[Message]) -> Sequence[Message]:
    """Return the messages since the agent's last answer."""
    ends = (place for place, one in enumerate(said) if one.role == "assistant" and not one.tool_calls)
    return said[max(ends, default=-1) + 1 :]


def _used(said: Sequence[Message]) -> RunUsage:
    """Return the usage of a turn, without the calls whose results are last: pydantic-ai counts these."""
    used, turn = RunUsage(), _turn(said)
    for place, message in enumerate(turn):
        if message.role == "tool":
            used.tool_calls += any(one.role == "assistant" for one in turn[place:])
        elif message.role == "assistant":
            for one in _answer(message):
                if isinstance(one, ModelResponse):
                    used.incr(one.usage)
                    used.requests += 1
    return used


def _response(run: Any, before: RunUsage, answer: ModelResponse, output: Any) -> LLMResponse:
    """Return the model's answer: tool calls until there is an output."""
    made = run.new_messages()
    first = next((place for place, one in enumerate(made) if isinstance(one, ModelResponse)), len(made))
    calls, text = tuple[ToolCall, ...](), answer.text or ""
    if output is None and answer.tool_calls:
        calls = tuple(
            ToolCall(id=one.tool_call_id, name=one.tool_name, arguments=arguments_of(one)) for one in answer.tool_calls
        )
    elif output is not None:
        text = output if isinstance(output, str) else to_json(output).decode()
    used = run.usage
    usage = Usage(
        input_tokens=used.input_tokens - before.input_tokens,
        output_tokens=used.output_tokens - before.output_tokens,
        cached_tokens=used.cache_read_tokens - before.cache_read_tokens or None,
    )
    blocks = tuple(JSON_CODEC.dump(list[ModelMessage], made[first:]))
    kept = Reasoning(provider=_PROVIDER, blocks=blocks)
    return LLMResponse(text=text, tool_calls=calls, usage=usage, reasoning=kept)
