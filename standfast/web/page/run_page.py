"""The page of one run: its progress, waiting items, messages and decisions, and the forms that act on it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.messages import JSONObject, Message
from standfast.runtime.stored_gates import is_in_process
from standfast.runtime.streamed_answers import Heard
from standfast.temporal import OnRecord, start_pipeline
from standfast.temporal.client.board.waiting_items import read_result
from standfast.temporal.client.history.audits import load_acts
from standfast.temporal.client.runs.descriptions import looked_at, our_run, outcome
from standfast.web.identity.people import Person, Role
from standfast.web.identity.visible_runs import admit, admit_start
from standfast.web.page.actions import ACTS, Read, act_id
from standfast.web.page.desk import Desk, redirect
from standfast.web.page.gate_contents import load_all
from standfast.web.page.graphs import draw
from standfast.web.page.live_updates import changes_address
from standfast.web.page.rendering import run_path, step_link
from standfast.web.page.runs import Progress, RunFacts, Runs, is_said_now
from standfast.web.page.timelines import Timelines
from standfast.web.serving.mounts import root_of
from standfast.web.serving.statuses import status_of

_GOES_ON = ("starting", "running", "waiting", "paused")  # a run's own report before its end
_ENTRIES = 100  # of a timeline, the last, unless all are requested
LOOKED_AT = 12  # messages that are searched for the last ones with text or calls
_TURNS = 3  # of these are shown


class RunPage:
    """The handlers of a run's page."""

    def __init__(self, desk: Desk, runs: Runs, timelines: Timelines, facts: RunFacts, temporal_ui: str | None) -> None:
        self._desk, self._runs, self._timelines, self._facts, self._ui = desk, runs, timelines, facts, temporal_ui

    def routes(self) -> list[Route]:
        return [
            Route("/again/{run:path}", self.again, methods=["POST"]),
            *(
                Route(f"/runs/{{run:path}}/{name}", self._acting(name, *rule), methods=["POST"])
                for name, rule in ACTS.items()
            ),
            Route("/runs/{run:path}", self.run),
        ]

    async def run(self, request: Request) -> Response:
        """One run: its progress, its waiting items, its messages, and the decisions."""
        run = request.path_params["run"]
        await admit(self._desk.people, person := self._desk.person(request), run)
        if is_in_process(run):
            return await page_in_process(self._desk, request, run)
        try:
            seen = await self._runs.seen(run)
        except InputError as error:
            if not (acts := await load_acts(self._desk.store, [], run)):
                raise
            return self._desk.refused(request, 404, str(error), acts=acts)  # it was never started, or is gone
        state, result = seen.get("state", {}), read_result(seen.get("result"))
        is_theirs = await self._runs.is_session_of(person, seen)
        waiting = [{**item, "workflow_id": run} for item in state.get("waiting", ())]
        waiting += [item for items in seen.get("steps", {}).values() for item in items]
        journal_key = state.get("journal_key") or result.get("journal_key") or seen["first_run_id"]
        progress = await self._runs.progress(journal_key, seen)
        speaks = "session_id" in seen and "closed" not in seen
        said = await self._runs.partial(journal_key) if speaks else Heard()
        messages = await self._runs.messages(seen) if is_theirs else []
        acts = await load_acts(self._desk.store, [journal_key, seen["first_run_id"]], run)
        return self._desk.page(
            request,
            "run",
            seen=seen,
            state=state,
            result=result,
            ended=outcome(seen) if "closed" in seen else None,
            says_ended=state.get("status", "running") not in _GOES_ON,  # the server may learn of it a moment later
            waiting=waiting,
            whole=await load_all(self._desk.store, waiting),
            untold=await self._runs.untold(journal_key, seen),
            messages=messages,
            unheard=await self._runs.unheard(seen, messages) if is_theirs else [],
            acts=[act for act in acts if not person.only_own or act.journal_key != run or act.by == person.name],
            timeline=await self._timelines.load(run, messages),
            shown_entries=None if "all" in request.query_params else _ENTRIES,
            can_run_again=await self._can_run_again(request, seen, progress),
            progress=progress,
            graph=None
            if progress is None
            else draw(progress, ended="closed" in seen, link=partial(step_link, run, root=root_of(request.scope))),
            temporal=self._in_temporal(seen),
            speaks=speaks,
            partial=said,
            is_said_now=is_said_now(said, seen),
            changes=None
            if "closed" in seen
            else changes_address(request, f"/runs/{run}", seen, (journal_key, said) if speaks else None),
        )

    def _in_temporal(self, seen: JSONObject) -> str | None:
        if self._ui is None:
            return None
        space, run = quote(self._desk.client.namespace, safe=""), quote(seen["workflow_id"], safe="")
        return f"{self._ui}/namespaces/{space}/workflows/{run}/{seen['run_id']}"

    def _acting(self, name: str, role: Role, read: Read) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            person = self._desk.person(request, role, name)
            form = await self._desk.access.form(request)
            run = request.path_params["run"]
            try:
                await admit(self._desk.people, person, run)
            except InputError as error:  # nothing of the run is shown
                return self._desk.refused(request, status_of(error), str(error), run=run, form=form)
            try:
                asked = read(form, person)
                await asked.do(self._desk.people, run, id=act_id(form, request.url.path, person.name))
            except (StandfastError, RPCError) as error:
                return await self._desk.not_done(request, error, run, form)
            said = f"{asked.said}-recorded" if is_in_process(run) else asked.said
            inbox = f"/?{urlencode({'said': said, 'run': run})}"
            return redirect(request, inbox if form.get("back") == "inbox" else f"/runs/{run_path(run)}?said={said}")

        return handle

    # --- running a pipeline again from one of its steps ---

    async def _can_run_again(self, request: Request, seen: Mapping[str, Any], progress: Progress | None) -> bool:
        """Whether the viewer of a pipeline may run it again: an operator, whose own run it is."""
        if progress is None or "closed" not in seen or not (person := self._desk.person(request)).may("operator"):
            return False
        if not person.may_do("start"):
            return False
        known = (await self._facts.of([seen])).get(seen["run_id"])
        return known is not None and known.by == person.name

    async def again(self, request: Request) -> Response:
        """Start the new run, and go to its page."""
        person = self._desk.person(request, "operator", "start")
        form = await self._desk.access.form(request)
        run = request.path_params["run"]
        try:
            if not (key := form.get("key")) or not (step := form.get("step")):
                raise InputError("The form lacks its key or the step from which to run again")
            await admit(self._desk.people, person, run)
            act = act_id(form, request.url.path, person.name)
            new = await self._start(
                person, run, step, key, OnRecord(store=self._desk.store, by=person.name, id=str(act))
            )
        except StandfastError as error:
            return self._desk.refused(request, status_of(error), str(error), run=run, form=form)
        return redirect(request, f"/runs/{run_path(new)}?said=start")

    async def _start(self, person: Person, run: str, step: str, key: str, on_record: OnRecord) -> str:
        seen = await looked_at(self._desk.client, run)
        await admit_start(self._desk.people, self._desk.store, person, seen["type"], key, seen.get("tenant_id"))
        earlier = read_result(seen.get("result")).get("run_key")
        handle = await start_pipeline(
            self._desk.client,
            seen["type"],
            run_key=key,
            user_id=on_record.by,
            tenant_id=seen.get("tenant_id"),
            restart_of=earlier or run.rpartition("/")[2],  # a failed run has no result
            restart_from=step,
            task_queue=(await our_run(self._desk.client, run)).task_queue,
            on_record=on_record,
        )
        return handle.id


def last_turns(messages: Iterable[Message]) -> list[Message]:
    """Return the last messages with text or calls."""
    return [one for one in messages if one.content or one.tool_calls][-_TURNS:]


async def page_in_process(desk: Desk, request: Request, run: str) -> Response:
    """Return the page of a run that no server knows; only its store has it.

    Raises:
        InputError: there is none.
    """
    board = await desk.people.in_process.board(run)
    waiting = await desk.people.pending(run)
    messages = []
    if (
        desk.store is not None
        and board.session is not None
        and (session := await desk.store.load_session(board.session))
    ):
        messages = await desk.store.load_messages(board.session, after=max(0, session.last_seq - LOOKED_AT))
    return desk.page(
        request,
        "in_process",
        run=run,
        board=board,
        waiting=waiting,
        whole=await load_all(desk.store, waiting),
        turns=last_turns(messages),
        acts=await load_acts(desk.store, [board.journal_key], run),
        changes=None,
    )
