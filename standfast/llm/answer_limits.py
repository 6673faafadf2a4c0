"""Limits how much of a provider's answer is read.

A server may send without end, or send a small body that unpacks to gigabytes.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from standfast.errors import DefinitionError, InputError
from standfast.time_limits import time_limit

T = TypeVar("T")

_STEP = 64 * 1024  # bytes that are unpacked in one step
_PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # and zlib's name for each
ENCODINGS = "gzip, deflate"  # the encodings that we accept


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Limits of an answer; one that exceeds them is a `ModelError`, and is not requested again.

    Args:
        max_bytes: the whole answer, unpacked; also the provider's text of an error.
        max_event_bytes: one event of a stream, or an answer that is not streamed.
        max_seconds: from the request to the end. A model call on Temporal has 900.

    Raises:
        DefinitionError: a limit is not a positive number.
    """

    max_bytes: int = 64 * 2**20
    max_event_bytes: int = 16 * 2**20
    max_seconds: float = 840.0

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_event_bytes", "max_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise DefinitionError(f"AnswerLimits: {name} must be a positive number, got {value!r}")


class PastLimitError(Exception):
    """An answer exceeds its limits."""


@asynccontextmanager
async def in_time(limits: AnswerLimits, seconds: float | None = None) -> AsyncIterator[None]:
    """Wait for an answer, or its head, for at most the time that an answer may take, or what remains of it.

    Raises:
        PastLimitError: the time has passed.
    """
    try:
        async with time_limit(limits.max_seconds if seconds is None else seconds):
            yield
    except TimeoutError as error:
        raise PastLimitError(
            f"its answer took more than {limits.max_seconds:g} s; "
            "ask for less, or pass limits=AnswerLimits(max_seconds=…) if that is usual"
        ) from error


def _too_large(name: str, limit: int) -> PastLimitError:
    return PastLimitError(
        f"its answer has more than {limit:,} bytes; pass limits=AnswerLimits({name}=…) if that is usual"
    )


async def read_bounded(
    raw: AsyncIterator[bytes], encoding: str, limits: AnswerLimits, *, streamed: bool
) -> AsyncGenerator[bytes, None]:
    """Yield a body as it arrives, unpacked.

    Args:
        encoding: the value of the header.
        streamed: whether it has several events; otherwise it is one JSON value.

    Raises:
        PastLimitError: it exceeds the limits, or its encoding cannot be unpacked step by step.
    """
    size = 0
    pieces = _unpacked(timely(raw, limits), encoding.strip().lower())
    async with aclosing(pieces):
        async for piece in pieces:
            size += len(piece)
            if size > limits.max_bytes:
                raise _too_large("max_bytes", limits.max_bytes)
            if size > limits.max_event_bytes and not streamed:
                raise _too_large("max_event_bytes", limits.max_event_bytes)
            yield piece


async def timely(raw: AsyncIterator[T], limits: AnswerLimits) -> AsyncGenerator[T, None]:
    """Yield the pieces that arrive in time.

    Raises:
        PastLimitError: the time for the answer has passed.
    """
    until = asyncio.get_running_loop().time() + limits.max_seconds
    while True:
        async with in_time(limits, until - asyncio.get_running_loop().time()):
            try:
                piece = await anext(raw)
            except StopAsyncIteration:
                return
        yield piece


async def _unpacked(raw: AsyncGenerator[bytes, None], encoding: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(raw):
        if encoding in ("", "identity"):
            async for piece in raw:
                yield piece
            return
        if encoding not in _PACKED:
            raise PastLimitError(f"its answer is packed as {encoding!r:.40}, and was asked for as {ENCODINGS}")
        unpacker: Any = zlib.decompressobj(_PACKED[encoding])
        async for packed in raw:
            rest = packed
            while rest and not unpacker.eof:
                try:
                    piece = unpacker.decompress(rest, _STEP)
                except zlib.error as error:
                    raise InputError(f"its answer is not packed as {encoding}: {error}") from error
                rest = unpacker.unconsumed_tail
                yield piece


async def events(pieces: AsyncIterator[bytes], limits: AnswerLimits) -> AsyncGenerator[bytes, None]:
    """Yield the data of the events of a stream; every provider writes the data of an event on one line.

    Lines end only at line breaks: httpx's `aiter_lines` also splits at Unicode's, which JSON may contain.
    """
    begun: list[bytes] = []
    size = 0
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > limits.max_event_bytes:
            raise _too_large("max_event_bytes", limits.max_event_bytes)
        for other in others:
            if data := _data(b"".join(begun)):
                yield data
            begun, size = [other], len(other)
    if data := _data(b"".join(begun)):
        yield data


def _data(line: bytes) -> bytes:
    return line[5:].strip() if line.startswith(b"data:") else b""
