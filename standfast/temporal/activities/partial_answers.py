"""Publishes a model's answer in pieces while it arrives: through the store, never in a history.

Nothing depends on it. The complete answer is kept as a whole; its pieces are then deleted.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from temporalio import activity

from standfast.stores.partial_answers import PartialAnswer, PartialAnswers

EVERY = 0.25  # seconds between two pieces; a quicker answer costs nothing


class PartialAnswerWriter:
    """Writes the pieces of an answer during a block, and deletes them at its end."""

    def __init__(self, store: PartialAnswers, run: str, turn: int) -> None:
        self._store, self._run, self._turn = store, run, turn
        info = activity.info()
        # By the server's clock, so that an attempt after a reset, which again has number 1, is also later.
        self._attempt = f"{info.started_time:%Y-%m-%dT%H:%M:%S.%f}.{info.attempt:03}"
        self._told: list[str] = []
        self._written = 0  # characters
        self._is_there = False  # the store may have some of it
        self._writing: asyncio.Task[None] | None = None

    def tell(self, text: str) -> None:
        """Take the next words, from any thread."""
        self._told.append(text)

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writing is not None
        self._writing.cancel()
        await asyncio.wait({self._writing})
        if self._is_there:
            with contextlib.suppress(Exception):
                await self._store.drop_partial(self._run, turn=self._turn, attempt=self._attempt)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            count = len(self._told)
            text = "".join(self._told[:count])
            if not text:
                continue
            part = PartialAnswer(turn=self._turn, attempt=self._attempt, offset=self._written, text=text)
            self._is_there = True
            with contextlib.suppress(Exception):  # retried with the next piece
                await self._store.add_partial(self._run, part)
                self._written = part.end
                del self._told[:count]
