"""Notifies open pages of changes and of a model's words, by server-sent events, whose number is bounded."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from temporalio.service import RPCError

from standfast.errors import StandfastError, StoreError
from standfast.events import AnswerDelta, TextDelta
from standfast.messages import visible
from standfast.runtime.streamed_answers import Heard, load_more, news_of, until_more
from standfast.stores.partial_answers import PartialAnswer
from standfast.stores.protocol import AgentStore, has_partial_answers
from standfast.web.serving.mounts import root_of

_EVERY, _AT_LEAST_EVERY = 2.0, 10.0  # seconds between two checks of a page's contents; more if a check takes long
_SHARE = 0.1  # share of the time spent on checking one page
_WORDS_EVERY = 0.25  # seconds between two checks of a model's words

_MOST = 50  # of one person; other people also need connections


class Streams:
    """The streams that are open, by person."""

    def __init__(self, what: str) -> None:
        self._what, self._open = what, Counter[str]()

    def open(self, person: str, texts: AsyncIterator[str], headers: Mapping[str, str] | None = None) -> "Stream":
        """Return a stream of events, which counts from now on until it was answered.

        Raises:
            HTTPException: 429; the person has reached the limit.
        """
        if self._open[person] >= _MOST:
            raise HTTPException(429, f"{person} already has {_MOST} {self._what}.", {"Retry-After": "10"})
        self._open[person] += 1
        return Stream(self, person, texts, headers)

    def close(self, person: str) -> None:
        self._open[person] -= 1


class Stream(StreamingResponse):
    """An answer whose count ends even if it was never read."""

    def __init__(
        self, streams: Streams, person: str, texts: AsyncIterator[str], headers: Mapping[str, str] | None
    ) -> None:
        super().__init__(texts, media_type="text/event-stream", headers=headers)
        self._streams, self._person = streams, person

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.close(self._person)


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

    async def events(self, of: str, shown: str, words: tuple[str, Heard] | None) -> AsyncIterator[str]:
        """Yield events: "changed" when the page is out of date, "words" and "thoughts" with the model's new ones.

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
                for piece, heard in [] if words is None else await self._more(*words):
                    words = (words[0], heard) if words is not None else None
                    kind = "words" if isinstance(piece, TextDelta) else "thoughts"
                    data = {"offset": piece.offset, "text": visible(piece.text)}
                    yield f"event: {kind}\nid: {position(heard)}\ndata: {json.dumps(data)}\n\n"
                await until_more(news, _EVERY if words is None else _WORDS_EVERY, self._closing)

    async def _more(self, journal_key: str, heard: Heard) -> list[tuple[AnswerDelta, Heard]]:
        """Return a model's new words; none if the store cannot be read now."""
        if has_partial_answers(self._store):
            with suppress(StoreError):  # they are sent once it is readable
                return await load_more(self._store, journal_key, heard)
        return []

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


def position(heard: Heard) -> str:
    """Return an open page's position in an answer: in its text, and in its thoughts if there are any."""
    thoughts = "" if heard.thoughts is None else f";{_written(heard.thoughts)}"
    return ("" if heard.text is None else _written(heard.text)) + thoughts


def _written(part: PartialAnswer) -> str:
    return f"{part.turn}/{part.attempt}/{part.end}"


def read_position(text: str) -> Heard:
    """Return the position that `position` wrote; for any other text the beginning, and then a page gets everything."""
    said, _, thoughts = text.partition(";")
    return Heard(_read(thoughts), _read(said))


def _read(text: str) -> PartialAnswer | None:
    turn, _, rest = text.partition("/")
    attempt, _, end = rest.rpartition("/")
    if not (
        turn.isascii() and turn.isdecimal() and end.isascii() and end.isdecimal() and max(len(turn), len(end)) <= 15
    ):
        return None
    return PartialAnswer(turn=int(turn), attempt=attempt, offset=int(end), text="")


def changes_address(request: Request, of: str, shown: Any, words: tuple[str, Heard] | None = None) -> str:
    """Return the address from which an open page gets notifications of changes, and a run's new words."""
    hears = {} if words is None else {"words": words[0], "has": position(words[1])}
    return f"{root_of(request.scope)}/changes?{urlencode({'of': of, 'shown': digest(shown), **hears})}"
