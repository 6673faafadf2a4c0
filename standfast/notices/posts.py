"""Sends a request to a webhook or a chat, once; a failure tells whether it may have arrived, and whether to retry."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.llm.provider_errors import seconds_to_wait, status_may_pass
from standfast.stores.protocol import DurableStore
from standfast.time_limits import time_limit
from standfast.tls import tls_context
from standfast.tools.open_errors import GATEWAY_STATUSES, leaves_open

_TIMEOUT = 10.0  # seconds
_LONGEST = 2**20  # bytes of an answer that are read
_OPEN = "WebhookOutcomeUnknown"


class Answer(NamedTuple):
    """An answer, of which at most 1 MB is read."""

    status: int
    content: bytes


async def request(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """Return the answer to a successful request. The request has ten seconds in total.

    Raises:
        ApplicationError: the request failed. Its texts contain only the host of the address: the rest may be a secret.
    """
    import httpx

    host = urlsplit(url).hostname
    try:
        async with (
            time_limit(_TIMEOUT),
            httpx.AsyncClient(verify=tls_context(), timeout=_TIMEOUT, follow_redirects=False) as client,
            client.stream(method, url, content=body, headers={**headers, "Accept-Encoding": "identity"}) as answer,
        ):
            content = b""
            async for piece in answer.aiter_raw():  # compressed, it could expand to any size
                content += piece[: _LONGEST - len(content)]
                if len(content) == _LONGEST:
                    break
    except (httpx.HTTPError, TimeoutError) as error:
        why = f"The webhook at {host} gave no answer: {type(error).__name__}"
        raise failure(why, is_open=leaves_open(error)) from None
    if not answer.is_success:
        after = seconds_to_wait(answer.headers.get("Retry-After"), datetime.now(UTC))
        status = answer.status_code
        why, is_open = f"The webhook at {host} answered with status {status}", status in GATEWAY_STATUSES
        raise failure(why, status_may_pass(status), after, is_open=is_open)
    return Answer(status=answer.status_code, content=content)


def failure(text: str, passes: bool = True, after: float | None = None, *, is_open: bool = False) -> ApplicationError:
    """Return the error of a failed request.

    Args:
        passes: whether another attempt may help, after this many seconds.
        is_open: whether the request may have arrived.
    """
    return ApplicationError(
        text,
        type=_OPEN if is_open else "WebhookError",
        non_retryable=not passes,
        next_retry_delay=None if after is None else timedelta(seconds=min(after, 3_600)),
        category=ApplicationErrorCategory.BENIGN,
    )


def is_open(error: ApplicationError) -> bool:
    """Whether the failed request may have arrived."""
    return error.type == _OPEN


async def note_untold(store: DurableStore, run: str, text: str) -> None:
    """Record for the page of a run, once, that people may not know of one of its items."""
    number = 0
    while await store.save_reply(_untold(run), number, text) != text:
        number += 1


async def load_untold(store: DurableStore, run: str) -> list[str]:
    """Return what `note_untold` has recorded for a run."""
    found: list[str] = []
    while (text := await store.load_reply(_untold(run), len(found))) is not None:
        found.append(text)
    return found


def _untold(run: str) -> str:
    return f"{run}/untold"
