"""Posts to a chat through an incoming webhook, such as Slack's, Mattermost's or Rocket.Chat's.

People may have read a message once it is posted, so it is posted at most once. The model reads the exact outcome of
each attempt:

| the attempt | the model reads |
|---|---|
| no connection | not posted, can be tried later |
| 429, or 503 with `Retry-After` | the same: the server refused the request before it did anything |
| 3xx, any other 4xx | not posted, retrying is useless |
| any other 5xx, a connection that broke after it was open | may have been posted |
| no answer within the tool's `timeout` | a durability error: may have been posted |

A 5xx proves nothing. A gateway returns 502 or 504 when it loses the service behind it. Slack documents that its own
internal errors may leave a part of the work done.
"""

import html
import re
from typing import Annotated
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field

from activities.settings import required
from standfast import RetryableError, TerminalError, ToolContext, ToolDurabilityError, tool

# Only the tool's `timeout` limits the wait for an answer, since it reports the outcome as unknown.
PATIENCE = httpx.Timeout(None, connect=5)
NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


class Posted(BaseModel):
    """A message that the chat has accepted."""

    model_config = ConfigDict(frozen=True)

    channel: str
    posted: bool = True


@tool(timeout="30s")  # has effects: runs at most once
async def post_message(
    channel: Annotated[str, Field(pattern=r"^[#@][^\s]{1,80}$")],
    text: Annotated[str, Field(min_length=1, max_length=4_000)],
    ctx: ToolContext,
) -> Posted:
    """Post a message to a channel of the team's chat.

    Args:
        channel: with its leading #. Webhooks that are bound to one channel post there.
        text: plain text; chat markup, such as @channel mentions, is shown as text.
    """
    url = required("STANDFAST_WEBHOOK_URL", "https://hooks.slack.com/services/T0/B0/secret")
    # Messages may quote strangers: unescaped, "<!channel>" in an issue's title would notify everyone.
    payload = {"channel": channel, "text": html.escape(text, quote=False)}
    # A key may contain a provider's call id, and a header allows only some characters.
    headers = {"Idempotency-Key": quote(ctx.idempotency_key, safe="/:@+=,!")}
    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            answer = await client.post(url, json=payload, headers=headers)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise TerminalError("Not posted: STANDFAST_WEBHOOK_URL is not an http:// or https:// address") from error
    except NOT_CONNECTED as error:
        raise RetryableError(f"Not posted: no connection to the chat ({error})") from error
    except httpx.RequestError as error:
        raise ToolDurabilityError("post_message", ctx.tool_call_id, reason=type(error).__name__) from error
    _check(answer, ctx)
    return Posted(channel=channel)


def _check(answer: httpx.Response, ctx: ToolContext) -> None:
    """Raise unless the message was posted. Errors omit the webhook's URL, which is a secret."""
    if answer.is_success:
        return
    what = f"the chat answered {answer.status_code} {answer.text[:200]}".rstrip()
    wait = answer.headers.get("Retry-After")
    if answer.status_code == 429 or (answer.status_code == 503 and wait is not None):
        # Seconds or a date; a date is not parsed.
        seconds = float(wait) if wait is not None and re.fullmatch(r"[0-9]{1,9}", wait) else None
        later = "later" if seconds is None else f"in {seconds:.0f} seconds"
        raise RetryableError(f"Not posted: {what}. It can be retried {later}", retry_after=seconds)
    if answer.status_code < 500:
        raise TerminalError(f"Not posted: {what}", status_code=answer.status_code)
    raise ToolDurabilityError("post_message", ctx.tool_call_id, reason=what)
