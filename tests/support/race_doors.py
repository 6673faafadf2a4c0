"""The doors through which people decide, each with its report: the decision counts, does not, or may."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import NotConfirmedError, StandfastError
from standfast.notices.slack_messages import Mark
from standfast.temporal import ApprovalLinks, StandfastClient
from standfast.testing import Reply
from standfast.web import Access, Person
from standfast.web.api.conversations import interrupt_id
from support.commands import standfast
from support.racing_runs import DOORS, PEOPLE
from support.slack import TEAM, Slack, buttons, send, texts
from support.temporal_runs import Temporal, until

Decides = Literal["approve", "reject"]
SECRET = "a secret of workers and the page"
_POSTED = 3.0  # seconds in which a message comes if no worker dies
_PATIENCE = 20.0  # seconds that someone waits for an update, which waits for a worker without an end


@dataclass(frozen=True)
class Said:
    """What a door has said; `counts` is None if the decision may count or not."""

    counts: bool | None
    words: str = ""


@dataclass(frozen=True)
class Press:
    """A decision of someone on what an item shows.

    Args:
        amount: shipped instead of the requested amount.
    """

    who: str
    decision: Decides
    run: str
    race: str
    item: dict[str, Any]
    amount: int | None = None

    @property
    def gate(self) -> str:
        return str(self.item["name"])

    @property
    def digest(self) -> str:
        return str(self.item["digest"])

    @property
    def edit(self) -> dict[str, Any] | None:
        return None if self.amount is None else {"race": self.race, "amount": self.amount}


class RacingSlack(Slack):
    """Slack, which also remembers what each person was told at each message, and the message of each run."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[tuple[str, str], str] = {}  # by user and message
        self.posted: dict[tuple[str, str], str] = {}  # the message of a run and gate, by its buttons' texts

    def _do(self, path: str, body: dict[str, Any]) -> Reply:
        match path.split("/")[1:]:
            case ["actions", user, ts]:
                self.said.setdefault((user, ts), "\n".join([body["text"], texts(body) if "blocks" in body else ""]))
        return super()._do(path, body)

    def _post(self, message: dict[str, Any]) -> str:
        ts = super()._post(message)
        if (button := buttons(message).get("Approve")) is not None:
            self.posted.setdefault(self._of(button), ts)
        return ts

    @staticmethod
    def _of(button: dict[str, Any]) -> tuple[str, str]:
        mark = Mark.read(button["value"])
        return mark.workflow_id, mark.gate


def access() -> Access:
    people = [
        Person(name=name, role="operator", token=f"{name}-token-that-is-long-enough", slack=f"{TEAM}/U0{name.upper()}")
        for name in PEOPLE
    ]
    return Access(people=people, link_secret=SECRET)


