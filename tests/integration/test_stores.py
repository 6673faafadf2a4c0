"""Every store passes the suite that holdfast exports; what a file can do to a store is tested here, too."""

from typing import Any

import pytest

from holdfast import memory_store
from holdfast.testing import store_suite


@pytest.mark.parametrize("check", store_suite(), ids=lambda check: check.__name__)
async def test_sqlite(check: Any, store: Any) -> None:
    await check(store)


@pytest.mark.parametrize("check", store_suite(durable=False), ids=lambda check: check.__name__)
async def test_memory(check: Any) -> None:
    await check(memory_store())
