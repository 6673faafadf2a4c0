"""What all tests share: a durable store on a real file, new for every test."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import sqlite_store
from holdfast.stores import SQLiteStore

# The application beside the library, behind it: the wheel's tests must find the installed holdfast first.
sys.path.append(str(Path(__file__).parent.parent))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with sqlite_store(tmp_path / "holdfast.db") as opened:
        yield opened
