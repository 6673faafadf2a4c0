"""Handles Slack buttons and forms: identifies the person and the item, sends the decision, updates the message.

Slack signs its requests and waits three seconds for an answer. A decision is sent before that. The page waits briefly
for its outcome, and puts it into the message whenever it is known. The run itself determines whether a decision counts.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.messages import JSONObject, read_json
from standfast.notices.chat_messages import APPROVE, EDIT, OPEN, REJECT, Decided, Mark
from standfast.notices.slack_messages import approval_message, closed_message, draw, plain
from standfast.stores.protocol import AgentStore
from standfast.temporal import StandfastClient
from standfast.web.chats.chat_decisions import Came, Chat, ChatDecisions, Doing, press_id
from standfast.web.chats.chat_forms import COMMENT, LONGEST, Field, FormError
from standfast.web.chats.slack_api import Place, SlackActions, SlackApi
from standfast.web.identity.people import Access, Person
from standfast.web.serving.mounts import SLACK_PATH

_LOG = logging.getLogger("standfast.web")
_WINDOW = 300  # seconds for which a signed request is valid, according to Slack
_PATIENCE = 2.0  # seconds of Slack's three-second limit for an answer
_ERROR = 1_000  # characters
_DECISIONS: dict[str, Decided] = {APPROVE: "approve", REJECT: "reject"}

SLACK = Chat("Slack", "slack", lambda run, item: draw(run, item).is_whole)

VALUE = "value"  # the control in each block
Values = Mapping[str, Mapping[str, Any]]  # of a form, by block


def _control(field: Field) -> JSONObject:
    """Return a field as a block."""
    match field.kind:
        case "number":
            is_decimal = isinstance(field.value, float)
            element: JSONObject = {"type": "number_input", "is_decimal_allowed": is_decimal}
            element["initial_value"] = field.shown
        case "choice":
            options = {one: {"text": plain(one), "value": one} for one in ("true", "false")}
            options_ = {"options": list(options.values()), "initial_option": options[field.shown]}
            element = {"type": "static_select", **options_}
        case _:
            element = {"type": "plain_text_input", "multiline": field.is_long, "max_length": LONGEST}
            if field.shown:
                element["initial_value"] = field.shown
    return {
        "type": "input",
        "block_id": field.name,
        "label": plain(field.label),
        "optional": field.kind == "text",
        "element": {**element, "action_id": VALUE},
    }


def typed_in(values: Values) -> dict[str, str]:
    """Return the entries, by block."""
    return {block: _typed(values, block) for block in values}


def _typed(values: Values, block: str) -> str:
    found = values.get(block, {}).get(VALUE, {})
    option = found.get("selected_option") or {}
    text = found.get("value") if "value" in found else option.get("value")
    return text.replace("\r\n", "\n") if isinstance(text, str) else ""


class Sent(NamedTuple):
    """The hidden contents of a form: the gate, and the message with its button."""

    mark: Mark
    place: Place
    link: str | None


def form(decision: Decided, sent: Sent, fields: list[Field]) -> JSONObject:
    """Return a form that approves a call with changes, or rejects, with a comment.

    Raises:
        InputError: it cannot be made, since the name of the run or of the gate is too long.
    """
    hidden = json.dumps([sent.mark.write(), *sent.place, sent.link])
    if len(hidden) > LONGEST:
        hidden = json.dumps([sent.mark.write(), *sent.place, None])
    if len(hidden) > LONGEST:
        raise InputError("The names of this run and gate are too long for a Slack form: decide on the page")
    word = "Approve" if decision == "approve" else "Reject"
    comment = {"type": "plain_text_input", "action_id": VALUE, "multiline": True, "max_length": LONGEST}
    return {
        "type": "modal",
        "callback_id": f"standfast.{decision}",
        "title": plain("Edit and approve" if decision == "approve" else "Reject"),
        "submit": plain(word),
        "close": plain("Back"),
        "private_metadata": hidden,
        "blocks": [
            *(_control(field) for field in fields),
            {"type": "input", "block_id": COMMENT, "label": plain("Comment"), "optional": True, "element": comment},
        ],
    }


def read_sent(hidden: str) -> Sent:
    """Return the hidden contents of a form.

    Raises:
        InputError: `form` has not written them.
    """
    match read_json(hidden):
        case [str(mark), str(user), str(channel), str(message), str() | None as answer_to, str() | None as link]:
            return Sent(Mark.read(mark), Place(user, channel, message, answer_to), link)
    raise InputError("This form is not from standfast")


@dataclass(frozen=True, slots=True)
class Press:
    """A press on a button: the person, the item, the place, and the address of the run in the message."""

    person: Person
    mark: Mark
    place: Place
    link: str | None


class SlackDecisions:
    """Decides for people, and reports the outcome in Slack."""

    def __init__(self, api: SlackApi, decisions: ChatDecisions) -> None:
        self._api, self._decisions = api, decisions

    async def ask(self, press: Press, decision: Decided, trigger: str, blocks: Sequence[JSONObject]) -> None:
        """Open a form: to edit and approve, or to reject with a comment.

        Raises:
            StandfastError: it cannot be opened.
        """
        if not self._api.has_token:
            raise InputError("The page lacks the Slack app's token, which a form needs: edit on the page")
        if (item := await self._decisions.waiting(press.mark)) is None:
            await self._over(press, blocks)
            return
        fields = self._decisions.fields(press.person, press.mark, item, decision)
        await self._api.open(trigger, form(decision, Sent(press.mark, press.place, press.link), fields))

    async def decide(
        self,
        press: Press,
        decision: Decided,
        *,
        id: str,  # noqa: A002
        blocks: Sequence[JSONObject],
    ) -> None:
        """Decide on the message's item.

        Raises:
            StandfastError: the decision does not count, or nothing could be sent.
        """
        if (item := await self._decisions.waiting(press.mark)) is None:
            await self._over(press, blocks)
            return
        try:
            await self._show(press, await self._decisions.decide(press.person, press.mark, item, decision, id=id))
        except InputError:
            if await self._decisions.waiting(press.mark) is None:  # another person was quicker
                await self._over(press, blocks)
            raise

    async def decide_by_form(self, press: Press, decision: Decided, values: Values, *, id: str) -> None:  # noqa: A002
        """Decide by a completed form.

        Raises:
            FormError: an entry is invalid.
            StandfastError: the decision does not count, or nothing could be sent.
        """
        if (item := await self._decisions.waiting(press.mark)) is None:
            raise InputError(await self._decisions.outcome(press.mark))
        typed = typed_in(values)
        came = await self._decisions.decide(press.person, press.mark, item, decision, id=id, form=typed)
        await self._show(press, came)

    async def _show(self, press: Press, came: Came) -> None:
        """Show the outcome of a decision in the message."""
        run = press.mark.workflow_id
        if came.is_open:
            now = approval_message(run, came.item, press.link, came.said)
        else:
            now = closed_message(draw(run, came.item).blocks, came.said)
        await self._api.replace(press.place, now)

    async def _over(self, press: Press, blocks: Sequence[JSONObject]) -> None:
        """Remove the buttons from a message whose item no longer waits."""
        await self._api.replace(press.place, closed_message(blocks, await self._decisions.outcome(press.mark)))


class _Ids(BaseModel):
    id: str
    team_id: str | None = None


class _Action(BaseModel):
    action_id: str
    action_ts: str = ""
    value: str = ""
    url: str | None = None


class _Message(BaseModel):
    ts: str
    blocks: list[JSONObject] = []


class _State(BaseModel):
    values: dict[str, dict[str, dict[str, Any]]] = {}


class _View(BaseModel):
    id: str
    hash: str = ""
    callback_id: str = ""
    private_metadata: str = ""
    state: _State = _State()


class _Payload(BaseModel):
    """An interaction, of which Slack sends far more; see https://docs.slack.dev/reference/interaction-payloads."""

    type: str
    user: _Ids
    team: _Ids | None = None
    channel: _Ids | None = None
    trigger_id: str = ""
    response_url: str | None = None
    actions: list[_Action] = []
    message: _Message | None = None
    view: _View | None = None

    @property
    def team_id(self) -> str:
        """The team of the user, who may be a guest from another team in a shared channel."""
        return self.user.team_id or (self.team.id if self.team is not None else "")

    @property
    def ids(self) -> str:
        return f"{self.team_id}/{self.user.id}"


