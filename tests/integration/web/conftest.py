"""What the tests of chats share: Slack and Microsoft Teams on this machine."""

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
