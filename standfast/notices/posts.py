"""Sends a request to a webhook or a chat, once; a failure tells whether another attempt may help."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlsplit

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.llm.provider_errors import seconds_to_wait, status_may_pass
from standfast.time_limits import time_limit
from standfast.tls import tls_context

_TIMEOUT = 10.0  # seconds
_LONGEST = 2**20  # bytes of an answer that are read


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
        raise failure(f"The webhook at {host} gave no answer: {type(error).__name__}") from None
    if not answer.is_success:
        after = seconds_to_wait(answer.headers.get("Retry-After"), datetime.now(UTC))
        status = answer.status_code
        raise failure(f"The webhook at {host} answered with status {status}", status_may_pass(status), after)
    return Answer(status=answer.status_code, content=content)


def failure(text: str, passes: bool = True, after: float | None = None) -> ApplicationError:
    return ApplicationError(
        text,
        type="WebhookError",
        non_retryable=not passes,
        next_retry_delay=None if after is None else timedelta(seconds=min(after, 3_600)),
        category=ApplicationErrorCategory.BENIGN,
    )
