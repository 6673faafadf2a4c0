"""Interprets a provider's refusal: whether another attempt may help, how long to wait first, and what to do about it.

One table for all providers; nothing here does I/O.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from standfast.errors import DefinitionError, InputError, ModelError, StandfastError
from standfast.llm.answer_limits import PastLimitError
from standfast.messages import cut, error_text
from standfast.tools import RetryPolicy

TOO_LONG = 413
_TRANSIENT = (408, 409, 429)
_LONGEST_WAIT = 86_400.0
_MOVED = "check base_url: the server sends its callers elsewhere"
_ADVICE = {
    301: _MOVED,
    302: _MOVED,
    307: _MOVED,
    308: _MOVED,
    401: "check the API key",
    402: "the account has no credit left, or has reached its limit",
    403: "the key may not use this model, or not from here",
    404: "check model and base_url",
    TOO_LONG: "show the model less, for example with Loop(context_compression=...), or take one with a larger context",
}
_NO_ROOM = re.compile(r"context[ _](length|size|window)|prompt is too long", re.IGNORECASE)
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_SECRET = 12  # minimum characters; a shorter one, such as "ollama", is a word
_SHOWN = 600  # bytes of the provider's own text; the full text may be a page of HTML


def refusal(
    who: str,
    status: int | None,
    text: str,
    retry_after: str | None = None,
    *,
    codes: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> ModelError:
    """Return the error for a refusal.

    Args:
        who: the model and its address, which begin the message.
        status: the HTTP status; None if the provider reported an error without one, in a stream for example.
        text: the provider's text.
        retry_after: the header of that name.
        codes: the provider's names for the error.
        secrets: keys that its text may repeat.
    """
    if not _SPENT.isdisjoint(codes):  # OpenAI uses status 429 for this, although waiting does not help
        meant = 402
    else:
        # Servers use 400, 413 or 500 for this. A limit of tokens per minute has a similar text, but is temporary.
        meant = TOO_LONG if status != 429 and _NO_ROOM.search(text) else status or 500
    advice = _ADVICE.get(meant)
    return ModelError(
        f"{who} answered with {'an error' if status is None else f'status {status}'}"
        f"{f' ({advice})' if advice else ''}: {cut(masked(text.strip(), secrets), _SHOWN) or 'no text'}",
        transient=status_may_pass(meant),
        retry_after=seconds_to_wait(retry_after, datetime.now(UTC)),
    )


def check_url(who: str, base_url: str | None) -> str | None:
    """Return an address of a provider; None if there is none.

    Raises:
        DefinitionError: it is not a usable address; the message does not show a password in it.
    """
    url = (base_url or "").strip()
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable()):
        shown = url.replace(f":{parts.password}@", ":…@") if parts.password else url
        raise DefinitionError(f"{who}: base_url must be like 'https://api.example.com/v1', got {shown!r}")
    return url or None


def check_key(who: str, key: str | None) -> str:
    """Return a key in the form for a header.

    Raises:
        DefinitionError: a header cannot contain it; the message does not show it.
    """
    key = (key or "").strip()  # a key read from a file ends with a line break
    if not (key.isascii() and key.isprintable()):
        raise DefinitionError(f"{who}: the API key has characters that no header may have")
    return key


def masked(text: str, secrets: Sequence[str]) -> str:
    """Return a text without keys: some providers repeat keys, and errors are shown, logged and stored."""
    for secret in secrets:
        if len(secret) >= _SECRET:
            text = text.replace(secret, "[the API key]")
    return text


@contextmanager
def hidden(secrets: Sequence[str]) -> Iterator[None]:
    """Keep keys out of an error and its causes."""
    try:
        yield
    except ModelError as error:
        text, cause = str(error), f"{error.__cause__!r} {getattr(error.__cause__, 'body', '')}"
        if masked(text, secrets) == text and masked(cause, secrets) == cause:
            raise
        text = masked(text, secrets)
        raise ModelError(text, transient=error.transient, retry_after=error.retry_after) from None


@contextmanager
def no_answer(who: str, *unreachable: type[Exception]) -> Iterator[None]:
    """Turn errors that prevent reading an answer into a `ModelError`; the block itself catches a library's own errors.

    Args:
        who: the model and its address, which begin the message.
        unreachable: network errors; another attempt may help.
    """
    passing: tuple[type[Exception], ...] = (InputError, *unreachable)
    try:
        yield
    except PastLimitError as error:
        raise ModelError(f"{who} gave no answer: {error}") from error
    except NotImplementedError as error:
        raise ModelError(f"{who} cannot do that: {error_text(error)}") from error
    except passing as error:
        raise ModelError(f"{who} gave no answer: {error_text(error)}", transient=True) from error
    except (AttributeError, TypeError, LookupError, ValueError) as error:  # an answer that a library cannot handle
        text = f"its answer is not in the provider's format ({type(error).__name__}: {error_text(error)})"
        raise ModelError(f"{who} gave no answer: {cut(text, _SHOWN)}", transient=True) from error


def connection_advice(reason: str) -> str:
    """Return what to check if no connection could be made; an invalid certificate may also be renewed."""
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "check base_url, the clock, and which certificates this machine trusts"
    return "check base_url, and the network"


def retry_delay(
    error: BaseException, policy: RetryPolicy, attempt: int, *, has_alternative: bool = False
) -> float | None:
    """Return the seconds until a model that raised this is called again, or None if it is not.

    Args:
        attempt: the number of calls so far.
        has_alternative: whether there is another model, or a pause; then the wait is no longer than between any two
            attempts.
    """
    if not may_pass(error) or attempt >= policy.maximum_attempts:
        return None
    after = asked_to_wait(error)
    if not after:  # without any wait, as for 0 or a date in the past, all attempts would be used up at once
        return policy.delay(attempt)
    return None if has_alternative and after > policy.waits[1] else after


def asked_to_wait(error: BaseException) -> float | None:
    """Return the seconds that a provider asks to wait, at most a day; None if it does not give a number."""
    after = getattr(error, "retry_after", None)
    return _bounded(after) if isinstance(after, int | float) and not isinstance(after, bool) else None


def may_pass(error: BaseException) -> bool:
    """Return whether another attempt may help.

    A `ModelError` has the answer. Among other errors, another attempt may help after network errors, and after errors
    with an HTTP status of 408, 409, 429 or 5xx. Anything else is a mistake that a retry would only repeat.
    """
    if isinstance(error, ModelError):
        return error.transient
    if isinstance(error, StandfastError):
        return False
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status_may_pass(status)
    return isinstance(error, OSError)


def status_may_pass(status: int) -> bool:
    """Return whether a request that was answered with this HTTP status may succeed later."""
    return status in _TRANSIENT or status >= 500


def seconds_to_wait(retry_after: str | None, now: datetime) -> float | None:
    """Read the header `Retry-After`: seconds, or a date; None if it has neither."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = parsedate_to_datetime(retry_after)
            seconds = (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds()
        except (ValueError, OverflowError):
            return None
    return _bounded(seconds)


def _bounded(seconds: float) -> float | None:
    return min(max(0.0, float(seconds)), _LONGEST_WAIT) if math.isfinite(seconds) else None
