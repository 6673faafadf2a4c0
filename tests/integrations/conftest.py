"""Fixture of the adapters' tests: a Temporal server."""

from collections.abc import AsyncIterator

import pytest_asyncio

from standfast.testing import DevServer, dev_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal_server() -> AsyncIterator[DevServer]:
    async with dev_server() as server:
        yield server
