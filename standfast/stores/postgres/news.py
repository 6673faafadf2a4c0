"""Tells viewers when a PostgreSQL store has more of a model's answer (LISTEN and NOTIFY), so that they need not ask.

One connection of its own listens for an event loop, for as long as somebody there views an answer. While it is being
opened again, viewers hear nothing: they look for themselves from time to time.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from standfast.stores.postgres.database import Address

RETRIES = 1.0  # seconds between two tries to connect again
CLOSE = 5.0  # seconds until the connection is closed without a word

_LOG = logging.getLogger("standfast")


def channel(schema: str) -> str:
    """Return the channel of a schema. Its name is short enough for any, and databases do not share channels."""
    return f"standfast_{_hash(schema)}"


def topic(journal_key: str) -> str:
    """Return what is said on the channel of a run: 8,000 bytes at most are taken, and anybody may listen."""
    return _hash(journal_key)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class News:
    """Word of what is new, on one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._viewers: dict[str, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def of(self, journal_key: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever a run may have said more."""
        about, event = topic(journal_key), asyncio.Event()
        self._viewers.setdefault(about, set()).add(event)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        try:
            yield event
        finally:
            self._viewers[about].discard(event)
            if not self._viewers[about]:
                del self._viewers[about]
            if not self._viewers:
                await self.close()

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait({listening})

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except Exception as error:
                _LOG.debug("Nobody tells of models' words in %s: %s", self._address.name, error)
            await asyncio.sleep(RETRIES)

    async def _listen_once(self) -> None:
        connection, ended = await self._address.connect(), asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(channel(self._address.schema), self._hear)
            for event in (event for viewers in self._viewers.values() for event in viewers):
                event.set()  # more may have been said before
            await ended.wait()
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(connection.close(timeout=CLOSE))

    def _hear(self, connection: Any, process: int, of: str, about: str) -> None:
        for event in self._viewers.get(about, ()):
            event.set()
