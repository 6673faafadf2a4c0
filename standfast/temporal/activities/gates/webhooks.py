"""Sends webhooks that notify people of waiting items, signed as in the Standard Webhooks specification.

A workflow requests a notice when an item begins to wait; this activity delivers it, and Temporal retries.
"""

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from temporalio import activity
from temporalio.exceptions import ApplicationError

from standfast.errors import DefinitionError, StandfastError
from standfast.extras import MissingExtraError, install
from standfast.messages import JSONObject
from standfast.notices.approval_links import ApprovalLinks
from standfast.notices.chat_bots import Bot, Place, SlackBot, TeamsBot
from standfast.notices.chat_messages import head
from standfast.notices.posts import failure, is_open, note_untold, request
from standfast.notices.slack_messages import SlackButtons, approval_message, is_slack_api, waiting_message
from standfast.notices.teams_messages import TeamsButtons, is_conversation, message, waiting_card
from standfast.stores.protocol import DurableStore
from standfast.temporal.activities.gates.posted_messages import PostedMessages
from standfast.temporal.activities.worker.activity_guards import json_activity
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import NotifyReference
from standfast.tools import check_choice

_LOG = logging.getLogger("standfast")
_IN_FLIGHT = timedelta(seconds=30)  # in which an attempt that has begun to post has ended
_FREE = "/free"  # ends the owner of a claim whose post has certainly failed
KINDS = ("approval", "question", "unknown", "pause", "worker", "store")
_FORMATS = ("json", "slack", "teams")


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An address that is notified of waiting items: one POST each, retried for a day until it is accepted (2xx).

    When an item begins to wait, the worker's webhooks at that time are notified if they want its kind.

    Args:
        name: distinguishes it from the other webhooks; by default the host of `url`, if no other webhook has that.
        url: an https address, or an http address on this machine.
        format: "json" is `{"type": "run.waiting", "timestamp", "data"}`, and data `{"workflow_id", "run_id", "kind",
            "name", "message", "since", "deadline"?, "approvers"?, "tool"?, "arguments"?, "shown"?, "digest"?,
            "reminder"?, "url"?, "decide_url"?}`, where "reminder" is the number of seconds that it has waited. "slack"
            is a format that Slack and many others show; "teams" is a format that Microsoft Teams shows.
        secret: signs it as in the Standard Webhooks specification, with the headers `webhook-id`, `webhook-timestamp`
            and `webhook-signature`. After the prefix `whsec_` it is base64.
        kinds: the kinds of items to notify of; see `pending`.
        link: the address of a page for decisions, with `{workflow_id}` and `{run_id}`.
        approval_links: only for a webhook that reaches one person. Notices of approvals then have a "decide_url", with
            which that person decides without signing in.
        slack_buttons, teams_buttons: put buttons on messages of the format, with which people decide in the chat.

    Raises:
        DefinitionError: nothing could be sent to this address.
        ImportError: httpx is not installed.
    """

    url: str = field(repr=False)  # it may also contain a secret
    name: str = ""
    format: Literal["json", "slack", "teams"] = "json"
    secret: str | None = field(default=None, repr=False)
    kinds: Sequence[str] = KINDS
    link: str | None = None
    approval_links: ApprovalLinks | None = None
    slack_buttons: SlackButtons | None = None
    teams_buttons: TeamsButtons | None = None

    def __post_init__(self) -> None:
        try:
            import httpx  # noqa: F401  # now, and not when the first message is sent
        except ImportError as error:
            raise MissingExtraError(f"Webhooks need httpx: {install('httpx')}") from error
        parts = urlsplit(self.url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not parts.hostname or parts.scheme not in (("http", "https") if local else ("https",)):
            # Not the address, which may be a secret: anyone who has it can post.
            raise DefinitionError("webhook.url must be like 'https://example.com/hook'")
        if not isinstance(self.name, str):
            raise DefinitionError(f"webhook.name must be a text, got {type(self.name).__name__}")
        object.__setattr__(self, "name", self.name or parts.hostname)
        check_choice("webhook.format", self.format, _FORMATS)
        for kind in self.kinds:
            check_choice("webhook.kinds", kind, KINDS)
        if self.slack_buttons is not None and self.format != "slack":
            raise DefinitionError('webhook.slack_buttons needs format="slack"')
        if self.slack_buttons is not None and is_slack_api(self.url) != (self.slack_buttons.token is not None):
            raise DefinitionError("webhook.slack_buttons: chat.postMessage needs a token, an incoming webhook has none")
        if self.teams_buttons is not None and self.format != "teams":
            raise DefinitionError('webhook.teams_buttons needs format="teams"')
        if self.format == "teams" and is_conversation(self.url) != (self.teams_buttons is not None):
            raise DefinitionError(
                "webhook.teams_buttons: a bot's conversation (…/v3/conversations/…/activities) needs them, and the "
                "address of a workflow takes none"
            )
        if self.secret is not None:
            _key(self.secret)

    def link_to(self, workflow_id: str, run_id: str) -> str | None:
        """Return the address of the page about a run."""
        if self.link is None:
            return None
        found = self.link.replace("{workflow_id}", quote(workflow_id, safe=""))
        return found.replace("{run_id}", quote(run_id, safe=""))


def bots_of(webhooks: Iterable[Webhook]) -> dict[str, Bot]:
    """Return the bots of some webhooks, by name: the ones that can change their posts."""
    found: dict[str, Bot] = {}
    for one in webhooks:
        if one.slack_buttons is not None and one.slack_buttons.token is not None:
            found[one.name] = SlackBot(one.url, one.slack_buttons)
        elif one.teams_buttons is not None:
            found[one.name] = TeamsBot(one.url, one.teams_buttons)
    return found


def _key(secret: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError as error:
        raise DefinitionError("webhook.secret: what follows whsec_ must be base64") from error


def check_webhooks(given: Iterable[Webhook]) -> tuple[Webhook, ...]:
    """Return the webhooks of a worker.

    Raises:
        DefinitionError: one of them is not a webhook, or two have the same name.
    """
    webhooks = tuple(given)
    for one in webhooks:
        if not isinstance(one, Webhook):
            raise DefinitionError(f"webhooks must be Webhooks, got {type(one).__name__}")
        if sum(one.name == other.name for other in webhooks) > 1:
            raise DefinitionError(f"webhooks: two are named '{one.name}'; give each a name=")
    return webhooks


class NoticeActivities:
    """Notifies people of waiting items, for a worker with these webhooks.

    The ledger has an entry for each notice and webhook, which the latest attempt holds. A slow earlier attempt then
    sends nothing. Chats cannot recognise a notice that they already have, so a post whose outcome is unknown is not
    repeated there. Receivers of JSON recognise it by its id.
    """

    def __init__(self, webhooks: Sequence[Webhook], posted: PostedMessages, store: DurableStore) -> None:
        self._webhooks, self._posted, self._store = webhooks, posted, store

    def all(self) -> list[Any]:
        return [self.notify]

    @json_activity(names.NOTIFY)
    async def notify(self, reference: NotifyReference) -> None:
        """Deliver a notice to all webhooks of this worker that want its kind, to each once.

        The activity keeps the names of the notified webhooks, so that another attempt only notifies the others.
        """
        info = activity.info()
        data = {"workflow_id": info.workflow_id, "run_id": info.workflow_run_id, **reference["item"]}
        if "reminder" in reference:
            data["reminder"] = reference["reminder"]
        notice, failures = notice_id(info.workflow_id or "", reference), list[ApplicationError]()
        settled = list(info.heartbeat_details[0]) if info.heartbeat_details else []
        for webhook in self._webhooks:
            if webhook.name in settled or data["kind"] not in webhook.kinds:
                continue
            claim = _Claim(self._store, reference, webhook, f"{notice}/{webhook.name}") if "run" in reference else None
            try:
                place = await self._deliver(webhook, data, notice, claim)
                if place is not None and "run" in reference:
                    link = webhook.link_to(data["workflow_id"], data["run_id"])
                    await self._posted.note(reference["run"], webhook.name, data, place, link)
            except ApplicationError as error:
                failures.append(error)
                if not error.non_retryable:
                    continue
                await self._tell(webhook, data, reference.get("run"), error)
            settled.append(webhook.name)
            activity.heartbeat(settled)
        if failures:
            raise min(failures, key=_delay)

    async def _tell(self, webhook: Webhook, data: Mapping[str, Any], run: str | None, error: ApplicationError) -> None:
        """Report, in the log and on the page of the run, that people may not know of an item."""
        text = f"{webhook.name} may not have been notified of {data['kind']} {data['name']}: {error.message}"
        _LOG.warning("%s: %s", data["workflow_id"], text)
        if run is not None:
            with suppress(StandfastError):
                await note_untold(self._store, run, text)

    async def _deliver(
        self, webhook: Webhook, data: Mapping[str, Any], notice: str, claim: "_Claim | None"
    ) -> Place | None:
        """Deliver a notice; return the place of the message if a bot may have to change it."""
        at = int(time.time())
        headers = {"webhook-id": notice, "webhook-timestamp": str(at)}
        bot, is_approval = self._posted.bots.get(webhook.name), data["kind"] == "approval"
        if bot is not None and is_approval:
            written = bot.approval(data["workflow_id"], data, webhook.link_to(data["workflow_id"], data["run_id"]))
        else:
            written = _written(webhook, data, at)
        if claim is not None and not await claim.take():
            return None
        place = None
        try:
            if bot is not None:
                place = await bot.post(written, headers)
            else:
                body = json.dumps(written, ensure_ascii=False).encode()
                if webhook.secret is not None:
                    headers["webhook-signature"] = signature(webhook.secret, notice, at, body)
                await request("POST", webhook.url, body, {"Content-Type": "application/json", **headers})
        except ApplicationError as error:
            if claim is None:
                raise
            raise await claim.failed(error) from None
        if claim is not None:
            await claim.finish()
        return place if is_approval else None


class _Claim:
    """The claim of this attempt on a notice to one webhook."""

    def __init__(self, store: DurableStore, reference: NotifyReference, webhook: Webhook, key: str) -> None:
        info = activity.info()
        self._store, self._scope, self._key = store, f"{reference['run']}/notices", key
        self._owner = f"{info.current_attempt_scheduled_time.timestamp():020.6f}/{info.attempt}"
        self._is_needed = reference["item"]["kind"] != "store"  # a store failure is reported to people without it
        self._may_repeat = webhook.format == "json"

    async def take(self) -> bool:
        """Claim the notice; False if it was sent, or belongs to a later attempt.

        Raises:
            ApplicationError: an earlier attempt may have sent it, and it must not be sent twice.
        """
        try:
            entry = await self._store.claim(self._scope, self._key, owner=self._owner, arguments_hash="")
            if entry.state == "claimed" and (entry.owner or "") < self._owner:
                is_unsure = not self._may_repeat and not (entry.owner or "").endswith(_FREE)
                if is_unsure and entry.claimed_at is not None and datetime.now(UTC) - entry.claimed_at < _IN_FLIGHT:
                    raise failure("An earlier attempt may be sending it now", after=_IN_FLIGHT.total_seconds())
                entry = await self._store.take_over(self._scope, self._key, owner=self._owner)
                if is_unsure and (entry.state, entry.owner) == ("claimed", self._owner):
                    raise await self.failed(failure("The attempt that sent it was lost", is_open=True))
        except StandfastError:
            if self._is_needed:
                raise
            return True
        if entry.result:  # an earlier attempt does not know whether it has sent it
            raise failure(entry.result, passes=False)
        return (entry.state, entry.owner) == ("claimed", self._owner)

    async def failed(self, error: ApplicationError) -> ApplicationError:
        """Record what a failure proves; return the error to raise, since an unknown outcome allows no other attempt."""
        if self._may_repeat:
            return error
        if not is_open(error):
            with suppress(StandfastError):  # the next attempt then assumes that it may have been sent
                await self._store.take_over(self._scope, self._key, owner=self._owner + _FREE)
            return error
        text = f"{error.message}. It may have been sent, so it is not sent again"
        with suppress(StandfastError):
            await self._store.finish(self._scope, self._key, owner=self._owner, state="failed", result=text)
        return failure(text, passes=False)

    async def finish(self) -> None:
        """Record that the notice was sent; a store that refuses must not cause a second notice."""
        with suppress(StandfastError):
            await self._store.finish(self._scope, self._key, owner=self._owner, state="done", result="")


def notice_id(workflow_id: str, reference: Mapping[str, Any]) -> str:
    """Return the id of a notice, the same however often it is sent."""
    item = reference["item"]
    what = [workflow_id, item["kind"], item["name"], item["since"], item.get("digest"), reference.get("reminder")]
    return "msg_" + hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()


def signature(secret: str, notice: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature`, by the Standard Webhooks specification."""
    signed = f"{notice}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def _delay(error: ApplicationError) -> tuple[bool, timedelta]:
    """Sort key for failures: how soon another attempt may help."""
    return error.non_retryable, error.next_retry_delay or timedelta()


def _written(webhook: Webhook, data: Mapping[str, Any], at: int) -> JSONObject:
    link, links = webhook.link_to(data["workflow_id"], data["run_id"]), webhook.approval_links
    decide = None if links is None or data["kind"] != "approval" else links.to(data["workflow_id"], data)
    if webhook.slack_buttons is not None and data["kind"] == "approval":
        return approval_message(data["workflow_id"], data, link)
    if webhook.format == "slack":
        return waiting_message(data, link, decide if webhook.slack_buttons is None else None)
    if webhook.format == "teams":
        return message(waiting_card(data, link, decide if webhook.teams_buttons is None else None), head(data))
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    urls = {name: url for name, url in (("url", link), ("decide_url", decide)) if url is not None}
    return {"type": "run.waiting", "timestamp": stamp, "data": {**data, **urls}}
