"""Waits for more of a model's answer, for its viewers: until the store notifies them, if it can."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from standfast.stores.capabilities import has_partial_news

AT_LEAST_EVERY = 2.0  # seconds between two checks, even with notifications: one may be lost


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
