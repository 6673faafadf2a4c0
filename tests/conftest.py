"""What all tests share: a durable store on a real file, new for every test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import sqlite_store
from holdfast.stores import SQLiteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with sqlite_store(tmp_path / "holdfast.db") as opened:
        yield opened
