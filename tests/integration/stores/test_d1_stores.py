"""A store in Cloudflare's real D1 passes the suite that standfast exports."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from support.d1 import ACCOUNT, LEASE, TOKEN, D1Server
from support.d1_proxies import D1Proxy

from standfast import StoreError
from standfast.stores import D1Store, d1_store
from standfast.stores.d1 import database as d1_database
from standfast.testing import store_suite


@pytest.fixture
async def proxied(d1: D1Server) -> AsyncIterator[D1Store]:
    async with D1Proxy(d1).running() as proxy, proxy.store() as store:
        PROXIES[store] = proxy
        yield store


PROXIES: dict[D1Store, D1Proxy] = {}


def reopen(store: D1Store) -> Any:
    database, server = store._name.rpartition("/")[2], PROXIES[store].server
    return partial(d1_store, ACCOUNT, database, TOKEN, lease=LEASE, base_url=server.url)


async def interrupt(store: D1Store) -> None:
    """Lose what is asked just now, the answers to it, and the first that is asked later."""
    proxy = PROXIES[store]
    proxy.faults = ["lose", "drop"] * 3
    proxy.cut()
    while proxy.faults:
        with contextlib.suppress(StoreError):
            await store._executor.rows(("SELECT 1 AS one", {}))


@pytest.mark.slow(but=20)
@pytest.mark.parametrize(
    "check",
    store_suite(
        waits=True,
        standing_approvals=True,
        partial_answers=True,
        deletion=True,
        reopen=reopen,
        interrupt=interrupt,
        rounds=10,
    ),
    ids=lambda check: check.__name__,
)
async def test_d1(check: Any, proxied: D1Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d1_database, "REPEATS", (0.01, 0.05))
    await check(proxied)
