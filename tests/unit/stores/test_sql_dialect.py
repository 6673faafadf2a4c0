"""The translation of statements for each SQL database."""

import pytest

from standfast.stores.sql.dialect import D1, SQLITE, Dialect, guard, postgres, verbatim

POSTGRES = postgres("s")


@pytest.mark.parametrize(
    ("dialect", "sql"),
    [
        (SQLITE, "SELECT a FROM runs WHERE b = :b AND c IN (SELECT value FROM json_each(:c)) AND d = :b"),
        (D1, "SELECT a FROM runs WHERE b = ?1 AND c IN (SELECT value FROM json_each(?2)) AND d = ?1"),
        (POSTGRES, 'SELECT a FROM "s".runs WHERE b = $1 AND c = ANY($2::text[]) AND d = $1'),
    ],
)
def test_a_statement_has_the_placeholders_and_lists_of_its_database(dialect: Dialect, sql: str) -> None:
    found = dialect.prepared("SELECT a FROM @runs WHERE b = :b AND c AMONG[:c] AND d = :b")
    assert found.sql == sql
    assert found.names == ("b", "c")
    assert found.lists == {"c"}
    assert not found.writes


@pytest.mark.parametrize("dialect", [SQLITE, D1, POSTGRES])
def test_only_names_of_tables_and_values_are_replaced(dialect: Dialect) -> None:
    text = "DELETE FROM runs WHERE key = 'me@' AND at = '10:20' AND n = 1::bigint"
    assert dialect.prepared(text).sql == text


@pytest.mark.parametrize("dialect", [SQLITE, D1, POSTGRES])
def test_a_statement_in_the_form_of_its_database_is_not_changed(dialect: Dialect) -> None:
    text = "CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'moved to /me@home/:now'); END"
    assert dialect.prepared(verbatim(text)[0]).sql == text


@pytest.mark.parametrize("dialect", [SQLITE, D1, POSTGRES])
def test_a_guard_has_the_values_of_its_condition(dialect: Dialect) -> None:
    text, values = guard("EXISTS (SELECT 1 FROM @runs WHERE a = :a)", {"a": 1})
    found = dialect.prepared(text)
    assert (found.is_guard, found.writes, found.names) == (True, False, ("a",))
    assert values == {"a": 1}


def test_a_time_is_a_value_where_the_database_has_no_clock() -> None:
    _, values = SQLITE.named(("UPDATE @runs SET at = :now WHERE a = :a", {"a": 1}))
    assert values.keys() == {"a", "now"}
    _, ordered = D1.in_order(("UPDATE @runs SET at = :now WHERE a = :a", {"a": 1}))
    assert ordered == [1]
