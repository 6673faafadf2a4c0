"""Runs a pipeline again from one of its steps, with an earlier run's results of the steps before it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from standfast.errors import InputError, StandfastError
from standfast.stores.protocol import AgentStore
from standfast.temporal import OnRecord, start_pipeline
from standfast.temporal.client.items import read_result
from standfast.temporal.client.runs import looked_at, our_run
from standfast.web.access import Person
from standfast.web.actions import act_id
from standfast.web.bounds import admit, admit_start
from standfast.web.mounts import root_of
from standfast.web.progress import Progress
from standfast.web.rendering import run_path
from standfast.web.run_facts import RunFacts
from standfast.web.statuses import status_of

if TYPE_CHECKING:
    from standfast.web.pages import Pages


class RunAgain:
    """The handler of "Run again from here"."""

    def __init__(self, pages: "Pages", facts: RunFacts, store: AgentStore | None) -> None:
        self._pages, self._facts, self._store = pages, facts, store

    async def is_possible(self, request: Request, seen: Mapping[str, Any], progress: Progress | None) -> bool:
        """Whether the viewer of a pipeline may run it again: an operator, whose own run it is."""
        if progress is None or "closed" not in seen or not (person := self._pages.person(request)).may("operator"):
            return False
        if not person.may_do("start"):
            return False
        known = (await self._facts.of([seen])).get(seen["run_id"])
        return known is not None and known.by == person.name

    async def again(self, request: Request) -> Response:
        """Start the new run, and go to its page."""
        person = self._pages.person(request, "operator", "start")
        form = await self._pages.access.form(request)
        run = request.path_params["run"]
        try:
            if not (key := form.get("key")) or not (step := form.get("step")):
                raise InputError("The form lacks its key or the step from which to run again")
            await admit(self._pages.people, person, run)
            act = act_id(form, request.url.path, person.name)
            new = await self._start(person, run, step, key, OnRecord(store=self._store, by=person.name, id=str(act)))
        except StandfastError as error:
            return self._pages.refused(request, status_of(error), str(error), run=run, form=form)
        return RedirectResponse(f"{root_of(request.scope)}/runs/{run_path(new)}?said=start", 303)

    async def _start(self, person: Person, run: str, step: str, key: str, on_record: OnRecord) -> str:
        seen = await looked_at(self._pages.client, run)
        await admit_start(self._pages.people, self._store, person, seen["type"], key, seen.get("tenant_id"))
        earlier = read_result(seen.get("result")).get("run_key")
        handle = await start_pipeline(
            self._pages.client,
            seen["type"],
            run_key=key,
            user_id=on_record.by,
            tenant_id=seen.get("tenant_id"),
            restart_of=earlier or run.rpartition("/")[2],  # a failed run has no result
            restart_from=step,
            task_queue=(await our_run(self._pages.client, run)).task_queue,
            on_record=on_record,
        )
        return handle.id
