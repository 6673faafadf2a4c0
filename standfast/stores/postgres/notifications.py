"""Notifies viewers when a PostgreSQL store has more of a model's answer (LISTEN and NOTIFY), so they need not poll.

A separate connection listens for an event loop, for as long as an answer is viewed there. While it is being reopened,
viewers are not notified: they look from time to time.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from standfast.stores.postgres.database import Address

RETRIES = 1.0  # seconds between two tries to connect again
CLOSE = 5.0  # seconds before the connection is dropped without a message

_LOG = logging.getLogger("standfast")


def channel(schema: str) -> str:
    """Return a schema's channel. Its name is short enough for any schema, and databases do not share channels."""
    return f"standfast_{_hash(schema)}"


def topic(journal_key: str) -> str:
    """Return a run's topic on the channel. A payload is at most 8,000 bytes, and anyone may listen."""
    return _hash(journal_key)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class News:
    """Notifications on one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._viewers: dict[str, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def of(self, journal_key: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever a run may have a new part."""
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
                event.set()  # earlier parts may exist
            await ended.wait()
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(connection.close(timeout=CLOSE))

    def _hear(self, connection: Any, process: int, of: str, about: str) -> None:
        for event in self._viewers.get(about, ()):
            event.set()
