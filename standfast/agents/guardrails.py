"""Guardrails: functions that check what a model reads, what it answers and what it calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from standfast.agents.contexts import AgentContext
from standfast.errors import DefinitionError

Check = Callable[[AgentContext, Any], object]
GUARDRAILS = ("input_guardrails", "output_guardrails", "tool_guardrails")


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A guardrail with options; a function alone is one without.

    Args:
        check: a function, plain or async, of `AgentContext` and a `Message` or a `ToolCall`. None or True lets it pass;
            `Tripped(reason)`, or the reason alone, refuses it.
        beside: only for input: it runs at the same time as the model. If it trips, the model's answer is dropped.
    """

    check: Check
    beside: bool = False

    @property
    def name(self) -> str:
        """The name of its function."""
        return str(getattr(self.check, "__name__", type(self.check).__name__))[:200]


def declared(guardrails: Sequence[Check | Guardrail]) -> tuple[Guardrail, ...]:
    """Return guardrails of an agent, which has read them."""
    return cast("tuple[Guardrail, ...]", guardrails)


def read_guardrails(agent: str, field: str, given: Any) -> tuple[Guardrail, ...]:
    """Return an agent's guardrails of one kind.

    Raises:
        DefinitionError: naming the one that cannot be one.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"Agent '{agent}': {field} must be a list of functions, got {given!r:.80}")
    found = tuple(one if isinstance(one, Guardrail) else Guardrail(one) for one in given)
    for one in found:
        if not callable(one.check):
            raise DefinitionError(f"Agent '{agent}': {field}: {one.check!r:.80} is not a function of ctx and a value")
        if not isinstance(one.beside, bool) or (one.beside and field != "input_guardrails"):
            raise DefinitionError(f"Agent '{agent}': {field}: {one.name}: only input guardrails can have beside=True")
    return found
