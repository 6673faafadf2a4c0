"""Any stored value is read, or raises a clear StoreError."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import StoreError
from standfast.messages import read_json
from standfast.stores.kept_values import read_kept, read_kept_object
from standfast.temporal.wire.turn_records import KeptView, read_record

ODD = ["", "{", "null", "[]", "7", '"x"', "{}", '{"message": 7}', "[" * 100_000, '{"a":' * 50_000, "9" * 5_000, "\0",
       "\ud800", '{"seq": NaN, "messages": [1]}', '{"message": {"role": "x"}}']  # fmt: skip

READERS: dict[str, Callable[[str], Any]] = {
    "a turn": lambda text: read_record("run", 1, text),
    "what steers a run": lambda text: read_kept_object("it", text),
    "a view": lambda text: read_kept("it", text, KeptView.model_validate_json),
    "a step": lambda text: read_kept("it", text, read_json),
}
KEYS = st.sampled_from(["message", "seq", "messages", "role", "key"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
)


def _is_read_or_refused(read: Callable[[str], Any], text: str) -> None:
    try:
        read(text)
    except StoreError as error:
        assert "cannot be read" in str(error)  # noqa: PT017  # or it is read


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_value_that_is_not_a_record_is_reported_as_such(read: Callable[[str], Any]) -> None:
    for text in ODD:
        _is_read_or_refused(read, text)


@given(ANY_JSON | st.text(), st.sampled_from(sorted(READERS)))
def test_no_json_raises_anything_else(value: Any, reader: str) -> None:

    _is_read_or_refused(READERS[reader], value if isinstance(value, str) else json.dumps(value))
