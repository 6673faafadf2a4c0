"""The Protocols of stores that also keep models' answers while they are streamed. Not every store does."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from standfast.messages import Record


class PartialAnswer(Record):
    """A part of an answer that a model is streaming, or was streaming when its worker died.

    Args:
        turn: the number of the turn in its run.
        attempt: the attempt at this turn; the greater of two numbers is the later attempt.
        offset: the position at which `text` begins in the answer, in characters.
    """

    turn: int
    attempt: str
    offset: int
    text: str

    @property
    def end(self) -> int:
        """The position at which `text` ends in the answer."""
        return self.offset + len(self.text)


_REASONING = "/reasoning"


def reasoning_key(journal_key: str) -> str:
    """Return the key of the row that has the readable thoughts of a run's answer, beside the row with its text."""
    return journal_key + _REASONING


def run_of(key: str) -> str:
    """Return the run whose text or thoughts have this key."""
    return key.removesuffix(_REASONING)


@runtime_checkable
class PartialAnswers(Protocol):
    """Models' answers while they are streamed, for viewers: at most one per key. Nothing depends on them.

    A run has two keys: its own, and `reasoning_key`.
    """

    async def add_partial(self, journal_key: str, part: PartialAnswer) -> None:
        """Add a part. Repeating this changes nothing. A part of an earlier attempt is ignored."""
        ...

    async def load_partial(self, journal_key: str, *, after: PartialAnswer | None = None) -> PartialAnswer | None:
        """Return the answer so far, or only its text `after` an earlier part; None if no answer is being streamed.

        The answer of another attempt is returned from its beginning.
        """
        ...

    async def drop_partial(self, journal_key: str, *, turn: int, attempt: str) -> None:
        """Delete the parts up to this attempt at a turn: the whole answer is known, or there will be none."""
        ...


@runtime_checkable
class PartialNews(Protocol):
    """A store that notifies viewers of new parts of an answer, so that they need not poll."""

    def partial_news(self, journal_key: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """Yield an event that is set whenever a run may have a new part of its text or thoughts (see `run_of`).

        A viewer clears it before it looks.

        A notification may be lost, so viewers also look from time to time.
        """
        ...