class Doors:
    """All doors of one server, one page and one Slack."""

    def __init__(self, temporal: Temporal, store: str, page: httpx.AsyncClient, slack: RacingSlack) -> None:
        self._temporal, self._store, self._page, self._slack = temporal, store, page, slack
        self.people = StandfastClient(temporal.client, store=temporal.store)
        self._typing = asyncio.Lock()  # a terminal is for one person at a time, and so is its stand-in
        self._by_name: dict[str, Callable[[Press], Awaitable[Said]]] = {door: getattr(self, door) for door in DOORS}

    async def at(self, door: str, press: Press) -> Said:
        """Press at a door; a connection that is closed before it has answered has said nothing."""
        try:
            return await self._by_name[door](press)
        except httpx.TransportError as error:
            return Said(None, f"{type(error).__name__}: {error}")

    async def page(self, press: Press) -> Said:
        form = {"decision": press.decision, "gate": press.gate, "digest": press.digest}
        if press.edit is not None:
            form["edit"] = json.dumps(press.edit)
        return _read(await self._page.post(f"/runs/{press.run}/decide", data=form, headers=_as(press)))

    async def api(self, press: Press) -> Said:
        body = {"decision": press.decision, "gate": press.gate, "digest": press.digest, "edit": press.edit}
        where = f"/api/v1/runs/{quote(press.run, safe='')}/decide"
        return _read(await self._page.post(where, json=body, headers=_as(press)))

    async def agui(self, press: Press) -> Said:
        payload: dict[str, Any] = {"decision": press.decision}
        if press.edit is not None:
            payload["edit"] = press.edit
        answer = {
            "interruptId": interrupt_id(press.run, press.item, None), "status": "resolved", "payload": payload
        }  # fmt: skip
        body = {"threadId": press.race, "runId": f"{press.race}.{press.who}", "resume": [answer]}
        asked = self._page.stream("POST", "/agents/race-plain/ag-ui", json=body, headers=_as(press))
        async with asked as answered:
            if answered.status_code == 200:
                return Said(True)
            await answered.aread()
            return _read(answered)

    async def slack(self, press: Press) -> Said:
        try:
            ts = await until(lambda: self._slack.posted.get((press.run, press.gate)), _POSTED)
        except TimeoutError:  # the worker that was to post it was killed; another one does when its time is over
            return Said(None, "there is no message to press at")
        user, message = f"U0{press.who.upper()}", self._slack.messages[ts]
        pressed = buttons(message).get(press.decision.capitalize())
        if pressed is None:  # the message says already what was decided
            return Said(False)
        await send(self._page, self._slack.pressing(dict(pressed), message, ts, user))
        words = await until(lambda: self._slack.said.get((user, ts)))
        if "not confirmed" in words or "may count" in words:
            return Said(None, words)
        done = "Approved" if press.decision == "approve" else "Rejected"
        names = [name for line in re.findall(rf"{done} by ([^\n]*)", words) for name in re.split(r"[,:] ", line)]
        return Said("no longer waiting" not in words and press.who in names, words)

    async def link(self, press: Press) -> Said:
        link = ApprovalLinks(page=str(self._page.base_url), secret=SECRET, by=press.who).to(press.run, press.item)
        form: dict[str, str] = {"decision": press.decision}
        if press.edit is not None:
            form["edit"] = json.dumps(press.edit)
        return _read(await self._page.post(link, data=form))

    async def command(self, press: Press) -> Said:
        return (await self.command_at(press, [press.item]))[0]

    async def command_at(self, press: Press, items: list[dict[str, Any]]) -> list[Said]:
        """Decide at several gates with one command; return what it says of each."""
        digests = [word for item in items for word in ("--digest", item["digest"])]
        edit = [] if press.edit is None else ["--edit", json.dumps(press.edit)]
        words = [press.decision, press.run, *(item["name"] for item in items), *digests, *edit, "--by", press.who]
        async with self._typing:
            ended = await standfast(self._temporal, *words, "-o", "json", STANDFAST_STORE=self._store)
        done = json.loads(ended.stdout) if ended.stdout.strip() else []
        gates = [one["gate"] for one in (done if isinstance(done, list) else [done])]
        doubt = None if "may count" in ended.stderr else False
        return [Said(True) if item["name"] in gates else Said(doubt, ended.stderr) for item in items]

    async def client(self, press: Press) -> Said:
        try:
            await self.people.decide(
                press.run, press.gate, press.decision, by=press.who, digest=press.digest, edit=press.edit
            )
        except NotConfirmedError as error:
            return Said(None, str(error))
        except StandfastError as error:
            return Said(False, str(error))
        return Said(True)

    async def update(self, press: Press) -> Said:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._run(press).execute_update("decide", {"decision": press.decision, **_sent(press)})
        except WorkflowUpdateFailedError as error:
            words = str(error.cause)
            return Said(None if "completed before" in words else False, words)
        except (RPCError, TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            is_over = isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND
            return Said(False if is_over else None, str(error))
        return Said(True)

    async def signal(self, press: Press) -> Said:
        try:
            await self._run(press).signal(press.decision, _sent(press))
        except RPCError as error:
            return Said(False if error.status == RPCStatusCode.NOT_FOUND else None, error.message)
        return Said(None, "sent")

    def _run(self, press: Press) -> Any:
        return self._temporal.client.get_workflow_handle(press.run)


def _sent(press: Press) -> dict[str, Any]:
    given = {"gate": press.gate, "by": press.who, "digest": press.digest, "edit": press.edit}
    return {name: value for name, value in given.items() if value is not None}


def _as(press: Press) -> dict[str, str]:
    return {"Authorization": f"Bearer {press.who}-token-that-is-long-enough"}


def _read(answer: httpx.Response) -> Said:
    match answer.status_code:
        case 200 | 303:
            return Said(True)
        case 403 | 404 | 409 | 422:  # 403: a link is over with the gate
            return Said(False, answer.text)
        case 502 | 503 | 504:
            return Said(None, answer.text)
    raise AssertionError(f"{answer.status_code}: {answer.text[:2_000]}")
