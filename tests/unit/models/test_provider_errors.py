"""A provider's requested wait is read from its or its library's error; anything but a number is ignored."""

import math
from datetime import UTC, datetime

import pytest

from standfast.llm.provider_errors import retry_delay, seconds_to_wait
from standfast.tools import RetryPolicy

NOW = datetime(2026, 11, 24, tzinfo=UTC)


class LibraryError(Exception):
    """An error of another library: it says what it likes."""

    status_code = 503

    def __init__(self, retry_after: object) -> None:
        super().__init__("down")
        self.retry_after = retry_after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("-5", 0.0),
        ("864000", 86_400.0),
        ("Tue, 24 Nov 2026 00:05:00 GMT", 300.0),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 -1200", 86_400.0),
        *((junk, None) for junk in ("", "soon", "nan", "inf", "1e400", "Mon, 99 Jan 2026 99:00:00 GMT", "9" * 5_000)),
        ("Mon, 1 Jan 2026 00:00:00 +9999999999999999", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_header_is_read_as_seconds_or_a_date_of_a_day_at_most(header: str, seconds: float | None) -> None:
    assert seconds_to_wait(header, NOW) == seconds


@pytest.mark.parametrize(
    ("after", "delay"), [(-3, 1.0), (0, 1.0), (3, 3.0), (1e9, 86_400.0), (math.nan, 1.0), (True, 1.0), ("soon", 1.0)]
)
def test_an_error_of_a_library_asks_for_some_seconds_or_for_nothing(after: object, delay: float) -> None:
    assert retry_delay(LibraryError(after), RetryPolicy(initial_interval=1.0), 1) == delay
