"""Decides several approvals of the inbox at once: each fully shown item, by the digest shown with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from standfast.errors import InputError
from standfast.messages import read_json
from standfast.temporal.client.decisions import MOST, Choice, decide_each
from standfast.web.access import Person
from standfast.web.actions import ACTS, SAID, Form, act_id, comment_of, decision_of, may_act
from standfast.web.asked import Whole
from standfast.web.bounds import admit
from standfast.web.mounts import root_of

if TYPE_CHECKING:
    from standfast.web.pages import Pages

_FIELD = "gate:"  # before the number of a checkbox


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


class Several:
    """The handler of the form below the inbox."""

    def __init__(self, pages: "Pages") -> None:
        self._pages = pages

    async def decide(self, request: Request) -> Response:
        """Decide in the same way on all chosen items, and report each outcome."""
        person = self._pages.person(request, ACTS["decide"][0], "decide")
        form = await self._pages.access.form(request)
        if form.get("decision") == "none":  # Enter was pressed in a checkbox
            return RedirectResponse(f"{root_of(request.scope)}/", 303)
        decision, comment = decision_of(form), comment_of(form)
        choices = _chosen(form, request.url.path, person)
        given = {"by": person.name, "comment": comment}
        may_see = partial(admit, self._pages.people, person)
        outcomes = await decide_each(self._pages.people, choices, decision, admit=may_see, **given)
        return self._pages.page(request, "decided", outcomes=outcomes, done=SAID[decision], changes=None)


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
