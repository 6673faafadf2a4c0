"""What the tests on real stores share: stores for every process of a run, and a folder for many databases."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import sqlite_store


@pytest.fixture(params=["stateless", "stored"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return what makes the options of a run in a new process: no store, or a new store on the same file."""
    if request.param == "stateless":
        return dict
    return lambda: {"store": sqlite_store(tmp_path / "shared.db"), "session_id": "s"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the databases are: in memory if there is such a folder, since nothing here depends on a flush to disk."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as name:
        yield Path(name)
