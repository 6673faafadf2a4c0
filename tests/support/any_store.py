"""The same data in each kind of store, as several processes open them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from standfast import d1_store, postgres_store, sqlite_store

KINDS = ("sqlite", "postgres", "d1")


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return a text that says where new, empty data is; the fixtures `postgres` and `d1` are the servers."""
    from support.d1 import ACCOUNT, LEASE, TOKEN
    from support.postgres import new_schema

    if kind == "sqlite":
        return json.dumps([kind, [str(folder / "standfast.db")], {}])
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        return json.dumps([kind, [server.dsn()], {"schema": new_schema()}])
    where = [ACCOUNT, server.new_database(), TOKEN]
    return json.dumps([kind, where, {"lease": LEASE, "base_url": server.url}])


def open_store(place: str) -> Any:
    """Return a separate store over the data at a place."""
    kind, where, options = json.loads(place)
    return {"sqlite": sqlite_store, "postgres": postgres_store, "d1": d1_store}[kind](*where, **options)


def opener_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Callable[[], Any]:
    """Return what opens new, empty data as another process does."""
    return partial(open_store, place_of(kind, request, folder))