class SlackRoutes:
    """The route to which Slack sends presses on buttons and submitted forms."""

    def __init__(
        self, settings: SlackActions, people: StandfastClient, access: Access, store: AgentStore | None
    ) -> None:
        self._secret, self._api = settings.signing_secret, SlackApi(settings)
        self._people = ChatDecisions(SLACK, people, access, store)
        self._decisions, self._doing = SlackDecisions(self._api, self._people), Doing(_PATIENCE)

    def routes(self) -> list[Route]:
        return [Route(SLACK_PATH, self.actions, methods=["POST"])]

    async def actions(self, request: Request) -> Response:
        """Handle a press on a button, or a form."""
        body = await request.body()
        if (wrong := _not_signed(self._secret, request, body)) is not None:
            _LOG.warning("A request to %s was refused: %s", SLACK_PATH, wrong)
            return PlainTextResponse(f"{wrong}.", 401)
        try:
            payload = _Payload.model_validate(json.loads(parse_qs(body.decode())["payload"][0]))
        except (ValueError, KeyError, RecursionError):  # a ValidationError and a UnicodeDecodeError are ValueErrors
            return PlainTextResponse("This is not a Slack interaction.", 400)
        match payload.type:
            case "block_actions" if payload.message is not None and payload.actions:
                pressed = self._pressed(payload, payload.message, payload.actions[0])
                await self._doing.is_done(self._doing.begin(pressed))
            case "view_submission" if payload.view is not None and payload.view.callback_id in _DECISIONS:
                return await self._submitted(payload, payload.view)
        return Response()  # no other requests are handled

    # --- buttons ---

    async def _pressed(self, payload: _Payload, message: _Message, action: _Action) -> None:
        """Run the action of a button."""
        if action.action_id not in (APPROVE, EDIT, REJECT):
            return  # a link opens without a request
        channel = payload.channel.id if payload.channel is not None else ""
        place = Place(payload.user.id, channel, message.ts, payload.response_url)
        try:
            mark = Mark.read(action.value)
            press = Press(await self._people.who(payload.ids, mark), mark, place, _link(message.blocks))
            key = press_id("slack", action.action_id, payload.team_id, payload.user.id, action.action_ts, action.value)
            if action.action_id == EDIT or (action.action_id == REJECT and self._api.has_token):
                decision: Decided = "approve" if action.action_id == EDIT else "reject"
                await self._decisions.ask(press, decision, payload.trigger_id, message.blocks)
            else:
                decision = "approve" if action.action_id == APPROVE else "reject"
                await self._decisions.decide(press, decision, id=key, blocks=message.blocks)
        except (StandfastError, RPCError) as error:
            await self._api.tell(place, f"Nothing was decided: {error}")
        except Exception:  # the driver's edge: Slack has its answer, and the error would be lost otherwise
            _LOG.exception("A press in Slack could not be handled")
            await self._api.tell(place, "The page itself has failed; see its log.")

    # --- forms ---

    async def _submitted(self, payload: _Payload, view: _View) -> Response:
        """Decide by a form; invalid entries stay in it, with the reason."""
        doing = self._doing.begin(self._decided(payload, view))
        if await self._doing.is_done(doing):
            problem = doing.result()
            return JSONResponse({"response_action": "errors", "errors": problem}) if problem else Response()
        self._doing.begin(self._tell_later(doing, view))
        return Response()

    async def _decided(self, payload: _Payload, view: _View) -> dict[str, str]:
        """Decide by a form; return the errors, by block."""
        values: Values = view.state.values
        try:
            sent = read_sent(view.private_metadata)
            person = await self._people.who(payload.ids, sent.mark)
            press = Press(person, sent.mark, sent.place._replace(user=payload.user.id), sent.link)
            typed = json.dumps(values, sort_keys=True)
            key = press_id("slack", view.callback_id, payload.team_id, payload.user.id, view.id, view.hash, typed)
            await self._decisions.decide_by_form(press, _DECISIONS[view.callback_id], values, id=key)
        except FormError as error:
            return {error.field: str(error)[:_ERROR]}
        except (StandfastError, RPCError) as error:
            return {COMMENT: f"{error}"[:_ERROR]}
        return {}

    async def _tell_later(self, doing: "asyncio.Task[dict[str, str]]", view: _View) -> None:
        """Report errors to a person whose form is closed, with all entries."""
        if problem := await doing:
            typed = json.dumps({name: list(block.values()) for name, block in view.state.values.items()})
            place = read_sent(view.private_metadata).place
            await self._api.tell(place, f"Nothing was decided: {next(iter(problem.values()))} You had typed: {typed}")


def _not_signed(secret: str, request: Request, body: bytes) -> str | None:
    """Return the reason why a request was not just signed by Slack; None if it is."""
    at, given = (request.headers.get(f"X-Slack-{name}", "") for name in ("Request-Timestamp", "Signature"))
    if not (at.isascii() and at.isdecimal() and len(at) <= 12):
        return "It lacks Slack's timestamp"
    if abs(time.time() - int(at)) > _WINDOW:
        return f"It was signed more than {_WINDOW // 60} minutes ago, or the clock of the page is wrong"
    expected = slack_signature(secret, at, body)
    return None if hmac.compare_digest(expected.encode(), given.encode()) else "Its signature is not Slack's"


def slack_signature(secret: str, at: str, body: bytes) -> str:
    """Return the header `X-Slack-Signature` of a request."""
    return "v0=" + hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()


def _link(blocks: list[JSONObject]) -> str | None:
    """Return the run's address from one of standfast's messages."""
    for block in blocks:
        for one in block.get("elements", ()) if block.get("type") == "actions" else ():
            if isinstance(one, Mapping) and one.get("action_id") == OPEN and isinstance(one.get("url"), str):
                return str(one["url"]).replace("&amp;", "&")
    return None
