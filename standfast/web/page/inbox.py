"""The inbox: a person's own waiting items and other people's, one item with its context, and decisions on several."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.messages import JSONObject, Usage, read_json
from standfast.messages import person as identity
from standfast.runtime.stored_gates import is_in_process
from standfast.stores.waits import ShownWait, WaitFilter
from standfast.temporal import StandfastClient
from standfast.temporal.client.board.boards import WaitingItems, board_item, filter_of, read_waiting
from standfast.temporal.client.runs.decisions import MOST, Choice, decide_each
from standfast.temporal.client.runs.descriptions import listed, our_run
from standfast.web.identity.people import Person
from standfast.web.identity.visible_runs import admit, bounded_filter, waiting_for
from standfast.web.page.actions import ACTS, SAID, Form, act_id, comment_of, decision_of, kinds_of, may_act
from standfast.web.page.desk import Desk, redirect
from standfast.web.page.gate_contents import Whole, load_all, load_whole
from standfast.web.page.live_updates import changes_address
from standfast.web.page.run_page import LOOKED_AT, last_turns, page_in_process
from standfast.web.page.runs import Runs
from standfast.web.page.timelines import Entry, Timelines

PAGE = 50  # items of each list
_ASKED = 100  # runs that are queried if the store lacks a board
FILTERS = ("text", "kind", "agent", "group", "person", "waits_longer_than")
_PAGES = ("after", "others_after")
_FIELD = "gate:"  # before the number of a checkbox


@dataclass(frozen=True, slots=True)
class Inbox:
    """The contents of a person's inbox.

    Args:
        wanted: the filters as typed.
        counts: of all items that match the filters, by kind.
        more, more_others: the addresses of the next pages, if there are any.
        asked: the number of queried runs, without a board; then the only filter is a group.
    """

    wanted: Mapping[str, str]
    mine: Sequence[Mapping[str, Any]]
    others: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int]
    more: str | None = None
    more_others: str | None = None
    asked: int | None = None

    @property
    def look(self) -> list[Any]:
        """Return the state that an open page compares."""
        return [self.items, dict(self.counts)]

    @property
    def items(self) -> list[Mapping[str, Any]]:
        return [*self.mine, *self.others]


async def read_inbox(people: StandfastClient, person: Person, typed: Mapping[str, str]) -> Inbox:
    """Return a person's inbox, from the parameters of the page's address.

    Raises:
        InputError: a filter is invalid.
    """
    wanted = {name: value for name in FILTERS if (value := typed.get(name, "").strip())}
    board = await people.board()
    if board is None:
        return await _asked(people, person, wanted.get("group", ""))
    whose = {name: value for name, value in wanted.items() if name != "person"}
    found = bounded_filter(person, filter_of(people.client.namespace, whose))  # type: ignore[arg-type]
    theirs = identity(wanted["person"]) if "person" in wanted else None
    mine = found.model_copy(update={"person": identity(person.name), "person_kinds": kinds_of(person)})
    pages = {name: typed[name] for name in _PAGES if typed.get(name)}
    if theirs is not None:  # other people's items are one list
        found = found.model_copy(update={"person": theirs})
    if not pages and len(every := await board.waits(found, limit=PAGE + 1)) <= PAGE:
        return _whole(wanted, mine if theirs is None else None, every)
    if theirs is not None:
        (others, more_others), counts = await asyncio.gather(
            _page(board, found, pages.get("others_after")), board.count_waits(found)
        )
        inbox = Inbox(wanted, [], others, counts)
    else:
        (listed, more), (others, more_others), counts = await asyncio.gather(
            _page(board, mine, pages.get("after")),
            _page(board, mine.model_copy(update={"others": True}), pages.get("others_after")),
            board.count_waits(found),
        )
        inbox = Inbox(wanted, listed, others, counts)
        inbox = replace(inbox, more=more and address(wanted, {**pages, "after": more}))
    return replace(inbox, more_others=more_others and address(wanted, {**pages, "others_after": more_others}))


def address(*parameters: Mapping[str, str]) -> str:
    """Return the address of a page of the inbox."""
    return f"/?{urlencode({name: value for given in parameters for name, value in given.items()})}"


def _whole(wanted: Mapping[str, str], mine: WaitFilter | None, every: Sequence[ShownWait]) -> Inbox:
    """Return the inbox if all of it fits on a page: the board is read once, and not for each list.

    Args:
        mine: returns which items are the person's own; None if they are not distinguished.
    """
    lists: tuple[list[JSONObject], list[JSONObject]] = ([], [])
    for one in every:
        is_mine = mine is not None and one.wait.is_for(mine.person, mine.person_kinds)
        lists[not is_mine].append(board_item(one))
    return Inbox(wanted, *lists, Counter(one.wait.kind for one in every))


async def _page(board: WaitingItems, wanted: WaitFilter, after: str | None) -> tuple[list[JSONObject], str | None]:
    """Return a page of items, and the place after which the next one begins, if any."""
    items = await read_waiting(board, wanted, after=after, limit=PAGE + 1)
    return items[:PAGE], items[PAGE - 1]["place"] if len(items) > PAGE else None


async def _asked(people: StandfastClient, person: Person, group: str) -> Inbox:
    """Return the items reported by the runs in the server's list, the nearest deadline first."""
    found = await waiting_for(people, person, {"group": group or None}, _ASKED)
    items = sorted(found, key=lambda item: (item.get("deadline") or "9999", item.get("since") or ""))
    mine = [item for item in items if may_act(person, item)]
    counts = {
        kind: sum(item["kind"] == kind for item in items) for kind in dict.fromkeys(item["kind"] for item in items)
    }
    wanted = {"group": group} if group else {}
    return Inbox(wanted, mine, [item for item in items if item not in mine], counts, asked=_ASKED)


