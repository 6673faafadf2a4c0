"""Runs a function that makes an agent's output at most once, like a tool: it may have effects."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Self, get_type_hints

from pydantic import PydanticUserError, TypeAdapter
from pydantic_ai import ModelRetry, NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.output import OutputContext

from standfast.effects import EffectFailedError, effect
from standfast.stores.protocol import DurableStore

_RETRIES = ("ModelRetry", "ToolRetryError", "ValidationError")


async def run_output_function(
    store: DurableStore, name: str, output: Any, function: Callable[[], Awaitable[Any]], *, key: Any, returns: Any
) -> Any:
    """Run an output function unless it has run, or may have, and return its result.

    Raises:
        ToolDurabilityError: it is unknown whether it has run.
        EffectFailedError: it failed at an earlier attempt, or its result was lost.
        ModelRetry: the model must produce another output.
    """
    made = list[Any]()

    async def call(given: Any) -> Any:
        made.append(await function())
        return made[0]

    call.__annotations__["return"] = returns

    def key_of(given: Any) -> Any:
        return key

    try:
        kept = await effect(store, name[:100], key=key_of)(call)(output)
    except EffectFailedError as error:
        if made:  # it has run here, and only its result cannot be stored
            return made[0]
        if error.kind in _RETRIES:
            raise ModelRetry(error.reason) from None
        raise
    return made[0] if made else kept


def type_of_output(output_type: Any, context: OutputContext) -> Any:
    """Return the result type of an agent's output function, for reading stored results; Any if it is not declared."""
    named = [one for one in _functions(output_type) if getattr(one, "__name__", None) == context.function_name]
    try:
        found = get_type_hints(named[0]).get("return", Any) if len(named) == 1 else Any
    except (NameError, TypeError):
        return Any
    if found is Self:
        owner = getattr(named[0], "__self__", None)
        found = owner if isinstance(owner, type) else type(owner)
    try:
        TypeAdapter(found)
    except PydanticUserError:  # it has no schema: stored results are read as JSON
        return Any
    return found


def _functions(spec: Any) -> Iterator[Any]:
    match spec:
        case ToolOutput():
            yield from _functions(spec.output)
        case TextOutput():
            yield spec.output_function
        case NativeOutput() | PromptedOutput():
            yield from _functions(spec.outputs)
        case Sequence() if not isinstance(spec, str):
            for one in spec:
                yield from _functions(one)
        case _ if callable(spec) and not isinstance(spec, type):
            yield spec
