"""A store is opened by its address: a path is a SQLite file, a URL names its database."""

import pytest

from standfast import InputError
from standfast.stores import PostgresStore, SQLiteStore, open_store


@pytest.mark.parametrize("address", ["standfast.db", "/var/lib/x/standfast.db", ":memory:", "C:\\data\\standfast.db"])
def test_a_path_is_a_sqlite_file(address: str) -> None:
    assert isinstance(open_store(address), SQLiteStore)


@pytest.mark.parametrize(
    ("address", "schema", "dsn"),
    [
        ("postgresql://ada@db/agents", "standfast", "postgresql://ada@db/agents"),
        ("postgres://ada@db/agents?schema=team", "team", "postgres://ada@db/agents"),
        ("postgresql://db/a?sslmode=require&schema=t", "t", "postgresql://db/a?sslmode=require"),
    ],
)
def test_a_postgresql_address_may_name_a_schema(address: str, schema: str, dsn: str) -> None:
    store = open_store(address)
    assert isinstance(store, PostgresStore)
    assert (store._address.schema, store._address.dsn) == (schema, dsn)


def test_another_database_is_refused_without_showing_its_password() -> None:
    with pytest.raises(InputError, match=r"postgresql://…, and not mysql://…") as refused:
        open_store("mysql://ada:secret@db/agents")
    assert "secret" not in str(refused.value)
