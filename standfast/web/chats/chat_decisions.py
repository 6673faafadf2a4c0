"""Decides for people who press a button in a chat, on an item that its message shows whole, and reports the outcome.

These parts are common to all chats: the person, the waiting item, the rules, and the texts. The run has the last word.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from standfast.errors import InputError, NotConfirmedError, StandfastError
from standfast.messages import JSONObject, distinct_people, visible, visible_json
from standfast.notices.chat_messages import (
    DECIDED,
    OVER,
    Decided,
    Mark,
    at,
    outcome,
    passed_on,
    progress,
    said_with,
)
from standfast.stores.protocol import AgentStore, has_ledger
from standfast.temporal import StandfastClient
from standfast.temporal.client.runs.descriptions import our_run
from standfast.web.chats.chat_forms import COMMENT, Field, Typed, fields_of
from standfast.web.identity.people import Access, Person
from standfast.web.identity.visible_runs import admit
from standfast.web.page.actions import may_act

_LOG = logging.getLogger("standfast.web")


class Came(NamedTuple):
    """The outcome of a decision that was sent: the current item, the text, and whether its buttons stay."""

    item: Mapping[str, Any]
    said: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat: its name, the field of a `Person` with their ids in it, and whether a message shows a whole item."""

    name: str
    field: Literal["slack", "teams"]
    is_whole: Callable[[str, Mapping[str, Any]], bool]


class ChatDecisions:
    """Decides for people in one chat."""

    def __init__(self, chat: Chat, people: StandfastClient, access: Access, store: AgentStore | None) -> None:
        self._chat, self._people, self._access, self._store = chat, people, access, store
        self._asking = StandfastClient(people.client)  # queries the runs themselves

    async def who(self, ids: str, mark: Mark) -> Person:
        """Return the sender of a decision.

        Raises:
            InputError: they may not see the run, or may not decide from such a message.
        """
        person, shown = self._access.in_chat(self._chat.field, ids), visible(ids)
        if person is None:
            _LOG.warning("An unknown person has pressed a button in %s: %s", self._chat.name, shown)
            raise InputError(
                f'You are not known here. Ask for the entry {self._chat.field} = "{shown}" among the people of the page'
            )
        if not person.may("approver"):
            raise InputError(f"This needs the role approver; {person.name} has the role {person.role}")
        if person.has_expired() or not person.may_do("decide"):
            raise InputError(f"{person.name} may no longer decide, or may only view: ask the maintainer of the page")
        await admit(self._people, person, mark.workflow_id)
        return person

    async def waiting(self, mark: Mark) -> JSONObject | None:
        """Return the item of a button, if it still waits."""
        try:
            run = await our_run(self._people.client, mark.workflow_id)
            if run.close_time is not None:  # only a worker knows more
                return None
            # The board may not have it yet, or no longer: a message loses its buttons only if the run confirms it.
            for people in (self._people, self._asking):
                for item in await people.pending(mark.workflow_id):
                    if mark.is_for(item):
                        return item
        except InputError:  # the run no longer exists
            return None
        return None

    def fields(self, person: Person, mark: Mark, item: Mapping[str, Any], decision: Decided) -> list[Field]:
        """Return the fields of a decision form: one for each argument, to approve with changes.

        Raises:
            InputError: it cannot be approved here, or it asks other people.
        """
        if not may_act(person, item):
            raise InputError(f"{person.name} may not decide this; it asks {', '.join(item['approvers'])}")
        return self._fields(mark, item) if decision == "approve" else []

    def _fields(self, mark: Mark, item: Mapping[str, Any]) -> list[Field]:
        self._check_whole(mark, item)
        return fields_of(item.get("arguments"), self._chat.name)

    def _check_whole(self, mark: Mark, item: Mapping[str, Any]) -> None:
        if not self._chat.is_whole(mark.workflow_id, item):
            raise InputError(
                f"a message in {self._chat.name} does not show all of this, so it cannot be approved there: use "
                "the page"
            )

    async def decide(
        self,
        person: Person,
        mark: Mark,
        item: Mapping[str, Any],
        decision: Decided,
        *,
        id: str,  # noqa: A002
        form: Typed | None = None,
    ) -> Came:
        """Decide on a message's item, or with a completed form; return the outcome.

        Raises:
            FormError: an entry is invalid.
            StandfastError: the decision does not count, or nothing could be sent.
        """
        edit, comment = None, None if form is None else form.get(COMMENT, "").strip() or None
        if decision == "approve":
            self._check_whole(mark, item)
            if form is not None:
                typed = {field.key: field.read(form) for field in self._fields(mark, item)}
                edit = None if visible_json(typed) == visible_json(item["arguments"]) else typed
        by, more = person.name, said_with(edit, comment)
        given: dict[str, Any] = {"by": by, "comment": comment, "digest": mark.digest, "edit": edit, "id": id}
        try:
            await self._people.decide(mark.workflow_id, mark.gate, decision, **given)
        except NotConfirmedError:
            said = (
                f"{DECIDED[decision]} by {by}: sent, not confirmed, since no worker has answered. It may count later."
            )
            return Came(item, f"{said}{more}", is_open=True)
        now = await self._asked_now(mark, item, by) if decision == "approve" else None
        if now is not None and mark.is_for(now):
            return Came(now, progress(now, more), is_open=True)
        if now is not None and edit is not None:
            return Came(item, passed_on(by, more), is_open=False)
        before = item.get("approved_by", ()) if edit is None else ()
        approved = distinct_people([*before, by]) if decision == "approve" else (by,)
        said = f"{DECIDED[decision]} by {', '.join(approved)}, {at(datetime.now(UTC))}{more}"
        return Came(item, said, is_open=False)

    async def _asked_now(self, mark: Mark, item: Mapping[str, Any], by: str) -> Mapping[str, Any] | None:
        """Return what the gate asks after an approval that counted, if it waits for more; the run knows whom it asks.

        If no worker answers, the item that was approved says how many must approve it.
        """
        try:
            items = await self._asking.pending(mark.workflow_id)
        except StandfastError:
            approved = distinct_people([*item.get("approved_by", ()), by])
            return {**item, "approved_by": list(approved)} if len(approved) < item.get("quorum", 1) else None
        return next((one for one in items if (one["kind"], one["name"]) == ("approval", mark.gate)), None)

    async def outcome(self, mark: Mark) -> str:
        """Return as text the outcome of a gate that no longer waits."""
        if not has_ledger(self._store):
            return OVER
        try:
            run = await our_run(self._people.client, mark.workflow_id)
        except InputError:
            return OVER
        keys = dict.fromkeys([run.raw_info.first_run_id or run.run_id, run.run_id])
        return outcome([row for key in keys for row in await self._store.load_decisions(key)], mark)


class Doing:
    """Background work that was started for a request and continues after it; the event loop does not hold it."""

    def __init__(self, patience: float) -> None:
        self._patience = patience  # seconds
        self._doing: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        doing = asyncio.create_task(work)
        self._doing.add(doing)
        doing.add_done_callback(self._doing.discard)
        return doing

    async def is_done(self, doing: "asyncio.Task[Any]") -> bool:
        """Wait briefly for a task, which continues if it takes longer; return whether it is done."""
        done, _ = await asyncio.wait({doing}, timeout=self._patience)
        return bool(done)


def press_id(*of: str) -> str:
    """Return the id of a decision: the same press, sent twice, is one."""
    return hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()
