"""Fixtures of the crash tests of the Temporal driver: one server for the whole run, and a world for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from acceptance.temporal_world import World, world
from standfast.temporal import dev_server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def address() -> AsyncIterator[str]:
    async with dev_server() as server:
        yield server.address


@pytest.fixture(name="world")
async def _world(tmp_path: Path, address: str) -> AsyncIterator[World]:
    async with world(tmp_path, address) as made:
        yield made
