"""Toolsets: tools that are known only when a run or a worker begins, such as those of a server."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from standfast.tools.tool import Tool


@runtime_checkable
class Toolset(Protocol):
    """Stands among an agent's tools for tools that are found later."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def agents(self) -> Sequence[Any]:
        """The agents that its tools run, which a worker has to have."""
        ...

    @property
    def asks_model(self) -> bool:
        """Whether its tools may ask the model of the agent that calls them."""
        ...

    def opened(
        self, store: Any, renewed: Callable[[Sequence[Tool[..., Any]]], None] | None = None
    ) -> AbstractAsyncContextManager[Sequence[Tool[..., Any]]]:
        """Yield the tools, which work for as long as the block lasts.

        Args:
            store: of the run or the worker; None if there is none.
            renewed: is called with the tools, on the loop of the block, if they are others from then on.

        Raises:
            StandfastError: they cannot be found now; on Temporal it is tried again, and the runs of the agent wait.
        """
        ...
