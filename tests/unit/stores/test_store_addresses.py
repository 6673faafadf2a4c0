"""A store is opened by its address: a path is a SQLite file, a URL names its database."""

import pytest

from standfast import InputError
from standfast.stores import D1Store, PostgresStore, SQLiteStore, open_store


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


def test_a_d1_address_names_an_account_and_a_database_and_the_token_is_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CLOUDFLARE_API_TOKEN", raising=False)
    with pytest.raises(InputError, match=r"set CLOUDFLARE_API_TOKEN, or for the commands CLOUDFLARE_API_TOKEN_FILE"):
        open_store("d1://acc0/5d1f-22")
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "t0p-secret")
    store = open_store("d1://acc0/5d1f-22")
    assert isinstance(store, D1Store)
    assert repr(store) == "d1_store('d1://acc0/5d1f-22')"


@pytest.mark.parametrize("rest", ["", "acc0", "acc0/", "/db", "acc0/db/more", "t0p-secret@acc0/db", "acc0/db?x=1"])
def test_another_d1_address_is_refused_without_showing_it(rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "token")
    with pytest.raises(InputError, match=r"d1://ACCOUNT/DATABASE") as refused:
        open_store(f"d1://{rest}")
    assert "t0p-secret" not in str(refused.value)


def test_another_database_is_refused_without_showing_its_password() -> None:
    with pytest.raises(InputError, match=r"postgresql://… or d1://…, and not mysql://…") as refused:
        open_store("mysql://ada:secret@db/agents")
    assert "secret" not in str(refused.value)
