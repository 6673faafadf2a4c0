"""The context that a pipeline's functions get: its input, and the outputs of the earlier steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from standfast.errors import InputError

if TYPE_CHECKING:
    from standfast.pipelines.pipeline import Step

T = TypeVar("T")


class _Unknown:
    """A type that no output has: in every checker, only a `Step[Any]` passes for a step of it."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The argument of a step's functions, with copies of their own.

    Args:
        input: the pipeline's input, read by its `input` type.
        prev: the outputs of the earlier steps, by name; `ctx[step]` gives one with its type.
        item, index: in a `map`, the present item and its index.
        iteration: in a `loop`, the number of rounds before.
        feedback: what people said who rejected what there was, if a rejection has gone back to this step or one before
            it; "" if they said nothing, and None if nobody has.
        user_id, tenant_id: the user who started the pipeline.
        run_key: the one by which that user finds the run again; None without a store. A nested pipeline has that of the
            outermost.
    """

    input: Any
    prev: Mapping[str, Any] = field(default_factory=dict)
    item: Any = None
    index: int | None = None
    iteration: int | None = None
    feedback: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None
    run_key: str | None = None

    @overload
    def __getitem__(self, step: "Step[_Unknown]") -> Any: ...
    @overload
    def __getitem__(self, step: "Step[None]") -> dict[str, str]: ...
    @overload
    def __getitem__(self, step: "Step[T]") -> T: ...
    def __getitem__(self, step: "Step[Any]") -> Any:
        """Return the output of a step that has run.

        Raises:
            InputError: it has not.
        """
        if isinstance(step, str):
            raise InputError(f"ctx[…] takes a Step; by its name it is ctx.prev[{step!r}]")
        if step.name not in self.prev:
            raise InputError(f"Step '{step.name}' has no output yet; there are {', '.join(self.prev) or 'none'}")
        return self.prev[step.name]