@dataclass(frozen=True, slots=True)
class Offered:
    """A checkbox: its number on the page, and the value that it sends."""

    number: int
    value: str


def offered(
    person: Person, items: Sequence[Mapping[str, Any]], whole: Mapping[tuple[str, str], Whole]
) -> dict[tuple[str, str], Offered]:
    """Return the checkboxes of the items that a person can decide without opening them, by run and gate."""
    if not person.may_do("decide"):
        return {}
    found = [item for item in items if item["kind"] == "approval" and may_act(person, item)]
    places = {(item["workflow_id"], item["name"]): item for item in found}
    seen = {place: item for place, item in places.items() if place not in whole or whole[place].is_on_card}
    return {
        place: Offered(number, json.dumps([*place, item["digest"]]))
        for number, (place, item) in enumerate(seen.items(), 1)
    }


def _chosen(form: Form, path: str, person: Person) -> list[Choice]:
    """Return the chosen items. The same form, sent twice, has the same ids.

    Raises:
        InputError: a choice cannot be read, or there are too many.
    """
    values = dict.fromkeys(value for name, value in form.items() if name.startswith(_FIELD))
    if len(values) > MOST:
        raise InputError(f"{len(values)} are selected; at most {MOST} are decided at once. Nothing was decided")
    one = {name: text for name, text in form.items() if name in ("key", "decision", "comment")}
    choices = []
    for value in values:
        match read_json(value):
            case [str(run), str(gate), str(digest)]:
                choices.append(Choice(run, gate, digest, act_id(one, path, person.name, run, gate, digest)))
            case _:
                raise InputError("A selection must be a run, a gate and a digest. Nothing was decided")
    return choices


def _of_run(seen: JSONObject) -> JSONObject:
    """Return the run's fields as the board would have them."""
    given = {"agent": seen["type"], "session_id": seen.get("session_id")}
    return {name: value for name, value in given.items() if value is not None}


def used(timeline: Sequence[Entry]) -> Usage | None:
    """Return the usage of a run so far, with its cost as far as prices are known; None if it called no model."""
    total: Usage | None = None
    for entry in timeline:
        spent = used(entry.inner) if entry.kind == "step" else entry.usage if entry.kind in ("turn", "tool") else None
        total = total if spent is None else spent + total
    return total


