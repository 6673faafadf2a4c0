"""Guardrails and output validators: functions that check a model's input, its answers and its calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from standfast.agents.contexts import AgentContext, DepsT
from standfast.errors import DefinitionError
from standfast.messages import clean_text
from standfast.tools import Approval

DepsT_contra = TypeVar("DepsT_contra", contravariant=True, default=Any)
Check = Callable[[AgentContext[DepsT], Any], object]
GUARDRAILS = ("input_guardrails", "output_guardrails", "tool_guardrails")


@dataclass(frozen=True, slots=True)
class Guardrail(Generic[DepsT_contra]):
    """A guardrail with options; a function alone is a guardrail without options.

    Args:
        check: a function, plain or async, of `AgentContext` and a `Message` or a `ToolCall`. If it returns None or
            True, the value passes; if it returns `Tripped(reason)`, or the reason alone, the value is refused.
        beside: the guardrail runs at the same time as the model; only for input guardrails. If it trips, the model's
            answer is dropped.
        approval: people decide on the stopped value; without it, the value is refused. People read the reason with the
            approval's message: a text, or a function of the stopped value.
    """

    check: Check[DepsT_contra]
    beside: bool = False
    approval: Approval | None = None

    @property
    def name(self) -> str:
        """The name of its function, in a form that any database keeps."""
        return clean_text(str(getattr(self.check, "__name__", type(self.check).__name__)))[:200]


def declared(guardrails: Sequence[Check | Guardrail]) -> tuple[Guardrail, ...]:
    """Return guardrails in the form that `read_guardrails` returns."""
    return cast("tuple[Guardrail, ...]", guardrails)


def read_guardrails(agent: str, field: str, given: Any) -> tuple[Guardrail, ...]:
    """Return an agent's guardrails that have this kind.

    Raises:
        DefinitionError: one of them is not a valid guardrail.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"Agent '{agent}': {field} must be a list of functions, got {given!r:.80}")
    found = tuple(one if isinstance(one, Guardrail) else Guardrail(one) for one in given)
    for one in found:
        if not callable(one.check):
            raise DefinitionError(f"Agent '{agent}': {field}: {one.check!r:.80} is not a function of ctx and a value")
        if not isinstance(one.beside, bool) or (one.beside and field != "input_guardrails"):
            raise DefinitionError(f"Agent '{agent}': {field}: {one.name}: only input guardrails can have beside=True")
        if one.approval is not None:
            _check_approval(f"Agent '{agent}': {field}: {one.name}", one.approval)
    named = [one.name for one in found if one.approval is not None]
    for name in named:
        if [one.name for one in found].count(name) > 1:
            raise DefinitionError(
                f"Agent '{agent}': {field}: two are named {name}, and one has an approval, which is found by that name"
            )
    return found


def _check_approval(where: str, approval: object) -> None:
    if not isinstance(approval, Approval):
        raise DefinitionError(f"{where}: approval must be Approval(…), got {approval!r:.80}")
    if given := approval.of_gate:
        raise DefinitionError(f"{where}: approval.{given[0]} is for a pipeline's gate, not for a guardrail")
    if any(one.remember for one in approval.chain):
        raise DefinitionError(
            f"{where}: approval.remember is for a tool's own approval; let the guardrail pass what needs no decision"
        )


OutputValidator = Callable[[AgentContext[DepsT], Any], object]


def read_output_validators(agent: str, given: Any) -> tuple[OutputValidator, ...]:
    """Return an agent's output validators.

    Raises:
        DefinitionError: they are not a list of functions.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"Agent '{agent}': output_validators must be a list of functions, got {given!r:.80}")
    found = tuple(given)
    if wrong := [one for one in found if not callable(one)]:
        raise DefinitionError(
            f"Agent '{agent}': output_validators: {wrong[0]!r:.80} is not a function of ctx and an output"
        )
    return found
