"""Counts the event streams that people leave open, and refuses more than the limit."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping

from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

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
