"""Makes standfast agents from a framework's agents; internal, and shared by the integrations.

The adapter gets the user and run instead of a system prompt: the foreign agent writes its own.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from pydantic import AfterValidator, WithJsonSchema

from standfast.agent_loop.tool_gates import is_edited
from standfast.agents import NAME, Agent, AgentContext, AgentIdentity, Loop, OnTerminalToolError
from standfast.errors import DefinitionError
from standfast.messages import JSONObject, Message, ToolCall, cut
from standfast.tools import TOOL_NAME, AccessRules, Approval, Duration, Tool, ToolContext, Toolset

Gate = Approval | Callable[[ToolCall], Approval | None]
Runner = AgentContext | ToolContext
_LONGEST_DESCRIPTION = 16 * 1024  # bytes


class Options(TypedDict, total=False):
    """The arguments of `Agent` that a foreign agent also accepts."""

    formerly: Sequence[str]
    description: str | None
    loop: Loop
    access: AccessRules
    on_start: Callable[[AgentContext], object] | None
    on_complete: Callable[[AgentContext], object] | None
    on_stuck: Callable[[AgentContext], object] | None
    on_terminal_tool_error: OnTerminalToolError


def name_of(given: object, name: str | None, said: object) -> str:
    """Return the name of a foreign agent: the given one, or its own.

    Raises:
        DefinitionError: its own name is not valid for an agent, and no other is given.
    """
    if name is not None:
        return name  # `Agent` checks it
    if not isinstance(said, str) or not NAME.fullmatch(said):
        raise DefinitionError(
            f"{type(given).__name__} {said!r:.80} needs a name that matches ^{NAME.pattern}$: give as_agent(…, name=…)"
        )
    return said


def make_agent(
    name: str,
    adapter: Any,
    tools: Sequence[Tool[..., Any] | Toolset],
    *,
    model: str | None,
    output: Any,
    options: Options,
) -> Agent[Any]:
    """Return an agent that an adapter runs.

    Raises:
        DefinitionError: a foreign agent does not have such an option.
    """
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise DefinitionError(
            f"Agent '{name}': as_agent has no option {unknown[0]!r}; besides the parameters in its signature it "
            f"has {', '.join(Options.__annotations__)}"
        )
    return Agent(name, adapter=adapter, tools=tools, model=model, output=output, instructions=_runner, **options)


def _runner(context: AgentContext) -> str:
    known = (context.user_id, context.tenant_id, context.session_id)
    return json.dumps([context.agent.id, context.agent.name, *known])


def nobody() -> AgentContext:
    """Return a context without a user, with which tools are found when a run or a worker begins."""
    return AgentContext(AgentIdentity("-", "-"), None)


def split(messages: Sequence[Message]) -> tuple[AgentContext, list[Message]]:
    """Return the user and run of the agent, without a state, and the messages of the conversation."""
    (ident, name, *known), _ = json.JSONDecoder().raw_decode(messages[0].content)
    return AgentContext(AgentIdentity(ident, name), None, *known), list(messages[1:])


class Declared:
    """The user's declarations about a foreign agent's tools, by name.

    Raises:
        DefinitionError: they name an unknown tool, or a tool is duplicated or unnamed.
    """

    def __init__(
        self,
        owner: str,
        approval: Mapping[str, Gate | None] | None,
        safe_to_retry: Sequence[str],
        timeout: Mapping[str, Duration] | None,
        trust_hints: bool = False,
    ) -> None:
        for option, given, of in (("approval", approval, "gates"), ("timeout", timeout, "times")):
            if not isinstance(given or {}, Mapping):
                raise DefinitionError(
                    f"Agent '{owner}': as_agent({option}=…) maps names of tools to {of}, got {given!r:.80}"
                )
        if isinstance(safe_to_retry, str) or not isinstance(safe_to_retry, Iterable):
            raise DefinitionError(
                f"Agent '{owner}': as_agent(safe_to_retry=…) lists names of tools, got {safe_to_retry!r:.80}"
            )
        self._owner, self._approval, self._safe = owner, dict(approval or {}), {*safe_to_retry}
        self._timeout, self.trust_hints = dict(timeout or {}), trust_hints
        self.tools: dict[str, Tool[..., Any]] = {}
        self._sources: dict[str, object] = {}

    def add(self, source: object, name: str, *described: Any, **declared: Any) -> None:
        """Add a tool; `source` is its original, and the same one may come again.

        Args:
            described, declared: see `tool`.
        """
        if name not in self.tools:
            self._sources[name] = source
            self.tools[name] = self.tool(name, *described, **declared)
        elif self._sources[name] is not source:
            raise self._twice(name)

    def tool(
        self,
        name: str,
        description: str | None,
        schema: Mapping[str, Any] | None,
        handler: Callable[[JSONObject, ToolContext], Awaitable[Any]],
        *,
        approval: Gate | None = None,
        safe: bool = False,
        timeout: Duration | None = None,
        check: Callable[[JSONObject], JSONObject] | None = None,
        fingerprint: str = "",
        has_guard: bool = False,
    ) -> Tool[..., Any]:
        """Return a standfast tool.

        Args:
            check: returns valid arguments, and raises a `ValueError` for others.
            fingerprint: distinguishes the tool from another of the same name.
            has_guard: it is already guarded.
        """
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise DefinitionError(
                f"Agent '{self._owner}': a tool's name must match {TOOL_NAME.pattern}, got {name!r:.80}"
            )
        if not isinstance(schema, Mapping):
            raise DefinitionError(f"Agent '{self._owner}': tool '{name}' has no schema of its arguments")
        if has_guard and not self.is_safe(name, safe):
            raise DefinitionError(
                f"Agent '{self._owner}': tool '{name}' has a guard, by guarded(…) or @effect, but standfast "
                "already runs it at most once: remove the guard; or, to use its verify=, name the tool in "
                "safe_to_retry="
            )
        whole = {"type": "object", "properties": {}, **schema}
        checks = () if check is None else (AfterValidator(check),)
        return Tool(
            name,
            description=cut(description or name, _LONGEST_DESCRIPTION),
            input=Annotated[(JSONObject, *checks, WithJsonSchema(whole))],
            handler=handler,
            safe_to_retry=self.is_safe(name, safe),
            approval=self._approval.get(name, approval),
            timeout=self._timeout.get(name, timeout),
            fingerprint=fingerprint,
        )

    def is_safe(self, name: str, said: bool = False) -> bool:
        """Whether a tool may run twice, according to the user or the framework's declaration."""
        return said or name in self._safe

    def is_gated(self, name: str, approval: Gate | None) -> bool:
        """Whether a tool's call is judged before it runs: by a gate, or by a user who approves all calls."""
        return approval is not None or name in self._approval

    def check(self, toolsets: Sequence[Toolset] = ()) -> list[Tool[..., Any] | Toolset]:
        """Return the tools, and the toolsets of tools that are found later."""
        if not toolsets:
            self._check_names(self.tools)
        return [*self.tools.values(), *toolsets]

    def check_found(self, found: Iterable[Sequence[Tool[..., Any]]]) -> None:
        """Check the names, now that all toolsets' tools are known."""
        known = dict[str, Any](self.tools)
        for tool in (one for several in found for one in several):
            if tool.name in known:
                raise self._twice(tool.name)
            known[tool.name] = tool
        self._check_names(known)

    def _check_names(self, known: Mapping[str, Any]) -> None:
        if unknown := sorted({*self._approval, *self._safe, *self._timeout} - known.keys()):
            raise DefinitionError(
                f"Agent '{self._owner}': approval, safe_to_retry or timeout name '{unknown[0]}', which it does not "
                f"have; its tools are {', '.join(known) or 'none'}"
            )

    def _twice(self, name: str) -> DefinitionError:
        return DefinitionError(f"Agent '{self._owner}': two different tools are named {name!r}")


def valued(given: Any, runner: Runner) -> Any:
    """Return a user's setting: a value, or the result of a function of the run."""
    return given(runner) if callable(given) else given


def json_of(content: str) -> Any:
    """Return a tool's result for the model, JSON or text, with a note if people changed its call."""
    try:
        return json.loads(content)
    except ValueError:
        return content


def data_of(content: str) -> Any:
    """Return the original form of a tool's written result, JSON or text, without the note of a change."""
    found = json_of(content)
    return found["result"] if isinstance(found, dict) and is_edited(found) else found
