"""The stores of the conversations: each kind, as several processes open them."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.any_store import KINDS, opener_of
from support.d1 import D1Server, d1_server, missing
from support.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def d1() -> Iterator[D1Server]:
    if (why := missing()) is not None:
        pytest.skip(why)
    with d1_server() as server:
        yield server


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    return opener_of(request.param, request, tmp_path)


@pytest.fixture
async def any_store(opened: Callable[[], Any]) -> AsyncIterator[Any]:
    async with opened() as store:
        yield store
