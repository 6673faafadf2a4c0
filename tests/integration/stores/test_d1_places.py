"""D1: an open process notices a database that was restored to an earlier time, and begins an epoch."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.d1 import D1Server
from support.d1_proxies import D1Proxy
from support.stores import append, contents

from standfast.runtime.restored_stores import current_epoch, note_place
from standfast.stores.d1 import connections


@pytest.fixture
def server(tmp_path: Path, d1: D1Server) -> Iterator[D1Server]:
    """A server of the test's own, which has files; `d1` says whether there can be one."""
    server = D1Server(tmp_path)
    server.start()
    yield server
    server.stop()


def files(server: D1Server) -> Path:
    return server._folder / "databases"


def back_up(server: D1Server, folder: Path) -> None:
    server.stop()
    shutil.copytree(files(server), folder)
    server.start()


def put_back(server: D1Server, folder: Path) -> None:
    server.stop()
    shutil.rmtree(files(server))
    shutil.copytree(folder, files(server))
    server.start()


@pytest.mark.slow
async def test_a_database_that_was_restored_begins_an_epoch_for_all(server: D1Server, tmp_path: Path) -> None:
    name = "0000-1"
    async with server.store(name) as here, server.store(name) as there:
        await note_place(here)
        await append(here, "before")
        assert (await current_epoch(here), await current_epoch(there)) == (0, 0)
        back_up(server, tmp_path / "backup")
        assert await current_epoch(here) == 0  # a server that starts again is the same place
        await append(here, "lost")
        put_back(server, tmp_path / "backup")
        assert await contents(here) == ["before"]
        assert await current_epoch(here) == 1
        assert await current_epoch(here) == 1
        async with server.store(name) as new:
            assert await current_epoch(new) == 1
        assert await current_epoch(there, looks=False) == 1


async def test_a_database_that_was_restored_to_before_anybody_looked_is_noticed(
    server: D1Server, tmp_path: Path
) -> None:
    name = "0000-1"
    async with server.store(name) as store:
        await append(store, "before")
        back_up(server, tmp_path / "backup")
        place = await store.place()
        put_back(server, tmp_path / "backup")
        changed = await store.place()
        assert changed != place
        assert await store.place() == changed


async def test_a_worker_that_looked_once_notes_later_times_on_its_own(
    server: D1Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "EVERY", 0.0)
    name, number = "0000-1", "SELECT coalesce(max(number), 0) AS number FROM marks"
    async with server.store(name, lease=0.2) as store:
        place = await store.place()
        while server.sql(name, number)[0]["number"] < 3:
            await asyncio.sleep(0.05)
        assert await store.place() == place
    assert server.sql(name, "SELECT count(*) AS marks FROM marks") == [{"marks": 0}]


async def test_lost_answers_and_looks_at_once_do_not_make_another_place(server: D1Server) -> None:
    async with D1Proxy(server).running() as proxy, proxy.store("0000-1") as store:
        place = await store.place()
        proxy.faults = ["lose", "drop", "", "lose"]
        assert set(await asyncio.gather(*(store.place() for _ in range(8)))) == {place}
        assert proxy.faults == []


async def test_another_database_with_the_same_rows_is_another_place(server: D1Server) -> None:
    async with server.store("0000-1") as one, server.store("0000-2") as other:
        await one.place(), await other.place()
        row = server.sql("0000-1", "SELECT id, place FROM store_identity")[0]
        server.sql("0000-2", f"UPDATE store_identity SET id = '{row['id']}', place = '{row['place']}'")
        assert await one.identity() == await other.identity()
        assert await one.place() != await other.place()