class InboxPages:
    """The handlers of the inbox, of one item, and of the form that decides several at once."""

    def __init__(self, desk: Desk, runs: Runs, timelines: Timelines) -> None:
        self._desk, self._runs, self._timelines = desk, runs, timelines

    def routes(self) -> list[Route]:
        return [
            Route("/", self.inbox),
            Route("/decide", self.decide, methods=["POST"]),
            Route("/link/{token}", self.link, methods=["GET", "POST"]),
            Route("/arguments/{run:path}", self.arguments),
            Route("/items/{run:path}", self.item),
        ]

    async def inbox(self, request: Request) -> Response:
        """The waiting items of this person and of others, the nearest deadline first, one page each."""
        person, typed = self._desk.person(request), dict(request.query_params)
        inbox = await read_inbox(self._desk.people, person, typed)
        whole = await load_all(self._desk.store, inbox.mine)
        shown: dict[str, Any] = {"inbox": inbox, "whole": whole, "choices": offered(person, inbox.mine, whole)}
        return self._desk.page(request, "inbox", changes=changes_address(request, address(typed), inbox.look), **shown)

    async def arguments(self, request: Request) -> Response:
        """All arguments of a waiting approval, a part at a time, or as a file."""
        run, gate = request.path_params["run"], request.query_params.get("gate", "")
        await admit(self._desk.people, self._desk.person(request), run)
        items = [item for item in await self._desk.people.pending(run) if item["name"] == gate]
        whole = await load_whole(self._desk.store, items[0]) if items else None
        if whole is None or (whole.why is not None and whole.shown is None):
            raise HTTPException(
                404, (whole and whole.why) or "No item of this name is waiting, or its card shows all of it."
            )
        if "file" in request.query_params:
            name = {"Content-Disposition": 'attachment; filename="arguments.json"'}
            return Response(whole.file, media_type="application/json", headers=name)
        asked = request.query_params.get("page", "1")
        number = min(int(asked) if asked.isdecimal() and len(asked) < 9 else 1, whole.pages) or 1
        shown = {"item": items[0], "run": run, "whole": whole, "number": number}
        return self._desk.page(request, "arguments", changes=None, **shown)

    async def item(self, request: Request) -> Response:
        """An item, with the information that a person needs to decide."""
        person = self._desk.person(request)
        run, name = request.path_params["run"], request.query_params.get("name", "")
        await admit(self._desk.people, person, run)
        if is_in_process(run):
            return await page_in_process(self._desk, request, run)
        found = [item for item in await self._desk.people.pending(run) if item["name"] == name]
        if not found:
            raise HTTPException(404, "No item of this name waits in this run any more.")
        seen = listed(await our_run(self._desk.client, run))
        item = {**_of_run(seen), **found[0], "workflow_id": run}
        is_theirs = await self._runs.is_session_of(person, seen)
        messages = await self._runs.messages(seen, most=LOOKED_AT) if is_theirs else []
        timeline = await self._timelines.load(run, messages) if is_theirs else None
        gate = next((one for one in reversed(timeline or ()) if one.kind == "gate" and one.of == name), None)
        return self._desk.page(
            request,
            "item",
            item=item,
            whole=await load_all(self._desk.store, [item]),
            turns=last_turns(messages),
            used=None if timeline is None else used(timeline),
            gate=gate,
            is_theirs=is_theirs,
            changes=None,
        )

    async def decide(self, request: Request) -> Response:
        """Decide in the same way on all chosen items, and report each outcome."""
        person = self._desk.person(request, ACTS["decide"][0], "decide")
        form = await self._desk.access.form(request)
        if form.get("decision") == "none":  # Enter was pressed in a checkbox
            return redirect(request, "/")
        decision, comment = decision_of(form), comment_of(form)
        choices = _chosen(form, request.url.path, person)
        given = {"by": person.name, "comment": comment}
        may_see = partial(admit, self._desk.people, person)
        outcomes = await decide_each(self._desk.people, choices, decision, admit=may_see, **given)
        return self._desk.page(request, "decided", outcomes=outcomes, done=SAID[decision], changes=None)

    async def link(self, request: Request) -> Response:
        """Show the item of a signed link, and decide by its form: a person with the link does not need a session."""
        token = request.path_params["token"]
        link, person = self._desk.access.by_link(token)
        await admit(self._desk.people, person, link.workflow_id)
        found = await self._desk.people.pending(link.workflow_id)
        items = [{**item, "workflow_id": link.workflow_id} for item in found if link.is_for(item)]
        if request.method == "GET" or not items:
            status = 200 if request.method == "GET" else 409
            whole = await load_all(self._desk.store, items)
            shown = {"items": items, "link": link, "token": token, "decider": person, "whole": whole}
            return self._desk.page(request, "link", status=status, changes=None, **shown)
        form = await self._desk.access.form(request, in_session=False)
        # As signed, whatever was sent: for this one call.
        form |= {"gate": link.gate, "digest": link.digest, "remember": ""}
        try:
            asked = ACTS["decide"][1](form, person)
            await asked.do(self._desk.people, link.workflow_id)
        except (StandfastError, RPCError) as error:
            shown = {"action": f"/link/{token}", "decider": person}
            return await self._desk.not_done(request, error, link.workflow_id, form, **shown)
        return redirect(request, f"/link/{token}?said={asked.said}")
