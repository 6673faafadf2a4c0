"""Notifies open pages, by server-sent events, of changes and of the words that a model is producing."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from temporalio.service import RPCError

from standfast.errors import StandfastError, StoreError
from standfast.messages import visible
from standfast.runtime.viewers import news_of, until_more
from standfast.stores.capabilities import has_partial_answers
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.protocol import AgentStore

_EVERY, _AT_LEAST_EVERY = 2.0, 10.0  # seconds between two checks of a page's contents; more if a check takes long
_SHARE = 0.1  # share of the time spent on checking one page
_WORDS_EVERY = 0.25  # seconds between two checks of a model's words


class Looks:
    """Checks that pages share: if several show the same contents, they are checked only once.

    Args:
        look: returns the page's contents for a run, or for the inbox.
    """

    def __init__(self, look: Callable[[str], Awaitable[Any]], store: AgentStore | None) -> None:
        self._look, self._store = look, store
        self._closing = asyncio.Event()
        self._last: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    def close(self) -> None:
        """End the event streams of open pages: a stopping server would wait for them."""
        self._closing.set()

    async def events(self, of: str, shown: str, words: tuple[str, PartialAnswer | None] | None) -> AsyncIterator[str]:
        """Yield events: "changed" when the page is out of date, "words" with the model's new words.

        Args:
            shown: `digest` of the page's contents.
            words: the key of the run whose model's words it shows, and the words it has; None if it shows none.
        """
        clock = asyncio.get_running_loop().time
        looked, again = clock(), clock() + _EVERY
        async with news_of(self._store, None if words is None else words[0]) as news:
            while not self._closing.is_set():
                if clock() >= again:
                    before, looked = looked, clock()
                    with suppress(StandfastError, RPCError):
                        if (now := digest(await self._shared(of, before))) != shown:
                            shown = now
                            yield "event: changed\ndata: \n\n"
                    again = looked + min(max(_EVERY, (clock() - looked) / _SHARE), _AT_LEAST_EVERY)
                    yield ": still here\n\n"
                if words is not None and (part := await self._more(*words)) is not None:
                    words = (words[0], part)
                    data = {"offset": part.offset, "text": visible(part.text)}
                    yield f"event: words\nid: {position(part)}\ndata: {json.dumps(data)}\n\n"
                await until_more(news, _EVERY if words is None else _WORDS_EVERY, self._closing)

    async def _more(self, journal_key: str, heard: PartialAnswer | None) -> PartialAnswer | None:
        """Return a model's new words; None if there are none, or the store cannot be read now."""
        if not has_partial_answers(self._store):
            return None
        with suppress(StoreError):  # its words are sent as soon as the store is readable
            part = await self._store.load_partial(journal_key, after=heard)
            return part if part is not None and part.text else None
        return None

    async def _shared(self, of: str, since: float) -> Any:
        """Return another page's check made since then, or check now."""
        now = asyncio.get_running_loop().time()
        self._last = {
            known: (at, look) for known, (at, look) in self._last.items() if now - at < _EVERY or not look.done()
        }
        at, look = self._last.get(of, (since, None))
        if look is None or at <= since:
            look = asyncio.ensure_future(self._look(of))
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # the page that asked may be gone
            self._last[of] = (now, look)
        return await asyncio.shield(look)


def digest(shown: Any) -> str:
    return hashlib.blake2b(json.dumps(shown, default=str).encode(), digest_size=8).hexdigest()


def position(part: PartialAnswer | None) -> str:
    """Return an open page's position in an answer."""
    return "" if part is None else f"{part.turn}/{part.attempt}/{part.end}"


def read_position(text: str) -> PartialAnswer | None:
    """Return the position that `position` wrote; None for any other text, and then a page gets everything."""
    turn, _, rest = text.partition("/")
    attempt, _, end = rest.rpartition("/")
    if not (
        turn.isascii() and turn.isdecimal() and end.isascii() and end.isdecimal() and max(len(turn), len(end)) <= 15
    ):
        return None
    return PartialAnswer(turn=int(turn), attempt=attempt, offset=int(end), text="")
