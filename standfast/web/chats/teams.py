"""Handles buttons of Microsoft Teams cards: identifies the person and the item, sends the decision, and returns a card.

The Bot Connector signs its requests and waits ten seconds for an answer. The answer is the card that the person who
pressed sees from then on. The worker that posted the card changes it for everyone else.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.messages import JSONObject, read_object, visible
from standfast.notices.chat_messages import APPROVE, EDIT, REJECT, Decided, Mark
from standfast.notices.teams_messages import (
    MOST_BYTES,
    approval_card,
    card,
    closed_card,
    execute,
    is_whole,
    line,
    size_of,
    words,
)
from standfast.stores.protocol import AgentStore
from standfast.temporal import StandfastClient
from standfast.web.chats.chat_decisions import Chat, ChatDecisions, Doing, press_id
from standfast.web.chats.chat_forms import COMMENT, LONGEST, Field, FormError, Typed
from standfast.web.chats.teams_signatures import Connector, NotAskedError, TeamsActions, tenant_of
from standfast.web.identity.people import Access, Person
from standfast.web.serving.mounts import TEAMS_PATH

TEAMS = Chat("Teams", "teams", is_whole)
_LOG = logging.getLogger("standfast.web")
_PATIENCE = 8.0  # seconds of the Bot Connector's ten-second limit for an answer
_SAID = 1_000  # characters
_SLOW = "This takes longer than usual. The message shows the decision as soon as it is known."
_VERBS: dict[str, Decided] = {APPROVE: "approve", EDIT: "approve", REJECT: "reject"}

BACK = "standfast.back"
_FORM = "form"  # in the data of a button: the inputs around it are a form


def form_card(
    decision: Decided,
    mark: Mark,
    item: Mapping[str, Any],
    link: str | None,
    fields: Sequence[Field],
    typed: Typed | None = None,
    problem: str | None = None,
) -> JSONObject:
    """Return a card that approves a call with changes, or rejects, with a comment.

    Only the person who requested the card sees it.

    Args:
        typed: the earlier entries, which stay.
        problem: the reason why they are invalid.

    Raises:
        InputError: Teams would not accept it.
    """
    said = typed or {}
    data = {"mark": mark.write(), _FORM: True, **({"link": link} if link else {})}
    verb, title = (APPROVE, "Approve") if decision == "approve" else (REJECT, "Reject")
    style = "positive" if decision == "approve" else "destructive"
    made = card(
        [
            *words(item["message"]),
            *(line(problem) if problem else []),
            *(_control(field, said.get(field.name, field.shown)) for field in fields),
            _text(COMMENT, "Comment", said.get(COMMENT, ""), is_long=True),
        ],
        [execute(title, verb, data, style=style), execute("Back", BACK, data, associatedInputs="none")],
    )
    if size_of(made) > MOST_BYTES:
        raise InputError("These arguments do not fit into a Teams card: edit them on the page")
    return made


def _control(field: Field, value: str) -> JSONObject:
    if field.kind == "choice":
        choices = [{"title": one, "value": one} for one in ("true", "false")]
        return {"type": "Input.ChoiceSet", "id": field.name, "label": field.label, "choices": choices, "value": value}
    return _text(field.name, field.label, value, is_long=field.is_long)


def _text(name: str, label: str, value: str, *, is_long: bool) -> JSONObject:
    """Return a text field. Numbers use one as well, because a number field would lose their form."""
    found = {"type": "Input.Text", "id": name, "label": label, "isMultiline": is_long, "maxLength": LONGEST}
    return found | ({"value": value} if value else {})


def typed_in(data: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the entries of the form around a button; None if the button has none."""
    if data.get(_FORM) is not True:
        return None
    texts = {name: value for name, value in data.items() if isinstance(value, str) and name not in ("mark", "link")}
    return {name: value.replace("\r\n", "\n") for name, value in texts.items()}


def link_in(data: Mapping[str, Any]) -> str | None:
    """Return the address of the run that a card has."""
    link = data.get("link")
    return link if isinstance(link, str) and link.startswith(("https://", "http://")) else None


def said_card(run: str, gate: str, said: str) -> JSONObject:
    """Return a card about an item that no longer waits."""
    return card([*words(said), *line(f"Run: {visible(run)}\nGate: {visible(gate)}")], [])


class _From(BaseModel):
    aadObjectId: str = ""  # noqa: N815  # the Bot Connector's name
    tenantId: str = ""  # noqa: N815


class _Action(BaseModel):
    verb: str = ""
    data: JSONObject = {}


class _Value(BaseModel):
    action: _Action


class _Press(BaseModel):
    """An activity about a button, of which the Bot Connector sends far more."""

    id: str = ""
    sender: _From
    value: _Value


