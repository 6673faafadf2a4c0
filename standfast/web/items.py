"""Shows one waiting item: its contents, the requester, the session, the earlier messages, and the cost so far.

The list does not read any of this. No worker is needed: the data comes from the board, the store and the run's history.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from standfast.messages import Message, Usage
from standfast.runtime.stored_gates import is_in_process
from standfast.stores.protocol import AgentStore
from standfast.temporal.client.runs import listed, our_run
from standfast.web.asked import load_all
from standfast.web.bounds import admit
from standfast.web.in_process import page_in_process
from standfast.web.runs import Runs
from standfast.web.timelines import Entry, Timelines

if TYPE_CHECKING:
    from standfast.web.pages import Pages

_TURNS = 3  # messages that are shown, the last ones with text
_LOOKED_AT = 12  # messages that are searched for these


class Items:
    """The handler of the page of one item."""

    def __init__(self, pages: "Pages", runs: Runs, timelines: Timelines, store: AgentStore | None) -> None:
        self._pages, self._runs, self._timelines, self._store = pages, runs, timelines, store

    async def item(self, request: Request) -> Response:
        """An item, with the information that a person needs to decide."""
        person = self._pages.person(request)
        run, name = request.path_params["run"], request.query_params.get("name", "")
        await admit(self._pages.people, person, run)
        if is_in_process(run):
            return await page_in_process(self._pages, self._store, request, run)
        found = [item for item in await self._pages.people.pending(run) if item["name"] == name]
        if not found:
            raise HTTPException(404, "No item of this name waits in this run any more.")
        seen = listed(await our_run(self._pages.client, run))
        item = {**_of_run(seen), **found[0], "workflow_id": run}
        is_theirs = await self._runs.is_session_of(person, seen)
        messages = await self._runs.messages(seen, most=_LOOKED_AT) if is_theirs else []
        timeline = await self._timelines.load(run, messages) if is_theirs else None
        gate = next((one for one in reversed(timeline or ()) if one.kind == "gate" and one.of == name), None)
        return self._pages.page(
            request,
            "item",
            item=item,
            whole=await load_all(self._store, [item]),
            turns=[one for one in messages if _says(one)][-_TURNS:],
            used=None if timeline is None else used(timeline),
            gate=gate,
            is_theirs=is_theirs,
            changes=None,
        )


def _of_run(seen: dict[str, Any]) -> dict[str, Any]:
    """Return the run's fields as the board would have them."""
    given = {"agent": seen["type"], "session_id": seen.get("session_id")}
    return {name: value for name, value in given.items() if value is not None}


def _says(message: Message) -> bool:
    return bool(message.content or message.tool_calls)


def used(timeline: Sequence[Entry]) -> Usage | None:
    """Return the usage of a run so far, with its cost as far as prices are known; None if it called no model."""
    total: Usage | None = None
    for entry in timeline:
        spent = used(entry.inner) if entry.kind == "step" else entry.usage if entry.kind in ("turn", "tool") else None
        total = total if spent is None else spent + total
    return total
