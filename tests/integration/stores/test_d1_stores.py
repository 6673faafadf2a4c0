"""A store in Cloudflare's real D1 passes the suite that standfast exports."""

from functools import partial
from typing import Any

import pytest
from support.d1 import ACCOUNT, TOKEN, D1Server

from standfast.stores import D1Store, d1_store
from standfast.testing import store_suite


def reopen(store: D1Store) -> Any:
    name, lease = store._name.rpartition("/")[2], store._connections.lease
    return partial(d1_store, ACCOUNT, name, TOKEN, lease=lease, base_url=BASE[0])


BASE: list[str] = []


async def lose_answers(store: D1Store) -> None:
    pass


@pytest.fixture(autouse=True)
def base(d1: D1Server) -> None:
    BASE[:] = [d1.url]


@pytest.mark.parametrize("check", store_suite(partial_answers=True, reopen=reopen), ids=lambda check: check.__name__)
async def test_d1(check: Any, d1_store: D1Store) -> None:
    await check(d1_store)
