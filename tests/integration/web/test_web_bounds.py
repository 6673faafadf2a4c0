"""Tenants, own runs, expiry and scopes apply at every address: nothing reveals other people's data."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from support.chats import TENANT
from support.pages import HOST, browser
from support.teams import APP
from support.temporal_runs import Run, Temporal, pending, result, until
from support.transcripts import asks_for, call
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from standfast import Agent, Approval, StandfastError, pipeline, tool
from standfast.temporal import ApprovalLinks, start_pipeline
from standfast.temporal.wire import names
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, SlackActions, TeamsActions, create_app
from standfast.web.api.calls import Doors
from standfast.web.api.conversations import interrupt_id
from standfast.web.api.operations import OPERATIONS
from standfast.web.api.senders import Senders
from standfast.web.identity.contexts import Contexts
from standfast.web.identity.visitors import Rates
from standfast.web.mcp.tools import Offers
from standfast.web.page import overview

AMOUNT = 987_654_321
LINK_SECRET = "the page and its workers have this secret"


@tool(approval=Approval(message="Charge the customer?"))
async def charge(amount: int) -> str:
    return f"charged {amount}"


clerk = Agent("clerk", tools=[charge])
line = pipeline("line", input=int).step("c1", approval=Approval(message="Charge the customer?")).build()
MODEL = ScriptedModel(
    lambda messages, tools: asks_for(call("charge", "c1", amount=AMOUNT)) if messages[-1].content == "go" else "done"
)


def token(name: str) -> str:
    return f"{name}-token-that-is-long-enough"


def person(name: str, **bounds: Any) -> Person:
    return Person(name=name, role="operator", token=token(name), **bounds)


def as_(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(name)}"}


# --- one rule for each address ---

Sent = tuple[str, str, dict[str, Any]]
Asks = Callable[[str, str], Sent]  # by a run, and the digest of its gate


def get(path: str, **query: str) -> Asks:
    return lambda run, digest: (
        "GET",
        path.format(run=run),
        {"params": {k: v.format(run=run) for k, v in query.items()}},
    )


def post(path: str, **form: str) -> Asks:
    def asks(run: str, digest: str) -> Sent:
        filled = {name.format(run=run): value.format(run=run, digest=digest) for name, value in form.items()}
        return "POST", path.format(run=run), {"data": {"key": "k" * 32, **filled}}

    return asks


def api(method: str, path: str, **body: Any) -> Asks:
    def asks(run: str, digest: str) -> Sent:
        sent = {name: digest if value == "{digest}" else value for name, value in body.items()}
        return method, "/api/v1" + path.format(run=quote(run, safe="")), {"json": sent} if method == "POST" else {}

    return asks


def resumes(run: str, digest: str) -> Sent:
    item = {"kind": "approval", "name": "c1", "digest": digest}
    answer = {"interruptId": interrupt_id(run, item, None), "status": "resolved", "payload": {"decision": "approve"}}
    return "POST", "/agents/clerk/ag-ui", {"json": {"threadId": "t", "runId": "r", "resume": [answer]}}


def decides_several(run: str, digest: str) -> Sent:
    form = {"decision": "approve", "key": "k" * 32, "gate:1": json.dumps([run, "c1", digest])}
    return "POST", "/decide", {"data": form}


def approves(run: str, digest: str) -> Sent:
    approval = {"id": interrupt_id(run, {"kind": "approval", "name": "c1", "digest": digest}, None), "approved": True}
    said = {"id": "m", "role": "assistant", "parts": [{"state": "approval-responded", "approval": approval}]}
    return "POST", "/agents/clerk/ai-sdk", {"json": {"id": "t", "messages": [said]}}


def chats(path: str, **body: Any) -> Asks:
    """Say something in the session of a run."""

    def asks(run: str, digest: str) -> Sent:
        session = run.rpartition("/")[2]
        named = {"id": session} if path.endswith("/ai-sdk") else {"metadata": {"session_id": session}}
        return "POST", path, {"json": {**named, **body}}

    return asks


# What needs a run, or shows some: who may not see it is answered as if it did not exist.
OF_RUNS: dict[str, Asks] = {
    "GET /": get("/"),
    "GET /runs": get("/runs", q="{run}"),
    "POST /batch": post("/batch", act="cancel", **{"run:{run}": "on"}),
    "POST /decide": decides_several,
    "POST /again/{run:path}": post("/again/{run}", step="write"),
    "GET /overview": get("/overview"),
    "GET /standing": get("/standing"),
    "POST /standing/{approval}/revoke": post("/standing/sa_1/revoke"),
    "GET /changes": get("/changes", of="/runs/{run}"),
    "GET /arguments/{run:path}": get("/arguments/{run}", gate="c1"),
    "GET /items/{run:path}": get("/items/{run}", name="c1"),
    "GET /runs/{run:path}": get("/runs/{run}"),
    "POST /runs/{run:path}/decide": post("/runs/{run}/decide", decision="approve", gate="c1", digest="{digest}"),
    "POST /runs/{run:path}/answer": post("/runs/{run}/answer", text="x"),
    "POST /runs/{run:path}/resume": post("/runs/{run}/resume", action="retry"),
    "POST /runs/{run:path}/resolve": post("/runs/{run}/resolve", call="c1", decision="leave"),
    "POST /runs/{run:path}/message": post("/runs/{run}/message", text="x"),
    "POST /runs/{run:path}/cancel": post("/runs/{run}/cancel"),
    "POST /runs/{run:path}/delete": post("/runs/{run}/delete"),
    "GET /api/v1/runs": api("GET", "/runs"),
    "GET /api/v1/pending": api("GET", "/pending"),
    "POST /api/v1/decide": lambda run, digest: (
        "POST",
        "/api/v1/decide",
        {"json": {"decision": "approve", "gates": [{"run": run, "gate": "c1", "digest": digest}]}},
    ),
    "GET /api/v1/standing": api("GET", "/standing"),
    "POST /api/v1/standing/revoke": api("POST", "/standing/revoke", id="sa_1"),
    "GET /api/v1/runs/{run}": api("GET", "/runs/{run}"),
    "GET /api/v1/runs/{run}/transcript": api("GET", "/runs/{run}/transcript"),
    "GET /api/v1/runs/{run}/pending": api("GET", "/runs/{run}/pending"),
    "GET /api/v1/runs/{run}/events": api("GET", "/runs/{run}/events"),
    "GET /api/v1/runs/{run}/export": api("GET", "/runs/{run}/export"),
    "POST /api/v1/runs/{run}/decide": api(
        "POST", "/runs/{run}/decide", gate="c1", decision="approve", digest="{digest}"
    ),
    "POST /api/v1/runs/{run}/answer": api("POST", "/runs/{run}/answer", text="x"),
    "POST /api/v1/runs/{run}/message": api("POST", "/runs/{run}/message", text="x"),
    "POST /api/v1/runs/{run}/resume": api("POST", "/runs/{run}/resume"),
    "POST /api/v1/runs/{run}/resolve": api("POST", "/runs/{run}/resolve", tool_call_id="c1", decision="leave"),
    "POST /api/v1/runs/{run}/cancel": api("POST", "/runs/{run}/cancel"),
    "POST /agents/{name}/ag-ui": resumes,
    "POST /agents/{name}/ai-sdk": approves,
}
# What says something in a session that it names: in the sender's own, or it is refused.
SAYS: dict[str, Asks] = {
    "POST /v1/chat/completions": chats(
        "/v1/chat/completions", model="clerk", messages=[{"role": "user", "content": "overheard"}]
    ),
    "POST /v1/responses": chats("/v1/responses", model="clerk", input="overheard"),
    "POST /agents/{name}/ai-sdk": chats(
        "/agents/clerk/ai-sdk",
        messages=[{"id": "m", "role": "user", "parts": [{"type": "text", "text": "overheard"}]}],
    ),
}
# What begins a run; it begins one of the sender's own, or is refused.
STARTS: dict[str, Asks] = {
    "POST /start/{name}": post("/start/clerk", message="hi", tenant="nobody's"),
    "POST /api/v1/runs": api("POST", "/runs", name="clerk", message="hi", tenant_id="nobody's"),
}
# What tells nothing of any run.
OF_NONE: dict[str, Asks] = {
    "POST /filters": post("/filters", name="mine"),
    "GET /start": get("/start"),
    "GET /v1/models": get("/v1/models"),
    "GET /start/{name}": get("/start/clerk"),
}
WITHOUT_SCOPE: dict[str, Asks] = {
    "GET /api/v1/me": api("GET", "/me"),
    "GET /api/v1/openapi.json": api("GET", "/openapi.json"),
}
# Senders with their own proof: links below, chats in `test_slack_senders` and `test_teams_senders`.
PROVEN = {"GET /link/{token}", "POST /link/{token}", "POST /slack/actions", "POST /teams/messages"}
OF_STRANGERS = {"GET /login", "POST /login", "POST /logout", "/static"}


def addresses(app: Starlette) -> set[str]:
    """Return every address that an application answers, with its method."""
    found = {f"{one.method} /api/v1{one.path}" for one in OPERATIONS} | {"GET /api/v1/openapi.json"}
    for route in app.routes:
        if isinstance(route, Route):
            found |= {f"{method} {route.path}" for method in route.methods or () if method != "HEAD"}
        elif isinstance(route, Mount):
            found.add(route.path)
        else:
            assert type(route).__name__ == "_Below"
    return found


async def test_every_address_of_the_page_and_the_api_has_a_rule_here(temporal: Temporal) -> None:
    chats: Any = {
        "slack": SlackActions(signing_secret="a secret of Slack's"),
        "teams": TeamsActions(app_id=APP, tenant_id=TENANT),
    }
    app = create_app(temporal.client, access=Access(people=[person("olga")]), agents=[clerk], host=HOST, **chats)
    rules = OF_RUNS.keys() | SAYS.keys() | STARTS.keys() | OF_NONE.keys() | WITHOUT_SCOPE.keys()
    assert addresses(app) == rules | PROVEN | OF_STRANGERS


def access_of(temporal: Temporal) -> Access:
    past = datetime.now(UTC) - timedelta(seconds=1)
    others, theirs = f"{temporal.name}-a", f"{temporal.name}-b"
    people = [
        person("amy", tenants=[others]),
        person("ben", tenants=[theirs], only_own=True),
        person("own", only_own=True),
        person("none", tenants=[]),
        person("carl", tenants=[theirs], only_own=True),
        person("late", expires=past),
        person("narrow", scopes=[]),
    ]
    return Access(people=people, link_secret=LINK_SECRET)


async def secret_of(temporal: Temporal) -> tuple[Run, str]:
    run = await temporal.start(clerk, tenant_id=f"{temporal.name}-b", user_id="Carl", session="secret")
    (item,) = await pending(run)
    return run, item["digest"]


async def told(client: httpx.AsyncClient, who: str, sent: Sent) -> tuple[int, str]:
    method, path, given = sent
    answer = await client.request(method, path, headers=as_(who), **given)
    return answer.status_code, re.sub(r"[0-9a-f]{32,64}|shown=\w+", "X", answer.text)


@pytest.mark.slow
async def test_nobody_learns_of_a_run_that_is_not_theirs_at_any_address(temporal: Temporal) -> None:
    options: dict[str, Any] = {"agents": [clerk], "task_queue": temporal.name}
    async with temporal.worker(clerk, llm=MODEL), browser(temporal, access_of(temporal), **options) as client:
        run, digest = await secret_of(temporal)
        described = await run.describe()
        marks = (str(AMOUNT), described.run_id, "Charge the customer")
        await until(lambda: sees(client, "carl", run.id))
        nothere = run.id.replace("secret", "nothere")
        for who in ("amy", "ben", "own", "none"):
            for address, asks in OF_RUNS.items():
                status, text = await told(client, who, asks(run.id, digest))
                missing_status, missing = await told(client, who, asks(nothere, digest))
                assert status == missing_status, (who, address, text)
                assert text.replace(run.id, nothere).replace(quote(run.id, safe=""), "") == missing.replace(
                    quote(nothere, safe=""), ""
                ), (who, address)
                assert not [mark for mark in marks if mark in text], (who, address)
            for address, asks in (STARTS | OF_NONE | WITHOUT_SCOPE).items():
                if (who, address) == ("own", "POST /start/{name}") or (who, address) == ("own", "POST /api/v1/runs"):
                    continue  # this person is not bound to tenants
                status, text = await told(client, who, asks(run.id, digest))
                assert not [mark for mark in (*marks, run.id) if mark in text], (who, address)
                assert status == 422 or address not in STARTS, (who, address, status)
        assert [one["name"] for one in await temporal.people.pending(run.id)] == ["c1"]
        assert (await run.describe()).close_time is None
        approve = OF_RUNS["POST /api/v1/runs/{run}/decide"](run.id, digest)
        assert (await told(client, "carl", approve))[0] == 200
        assert (await result(run))["status"] == "complete"


async def test_nobody_speaks_in_a_session_of_somebody_else_through_a_door_of_another_protocol(
    temporal: Temporal,
) -> None:
    options: dict[str, Any] = {"agents": [clerk], "task_queue": temporal.name}
    async with temporal.worker(clerk, llm=MODEL), browser(temporal, access_of(temporal), **options) as client:
        run, digest = await secret_of(temporal)
        marks = (str(AMOUNT), (await run.describe()).run_id, "Charge the customer", "Carl", "carl")
        for who in ("amy", "ben", "own", "none"):
            for address, asks in SAYS.items():
                status, text = await told(client, who, asks(run.id, digest))
                assert not [mark for mark in marks if mark in text], (who, address, text)
                # In the same tenant the session is Carl's; elsewhere one of that name is theirs.
                is_theirs = who in ("amy", "own")
                assert (status == 200) == is_theirs, (who, address, status, text)
        seen = await temporal.people.status(run.id)
        assert (seen.get("unheard"), [item["name"] for item in seen["waiting"]]) == (None, ["c1"])
        assert "overheard" not in str(
            await temporal.store.load_messages(f"@{temporal.name}-b/{temporal.session('secret')}")
        )
        await run.cancel()


def in_session(address: str, path: str, named: str, **body: Any) -> dict[str, Asks]:
    """Return what starts or joins a run in the session of a run, which a door calls `named`."""

    def asks(run: str, digest: str) -> Sent:
        session = {named: run.rpartition("/")[2]}
        return "POST", path, {"data" if path.startswith("/start") else "json": {**body, **session}}

    return {address: asks}


JOINS: dict[str, Asks] = {
    **SAYS,
    **in_session("the page", "/start/clerk", "session", message="overheard", key="k" * 32),
    **in_session("the page's key", "/start/clerk", "key", message="overheard"),
    **in_session("the API, refusing", "/api/v1/runs", "session_id", name="clerk", message="overheard"),
    **in_session("the API, saying", "/api/v1/runs", "session_id",
                 name="clerk", message="overheard", if_running="message"),
    **in_session("AG-UI", "/agents/clerk/ag-ui", "threadId", runId="r",
                 messages=[{"id": "m", "role": "user", "content": "overheard"}]),
}  # fmt: skip


# The tools of `standfast mcp serve`, by a run and the digest of its gate.
OFFERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "start_clerk": lambda run, digest: {"message": "overheard", "session_id": run.rpartition("/")[2]},
    "start_line": lambda run, digest: {"input": 1, "session_id": run.rpartition("/")[2]},
    "send_message": lambda run, digest: {"run": run, "text": "overheard"},
    "status": lambda run, digest: {"run": run},
    "result": lambda run, digest: {"run": run, "wait_seconds": 0},
    "pending": lambda run, digest: {"run": run},
    "approve": lambda run, digest: {"run": run, "gate": "c1", "digest": digest},
    "reject": lambda run, digest: {"run": run, "gate": "c1", "digest": digest},
    "answer": lambda run, digest: {"run": run, "text": "overheard"},
}
# Which say the same whether a run exists or not, or never end.
OF_MANY = {"GET /overview", "GET /standing", "POST /standing/{approval}/revoke", "GET /api/v1/standing",
           "POST /api/v1/standing/revoke", "GET /changes"}  # fmt: skip
JOINS_A_LINE: dict[str, Asks] = {
    **in_session("the page", "/start/line", "session", value="1", key="k" * 32),
    **in_session("the page's key", "/start/line", "key", value="1"),
    **in_session("the API", "/api/v1/runs", "session_id", name="line", input=1),
}
# Who asks, and whose the run is: its user, and its tenant.
OWNERS = {
    "nobody's": ("own", None, None),
    "another's": ("own", "carl", None),
    "another tenant's": ("own", "carl", "b"),
    "nobody's in my tenant": ("ben", None, "b"),
    "another's in my tenant": ("ben", "carl", "b"),
    "mine in another tenant": ("ben", "ben", "a"),
    "mine": ("own", "own", None),
    "mine in my tenant": ("ben", "ben", "b"),
}


class Asked:
    """The doors, and a person who asks there for runs."""

    def __init__(self, client: httpx.AsyncClient, offers: Offers, who: Person) -> None:
        self._client, self._offers, self._who = client, offers, who

    async def at(self, door: Asks | str, run: str, digest: str) -> tuple[int, str]:
        """Return the status and the words of an address, or of a tool: if the tool refuses, 400."""
        if not isinstance(door, str):
            return await told(self._client, self._who.name, door(run, digest))
        try:
            said = await self._offers.call(self._who, door, OFFERS[door](run, digest))
        except (StandfastError, HTTPException) as refused:
            return 400, str(refused)
        return 200, json.dumps(said)


@contextlib.asynccontextmanager
async def asking(temporal: Temporal, who: str) -> AsyncIterator[Asked]:
    access = access_of(temporal)
    (person,) = [one for one in access.people if one.name == who]
    doors = Doors(temporal.client, temporal.store, Senders(access, Rates()), {"clerk": clerk, "line": line},
                  temporal.name, Contexts(temporal.client, temporal.store, None))  # fmt: skip
    offers = Offers(doors, allow_decisions=True)
    assert OFFERS.keys() == {offer.name for offer in offers.of(person)}  # no tool is forgotten
    options: dict[str, Any] = {"agents": [clerk], "pipelines": [line], "task_queue": temporal.name}
    async with temporal.worker(clerk, pipelines=[line], llm=MODEL), browser(temporal, access, **options) as client:
        yield Asked(client, offers, person)


async def run_of(temporal: Temporal, kind: str, whose: str) -> tuple[Run, dict[str, Any]]:
    """Start a run that waits at a gate."""
    _, user, tenant = OWNERS[whose]
    owner = {"user_id": user, "tenant_id": None if tenant is None else f"{temporal.name}-{tenant}"}
    session = f"of-{uuid4().hex[:8]}"
    if kind == "clerk":
        run = await temporal.start(clerk, session=session, **owner)
    else:
        given: dict[str, Any] = {"run_key": temporal.session(session), "task_queue": temporal.name, **owner}
        run = await start_pipeline(temporal.client, line, input=1, **given)
    (item,) = await pending(run)
    return run, item


def without(run: str, text: str) -> str:
    return text.replace(quote(run, safe=""), "RUN").replace(run, "RUN")


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kind", ["clerk", "line"])
@pytest.mark.parametrize("whose", [*OWNERS][:-2])
async def test_no_door_shows_joins_or_changes_a_run_that_somebody_may_not_see(
    temporal: Temporal, whose: str, kind: str
) -> None:
    async with asking(temporal, OWNERS[whose][0]) as asked:
        run, item = await run_of(temporal, kind, whose)
        marks = (str(AMOUNT), (await run.describe()).run_id, "Charge the customer")

        async def looks(name: str, door: Asks | str) -> None:
            status, text = await asked.at(door, run.id, item["digest"])
            assert not [mark for mark in marks if mark in text], (name, text)
            nothere = run.id[:-4] + "none"
            missing_status, missing = await asked.at(door, nothere, item["digest"])
            assert (status, without(run.id, text)) == (missing_status, without(nothere, missing)), name

        async def joins(name: str, door: Asks | str) -> None:
            status, text = await asked.at(door, run.id, item["digest"])
            assert not [mark for mark in marks if mark in text], (name, text)
            assert status >= 400, (name, text)

        start, others = f"start_{kind}", {name for name in OFFERS if not name.startswith("start_")}
        await asyncio.gather(*(looks(name, door) for name, door in OF_RUNS.items()))
        await asyncio.gather(*(looks(name, name) for name in others))
        if whose not in ("another tenant's", "mine in another tenant"):  # there, the same name is another session
            joining = JOINS if kind == "clerk" else JOINS_A_LINE
            await asyncio.gather(*(joins(name, door) for name, door in joining.items()), joins(start, start))
        assert [one["digest"] for one in await temporal.people.pending(run.id)] == [item["digest"]]
        assert not (await temporal.people.status(run.id)).get("unheard")
        assert (await run.describe()).close_time is None
        await temporal.end_all()


@pytest.mark.slow
@pytest.mark.parametrize("whose", [*OWNERS][-2:])
async def test_every_door_finds_the_run_of_who_asks(temporal: Temporal, whose: str) -> None:
    """If a door answered nobody, the test before would not notice."""
    async with asking(temporal, OWNERS[whose][0]) as asked:
        doors: dict[str, Asks | str] = {
            **{name: door for name, door in OF_RUNS.items() if name not in OF_MANY},
            **{name: name for name in OFFERS},
        }
        few = asyncio.Semaphore(8)

        async def finds(name: str, door: Asks | str) -> None:
            async with few:
                run, item = await run_of(temporal, "clerk", whose)
                nothere = run.id[:-4] + "none"

                async def differs() -> bool:
                    found, missing = [await asked.at(door, one, item["digest"]) for one in (run.id, nothere)]
                    if name.startswith("start_"):
                        return found[0] == 200
                    return (found[0], without(run.id, found[1])) != (missing[0], without(nothere, missing[1]))

                if name.startswith("GET"):
                    await until(differs)  # a list has a run a moment later
                else:
                    assert await differs(), name

        await asyncio.gather(*(finds(name, door) for name, door in doors.items()))
        await temporal.end_all()


async def test_a_link_lets_nobody_decide_on_a_run_that_they_may_not_see(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=MODEL), browser(temporal, access_of(temporal)) as client:
        run, _ = await secret_of(temporal)
        (item,) = await pending(run)
        marks = (str(AMOUNT), "Charge the customer", (await run.describe()).run_id)

        async def tried(who: str, in_name: str) -> set[int]:
            link = ApprovalLinks(page=f"http://{HOST}", secret=LINK_SECRET, by=who).to(in_name, item)
            answers = [await client.get(link), await client.post(link, data={"decision": "approve"})]
            assert not [mark for mark in marks for answer in answers if mark in answer.text], who
            return {answer.status_code for answer in answers}

        for who in ("amy", "ben", "own", "none"):  # as a worker that does not know the page's bounds would send it
            assert await tried(who, run.id) == await tried(who, run.id.replace("secret", "nothere")), who
        for who in ("late", "narrow", "nobody"):
            assert await tried(who, run.id) == {403}, who
        assert [one["name"] for one in await temporal.people.pending(run.id)] == ["c1"]
        link = ApprovalLinks(page=f"http://{HOST}", secret=LINK_SECRET, by="carl").to(run.id, item)
        assert (await client.post(link, data={"decision": "approve"})).status_code == 303
        assert (await result(run))["status"] == "complete"


async def sees(client: httpx.AsyncClient, who: str, run: str) -> bool:
    """Whether a person sees a run in the lists, at the page and by the API."""
    pages = [(await client.get(path, headers=as_(who))).text for path in ("/runs", "/api/v1/runs", "/api/v1/pending")]
    return all(run in page for page in pages) and f"/runs/{run}" in (await client.get("/", headers=as_(who))).text


async def test_a_token_that_has_ended_or_lacks_the_scope_is_for_nothing(temporal: Temporal) -> None:
    options: dict[str, Any] = {"agents": [clerk], "task_queue": temporal.name}
    async with temporal.worker(clerk, llm=MODEL), browser(temporal, access_of(temporal), **options) as client:
        run, digest = await secret_of(temporal)
        for address, asks in [*OF_RUNS.items(), *(SAYS | STARTS | OF_NONE | WITHOUT_SCOPE).items()]:
            status, text = await told(client, "narrow", asks(run.id, digest))
            assert status == (200 if address in WITHOUT_SCOPE else 403), (address, text)
            assert str(AMOUNT) not in text
        assert [one["name"] for one in await temporal.people.pending(run.id)] == ["c1"]
    for address, asks in [*OF_RUNS.items(), *(SAYS | STARTS | OF_NONE | WITHOUT_SCOPE).items()]:
        async with browser(temporal, access_of(temporal), **options) as client:  # without wrong attempts so far
            status, text = await told(client, "late", asks(run.id, digest))
            assert (status, str(AMOUNT) in text) == (401, False), address


async def test_a_person_who_may_do_one_act_to_a_run_does_not_do_others_to_several(temporal: Temporal) -> None:
    access = Access(people=[person("olga", scopes=["read", "cancel"])])
    async with browser(temporal, access) as client:
        for act, status in (("cancel", 200), ("retry", 403), ("abort", 403)):
            sent = {"act": act, "key": "k", "run:clerk/none": "on"}
            assert (await client.post("/batch", data=sent, headers=as_("olga"))).status_code == status
        again = await client.post("/again/line/x", data={"key": "k", "step": "a"}, headers=as_("olga"))
        assert "lacks the scope start" in again.text


# --- counts, and pages that stay open ---


async def test_the_overview_counts_for_each_person_what_they_may_see(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_PATIENCE", 30.0)
    async with temporal.worker(clerk, llm=MODEL), browser(temporal, access_of(temporal)) as client:
        run, _ = await secret_of(temporal)
        await until(lambda: sees(client, "carl", run.id))

        async def counts(who: str) -> Mapping[str, str]:
            page = (await client.get("/overview", headers=as_(who))).text
            shown = re.findall(r'href="/runs\?[^"]*"><b>([^<]*)</b><span>([^<]*)<', page)
            return {name: count for count, name in shown}

        for who in ("amy", "ben", "none"):
            assert set((await counts(who)).values()) == {"0"}, who
        assert (await counts("carl"))["Waiting for people"] == "1"


async def test_an_open_inbox_is_not_told_of_what_others_have(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=MODEL):
        app = create_app(
            temporal.client, access=access_of(temporal), store=temporal.store, host=HOST, task_queue=temporal.name
        )
        transport = httpx.ASGITransport(app=app, client=(HOST, 4711))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            run, _ = await secret_of(temporal)
            await until(lambda: sees(client, "carl", run.id))
        pages = next(
            route.endpoint.__self__ for route in app.routes if isinstance(route, Route) and route.path == "/changes"
        )
        looks = {}
        for who in ("amy", "ben", "carl"):
            (known,) = [one for one in access_of(temporal).people if one.name == who]
            looks[who] = await pages._look(pages.look_of("/", known))
        assert looks["amy"] == looks["ben"] == [[], {}]
        assert looks["carl"][1] == {"approval": 1}


async def test_a_person_who_begins_a_run_in_a_session_of_somebody_else_reads_nothing_of_it(temporal: Temporal) -> None:
    tenant = f"{temporal.name}-b"
    async with browser(temporal, access_of(temporal), agents=[clerk], task_queue=temporal.name) as client:
        async with temporal.worker(clerk, llm=MODEL):
            await result(await temporal.start(clerk, "my secret", tenant_id=tenant, user_id="carl", session="secret"))
        # As it is after the worker has begun it, and before it has looked whose the session is.
        attributes = {names.SESSION_ATTRIBUTE: temporal.session("secret"), names.TENANT_ATTRIBUTE: tenant}
        typed = [SearchAttributePair(SearchAttributeKey.for_keyword(name), text) for name, text in attributes.items()]
        given = {"user_id": "ben", "tenant_id": tenant, "session_id": temporal.session("secret")}
        taken = await temporal.start_raw(
            "clerk",
            given,
            id=f"clerk/@{tenant}/{temporal.session('secret')}",
            search_attributes=TypedSearchAttributes(typed),
        )
        page = await client.get(f"/runs/{taken.id}", headers=as_("ben"))
        assert page.status_code == 200
        assert "my secret" not in page.text
        assert "carl" not in page.text


async def test_pages_are_answered_as_often_as_a_person_may_ask(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=[person("slow", per_minute=2)])) as client:
        paths = ("/start", "/api/v1/me", "/start")
        told = [await client.get(path, headers=as_("slow")) for path in paths]
        assert [answer.status_code for answer in told] == [200, 200, 429]
        assert int(told[-1].headers["Retry-After"]) > 0
