"""Finds the agents of a conversation: the first, and all to which it can be handed over."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from standfast.agents.guardrails import GUARDRAILS
from standfast.errors import DefinitionError
from standfast.tools import HostedTool, Tool, Toolset
from standfast.tools.checks import NAME

_LONGEST = 64 - len("transfer_to_")  # of a tool's name


class Declared(Protocol):
    """What the agents of a conversation need to know of each other; an `Agent` has it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def description(self) -> str | None: ...
    @property
    def tools(self) -> Sequence[Any]: ...
    @property
    def handoffs(self) -> Sequence[Any]: ...


AgentT = TypeVar("AgentT", bound=Declared)


def check_handoffs(agent: AgentT, kind: type[Any]) -> tuple[AgentT | str, ...]:
    """Return an agent's `handoffs`, after checking that they are agents and names of agents.

    Raises:
        DefinitionError: naming the agent and the rule.
    """
    given: Any = agent.handoffs
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"Agent '{agent.name}': handoffs must be a list of agents, got {given!r:.80}")
    targets, seen = tuple(given), {agent.name}
    for target in targets:
        if not isinstance(target, kind) and not (isinstance(target, str) and NAME.fullmatch(target)):
            raise DefinitionError(f"Agent '{agent.name}': handoffs: {target!r:.80} is not an agent, or the name of one")
        name = _name_of(target)
        if name in seen:
            raise DefinitionError(f"Agent '{agent.name}': handoffs: {name!r} is there twice, or is the agent itself")
        if len(name) > _LONGEST:
            raise DefinitionError(f"Agent '{agent.name}': handoffs: {name!r} is longer than {_LONGEST} characters")
        seen.add(name)
    return targets


def speakers(first: AgentT) -> Mapping[str, AgentT]:
    """Return the agents of a conversation that `first` begins, each as it speaks in it, by all their names.

    The mapping is empty if `first` hands over to no agent. In the conversation an agent has its own model, settings,
    instructions and tools, and the handoffs as further tools. The settings in `_SHARED` are the first agent's.

    Raises:
        DefinitionError: two agents, or two tools, have the same name.
    """
    found = {first.name: first}
    queue = [first]
    for agent in queue:
        for target in agent.handoffs:
            if isinstance(target, str) or found.get(target.name) is target:
                continue
            if target.name in found:
                raise DefinitionError(f"Agent '{first.name}': handoffs: two agents are named '{target.name}'")
            _check_shared(target, first)
            found[target.name] = target
            queue.append(target)
    if len(found) == 1:
        return {}
    result: dict[str, AgentT] = {}
    for agent in queue:
        speaker = _as_speaker(agent, first, found)
        for name in agent.names:
            if name in result:
                raise DefinitionError(f"Agent '{first.name}': handoffs: two agents are named '{name}'")
            result[name] = speaker
    _check_tools(first, result.values())
    return MappingProxyType(result)


def _check_shared(target: Declared, first: Declared) -> None:
    """Refuse an agent with settings that its conversation would ignore."""
    said = f"Agent '{first.name}': handoffs: agent '{target.name}' has"
    if any(getattr(target, name) not in (None, getattr(first, name)) for name in ("context", "deps")):
        raise DefinitionError(
            f"{said} its own context or deps, but in a conversation all agents share the first agent's"
        )
    for what, names in (("guardrails", GUARDRAILS), ("output_validators", ("output_validators",))):
        if any(getattr(target, name) not in ((), getattr(first, name)) for name in names):
            raise DefinitionError(
                f"{said} its own {what}, but in a conversation all agents share the first agent's: set them there"
            )


def _name_of(target: Declared | str) -> str:
    return target if isinstance(target, str) else target.name


def _as_speaker(agent: AgentT, first: AgentT, found: Mapping[str, AgentT]) -> AgentT:
    targets = [found[_name_of(target)] for target in agent.handoffs if _name_of(target) in found]
    tools = (*agent.tools, *map(_handoff_tool, targets))
    shared = {name: getattr(first, name) for name in _SHARED}
    return dataclasses.replace(agent, tools=tools, handoffs=(), **shared)


_SHARED = (
    "context",
    "deps",
    "state",
    "initial_state",
    "output",
    "loop",
    "access",
    *GUARDRAILS,
    "output_validators",
    "on_start",
    "on_complete",
    "on_stuck",
    "on_terminal_tool_error",
    "lane",
)


def handoff_tool_name(agent: str) -> str:
    """Return the name of the tool that hands a conversation over to an agent."""
    return f"transfer_to_{agent.replace('-', '_')}"


def _handoff_tool(target: Declared) -> Tool[..., Any]:
    about = f" {target.description}" if target.description else ""
    return Tool(
        handoff_tool_name(target.name),
        description=f"Hand the conversation over to the agent {target.name}, which then answers in your place.{about}",
        safe_to_retry=True,
        handoff=target.name,
    )


def _check_tools(first: Declared, agents: Iterable[Declared]) -> None:
    """Refuse two tools of one name: a call in the transcript must have one meaning."""
    known: dict[str, Any] = {}
    for agent in agents:
        for tool in (item for item in agent.tools if not isinstance(item, Toolset | HostedTool)):
            before = known.setdefault(tool.name, tool)
            is_same = before is tool or (isinstance(tool, Tool) and tool.handoff and before.handoff == tool.handoff)
            if not is_same:
                raise DefinitionError(
                    f"Agent '{first.name}': handoffs: two tools of agents of one conversation are named '{tool.name}'"
                )
