"""The pages: the inbox, the list of runs, one run, and the forms by which people start, decide, answer and repair.

Every form works without JavaScript. The run itself determines whether an act counts. Its sender is the signed-in
person, whatever the form contains.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from uuid import uuid4

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from temporalio.client import Client
from temporalio.service import RPCError

from standfast.errors import InputError, SessionConflictError, StandfastError, StoreError
from standfast.runtime.stored_gates import is_in_process
from standfast.runtime.viewers import Heard
from standfast.stores.protocol import AgentStore
from standfast.temporal import OnRecord, StandfastClient
from standfast.temporal.client.audits import Entry, load_acts
from standfast.temporal.client.items import read_result
from standfast.temporal.client.runs import our_run, outcome
from standfast.web.access import Person, Role
from standfast.web.actions import ACTS, SAID, Form, Read, act_id
from standfast.web.asked import load_all, load_whole
from standfast.web.bounds import admit, tenant_for
from standfast.web.contexts import Contexts
from standfast.web.edits import asked_again
from standfast.web.graphs import draw
from standfast.web.in_process import page_in_process
from standfast.web.inbox import address, read_inbox
from standfast.web.items import Items
from standfast.web.live_updates import Looks, digest, position, read_position
from standfast.web.mounts import Assets, path_of, root_of
from standfast.web.overview import Overview
from standfast.web.rendering import run_path, step_link, templates
from standfast.web.run_again import RunAgain
from standfast.web.run_lists import RunLists
from standfast.web.runs import Runs, is_said_now
from standfast.web.several import Several, offered
from standfast.web.sign_in import SignIn
from standfast.web.standing import StandingPages
from standfast.web.start_forms import Start
from standfast.web.statuses import status_of
from standfast.web.streams import Streams
from standfast.web.timelines import Timelines
from standfast.web.visitors import Visitors, who

_GOES_ON = ("starting", "running", "waiting", "paused")  # a run's own report before its end
_ENTRIES = 100  # of a timeline, the last, unless all are requested
_TITLES = {403: "You may not do this", 404: "There is no such page", 500: "That did not work", 504: "Not confirmed"}
_TYPED = ("edit", "comment", "text", "result", "reason", "model")  # fields of forms


class Pages:
    """The handlers of the page, with one client and, for transcripts, the workers' store."""

    def __init__(
        self,
        client: Client,
        visitors: Visitors,
        store: AgentStore | None,
        temporal_ui: str | None,
        starts: Mapping[str, Start],
        task_queue: str,
        contexts: Contexts,
        assets: Assets,
    ) -> None:
        self.client, self.people = client, StandfastClient(client, store=store)
        self._visitors, self.access, self._store = visitors, visitors.access, store
        self._ui, self._runs = temporal_ui, Runs(self.people, store)
        self._starts, self._task_queue, self._contexts = starts, task_queue, contexts
        self.looks = Looks(self._look, store)
        self._assets = assets
        self._lists, self._timelines = RunLists(self), Timelines(self.people, store)
        self._again = RunAgain(self, self._lists.facts, store)
        self._items = Items(self, self._runs, self._timelines, store)
        self._streams = Streams("open pages that listen for changes")

    def routes(self) -> list[Route]:
        lists = self._lists
        return [
            Route("/", self.inbox),
            *SignIn(self, self._visitors).routes(),
            Route("/runs", lists.runs),
            Route("/batch", lists.batch, methods=["POST"]),
            Route("/decide", Several(self).decide, methods=["POST"]),
            Route("/again/{run:path}", self._again.again, methods=["POST"]),
            Route("/filters", lists.save, methods=["POST"]),
            Route("/overview", Overview(self, lists.facts, self._store).overview),
            *StandingPages(self, self._store).routes(),
            Route("/changes", self.changes),
            Route("/link/{token}", self.link, methods=["GET", "POST"]),
            Route("/arguments/{run:path}", self.arguments),
            Route("/items/{run:path}", self._items.item),
            Route("/start", self.starts),
            Route("/start/{name}", self.start, methods=["GET", "POST"]),
            *(
                Route(f"/runs/{{run:path}}/{name}", self._acting(name, *rule), methods=["POST"])
                for name, rule in ACTS.items()
            ),
            Route("/runs/{run:path}", self.run),
        ]

    # --- common parts ---

    def person(self, request: Request, role: Role = "viewer", scope: str = "read") -> Person:
        person = who(request)
        if person is None:
            raise HTTPException(401)
        self._visitors.rates.count(request, person)
        if not person.may_do(scope):
            raise HTTPException(403, f"The token of {person.name} does not allow this: it lacks the scope {scope}.")
        if not person.may(role):
            raise HTTPException(403, f"This needs the role {role}; {person.name} has the role {person.role}.")
        return person

    def page(
        self, request: Request, name: str, *, status: int = 200, decider: Person | None = None, **values: Any
    ) -> Response:
        """Return a page; `decider` is the person who acts on it, if different from the signed-in person."""
        person = who(request)
        template = templates().get_template(f"{name}.html")
        html = template.render(
            root=root_of(request.scope),
            asset=self._assets.address,
            person=person,
            decider=decider or person,
            csrf=self.access.csrf(request),
            new_key=_new_key,
            path=path_of(request.scope),
            is_local=self.access.local is not None,
            has_starts=bool(self._starts),
            said=SAID.get(request.query_params.get("said", "")),
            acted_on=request.query_params.get("run"),
            **values,
        )
        return HTMLResponse(html, status)

    def refused(
        self,
        request: Request,
        status: int,
        why: str,
        *,
        run: str | None = None,
        form: Form | None = None,
        acts: Sequence[Entry] = (),
        **more: Any,
    ) -> Response:
        """Explain why an act was not done, and show the entries, since they are not kept anywhere else."""
        title = _TITLES.get(status, "That was not done")
        kept = {name: text for name, text in (form or {}).items() if name in _TYPED or name.startswith("field.")}
        shown: dict[str, Any] = {"title": title, "run": run, "why": why, "typed": kept, "acts": acts, **more}
        return self.page(request, "refused", status=status, changes=None, **shown)

    async def not_done(
        self, request: Request, error: StandfastError | RPCError, run: str, form: Form, **more: Any
    ) -> Response:
        """Explain why an act was not done, and show the entries: in the original form, if its item still waits."""
        again = await asked_again(self.people, self._store, run, form, error)
        return self.refused(request, status_of(error), str(error), form=form, **(more or {"run": run}), **again)

    # --- looking ---

    async def inbox(self, request: Request) -> Response:
        """The waiting items of this person and of others, the nearest deadline first, one page each."""
        person, typed = self.person(request), dict(request.query_params)
        inbox = await read_inbox(self.people, person, typed)
        whole = await load_all(self._store, inbox.mine)
        shown: dict[str, Any] = {"inbox": inbox, "whole": whole, "choices": offered(person, inbox.mine, whole)}
        return self.page(request, "inbox", changes=_changes(request, address(typed), inbox.look), **shown)

    async def run(self, request: Request) -> Response:
        """One run: its progress, its waiting items, its messages, and the decisions."""
        run = request.path_params["run"]
        await admit(self.people, person := self.person(request), run)
        if is_in_process(run):
            return await page_in_process(self, self._store, request, run)
        try:
            seen = await self._runs.seen(run)
        except InputError as error:
            if not (acts := await load_acts(self._store, [], run)):
                raise
            return self.refused(request, 404, str(error), acts=acts)  # it was never started, or is gone
        state, result = seen.get("state", {}), read_result(seen.get("result"))
        is_theirs = await self._runs.is_session_of(person, seen)
        waiting = [{**item, "workflow_id": run} for item in state.get("waiting", ())]
        waiting += [item for items in seen.get("steps", {}).values() for item in items]
        journal_key = state.get("journal_key") or result.get("journal_key") or seen["first_run_id"]
        progress = await self._runs.progress(journal_key, seen)
        speaks = "session_id" in seen and "closed" not in seen
        said = await self._runs.partial(journal_key) if speaks else Heard()
        messages = await self._runs.messages(seen) if is_theirs else []
        acts = await load_acts(self._store, [journal_key, seen["first_run_id"]], run)
        return self.page(
            request,
            "run",
            seen=seen,
            state=state,
            result=result,
            ended=outcome(seen) if "closed" in seen else None,
            says_ended=state.get("status", "running") not in _GOES_ON,  # the server may learn of it a moment later
            waiting=waiting,
            whole=await load_all(self._store, waiting),
            messages=messages,
            unheard=await self._runs.unheard(seen, messages) if is_theirs else [],
            acts=[act for act in acts if not person.only_own or act.journal_key != run or act.by == person.name],
            timeline=await self._timelines.load(run, messages),
            shown_entries=None if "all" in request.query_params else _ENTRIES,
            can_run_again=await self._again.is_possible(request, seen, progress),
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
            else _changes(request, f"/runs/{run}", seen, (journal_key, said) if speaks else None),
        )

    async def arguments(self, request: Request) -> Response:
        """All arguments that a person is asked to approve, a part at a time, or as a file."""
        run, gate = request.path_params["run"], request.query_params.get("gate", "")
        await admit(self.people, self.person(request), run)
        items = [item for item in await self.people.pending(run) if item["name"] == gate]
        whole = await load_whole(self._store, items[0]) if items else None
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
        return self.page(request, "arguments", changes=None, **shown)

    def _in_temporal(self, seen: dict[str, Any]) -> str | None:
        if self._ui is None:
            return None
        space, run = quote(self.client.namespace, safe=""), quote(seen["workflow_id"], safe="")
        return f"{self._ui}/namespaces/{space}/workflows/{run}/{seen['run_id']}"

    # --- changes ---

    async def changes(self, request: Request) -> Response:
        """Notify an open page, by server-sent events, when it is out of date, and send it a model's words."""
        person = self.person(request)
        asked = request.query_params
        # A browser that reconnects sends the id of the last event it received.
        has = read_position(request.headers.get("Last-Event-ID") or asked.get("has", ""))
        words = (asked["words"], has) if "words" in asked else None
        of = self.look_of(asked.get("of", "/"), person)
        if person.is_bounded:
            words = await self._words_of(person, asked.get("of", "/"), words)
        events = self.looks.events(of, asked.get("shown", ""), words)

        async def until_gone() -> AsyncIterator[str]:
            async for event in events:
                if await request.is_disconnected() or await self._visitors.recognise(request) is None:
                    return  # has gone, or signed out
                yield event

        return self._streams.open(person.name, until_gone())

    async def _words_of(self, person: Person, of: str, words: tuple[str, Heard] | None) -> tuple[str, Heard] | None:
        """Return the words that a person with limited access may see: those of the shown run."""
        if not of.startswith("/runs/"):
            return None
        run = of.removeprefix("/runs/")
        await admit(self.people, person, run)
        keys = [] if words is None else [(await our_run(self.client, run)).raw_info.first_run_id]
        return words if words is not None and words[0] in keys else None

    @staticmethod
    def look_of(path: str, person: Person) -> str:
        """Return the name of a check, which has all values that determine the person's view."""
        tenants = None if person.tenants is None else list(person.tenants)
        whose = {"name": person.name, "role": person.role, "tenants": tenants, "only_own": person.only_own}
        return json.dumps([path, whose])

    async def _look(self, of: str) -> Any:
        """Return the page's contents for a person; see `look_of`."""
        path, whose = json.loads(of)
        if path.startswith("/runs/"):
            return await self._runs.seen(path.removeprefix("/runs/"))
        typed = dict(parse_qsl(path.partition("?")[2]))
        return (await read_inbox(self.people, Person(**whose), typed)).look

    # --- starting ---

    async def starts(self, request: Request) -> Response:
        """The agents and pipelines that can be started."""
        self.person(request, "operator", "start")
        return self.page(request, "starts", starts=self._starts.values(), changes=None)

    async def start(self, request: Request) -> Response:
        """Start an agent or a pipeline by a form; invalid entries stay in the form."""
        person = self.person(request, "operator", "start")
        start = self._starts.get(request.path_params["name"])
        if start is None:
            raise HTTPException(404, "There is no agent or pipeline of this name here.")
        shown: dict[str, Any] = {"start": start, "changes": None}
        if request.method == "GET":
            return self.page(request, "start", typed=None, why=None, wrong={}, key=_new_key(), **shown)
        form = await self.access.form(request)
        key = form.get("key") or _new_key()
        try:
            named = act_id({**form, "key": key}, request.url.path, person.name)
            on = OnRecord(store=self._store, by=person.name, id=str(named))
            tenant = tenant_for(person, form.get("tenant") or None)
            options: dict[str, Any] = {"task_queue": self._task_queue, "tenant_id": tenant}
            run, is_new = await start.run(self.client, form, person, self._contexts, key=key, on_record=on, **options)
        except (InputError, SessionConflictError, StoreError) as error:
            status = 503 if isinstance(error, StoreError) else 422
            shown |= {"typed": form, "why": str(error), "wrong": start.faults(error), "key": key}
            return self.page(request, "start", status=status, **shown)
        return _to(request, f"/runs/{run_path(run)}?said={'start' if is_new else 'started'}")

    # --- acting ---

    def _acting(self, name: str, role: Role, read: Read) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            person = self.person(request, role, name)
            form = await self.access.form(request)
            run = request.path_params["run"]
            try:
                await admit(self.people, person, run)
            except InputError as error:  # nothing of the run is shown
                return self.refused(request, status_of(error), str(error), run=run, form=form)
            try:
                asked = read(form, person)
                await asked.do(self.people, run, id=act_id(form, request.url.path, person.name))
            except (StandfastError, RPCError) as error:
                return await self.not_done(request, error, run, form)
            said = f"{asked.said}-recorded" if is_in_process(run) else asked.said
            inbox = f"/?{urlencode({'said': said, 'run': run})}"
            return _to(request, inbox if form.get("back") == "inbox" else f"/runs/{run_path(run)}?said={said}")

        return handle

    async def link(self, request: Request) -> Response:
        """Show the item of a signed link, and decide by its form: a person with the link needs no session."""
        token = request.path_params["token"]
        link, person = self.access.by_link(token)
        await admit(self.people, person, link.workflow_id)
        found = await self.people.pending(link.workflow_id)
        items = [{**item, "workflow_id": link.workflow_id} for item in found if link.is_for(item)]
        if request.method == "GET" or not items:
            status = 200 if request.method == "GET" else 409
            whole = await load_all(self._store, items)
            shown = {"items": items, "link": link, "token": token, "decider": person, "whole": whole}
            return self.page(request, "link", status=status, changes=None, **shown)
        form = await self.access.form(request, in_session=False)
        # As signed, whatever was sent: for this one call.
        form |= {"gate": link.gate, "digest": link.digest, "remember": ""}
        try:
            asked = ACTS["decide"][1](form, person)
            await asked.do(self.people, link.workflow_id)
        except (StandfastError, RPCError) as error:
            shown = {"action": f"/link/{token}", "decider": person}
            return await self.not_done(request, error, link.workflow_id, form, **shown)
        return _to(request, f"/link/{token}?said={asked.said}")


def _new_key() -> str:
    """Return a new key for a form, so that it counts once however often it is sent."""
    return uuid4().hex


def _changes(request: Request, of: str, shown: Any, words: tuple[str, Heard] | None = None) -> str:
    """Return the address from which an open page gets notifications of changes, and a run's new words."""
    hears = {} if words is None else {"words": words[0], "has": position(words[1])}
    return f"{root_of(request.scope)}/changes?{urlencode({'of': of, 'shown': digest(shown), **hears})}"


def _to(request: Request, path: str) -> Response:
    """Redirect a browser to a path of the page."""
    return RedirectResponse(f"{root_of(request.scope)}{path}", 303)
