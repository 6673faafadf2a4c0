"""Bounds the answers of the HTTP clients in providers' SDKs. Like the SDKs, imported only when a client is made."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import httpx2

from standfast.llm.answer_limits import AnswerLimits, read_bounded


def bounding(limits: AnswerLimits) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook that bounds a client's answers before they are read.

    A custom transport would do the same, but would lose the proxies from the environment.
    """

    async def bound(response: httpx2.Response) -> None:
        if isinstance(response.stream, httpx2.AsyncByteStream):
            encoding = response.headers.pop("Content-Encoding", "")  # the bytes are unpacked when they are read
            streamed = response.headers.get("Content-Type", "").startswith("text/event-stream")
            response.stream = _Bounded(response.stream, encoding, limits, streamed)

    return bound


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, encoding: str, limits: AnswerLimits, streamed: bool) -> None:
        self._stream, self._encoding, self._limits, self._streamed = stream, encoding, limits, streamed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        found = read_bounded(aiter(self._stream), self._encoding, self._limits, streamed=self._streamed)
        async with aclosing(found) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
