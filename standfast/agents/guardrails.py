"""Guardrails: functions that check what a model reads, what it answers and what it calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from standfast.agents.contexts import AgentContext
from standfast.errors import DefinitionError
from standfast.messages import clean_text

Check = Callable[[AgentContext, Any], object]
GUARDRAILS = ("input_guardrails", "output_guardrails", "tool_guardrails")


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A guardrail with options; one without options may be given as the function alone.

    Args:
        check: a function, plain or async, of `AgentContext` and a `Message` or a `ToolCall`. If it returns None or
            True, that passes; if it returns `Tripped(reason)`, or the reason alone, that is refused.
        beside: the guardrail runs at the same time as the model, which only input guardrails can do. If it trips, the
            model's answer is dropped.
    """

    check: Check
    beside: bool = False

    @property
    def name(self) -> str:
        """The name of its function, as any database keeps it."""
        return clean_text(str(getattr(self.check, "__name__", type(self.check).__name__)))[:200]


def declared(guardrails: Sequence[Check | Guardrail]) -> tuple[Guardrail, ...]:
    """Return guardrails as an agent has them once `read_guardrails` has read them."""
    return cast("tuple[Guardrail, ...]", guardrails)


def read_guardrails(agent: str, field: str, given: Any) -> tuple[Guardrail, ...]:
    """Return an agent's guardrails of one kind.

    Raises:
        DefinitionError: one of them cannot be a guardrail.
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
