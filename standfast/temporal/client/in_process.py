"""Reads the waiting items of in-process runs, and decides on their gates: only the store has these runs."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from standfast.agent_loop import Decision
from standfast.errors import InputError
from standfast.messages import explain
from standfast.runtime import outside_decisions
from standfast.stores.capabilities import has_waits
from standfast.stores.waits import Board, WaitFilter, Waits
from standfast.temporal.client.boards import WholeBoard, read_waiting


class RunsInProcess:
    """The in-process runs that have a store.

    Args:
        store: None if there is none; then there are no runs.
    """

    def __init__(self, store: object) -> None:
        self._store: Waits | None = store if has_waits(store) else None
        self._board = None if self._store is None else WholeBoard(self._store, on_temporal=False)

    async def waiting(self, wanted: WaitFilter, limit: int | None = None) -> list[dict[str, Any]]:
        """Return their waiting items."""
        return [] if self._board is None else await read_waiting(self._board, wanted, limit=limit)

    async def pending(self, address: str) -> list[dict[str, Any]]:
        """Return the waiting items of one run.

        Raises:
            InputError: there is no such run.
        """
        board = await self.board(address)
        return await self.waiting(WaitFilter(namespace=board.namespace, workflow_id=address))

    async def board(self, address: str) -> Board:
        """Return the board of a run, which names its owner.

        Raises:
            InputError: there is no such run.
        """
        if self._store is None:
            raise InputError(f"Run {address!r} is in a store: name it with --store, or give store=")
        return await outside_decisions.load_waiting(self._store, address)

    async def decide(self, address: str, decision: Mapping[str, Any]) -> None:
        """Record a decision; it takes effect when the run continues.

        Raises:
            InputError: it does not count.
            SessionConflictError: the run is active.
        """
        try:
            read = Decision.model_validate(decision)
        except ValidationError as error:
            raise InputError(f"decide: {explain(error)}") from error
        await outside_decisions.decide(self._store, address, read)
