"""Makes agents of those of a framework; internal, and shared by the integrations.

Who runs such an agent reaches its adapter in place of a system prompt: the foreign agent writes its own.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from pydantic import AfterValidator, WithJsonSchema

from standfast.agent_loop.tool_gates import is_edited
from standfast.agents import NAME, Agent, AgentContext, AgentIdentity, Loop, OnTerminalToolError
from standfast.errors import DefinitionError
from standfast.messages import Message, ToolCall, cut
from standfast.tools import TOOL_NAME, AccessRules, Approval, Duration, Tool, ToolContext, Toolset

Gate = Approval | Callable[[ToolCall], Approval | None]
Runner = AgentContext | ToolContext
_LONGEST_DESCRIPTION = 16 * 1024  # bytes


class Options(TypedDict, total=False):
    """The arguments of `Agent` that a foreign agent may be given, too."""

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
        DefinitionError: its own cannot be the name of an agent, and none is given.
    """
    if name is not None:
        return name  # which `Agent` checks
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
    """Return the agent that is run by an adapter.

    Raises:
        DefinitionError: an option is none that a foreign agent can have.
    """
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise DefinitionError(
            f"Agent '{name}': as_agent has no option {unknown[0]!r}; besides those of its own signature it has "
            f"{', '.join(Options.__annotations__)}"
        )
    return Agent(name, adapter=adapter, tools=tools, model=model, output=output, instructions=_runner, **options)


def _runner(context: AgentContext) -> str:
    known = (context.user_id, context.tenant_id, context.session_id)
    return json.dumps([context.agent.id, context.agent.name, *known])


def nobody() -> AgentContext:
    """Return the context of nobody, in which tools are found when a run or a worker begins."""
    return AgentContext(AgentIdentity("-", "-"), None)


def split(messages: Sequence[Message]) -> tuple[AgentContext, list[Message]]:
    """Return who runs the agent, without a state, and the messages of the conversation."""
    (ident, name, *known), _ = json.JSONDecoder().raw_decode(messages[0].content)
    return AgentContext(AgentIdentity(ident, name), None, *known), list(messages[1:])


class Declared:
    """What the user says of the tools of a foreign agent, by their names.

    Raises:
        DefinitionError: it names a tool that the agent does not have, or a tool is there twice, or has no name.
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
        """Add a tool, of which `source` is the original: the same one may come again.

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
        handler: Callable[[dict[str, Any], ToolContext], Awaitable[Any]],
        *,
        approval: Gate | None = None,
        safe: bool = False,
        timeout: Duration | None = None,
        check: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        fingerprint: str = "",
        has_guard: bool = False,
    ) -> Tool[..., Any]:
        """Return a tool of ours.

        Args:
            check: returns arguments that fit, and raises a `ValueError` for others.
            fingerprint: tells the tool from another of the same name.
            has_guard: there is a guard around it already.
        """
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            raise DefinitionError(
                f"Agent '{self._owner}': a tool's name must match {TOOL_NAME.pattern}, got {name!r:.80}"
            )
        if not isinstance(schema, Mapping):
            raise DefinitionError(f"Agent '{self._owner}': tool '{name}' has no schema of its arguments")
        if has_guard and not self.is_safe(name, safe):
            raise DefinitionError(
                f"Agent '{self._owner}': tool '{name}' has a guard, by guarded(…) or @effect, and standfast runs it at "
                "most once as it is: take the guard away; or, if its verify= is to be asked, name the tool in "
                "safe_to_retry="
            )
        whole = {"type": "object", "properties": {}, **schema}
        checks = () if check is None else (AfterValidator(check),)
        return Tool(
            name,
            description=cut(description or name, _LONGEST_DESCRIPTION),
            input=Annotated[(dict[str, Any], *checks, WithJsonSchema(whole))],
            handler=handler,
            safe_to_retry=self.is_safe(name, safe),
            approval=self._approval.get(name, approval),
            timeout=self._timeout.get(name, timeout),
            fingerprint=fingerprint,
        )

    def is_safe(self, name: str, said: bool = False) -> bool:
        """Whether a tool may run twice: its framework's user has said so, or ours."""
        return said or name in self._safe

    def is_gated(self, name: str, approval: Gate | None) -> bool:
        """Whether somebody has judged a tool's call before it runs: a gate, or a user who lets all of them through."""
        return approval is not None or name in self._approval

    def check(self, toolsets: Sequence[Toolset] = ()) -> list[Tool[..., Any] | Toolset]:
        """Return the tools, and the toolsets of those that are found later."""
        if not toolsets:
            self._check_names(self.tools)
        return [*self.tools.values(), *toolsets]

    def check_found(self, found: Iterable[Sequence[Tool[..., Any]]]) -> None:
        """Check the names, now that all tools of all toolsets are known."""
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
    """Return what a user gives as a value, or as a function of who runs the agent."""
    return given(runner) if callable(given) else given


def json_of(content: str) -> Any:
    """Return a tool's result as the model is to read it, JSON or text, with the note that people changed its call."""
    try:
        return json.loads(content)
    except ValueError:
        return content


def data_of(content: str) -> Any:
    """Return a tool's result as it was before it was written, JSON or text, without the note of a change."""
    found = json_of(content)
    return found["result"] if isinstance(found, dict) and is_edited(found) else found
