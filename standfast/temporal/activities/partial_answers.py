"""Publishes a model's answer in pieces while it arrives: through the store, never in a history.

Nothing depends on it. The complete answer is kept as a whole; its pieces are then deleted.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from temporalio import activity

from standfast.events import AnswerDelta, TextDelta
from standfast.stores.partial_answers import PartialAnswer, PartialAnswers, reasoning_key

EVERY = 0.25  # seconds between two pieces; a quicker answer costs nothing


class _Row:
    """A row of the store, with the text or the thoughts of an answer so far."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.told: list[str] = []  # and not yet written
        self.written = 0  # characters
        self.is_there = False  # the store may have some of it


class PartialAnswerWriter:
    """Writes the pieces of an answer during a block, and deletes them at its end."""

    def __init__(self, store: PartialAnswers, run: str, turn: int) -> None:
        self._store, self._turn = store, turn
        info = activity.info()
        # By the server's clock, so that an attempt after a reset, which again has number 1, is also later.
        self._attempt = f"{info.started_time:%Y-%m-%dT%H:%M:%S.%f}.{info.attempt:03}"
        self._thoughts, self._text = _Row(reasoning_key(run)), _Row(run)
        self._writing: asyncio.Task[None] | None = None

    def tell(self, piece: AnswerDelta) -> None:
        """Take the next words, from any thread."""
        row = self._text if isinstance(piece, TextDelta) else self._thoughts
        row.told.append(piece.text)

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writing is not None
        self._writing.cancel()
        await asyncio.wait({self._writing})
        for row in (self._thoughts, self._text):
            if row.is_there:
                with contextlib.suppress(Exception):
                    await self._store.drop_partial(row.key, turn=self._turn, attempt=self._attempt)

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            for row in (self._thoughts, self._text):
                await self._extend(row)

    async def _extend(self, row: _Row) -> None:
        count = len(row.told)
        text = "".join(row.told[:count])
        if not text:
            return
        part = PartialAnswer(turn=self._turn, attempt=self._attempt, offset=row.written, text=text)
        row.is_there = True
        with contextlib.suppress(Exception):  # retried with the next piece
            await self._store.add_partial(row.key, part)
            row.written = part.end
            del row.told[:count]
