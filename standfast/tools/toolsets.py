"""Toolsets: tools that are known only when a run or a worker begins, such as a server's tools."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from standfast.tools.tool import Tool


@runtime_checkable
class Toolset(Protocol):
    """Represents, among an agent's tools, tools that are found later."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    @property
    def agents(self) -> Sequence[Any]:
        """The agents that its tools run, which a worker must have."""
        ...

    @property
    def asks_model(self) -> bool:
        """Whether its tools may ask the model of the calling agent."""
        ...

    def opened(
        self, store: Any, renewed: Callable[[Sequence[Tool[..., Any]]], None] | None = None
    ) -> AbstractAsyncContextManager[Sequence[Tool[..., Any]]]:
        """Yield the tools, which work for as long as the block lasts.

        Args:
            store: of the run or the worker; None if there is none.
            renewed: called with the new tools, on the loop of the block, whenever they have changed.

        Raises:
            StandfastError: they cannot be found now; on Temporal this is retried, and the agent's runs wait.
        """
        ...
