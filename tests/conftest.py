"""Fixtures of all tests: a durable store in a real file, new for each test."""

import gc
import os
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast import sqlite_store
from standfast.stores import SQLiteStore

# The application beside the library, behind it: the wheel's tests must find the installed standfast first.
sys.path.append(str(Path(__file__).parent.parent))

# A shell without job control starts what is to run in its background with Ctrl-C ignored. Programs of the tests would
# inherit that, and never end by it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every client of HTTP reads the certificates of the authorities, which takes 27 ms for all of the world's. Tests speak
# to servers on this machine: one authority, whose key is gone, will do for them, and for the programs that they start.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")

# Temporal's server is written in Go. Several of them share two cores: with one thread and less garbage collection, each
# needs a sixth less.
os.environ.setdefault("GOMAXPROCS", "1")
os.environ.setdefault("GOGC", "400")

# Nothing here depends on a flush to disk, and waiting for the disk was a quarter of the time of tests with databases.
# Containers often have 64 MB of memory there, which is too little.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Collected tests live to the end: looking through ten thousand of them for garbage, again and again as they are found,
# was a quarter of the time in which they are found, in each process.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep some cases of a slow matrix fast: `@pytest.mark.slow(but=3)` leaves three of them, spread over all, to
    `make test`.
    """
    matrices = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if (mark := item.get_closest_marker("slow")) is not None and "but" in mark.kwargs:
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cases in matrices.values():
        count = cases[0].get_closest_marker("slow").kwargs["but"]  # type: ignore[union-attr]
        for number in range(count):
            case = cases[number * (len(cases) - 1) // max(count - 1, 1)]
            case.own_markers = [mark for mark in case.own_markers if mark.name != "slow"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    async with sqlite_store(tmp_path / "standfast.db") as opened:
        yield opened
