"""Reads a model's answer while it is streamed, for its viewers, and waits until there is more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from standfast.events import AnswerDelta, ReasoningDelta, TextDelta
from standfast.stores.partial_answers import PartialAnswer, PartialAnswers, reasoning_key
from standfast.stores.protocol import has_partial_news

AT_LEAST_EVERY = 2.0  # seconds between two checks, even with notifications: one may be lost


@dataclass(frozen=True, slots=True)
class Heard:
    """A viewer's position in an answer: in its thoughts, and in its text."""

    thoughts: PartialAnswer | None = None
    text: PartialAnswer | None = None

    @property
    def latest(self) -> tuple[int, str]:
        """The turn and the attempt; (0, "") before the first."""
        return max((_place(part) for part in (self.thoughts, self.text) if part is not None), default=(0, ""))


def _place(part: PartialAnswer) -> tuple[int, str]:
    return part.turn, part.attempt


async def load_more(store: PartialAnswers, journal_key: str, heard: Heard) -> list[tuple[AnswerDelta, Heard]]:
    """Return the new pieces of an answer, thoughts first, each with the viewer's position after it.

    If another attempt has begun, the words of the earlier one are void: a piece with offset 0 replaces them, an empty
    one if the new attempt has none yet.
    """
    # The text is read first, so that the thoughts before it are in the store by then.
    text = await store.load_partial(journal_key, after=heard.text)
    thoughts = await store.load_partial(reasoning_key(journal_key), after=heard.thoughts)
    latest = max(Heard(thoughts, text).latest, heard.latest)
    pieces: list[tuple[AnswerDelta, Heard]] = []
    if (more := _more(thoughts, heard.thoughts, latest)) is not None:
        heard = replace(heard, thoughts=more)
        pieces.append((ReasoningDelta(more.text, more.turn, more.offset), heard))
    if (more := _more(text, heard.text, latest)) is not None:
        heard = replace(heard, text=more)
        pieces.append((TextDelta(more.text, more.turn, more.offset), heard))
    return pieces


def _more(found: PartialAnswer | None, before: PartialAnswer | None, latest: tuple[int, str]) -> PartialAnswer | None:
    """Return the next part for a viewer: new words of the latest attempt, or an empty part that voids older words."""
    if found is not None and found.text and _place(found) == latest:
        return found
    if before is not None and before.end and _place(before) != latest:
        return PartialAnswer(turn=latest[0], attempt=latest[1], offset=0, text="")
    return None


@asynccontextmanager
async def news_of(store: object, journal_key: str | None) -> AsyncIterator[asyncio.Event | None]:
    """Yield an event that is set when a run may have new text; None if the store cannot notify."""
    if journal_key is None or not has_partial_news(store):
        yield None
        return
    async with store.partial_news(journal_key) as news:
        yield news


async def until_more(news: asyncio.Event | None, every: float, closing: asyncio.Event | None = None) -> None:
    """Wait until there may be more, or the viewer is closing.

    Args:
        every: seconds between two checks if the store cannot notify.
    """
    events = [event for event in (news, closing) if event is not None]
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        if waits:
            await asyncio.wait(
                waits, timeout=every if news is None else AT_LEAST_EVERY, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(every)
    finally:
        for wait in waits:
            wait.cancel()
    if news is not None:
        news.clear()
