"""Output validators: functions that check an answer against the run's dependencies, and make the model answer again."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from standfast.agents.contexts import AgentContext, DepsT
from standfast.errors import DefinitionError

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
