"""Lists of runs: the filter in an address, a page of the list, and acts on several runs at once."""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError

from standfast.errors import InputError, StandfastError
from standfast.messages import read_json
from standfast.temporal.client.runs.descriptions import quoted, runs_query
from standfast.temporal.wire import names
from standfast.web.identity.visible_runs import RunPages, admit
from standfast.web.page.actions import ACTS, SAID, Form, act_id
from standfast.web.page.desk import Desk
from standfast.web.page.runs import RunFacts
from standfast.web.serving.mounts import root_of

_RUNS = 50  # on a page
_AT_ONCE = 8  # runs that one act covers
_PERIODS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
_FIELDS = ("q", "status", "waits", "type", "session", "tenant", "since")
WRONG = "went-wrong"  # a status that represents all ends that a person should know about
_WRONG = (
    f"ExecutionStatus IN ('Completed', 'Failed', 'Terminated', 'TimedOut') AND {names.STATUS_ATTRIBUTE} != 'complete'"
    f" AND {names.STATUS_ATTRIBUTE} != 'cancelled'"
)
_COOKIE, _YEAR, _MOST_SAVED, _LONGEST_NAME = "standfast_filters", 365 * 86_400, 12, 40
_BATCH = {"cancel": "cancel", "retry": "resume", "abort": "resume"}  # the button of a form, and the act


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter on runs; its address contains all of it."""

    values: Mapping[str, str]

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "Filter":
        """Return the filter of an address or a form; unknown parts are ignored."""
        return cls({name: given.get(name, "").strip()[:500] for name in _FIELDS})

    @property
    def address(self) -> str:
        return urlencode({name: value for name, value in self.values.items() if value})

    @property
    def query(self) -> str:
        """The filter in Temporal's list filter language.

        Raises:
            InputError: a value cannot be in one.
        """
        wanted = {name: value or None for name, value in self.values.items()}
        parts = [_WRONG] if wanted["status"] == WRONG else []
        if (kind := wanted["waits"]) is not None:
            parts.append(f"{names.WAITING_ATTRIBUTE} = {quoted(kind)} AND ExecutionStatus = 'Running'")
        if (text := wanted["q"]) is not None:
            parts.append(f"(WorkflowId STARTS_WITH {quoted(text)} OR {names.SESSION_ATTRIBUTE} = {quoted(text)})")
        if (since := wanted["since"]) is not None:
            if since not in _PERIODS:
                raise InputError(f"since must be {', '.join(_PERIODS)}, got {since!r:.80}")
            begun = datetime.now(UTC) - _PERIODS[since]
            parts.append(f"StartTime > '{begun.isoformat(timespec='seconds')}'")
            parts.append(f"{names.STATUS_ATTRIBUTE} IS NOT NULL")
        return runs_query(
            status=None if wanted["status"] == WRONG else wanted["status"],
            kind=wanted["type"],
            session=wanted["session"],
            tenant=wanted["tenant"],
            query=" AND ".join(parts) or None,
        )


class RunLists:
    """The handlers of the list of runs."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self._client = desk, desk.client
        self.facts = RunFacts(desk.client)
        self._run_pages = RunPages(desk.people, desk.access.secret)

    def routes(self) -> list[Route]:
        return [
            Route("/runs", self.runs),
            Route("/batch", self.batch, methods=["POST"]),
            Route("/filters", self.save, methods=["POST"]),
        ]

    async def runs(self, request: Request) -> Response:
        """Runs that match a filter, the latest first, a page at a time."""
        person = self._desk.person(request)
        wanted, this = Filter.read(request.query_params), request.query_params.get("after", "")
        runs, after = await self._run_pages.read(person, wanted.query, _RUNS, this)
        after = after if len(runs) == _RUNS or person.only_own else None
        saved = _saved(request)
        return self._desk.page(
            request,
            "runs",
            runs=runs,
            facts=await self.facts.of(runs),
            wanted=wanted.values,
            address=wanted.address,
            periods=_PERIODS,
            is_later=bool(this),
            after=after,
            saved=[(name, query, query == wanted.address) for name, query in saved.items()],
            is_saved=wanted.address in saved.values(),
            may_act_on_runs=person.may("operator"),
            changes=None,
        )

    async def save(self, request: Request) -> Response:
        """Save a filter under a name, or delete one; this browser keeps them."""
        self._desk.person(request)
        form = await self._desk.access.form(request)
        name, wanted = " ".join(form.get("name", "").split())[:_LONGEST_NAME], Filter.read(form)
        if not name:
            raise InputError("The name of the filter is missing")
        kept = {known: query for known, query in _saved(request).items() if known != name}
        if "forget" not in form:
            if len(kept) >= _MOST_SAVED:
                raise InputError(f"{_MOST_SAVED} filters are already saved: delete one of them first")
            kept[name] = wanted.address
        root = root_of(request.scope)
        response = RedirectResponse(f"{root}/runs?{wanted.address}", 303)
        value = base64.urlsafe_b64encode(json.dumps(kept).encode()).decode()
        options: dict[str, Any] = {"httponly": True, "samesite": "lax", "secure": self._desk.access.https}
        response.set_cookie(_COOKIE, value, max_age=_YEAR, path=root or "/", **options)
        return response

    async def batch(self, request: Request) -> Response:
        """Do one act on several runs, and report each outcome."""
        form = await self._desk.access.form(request)
        asked, back = form.get("act", ""), Filter.read(form).address
        if asked == "none":  # Enter was pressed in a checkbox
            return RedirectResponse(f"{root_of(request.scope)}/runs?{back}", 303)
        if asked not in _BATCH:
            raise HTTPException(400, "Nothing was done: the form has neither cancel nor resume.")
        role, read = ACTS[_BATCH[asked]]
        person = self._desk.person(request, role, _BATCH[asked])
        doing, few = read({"action": asked}, person), asyncio.Semaphore(_AT_ONCE)
        runs = [name.removeprefix("run:") for name in form if name.startswith("run:")]

        async def do(run: str) -> str | None:
            one: Form = {name: text for name, text in form.items() if name in ("act", "key")}
            try:
                async with few:
                    await admit(self._desk.people, person, run)
                    await doing.do(self._desk.people, run, id=act_id(one, request.url.path, run, person.name))
            except (StandfastError, RPCError) as error:
                return str(error)
            return None

        outcomes = list(zip(runs, await asyncio.gather(*map(do, runs)), strict=True))
        return self._desk.page(request, "batch", outcomes=outcomes, done=SAID[doing.said], address=back, changes=None)


def _saved(request: Request) -> dict[str, str]:
    """Return the saved filters of this browser, by name; a cookie is treated as untrusted input."""
    try:
        kept = read_json(base64.urlsafe_b64decode(request.cookies.get(_COOKIE, "")).decode())
    except (ValueError, InputError):
        return {}
    known = kept.items() if isinstance(kept, dict) else ()
    return {
        str(name)[:_LONGEST_NAME]: Filter.read(dict(parse_qsl(str(query)))).address
        for name, query in list(known)[:_MOST_SAVED]
    }
