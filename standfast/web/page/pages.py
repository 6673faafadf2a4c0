"""The pages: the inbox, the list of runs, one run, and the forms by which people start, decide, answer and repair.

Every form works without JavaScript. The run itself determines whether an act counts. Its sender is the signed-in
person, whatever the form contains.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from standfast.runtime.streamed_answers import Heard
from standfast.temporal.client.runs.descriptions import our_run
from standfast.web.identity.contexts import Contexts
from standfast.web.identity.people import Person
from standfast.web.identity.visible_runs import admit
from standfast.web.page.desk import Desk
from standfast.web.page.inbox import InboxPages, read_inbox
from standfast.web.page.live_updates import Looks, Streams, read_position
from standfast.web.page.overview import Overview
from standfast.web.page.run_lists import RunLists
from standfast.web.page.run_page import RunPage
from standfast.web.page.runs import Runs
from standfast.web.page.standing import StandingPages
from standfast.web.page.start_forms import Start, StartPages
from standfast.web.page.timelines import Timelines
from standfast.web.serving.mounts import own_path, root_of


class Pages:
    """All pages, and what keeps an open one up to date."""

    def __init__(
        self, desk: Desk, starts: Mapping[str, Start], task_queue: str, contexts: Contexts, temporal_ui: str | None
    ) -> None:
        self._desk, self._runs = desk, Runs(desk.people, desk.store)
        self.looks = Looks(self._look, desk.store)
        self._streams = Streams("open pages that listen for changes")
        timelines, lists = Timelines(desk.people, desk.store), RunLists(desk)
        self._parts = (
            InboxPages(desk, self._runs, timelines),
            lists,
            Overview(desk, lists.facts),
            StandingPages(desk),
            StartPages(desk, starts, task_queue, contexts),
            RunPage(desk, self._runs, timelines, lists.facts, temporal_ui),
        )

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            Route("/changes", self.changes),
            *(route for part in self._parts for route in part.routes()),
        ]

    # --- signing in ---

    async def login(self, request: Request) -> Response:
        """Sign in with a token; after that a cookie identifies the person."""
        desk, root = self._desk, root_of(request.scope)
        to = own_path(request.query_params.get("to", ""), root)
        if request.method == "GET":
            return desk.page(request, "login", to=to, wrong=False, changes=None)
        form = await desk.access.form(request)
        person = self._desk.visitors.sign_in(request, form.get("token", "").strip())
        if person is None:
            return desk.page(request, "login", status=401, to=to, wrong=True, changes=None)
        response = RedirectResponse(own_path(form.get("to", ""), root), 303)
        desk.access.sign_in(response, person, root=root, is_https=request.url.scheme == "https")
        return response

    async def logout(self, request: Request) -> Response:
        await self._desk.access.form(request)
        response = RedirectResponse(f"{root_of(request.scope)}/login", 303)
        await self._desk.visitors.sign_out(request, response)
        return response

    # --- changes ---

    async def changes(self, request: Request) -> Response:
        """Notify an open page, by server-sent events, when it is out of date, and send it a model's words."""
        person = self._desk.person(request)
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
                if await request.is_disconnected() or await self._desk.visitors.recognise(request) is None:
                    return  # has gone, or signed out
                yield event

        return self._streams.open(person.name, until_gone())

    async def _words_of(self, person: Person, of: str, words: tuple[str, Heard] | None) -> tuple[str, Heard] | None:
        """Return the words that a person with limited access may see: the shown run's words."""
        if not of.startswith("/runs/"):
            return None
        run = of.removeprefix("/runs/")
        await admit(self._desk.people, person, run)
        keys = [] if words is None else [(await our_run(self._desk.client, run)).raw_info.first_run_id]
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
        return (await read_inbox(self._desk.people, Person(**whose), typed)).look