class TeamsRoutes:
    """The route to which the Bot Connector sends people's actions on the bot's cards."""

    def __init__(
        self, settings: TeamsActions, people: StandfastClient, access: Access, store: AgentStore | None
    ) -> None:
        self._connector = Connector(settings)
        self._decisions, self._doing = ChatDecisions(TEAMS, people, access, store), Doing(_PATIENCE)

    def routes(self) -> list[Route]:
        return [Route(TEAMS_PATH, self.messages, methods=["POST"])]

    async def messages(self, request: Request) -> Response:
        """Handle an activity; the token is checked before the body is read."""
        try:
            claims = await self._connector.check(request.headers.get("Authorization", ""))
            body = await request.body()
            try:
                activity = read_object(body.decode())
            except (InputError, UnicodeDecodeError):
                return PlainTextResponse("This is not a Bot Connector activity.", 400)
            self._connector.check_activity(claims, activity)
        except NotAskedError as error:
            return PlainTextResponse(f"{error}.", 503)
        except InputError as error:
            _LOG.warning("A request to %s was refused: %s", TEAMS_PATH, visible(str(error)))
            return PlainTextResponse("This is not a current request of the Bot Connector for this bot.", 403)
        if (activity.get("type"), activity.get("name")) != ("invoke", "adaptiveCard/action"):
            _note(activity)
            return Response()  # no other activities are handled
        try:
            press = _Press(sender=activity.get("from"), value=activity.get("value"), id=activity.get("id", ""))  # type: ignore[arg-type]
        except ValidationError:
            return PlainTextResponse("This is not a press on a card's button.", 400)
        doing = self._doing.begin(self._pressed(press, tenant_of(activity)))
        return JSONResponse(doing.result() if await self._doing.is_done(doing) else _message(_SLOW))

    async def _pressed(self, press: _Press, tenant: str) -> JSONObject:
        """Run the action of a button; return the answer to the person who pressed it."""
        action = press.value.action
        try:
            mark = Mark.read(str(action.data.get("mark", "")))
            user = press.sender.aadObjectId.lower()
            ids = f"{press.sender.tenantId.lower() or tenant}/{user}"
            person = await self._decisions.who(ids, mark)
            typed = json.dumps(action.data, sort_keys=True)
            return await self._obey(action, person, mark, press_id("teams", ids, press.id, action.verb, typed))
        except (StandfastError, RPCError) as error:
            return _message(f"Nothing was decided: {error}")
        except Exception:  # the driver's edge: the error would be lost otherwise
            _LOG.exception("A press in Teams could not be handled")
            return _message("The page itself has failed; see its log.")

    async def _obey(self, action: _Action, person: Person, mark: Mark, key: str) -> JSONObject:
        run, link, typed = mark.workflow_id, link_in(action.data), typed_in(action.data)
        if (item := await self._decisions.waiting(mark)) is None:
            return _card(said_card(run, mark.gate, await self._decisions.outcome(mark)))
        if action.verb == BACK:
            return _card(approval_card(run, item, link))
        if (decision := _VERBS.get(action.verb)) is None:
            raise InputError("This button is not from standfast")
        is_asked = action.verb == EDIT or (action.verb == REJECT and typed is None)
        if is_asked:
            fields = self._decisions.fields(person, mark, item, decision)
            return _card(form_card(decision, mark, item, link, fields))
        try:
            came = await self._decisions.decide(person, mark, item, decision, id=key, form=typed)
        except StandfastError as error:
            if await self._decisions.waiting(mark) is None:  # another person was quicker
                return _card(said_card(run, mark.gate, await self._decisions.outcome(mark)))
            if typed is None:
                raise
            return self._corrected(decision, person, mark, item, link, typed, error)
        if came.is_open:
            return _card(approval_card(run, came.item, link, came.said))
        return _card(closed_card(run, came.item, link, came.said))

    def _corrected(
        self,
        decision: Decided,
        person: Person,
        mark: Mark,
        item: JSONObject,
        link: str | None,
        typed: Typed,
        error: StandfastError,
    ) -> JSONObject:
        """Return the form again, with the entries and their errors."""
        fields = self._decisions.fields(person, mark, item, decision)
        where = next(
            (f"{one.label}: " for one in fields if isinstance(error, FormError) and one.name == error.field), ""
        )
        return _card(form_card(decision, mark, item, link, fields, typed, f"{where}{error}"))


def _card(made: JSONObject) -> JSONObject:
    """Return the answer that shows a card to the person who pressed."""
    return {"statusCode": 200, "type": "application/vnd.microsoft.card.adaptive", "value": made}


def _message(text: str) -> JSONObject:
    """Return the answer that shows a text to the person who pressed, and leaves the card unchanged."""
    return {"statusCode": 200, "type": "application/vnd.microsoft.activity.message", "value": text[:_SAID]}


def _note(activity: JSONObject) -> None:
    """Log the conversation in which the bot was addressed or installed: a worker's webhook needs its address."""
    conversation = activity.get("conversation")
    found = conversation.get("id") if isinstance(conversation, dict) else None
    if isinstance(found, str) and activity.get("type") in ("message", "conversationUpdate", "installationUpdate"):
        at = f"{str(activity.get('serviceUrl')).rstrip('/')}/v3/conversations/{found.partition(';')[0]}/activities"
        _LOG.info("The bot of Teams is in a conversation, to which a webhook can post: %s", visible(at)[:_SAID])
