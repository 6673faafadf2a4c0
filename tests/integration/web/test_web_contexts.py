"""A context is accepted at every door and checked before a start, and the application has the last word."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, Field
from support.forms import sent_to
from support.node_clients import missing, run_client
from support.pages import PEOPLE, TOKENS, browser, served
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call, tool_results

from standfast import Agent, Approval, InputError, ToolContext, tool
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app

Given = dict[str, Any]


class Shop(BaseModel):
    """Whose shop it is."""

    name: str
    kind: Literal["bakery", "mill"] = "bakery"
    limit: Annotated[int, Field(ge=1)] = 10
    vip: bool = False


class Theme(BaseModel):
    colour: str = "blue"


@tool(safe_to_retry=True)
def whose(ctx: ToolContext[Shop]) -> str:
    """Say whose shop it is."""
    return f"{ctx.deps.name}/{ctx.deps.kind}/{ctx.deps.limit}/{ctx.deps.vip}"


@tool(safe_to_retry=True)
def which(ctx: ToolContext[Theme]) -> str:
    """Say which colour it is."""
    return ctx.deps.colour


@tool(approval=Approval())
def post(ctx: ToolContext[Shop]) -> str:
    """Post something in the name of the shop."""
    return ctx.deps.name


seller = Agent("seller", context=Shop, tools=[whose, post])
painter = Agent("painter", context=Theme, tools=[which])
plain = Agent("plain")


def looking(name: str) -> ScriptedModel:
    return ScriptedModel(
        lambda messages, tools: "done" if messages[-1].role == "tool" else asks_for(call(name, f"c{len(messages)}"))
    )


async def seen_in(temporal: Temporal, session: str = "s") -> list[str]:
    """Return what the tools of a session have seen of the context."""
    return [said.content for said in tool_results(await temporal.messages(session))]


# --- doors for programs ---

Door = Callable[[str, str, Given], tuple[str, Given]]
DOORS: dict[str, Door] = {
    "api": lambda agent, session, given: (
        "/api/v1/runs",
        {"name": agent, "message": "hi", "session_id": session, "if_running": "message", **given},
    ),
    "ag-ui": lambda agent, session, given: (
        f"/agents/{agent}/ag-ui",
        {"threadId": session, "runId": f"r-{given}"[:200],
         "messages": [{"id": f"m-{given}", "role": "user", "content": "hi"}],
         "state": {"of": "the front end"}, "context": [{"description": "screen", "value": "cart"}],
         "forwardedProps": {"theirs": 1, **given}},
    ),
    "ai-sdk": lambda agent, session, given: (
        f"/agents/{agent}/ai-sdk",
        {"id": session, "messages": [{"id": f"m-{given}", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
         **given},
    ),
    "chat": lambda agent, session, given: (
        "/v1/chat/completions",
        {"model": agent, "messages": [{"role": "user", "content": "hi"}], "metadata": {"session_id": session}, **given},
    ),
    "responses": lambda agent, session, given: (
        "/v1/responses", {"model": agent, "input": "hi", "metadata": {"session_id": session}, **given},
    ),
}  # fmt: skip
every_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)


@asynccontextmanager
async def program(temporal: Temporal, who: str = "olga", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    agents = [seller, painter, plain]
    options = {"store": temporal.store, "agents": agents, "task_queue": temporal.name, **options}
    app = create_app(temporal.client, access=options.pop("access", Access(people=PEOPLE)), **options)
    headers = {"Authorization": f"Bearer {TOKENS[who]}"}
    async with served(app) as address, httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        yield client


async def post_to(client: httpx.AsyncClient, door: Door, agent: str, session: str, **given: Any) -> httpx.Response:
    path, body = door(agent, session, given)
    return await client.post(path, json=body)


async def runs_of(temporal: Temporal) -> list[str]:
    return [run.id async for run in temporal.client.list_workflows(f"TaskQueue = '{temporal.name}'")
            if not run.id.startswith("standfast-")]  # fmt: skip


def handle_of(temporal: Temporal, agent: str) -> Any:
    return temporal.client.get_workflow_handle(f"{agent}/{temporal.session()}")


@every_door
async def test_a_run_begins_with_the_context_that_a_door_is_given_and_its_session_keeps_it(
    temporal: Temporal, door: Door
) -> None:
    async with temporal.worker(seller, llm=looking("whose")), program(temporal) as client:
        for given in ({"context": {"name": "Acme", "limit": 3}}, {}, {"context": {"name": "Other", "kind": "mill"}}):
            answer = await post_to(client, door, "seller", temporal.session(), **given)
            assert answer.status_code in (200, 201), answer.text
            assert (await result(handle_of(temporal, "seller")))["response"] == "done"
    assert await seen_in(temporal) == ["Acme/bakery/3/False", "Acme/bakery/3/False", "Other/mill/10/False"]


@every_door
async def test_a_context_that_does_not_fit_starts_nothing_and_the_field_is_named(
    temporal: Temporal, door: Door
) -> None:
    wrong: list[tuple[str, Given, str]] = [
        ("seller", {"context": {"name": "Acme", "limit": 0}}, "limit: Input should be greater than or equal to 1"),
        ("seller", {"context": {"name": "Acme", "kind": "zoo"}}, "kind: Input should be 'bakery' or 'mill'"),
        ("seller", {"context": "Acme"}, "does not fit its type"),
        ("seller", {"context": {"name": "x" * 70_000}}, "longer than 65,536 bytes"),
        ("seller", {}, "name: Field required"),
        ("seller", {"context": None}, "name: Field required"),
        ("plain", {"context": {"name": "Acme"}}, "does not take a context"),
    ]
    async with program(temporal) as client:
        for agent, given, why in wrong:
            answer = await post_to(client, door, agent, temporal.session(), **given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "INPUT_ERROR"), answer.text
            assert why in answer.json()["error"]["message"]
    assert await runs_of(temporal) == []


CLIENTS = """
import { HttpAgent } from "@ag-ui/client";
import { DefaultChatTransport, readUIMessageStream } from "ai";
import OpenAI from "openai";
const { url, token, context, sessions } = JSON.parse(process.argv[2]);
const headers = { Authorization: `Bearer ${token}` };
const agent = new HttpAgent({ url: `${url}/agents/seller/ag-ui`, headers, threadId: sessions[0] });
agent.messages = [{ id: "m1", role: "user", content: "hi" }];
await agent.runAgent({ runId: "r1", forwardedProps: { context } });
const transport = new DefaultChatTransport({ api: `${url}/agents/seller/ai-sdk`, headers, body: { context } });
const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text: "hi" }] }];
const stream = await transport.sendMessages({ chatId: sessions[1], messages, trigger: "submit-message" });
for await (const _ of readUIMessageStream({ stream }));
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: token });
const metadata = { session_id: sessions[2] };
const said = [{ role: "user", content: "hi" }];
await client.chat.completions.create({ model: "seller", messages: said, metadata, context });
console.log(JSON.stringify("done"));
"""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_the_official_clients_give_a_context(temporal: Temporal, tmp_path: Path) -> None:
    sessions = ("ag-ui", "ai", "openai")
    async with temporal.worker(seller, llm=looking("whose")), program(temporal) as client:
        given = {"url": str(client.base_url).rstrip("/"), "token": TOKENS["olga"], "context": {"name": "Acme"}}
        assert await run_client(CLIENTS, tmp_path, **given, sessions=[*map(temporal.session, sessions)]) == "done"
        async with openai.AsyncOpenAI(base_url=f"{given['url']}/v1", api_key=TOKENS["olga"]) as sdk:
            more = {"extra_body": {"context": {"name": "Acme"}}, "metadata": {"session_id": temporal.session("python")}}
            await sdk.responses.create(model="seller", input="hi", **more)  # type: ignore[call-overload]
    for session in (*sessions, "python"):
        assert await seen_in(temporal, session) == ["Acme/bakery/10/False"], session


async def test_a_pipeline_takes_no_context_and_the_document_has_that_of_agents(temporal: Temporal) -> None:
    from standfast import pipeline

    pipe = pipeline("pipe").step("sell", agent=painter, input=lambda ctx: "go").build()
    async with program(temporal, pipelines=[pipe]) as client:
        refused = await client.post("/api/v1/runs", json={"name": "pipe", "context": {"colour": "red"}})
        assert (refused.status_code, "from its input" in refused.text) == (422, True)
        document = (await client.get("/api/v1/openapi.json")).json()
        assert "context" in document["components"]["schemas"]["StartRun"]["properties"]


async def test_a_run_in_flight_hears_more_in_its_own_context_alone(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("post", "c1")), "done"])
    acme, session = {"name": "Acme"}, temporal.session()
    async with temporal.worker(seller, llm=model), program(temporal) as client:
        started = await client.post("/api/v1/runs", json=DOORS["api"]("seller", session, {"context": acme})[1])
        assert started.json()["is_new"] is True
        await pending(handle_of(temporal, "seller"))
        for given in ({"name": "Other"}, {"name": "Acme", "vip": True}):
            refused = await client.post("/api/v1/runs", json=DOORS["api"]("seller", session, {"context": given})[1])
            assert (refused.status_code, "was not started with this context" in refused.text) == (409, True)
        for same in ({"context": acme}, {"context": {"name": "Acme", "limit": 10}}, {}):
            said = await client.post("/api/v1/runs", json=DOORS["api"]("seller", session, same)[1])
            assert (said.status_code, said.json()["is_new"]) == (201, False), said.text
        gate = (await temporal.people.pending(f"seller/{session}"))[0]["name"]
        await temporal.people.decide(f"seller/{session}", gate, "approve")
        assert (await result(handle_of(temporal, "seller")))["status"] == "complete"
    assert [one.content for one in await temporal.messages() if one.role == "user"] == ["hi"] * 4
    assert await seen_in(temporal) == ["Acme"]


async def test_a_start_that_is_sent_again_with_another_context_is_another_act(temporal: Temporal) -> None:
    async with temporal.worker(seller, llm=looking("whose")), program(temporal) as client:
        key = {"Idempotency-Key": "k-1"}
        runs = []
        for name in ("Acme", "Acme", "Other"):
            body = {"name": "seller", "message": "hi", "context": {"name": name}}
            runs.append((await client.post("/api/v1/runs", json=body, headers=key)).json())
        assert [one["is_new"] for one in runs] == [True, False, True]
        assert runs[0]["workflow_id"] == runs[1]["workflow_id"] != runs[2]["workflow_id"]


@pytest.mark.slow(but=2)
@every_door
async def test_the_application_fills_the_context_and_may_refuse_it(temporal: Temporal, door: Door) -> None:
    heard: list[tuple[str, str, Any]] = []

    async def shop_of(person: Person, agent: Agent, given: Any) -> Any:
        heard.append((person.name, agent.name, given))
        if given is not None and given.get("name") == "Bank":
            raise InputError("The shop Bank is not yours")
        return {**(given or {}), "name": f"shop of {person.name}", "vip": False}

    async with temporal.worker(seller, llm=looking("whose")), program(temporal, fill_context=shop_of) as client:
        assert (await post_to(client, door, "seller", temporal.session())).status_code in (200, 201)
        assert (await result(handle_of(temporal, "seller")))["status"] == "complete"
        answer = await post_to(client, door, "seller", temporal.session(), context={"vip": True, "limit": 2})
        assert answer.status_code in (200, 201)
        assert (await result(handle_of(temporal, "seller")))["status"] == "complete"
        refused = await post_to(client, door, "seller", temporal.session("other"), context={"name": "Bank"})
        assert (refused.status_code, "is not yours" in refused.text) == (422, True)
    assert await seen_in(temporal) == ["shop of olga/bakery/10/False", "shop of olga/bakery/2/False"]
    assert heard[0] == ("olga", "seller", None)
    assert len(await runs_of(temporal)) == 2


async def test_an_application_that_blocks_or_hangs_holds_up_nobody_else_and_starts_nothing(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.web.identity.contexts.FILL_SECONDS", 1.0)
    goes_on, hanging = threading.Event(), threading.Event()

    def blocks(person: Person, agent: Agent, given: Any) -> Any:
        hanging.set()
        goes_on.wait(60)
        return given

    async def hangs(person: Person, agent: Agent, given: Any) -> Any:
        await asyncio.Event().wait()

    for fill in (blocks, hangs):
        async with program(temporal, fill_context=fill) as client:
            starting = asyncio.create_task(post_to(client, DOORS["api"], "seller", "s", context={"name": "Mill"}))
            if fill is blocks:
                await until(hanging.is_set)
            assert (await client.get("/api/v1/me")).status_code == 200
            assert not starting.done()
            answer = await starting
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "BROKEN")
    goes_on.set()
    assert await runs_of(temporal) == []


async def test_nobody_reaches_a_run_in_the_context_of_another_tenant(temporal: Temporal) -> None:
    filled: list[str] = []

    def fill(person: Person, agent: Agent, given: Any) -> Any:
        filled.append(person.name)
        return {**given, "name": f"{given['name']} of {person.name}"}

    tenants = {"olga": ("a",), "bob": ("b",)}
    people = [Person(name=name, role="operator", tenants=of, token=f"{name}-token-that-is-long-enough")
              for name, of in tenants.items()]  # fmt: skip
    session, given = temporal.session(), {"context": {"name": "secret"}}
    async with (
        temporal.worker(seller, llm=looking("post")),
        program(temporal, access=Access(people=people), fill_context=fill) as client,
    ):
        started = await post_to(client, DOORS["api"], "seller", session, **given)
        run = started.json()["workflow_id"]
        await pending(temporal.client.get_workflow_handle(run))
        client.headers["Authorization"] = "Bearer bob-token-that-is-long-enough"
        for path in ("", "/messages", "/events"):
            answer = await client.get(f"/api/v1/runs/{run}{path}")
            assert (answer.status_code, "secret" in answer.text) == (404, False)
        for path, body in (("message", {"text": "more"}), ("resume", {})):
            assert (await client.post(f"/api/v1/runs/{run}/{path}", json=body)).status_code == 404
        theirs = {"name": "seller", "message": "hi", "session_id": session, "tenant_id": "a", "if_running": "message"}
        assert (await client.post("/api/v1/runs", json={**theirs, **given})).status_code in (403, 422)
        assert filled == ["olga"]
        # The same name of a session is another session in another tenant.
        other = await post_to(client, DOORS["api"], "seller", session, **given)
        assert (other.status_code, other.json()["workflow_id"] == run) == (201, False)
        await pending(temporal.client.get_workflow_handle(other.json()["workflow_id"]))
    contexts = [[one.context for one in await temporal.store.load_messages(f"@{of}/{session}") if one.role == "user"]
                for of in ("a", "b")]  # fmt: skip
    assert [[json.loads(str(one))["name"] for one in found] for found in contexts] == [
        ["secret of olga"], ["secret of bob"]
    ]  # fmt: skip


# --- the form ---


def typed_in(page: str) -> dict[str, str]:
    """Return what a browser sends of the form as it is shown."""
    action = re.findall(r'action="(/start/[^"]*)"', page)[0]
    return sent_to(page, action)


async def test_an_agent_is_started_with_a_form_for_its_context(temporal: Temporal) -> None:
    async with (
        temporal.worker(seller, llm=looking("whose")),
        browser(temporal, agents=[seller, plain], task_queue=temporal.name) as client,
    ):
        assert "context" not in typed_in((await client.get("/start/plain")).text)
        page = (await client.get("/start/seller")).text
        assert "Whose shop it is." in page
        shown = typed_in(page)
        assert {name: text for name, text in shown.items() if name.startswith("context.")} == {
            "context.name": "", "context.kind": '"bakery"', "context.limit": "10",
        }  # fmt: skip
        session = temporal.session()
        sent = shown | {"message": "hi", "session": session}
        missing = await client.post("/start/seller", data=sent | {"context.limit": "3"})
        assert missing.status_code == 422
        assert 'id="context.name-wrong">Field required<' in missing.text
        kept = typed_in(missing.text)
        assert (kept["context.limit"], kept["message"], kept["key"]) == ("3", "hi", shown["key"])
        assert await runs_of(temporal) == []
        started = await client.post("/start/seller", data=kept | {"context.name": "Acme", "context.vip": "on"})
        assert started.headers["Location"] == f"/runs/seller/{session}?said=start"
        assert (await result(handle_of(temporal, "seller")))["status"] == "complete"
        # As it is shown, the form says nothing of the context: the session continues with its own.
        again = await client.post("/start/seller", data=sent | {"key": "another"})
        assert again.status_code == 303
        assert (await result(handle_of(temporal, "seller")))["status"] == "complete"
    assert await seen_in(temporal) == ["Acme/bakery/3/True", "Acme/bakery/3/True"]


async def test_a_context_of_defaults_need_not_be_typed(temporal: Temporal) -> None:
    async with (
        temporal.worker(painter, llm=looking("which")),
        browser(temporal, agents=[painter], task_queue=temporal.name) as client,
    ):
        for colour in ("blue", "red"):
            shown = typed_in((await client.get("/start/painter")).text)
            session = temporal.session(colour)
            given = shown | {"message": "hi", "session": session, "context.colour": colour}
            assert (await client.post("/start/painter", data=given)).status_code == 303
            handle = temporal.client.get_workflow_handle(f"painter/{session}")
            assert (await result(handle))["status"] == "complete"
            assert await seen_in(temporal, colour) == [colour]


async def test_the_application_fills_the_context_of_a_form(temporal: Temporal) -> None:
    def shop_of(person: Person, agent: Agent, given: Any) -> Any:
        if given is not None:
            raise InputError("Leave the shop to us")
        return {"name": person.name}

    async with (
        temporal.worker(seller, llm=looking("whose")),
        browser(temporal, agents=[seller], task_queue=temporal.name, fill_context=shop_of) as client,
    ):
        shown = typed_in((await client.get("/start/seller")).text) | {"message": "hi", "session": temporal.session()}
        refused = await client.post("/start/seller", data=shown | {"context.name": "Bank"})
        assert (refused.status_code, "Leave the shop to us" in refused.text) == (422, True)
        assert (await client.post("/start/seller", data=shown)).status_code == 303
        assert (await result(handle_of(temporal, "seller")))["status"] == "complete"
    assert await seen_in(temporal) == ["ada/bakery/10/False"]
