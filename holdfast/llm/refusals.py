"""What a provider's refusal means: whether calling again may help, how long to wait first, what to do about it.

One table for all providers; nothing here does I/O.
"""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from holdfast.errors import ModelError
from holdfast.messages import cut

TOO_LONG = 413
_MOVED = "check base_url: the server sends its callers elsewhere"
_ADVICE = {
    301: _MOVED,
    302: _MOVED,
    307: _MOVED,
    308: _MOVED,
    401: "check api_key",
    403: "the key may not use this model, or not from here",
    404: "check model and base_url",
    TOO_LONG: "show the model less, for example with Loop(context_compression=...), or take one with a larger context",
}
_NO_ROOM = re.compile(r"context[ _](length|size|window)|prompt is too long", re.IGNORECASE)
_SHOWN = 600  # bytes of the provider's own text; the whole may be a page of HTML


def refusal(who: str, status: int | None, text: str, retry_after: str | None = None) -> ModelError:
    """Return the error for an answer that is none.

    Args:
        who: the model and where it is, as the message begins.
        status: of HTTP; None if the provider reported an error without one, in a stream for example.
        text: the provider's own words.
        retry_after: the header of that name.
    """
    # Servers say so with 400, 413 or 500. A limit of tokens per minute is worded alike, but passes.
    meant = TOO_LONG if status != 429 and _NO_ROOM.search(text) else status or 500
    advice = _ADVICE.get(meant)
    return ModelError(
        f"{who} answered with {'an error' if status is None else f'status {status}'}"
        f"{f' ({advice})' if advice else ''}: {cut(text.strip(), _SHOWN) or 'no text'}",
        transient=meant in (408, 409, 429) or meant >= 500,
        retry_after=seconds_to_wait(retry_after, datetime.now(UTC)),
    )


def seconds_to_wait(retry_after: str | None, now: datetime) -> float | None:
    """Read the header `Retry-After`: seconds, or a date. None if it says neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
