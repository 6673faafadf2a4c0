"""Fixtures of the chat tests: local servers for Slack and Microsoft Teams."""

from collections.abc import AsyncIterator

import pytest
from support.slack import Slack
from support.teams import Teams


@pytest.fixture
async def slack() -> AsyncIterator[Slack]:
    async with Slack() as server:
        yield server


@pytest.fixture
async def teams() -> AsyncIterator[Teams]:
    async with Teams() as server:
        yield server
