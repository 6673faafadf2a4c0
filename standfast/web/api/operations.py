"""The operations of the JSON API: reading runs, starting them, acting on them, following them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from temporalio.service import RPCError, RPCStatusCode

from standfast.agent_loop import StandingApproval
from standfast.errors import InputError, NotConfirmedError
from standfast.events import event_json
from standfast.runtime.stored_gates import RECORDED, is_in_process
from standfast.stores.protocol import session_key_of
from standfast.temporal.client.board.boards import WaitingFilters
from standfast.temporal.client.history.event_streams import read_event_id
from standfast.temporal.client.runs.decisions import Choice, decide_each
from standfast.temporal.client.runs.descriptions import listed, looked_at, our_run, runs_query
from standfast.time_limits import time_limit
from standfast.web.api import models
from standfast.web.api.calls import Doors, act_id, said_id
from standfast.web.api.senders import dumped
from standfast.web.identity.people import Person, Role
from standfast.web.identity.visible_runs import admit, no_run, owns, remembered, waiting_counts, waiting_for
from standfast.web.page import standing

_MOST = 100  # of a page
_EXPORT = 30.0  # seconds in which a run must reach a point between two actions
_INT = {"type": "integer", "minimum": 1}


@dataclass(frozen=True, slots=True)
class Call:
    """A request to an operation: its sender, its run, and its content."""

    doors: Doors
    request: Request
    person: Person
    run: str
    body: Any
    key: str | None

    def text(self, name: str) -> str | None:
        """Return a parameter of the query."""
        given = self.request.query_params.getlist(name)
        if len(given) > 1:
            raise HTTPException(422, f"{name} is given {len(given)} times.")
        if given and not given[0].isprintable():
            raise HTTPException(422, f"{name} must be a line of text.")
        return given[0] or None if given else None

    def number(self, name: str, default: int, most: int, *, least: int = 1) -> int:
        if (given := self.request.query_params.get(name)) is None:
            return default
        if not (given.isascii() and given.isdecimal() and len(given) < 10 and least <= int(given) <= most):
            raise HTTPException(422, f"{name} must be a number from {least} to {most:,}.")
        return int(given)

    @property
    def act_id(self) -> str | None:
        said = self.body.model_dump(mode="json") if isinstance(self.body, BaseModel) else None
        return act_id(self.key, self.person, self.request.url.path, said)


@dataclass(frozen=True, slots=True)
class Operation:
    """One of the API's operations.

    Args:
        path: below /api/v1; `{run}` is a workflow id, percent-encoded as one segment.
        scope: of the token; "" if every sender may do it.
        query: its parameters, with the schema of each.
    """

    method: str
    path: str
    do: Callable[[Call], Awaitable[Response | BaseModel]]
    answer: type[BaseModel] | None
    summary: str
    role: Role = "viewer"
    scope: str = "read"
    body: type[BaseModel] | None = None
    status: int = 200
    query: Mapping[str, Mapping[str, Any]] | None = None

    @property
    def segments(self) -> list[str]:
        return self.path.strip("/").split("/")


# --- looking ---


async def _me(call: Call) -> models.Me:
    person, access = call.person, call.doors.senders.access
    tenants, scopes = (None if one is None else list(one) for one in (person.tenants, person.scopes))
    is_browser = "Authorization" not in call.request.headers
    csrf = access.csrf(call.request) if is_browser else None
    return models.Me(
        name=person.name, role=person.role, tenants=tenants, only_own=person.only_own, scopes=scopes, csrf=csrf
    )


async def _list(call: Call) -> models.Runs:
    limit, tenant = call.number("limit", 50, _MOST), call.text("tenant")
    if (waiting := call.request.query_params.get("waiting", "false")) not in ("true", "false"):
        raise HTTPException(422, "waiting must be true or false.")
    query = runs_query(
        status=call.text("status"),
        kind=call.text("name"),
        session=call.text("session"),
        waiting=waiting == "true",
        tenant=tenant,
    )
    try:
        theirs, after = await call.doors.run_pages.read(call.person, query, limit, call.text("page") or "")
    except InputError as error:
        raise HTTPException(422, "page must be the `next` of the previous page; begin at the first page.") from error
    return models.Runs(runs=[models.Run.model_validate(run) for run in theirs], next=after)


async def _show(call: Call) -> models.Run:
    return models.Run.model_validate(await looked_at(call.doors.client, call.run))


async def _transcript(call: Call) -> models.Transcript:
    after, limit = call.number("after", 0, 999_999_999, least=0), call.number("limit", _MOST, _MOST)
    seen, store = listed(await our_run(call.doors.client, call.run)), call.doors.store
    if store is None:
        raise HTTPException(503, "This page has no store: start it with the workers' store.")
    if "session_id" not in seen:
        return models.Transcript(messages=[])
    key = session_key_of(seen.get("tenant_id"), seen["session_id"])
    session = await store.load_session(key)
    if session is not None and not owns(call.person, session.user_id, session.tenant_id):
        raise no_run(call.doors.client, call.run)
    messages = (await store.load_messages(key, after=after))[: limit + 1]
    return models.Transcript(messages=messages[:limit], next=after + limit if len(messages) > limit else None)


async def _pending(call: Call) -> models.Items:
    return models.Items(items=await call.doors.people.pending(call.run))


async def _waiting(call: Call) -> models.Waiting:
    limit, whose = call.number("limit", _MOST, _MOST), (call.doors.people, call.person)
    wanted = cast(WaitingFilters, {name: call.text(name) for name in WaitingFilters.__annotations__})
    items = await waiting_for(*whose, wanted, limit + 1, after=call.text("after"))
    after = items[limit - 1].get("place") if len(items) > limit else None
    return models.Waiting(items=items[:limit], counts=await waiting_counts(*whose, wanted), next=after)


async def _export(call: Call) -> Response:
    try:
        async with time_limit(_EXPORT):
            checkpoint = await call.doors.people.export(call.run)
    except TimeoutError as error:
        raise NotConfirmedError(f"Run {call.run} was not between two actions within {_EXPORT:g} s", id="") from error
    return Response(checkpoint.model_dump_json(), media_type="application/json")


async def _events(call: Call) -> Response:
    after = call.request.headers.get("Last-Event-ID") or call.text("after")
    if after is not None:
        await admit(call.doors.people, call.person, call.run, read_event_id(after)[0])
    if "text/event-stream" not in call.request.headers.get("Accept", ""):
        found = await call.doors.people.events(call.run, after=after)
        events = {"events": [event_json(event) for event in found]}
        return Response(dumped(events), media_type="application/json")
    await our_run(call.doors.client, call.run)

    async def texts() -> AsyncIterator[str]:
        async for event in call.doors.follow(call.run, after):
            if event is None:
                yield ": still here\n\n"
                continue
            named = "" if event.id is None else f"id: {event.id}\n"
            yield f"{named}event: {event.type}\ndata: {dumped(event_json(event))}\n\n"

    return call.doors.streamed(call.person, texts())


# --- acting ---


async def _start(call: Call) -> models.Started:
    begun = await call.doors.start(call.person, call.body, call.key)
    return models.Started(workflow_id=begun.workflow_id, is_new=begun.is_new)


async def _decide(call: Call) -> models.Done:
    asked: models.Decide = call.body
    await call.doors.people.decide(
        call.run,
        asked.gate,
        asked.decision,
        digest=asked.digest,
        comment=asked.comment,
        edit=asked.edit,
        remember=None if asked.remember is None else remembered(call.person, asked.remember.model_dump()),
        by=call.person.name,
        id=call.act_id,
    )
    return models.Done(note=RECORDED if is_in_process(call.run) else None)


async def _decide_several(call: Call) -> models.DecidedGates:
    asked: models.DecideSeveral = call.body
    choices = [
        Choice(one.run, one.gate, one.digest, None if call.act_id is None else f"{call.act_id}.{number}")
        for number, one in enumerate(asked.gates)
    ]
    may_see = partial(admit, call.doors.people, call.person)
    given = {"by": call.person.name, "comment": asked.comment}
    came = await decide_each(call.doors.people, choices, asked.decision, admit=may_see, **given)
    return models.DecidedGates(
        gates=[
            models.DecidedGate(
                run=one.choice.workflow_id, gate=one.choice.gate, outcome=one.outcome, why=one.why, note=one.note
            )
            for one in came
        ]
    )


async def _answer(call: Call) -> models.Done:
    asked: models.Answer = call.body
    given = {"tool_call_id": asked.tool_call_id, "by": call.person.name, "id": call.act_id}
    await call.doors.people.answer(call.run, asked.text, **given)
    return models.Done()


async def _say(call: Call) -> models.Done:
    asked: models.Say = call.body
    message_id = None if call.key is None else said_id(call.key, call.person)
    await call.doors.people.message(
        call.run, asked.text, images=asked.images, message_id=message_id, by=call.person.name
    )
    return models.Done()


async def _resume(call: Call) -> models.Done:
    asked: models.Resume = call.body
    if asked.action == "skip" and asked.reason is None:
        raise HTTPException(422, "reason: explain why it is skipped; the model reads it.")
    given = {"name": asked.name, "model": asked.model, "reason": asked.reason}
    await call.doors.people.resume(call.run, asked.action, **given, by=call.person.name, id=call.act_id)
    return models.Done()


async def _resolve(call: Call) -> models.Done:
    asked: models.Resolve = call.body
    given = {"result": asked.result, "reason": asked.reason, "by": call.person.name, "id": call.act_id}
    await call.doors.people.resolve(call.run, asked.tool_call_id, asked.decision, **given)
    return models.Done()


async def _cancel(call: Call) -> models.Done:
    await call.doors.people.cancel(call.run, by=call.person.name, id=call.act_id)
    return models.Done()


async def _standing(call: Call) -> models.Standing:
    access, found = call.doors.senders.access, await standing.listed(call.doors.store, call.person)
    given = [one.model_dump() | {"outdated": standing.outdated(access, one)} for one in found]
    return models.Standing.model_validate({"standing": given})


async def _revoke(call: Call) -> StandingApproval:
    return await standing.ended(call.doors.store, call.person, call.body.id)


async def checked(call: Call, operation: Operation) -> Response | BaseModel:
    """Run an operation on a run that its sender may see."""
    if "{run}" in operation.path:
        await admit(call.doors.people, call.person, call.run)
    try:
        return await operation.do(call)
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            raise HTTPException(422, f"The Temporal server cannot use this: {error.message}") from error
        raise
    except InputError as error:
        if "{run}" not in operation.path:  # only the request can be wrong
            raise HTTPException(422, str(error)) from error
        raise


_TEXT: Mapping[str, Any] = {"type": "string"}
_FLAG: Mapping[str, Any] = {"enum": ["true", "false"]}
_LIMIT: Mapping[str, Any] = {**_INT, "maximum": _MOST}
OPERATIONS = (
    Operation("GET", "/me", _me, models.Me, "Who sends this", scope=""),
    Operation(
        "GET", "/runs", _list, models.Runs, "Runs, the latest first",
        query={"status": _TEXT, "name": _TEXT, "session": _TEXT, "tenant": _TEXT, "waiting": _FLAG,
               "limit": _LIMIT, "page": _TEXT},
    ),
    Operation("POST", "/runs", _start, models.Started, "Start a run", "operator", "start", models.StartRun, 201),
    Operation(
        "GET", "/pending", _waiting, models.Waiting, "Items that wait for people",
        query={**dict.fromkeys(WaitingFilters.__annotations__, _TEXT), "limit": _LIMIT, "after": _TEXT},
    ),
    Operation(
        "POST", "/decide", _decide_several, models.DecidedGates, "Decide on several gates", "approver", "decide",
        models.DecideSeveral,
    ),
    Operation("GET", "/runs/{run}", _show, models.Run, "A run: its progress and result"),
    Operation(
        "GET", "/runs/{run}/transcript", _transcript, models.Transcript, "The messages of its session",
        query={"after": {"type": "integer", "minimum": 0}, "limit": _LIMIT},
    ),
    Operation("GET", "/runs/{run}/pending", _pending, models.Items, "Its waiting items"),
    Operation(
        "GET", "/runs/{run}/events", _events, None,
        "Its events: a list, or with Accept: text/event-stream a stream until its end", query={"after": _TEXT},
    ),
    Operation("GET", "/runs/{run}/export", _export, None, "A checkpoint", "operator", "export"),
    Operation("POST", "/runs/{run}/decide", _decide, models.Done, "Decide", "approver", "decide", models.Decide),
    Operation("POST", "/runs/{run}/answer", _answer, models.Done, "Answer it", "approver", "answer", models.Answer),
    Operation("POST", "/runs/{run}/message", _say, models.Done, "Send a message", "operator", "message", models.Say),
    Operation("POST", "/runs/{run}/resume", _resume, models.Done, "End a pause", "operator", "resume", models.Resume),
    Operation(
        "POST", "/runs/{run}/resolve", _resolve, models.Done, "Settle a call of unknown outcome", "operator", "resolve",
        models.Resolve,
    ),
    Operation("GET", "/standing", _standing, models.Standing, "Approvals of later calls"),
    Operation(
        "POST", "/standing/revoke", _revoke, StandingApproval, "End one of them", "approver", "decide", models.Revoke
    ),
    Operation("POST", "/runs/{run}/cancel", _cancel, models.Done, "Cancel it", "operator", "cancel", models.Nothing),
)  # fmt: skip
