"""Sends a request to a webhook or a chat, once; a failure says whether another attempt may help."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.llm.provider_errors import seconds_to_wait, status_may_pass

if TYPE_CHECKING:
    import httpx

_TIMEOUT = 10.0  # seconds


async def request(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> "httpx.Response":
    """Return the answer to a request, if it has succeeded.

    Raises:
        ApplicationError: it has not. No text of it has more of the address than its host: the rest may be a secret.
    """
    import httpx

    host = urlsplit(url).hostname
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as client:
            answer = await client.request(method, url, content=body, headers=dict(headers))
    except httpx.HTTPError as error:
        raise failure(f"The webhook at {host} gave no answer: {type(error).__name__}") from None
    if not answer.is_success:
        after = seconds_to_wait(answer.headers.get("Retry-After"), datetime.now(UTC))
        status = answer.status_code
        raise failure(f"The webhook at {host} answered with status {status}", status_may_pass(status), after)
    return answer


def failure(text: str, passes: bool = True, after: float | None = None) -> ApplicationError:
    return ApplicationError(
        text,
        type="WebhookError",
        non_retryable=not passes,
        next_retry_delay=None if after is None else timedelta(seconds=min(after, 3_600)),
        category=ApplicationErrorCategory.BENIGN,
    )
