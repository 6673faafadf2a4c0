"""Models of MCP clients start runs, read their results, and decide nothing unless they are let: over HTTP by token,
and over stdio, where the server is a process that may die at any moment.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import Mount
from support.commands import refused
from support.pages import CHARGES, TOKENS, charge, served
from support.questions import ask_user
from support.temporal_runs import Temporal, until
from support.transcripts import asks_for, call

from integration.web.test_web_proxies import proxy
from standfast import Agent, Approval, DefinitionError, Pipeline, pipeline, sqlite_store, tool
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app, create_mcp_app

PEOPLE = [Person(name=name, role=role, token=TOKENS[name]) for name, role in
          (("vera", "viewer"), ("ada", "approver"), ("olga", "operator"))]  # fmt: skip


class Order(BaseModel):
    """An order of a customer."""

    number: int
    lines: list["Line"] = []


class Line(BaseModel):
    what: str


@tool
async def note(number: int) -> str:
    """Note an order."""
    return f"noted {number}"


clerk = Agent("clerk", description="Looks after accounts.", tools=[charge, ask_user])
orders = pipeline("orders", input=Order).step("note", run=note, input=lambda ctx: {"number": ctx.input.number}).build()
signing = (
    pipeline("signing", input=Order)
    .step("sign", approval=Approval(message="Sign?", show=lambda c: "x" * 300_000))
    .build()
)


@asynccontextmanager
async def served_mcp(
    temporal: Temporal,
    access: Access | None = None,
    *,
    allow_decisions: bool = False,
    items: Sequence[Any] = (clerk, orders),
) -> AsyncIterator[str]:
    app = offering(temporal, access or Access(people=PEOPLE), items=items, allow_decisions=allow_decisions)
    async with served(app) as address:
        yield f"{address}/mcp"
    app.state.close()


def offering(
    temporal: Temporal, access: Access, *, items: Sequence[Any] = (clerk, orders), **options: Any
) -> Starlette:
    agents, pipelines = ([one for one in items if isinstance(one, kind)] for kind in (Agent, Pipeline))
    options |= {"store": temporal.store, "task_queue": temporal.name}
    return create_mcp_app(temporal.client, access=access, agents=agents, pipelines=pipelines, **options)


@asynccontextmanager
async def client_of(address: str, who: str | None = "olga") -> AsyncIterator[Any]:
    headers = {} if who is None else {"Authorization": f"Bearer {TOKENS[who]}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        mcp.Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


async def use(client: Any, name: str, **arguments: Any) -> dict[str, Any]:
    """Use a tool that does what it is asked."""
    result = await client.call_tool(name, arguments)
    said: dict[str, Any] = json.loads(result.content[0].text)
    assert not result.is_error, said
    assert result.structured_content == said
    return said


async def refusal(client: Any, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert result.is_error, result.content[0].text
    said: dict[str, Any] = json.loads(result.content[0].text)
    assert said.keys() == {"code", "message"}
    return said


# --- tools ---


async def test_each_agent_and_pipeline_is_a_tool_with_the_schema_of_its_input_and_honest_hints(
    temporal: Temporal,
) -> None:
    async with served_mcp(temporal) as address, client_of(address) as client:
        tools = {one.name: one for one in (await client.list_tools()).tools}
    assert set(tools) == {"start_clerk", "start_orders", "send_message", "status", "result", "pending"}
    assert "in the background: Looks after accounts. It may act" in tools["start_clerk"].description
    assert tools["start_clerk"].input_schema["required"] == ["message"]
    schema = tools["start_orders"].input_schema
    assert schema["properties"]["input"]["properties"].keys() == {"number", "lines"}
    assert schema["properties"]["input"]["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert "Line" in schema["$defs"]
    hints = {name: one.annotations for name, one in tools.items()}
    reading = {name for name, hint in hints.items() if hint.read_only_hint}
    assert reading == {"status", "result", "pending"}
    assert {name for name, hint in hints.items() if hint.destructive_hint} == set(tools) - reading
    assert {name for name, hint in hints.items() if hint.idempotent_hint} == reading


async def test_a_pipeline_is_started_once_for_its_session_and_its_result_is_read(temporal: Temporal) -> None:
    session = temporal.session()
    async with temporal.worker(pipelines=[orders]), served_mcp(temporal) as address, client_of(address) as client:
        begun = await use(client, "start_orders", input={"number": 7}, session_id=session)
        assert (begun["run"], begun["is_new"]) == (f"orders/{session}", True)
        ended = await use(client, "result", run=begun["run"], wait_seconds=30)
        assert (ended["has_ended"], ended["status"]) == (True, "complete")
        assert ended["result"]["outputs"] == {"note": "noted 7"}
        again = await use(client, "start_orders", input={"number": 7}, session_id=session)
        assert (again["run"], again["is_new"], again["status"]) == (begun["run"], False, "complete")
        assert "number" in (await refusal(client, "start_orders", input={"number": "seven"}))["message"]
        other = await refusal(client, "start_orders", input={"number": 8}, session_id=session)
        assert "already has a run" in other["message"]


async def test_a_start_that_is_sent_again_finds_the_run_also_after_its_end(temporal: Temporal) -> None:
    session, model = temporal.session(), ScriptedModel(["Hello.", "Again."])
    async with temporal.worker(clerk, llm=model), served_mcp(temporal) as address, client_of(address) as client:
        first = await use(client, "start_clerk", message="hi", session_id=session)
        assert (await use(client, "result", run=first["run"], wait_seconds=30))["result"]["response"] == "Hello."
        again = await use(client, "start_clerk", message="hi", session_id=session)
        assert (again["run"], again["is_new"], again["run_id"]) == (first["run"], False, first["run_id"])
        assert "send_message" in again["note"]
        assert len(model.calls) == 1
        said = await use(client, "send_message", run=first["run"], text="and now?")
        assert said["run_id"] != first["run_id"]
        for run_id, answer in ((None, "Again."), (first["run_id"], "Hello."), (said["run_id"], "Again.")):
            which = {"run": first["run"], "run_id": run_id}
            assert (await use(client, "result", wait_seconds=30, **which))["result"]["response"] == answer
            assert (await use(client, "status", **which))["run_id"] == run_id or run_id is None
        unknown = await refusal(client, "result", run=first["run"], run_id="0198c7a2-0000-7000-8000-000000000000")
        assert "There is no run" in unknown["message"]
    assert [one.content for one in await temporal.messages()] == ["hi", "Hello.", "and now?", "Again."]


async def test_two_starts_of_one_session_at_once_are_one_run(temporal: Temporal) -> None:
    session, model = temporal.session(), ScriptedModel(["Hello."])
    async with temporal.worker(clerk, llm=model), served_mcp(temporal) as address, client_of(address) as client:
        asked = [use(client, "start_clerk", message="hi", session_id=session) for _ in range(4)]
        begun = await asyncio.gather(*asked)
        assert sorted(one["is_new"] for one in begun) == [False, False, False, True]
        assert len({one["run_id"] for one in begun}) == 1
        await use(client, "result", run=begun[0]["run"], wait_seconds=30)
    assert len(model.calls) == 1


@pytest.mark.parametrize("names_session", [True, False])
async def test_a_message_with_an_id_starts_once_however_often_it_is_sent(
    temporal: Temporal, names_session: bool
) -> None:
    model = ScriptedModel(lambda messages, tools: f"answer to {messages[-1].content}")
    where = {"session_id": temporal.session()} if names_session else {}
    async with temporal.worker(clerk, llm=model), served_mcp(temporal) as address, client_of(address) as client:
        runs = []
        for text in ("one", "one", "two", "two"):
            begun = await use(client, "start_clerk", message=text, message_id=f"m-{text}", **where)
            ended = await use(client, "result", run=begun["run"], wait_seconds=30)
            assert ended["result"]["response"] == f"answer to {text}"
            runs.append((begun["run"], begun["is_new"]))
        assert [is_new for _, is_new in runs] == [True, False, True, False]
        assert len({run for run, _ in runs}) == (1 if names_session else 2)
        if names_session:
            other = await refusal(client, "start_clerk", message="other", message_id="m-one", **where)
            assert "already used for another message" in other["message"]
            for _ in range(2):
                await use(client, "send_message", run=runs[0][0], text="three", message_id="m-three")
                await use(client, "result", run=runs[0][0], wait_seconds=30)
    assert len(model.calls) == (3 if names_session else 2)


class Shop(BaseModel):
    """Whose shop it is."""

    name: str
    lines: list[Line] = []


seller = Agent("seller", context=Shop, instructions=lambda ctx: f"You sell for {ctx.context.name}.")
lender = Agent("lender", context=Line | None)


async def test_the_context_of_an_agent_is_an_argument_with_the_schema_of_its_type(temporal: Temporal) -> None:
    model, session = ScriptedModel(["Hello.", "Again."]), temporal.session()
    items = [clerk, seller, lender]
    async with (
        temporal.worker(seller, llm=model),
        served_mcp(temporal, items=items) as address,
        client_of(address) as client,
    ):
        schemas = {one.name: one.input_schema for one in (await client.list_tools()).tools}
        assert "context" not in schemas["start_clerk"]["properties"]
        assert schemas["start_seller"]["required"] == ["message", "context"]
        assert schemas["start_seller"]["properties"]["context"]["properties"].keys() == {"name", "lines"}
        assert "Line" in schemas["start_seller"]["$defs"]
        given = {"message": "hi", "session_id": session}
        for context, why in (({}, "name: Field required"), ({"name": 1}, "name: Input should be a valid string")):
            assert why in (await refusal(client, "start_seller", **given, context=context))["message"]
        assert "name: Field required" in (await refusal(client, "start_seller", **given))["message"]
        assert "context" in (await refusal(client, "start_clerk", **given, context={}))["message"]
        begun = await use(client, "start_seller", **given, context={"name": "Acme"})
        assert begun["is_new"]
        await use(client, "result", run=begun["run"], wait_seconds=30)
        await use(client, "send_message", run=begun["run"], text="and now?")
        await use(client, "result", run=begun["run"], wait_seconds=30)
    assert [call.messages[0].content for call in model.calls] == ["You sell for Acme."] * 2


# --- decisions ---


async def charging(temporal: Temporal, client: Any) -> tuple[str, dict[str, Any]]:
    """Start a run that waits at a gate; return it, and what waits."""
    begun = await use(client, "start_clerk", message="charge", session_id=temporal.session())
    seen = await use(client, "result", run=begun["run"], wait_seconds=30)
    assert seen["has_ended"] is False
    (item,) = (await use(client, "pending", run=begun["run"]))["items"]
    assert item["name"] in [one["name"] for one in seen["pending"]]
    return begun["run"], item


async def test_nobody_can_decide_unless_it_was_allowed(temporal: Temporal) -> None:
    model = ScriptedModel([CHARGES, "done"])
    async with temporal.worker(clerk, llm=model), served_mcp(temporal) as address, client_of(address) as client:
        run, item = await charging(temporal, client)
        given = {"run": run, "gate": item["name"], "digest": item["digest"]}
        for name in ("approve", "reject"):
            assert "There is no tool" in (await refusal(client, name, **given))["message"]
        assert "There is no tool" in (await refusal(client, "answer", run=run, text="yes"))["message"]
        assert (await use(client, "status", run=run))["status"] == "waiting"


async def test_a_decision_counts_for_the_person_of_the_token_and_for_what_was_shown(temporal: Temporal) -> None:
    model = ScriptedModel([CHARGES, "done"])
    served_it = served_mcp(temporal, allow_decisions=True)
    async with temporal.worker(clerk, llm=model), served_it as address, client_of(address) as client:
        run, item = await charging(temporal, client)
        assert item["arguments"] == {"amount": 5}
        given = {"run": run, "gate": item["name"], "digest": item["digest"]}
        assert "ada" in (await refusal(client, "approve", **given))["message"], "olga is not an approver of it"
        assert (await refusal(client, "approve", **given, by="ada"))["code"] == "INPUT_ERROR"
        async with client_of(address, "ada") as ada:
            assert "start_clerk" not in {one.name for one in (await ada.list_tools()).tools}
            assert (await refusal(ada, "start_clerk", message="hi"))["code"] == "FORBIDDEN"
            assert (await refusal(ada, "approve", **{**given, "digest": "another"}))["code"] != "BROKEN"
            assert (await use(ada, "approve", **given, comment="go on"))["done"] is True
        ended = await use(client, "result", run=run, wait_seconds=30)
    assert ended["result"]["response"] == "done"
    first = ended["first_run_id"]
    rows = await temporal.store.load_decisions(first)
    assert [one.by for one in rows if one.decision == "approve" and one.refused is None] == ["ada"]


async def test_what_cannot_be_shown_whole_cannot_be_decided(temporal: Temporal) -> None:
    served_it = served_mcp(temporal, allow_decisions=True, items=[signing])
    async with temporal.worker(pipelines=[signing]), served_it as address, client_of(address) as client:
        begun = await use(client, "start_signing", input={"number": 1}, session_id=temporal.session())
        await use(client, "result", run=begun["run"], wait_seconds=30)
        digest = (await temporal.people.pending(begun["run"]))[0]["digest"]
        (item,) = (await use(client, "pending", run=begun["run"]))["items"]
        assert "digest" not in item
        assert item["why"]
        said = await refusal(client, "approve", run=begun["run"], gate=item["name"], digest=digest)
        assert said["message"] == item["why"]
        assert (await use(client, "status", run=begun["run"]))["status"] == "waiting"


async def test_a_question_is_answered(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which account?")), "done"])
    served_it = served_mcp(temporal, allow_decisions=True)
    async with temporal.worker(clerk, llm=model), served_it as address, client_of(address) as client:
        run, item = await charging(temporal, client)
        assert (item["kind"], item["message"]) == ("question", "Which account?")
        listed = await use(client, "pending")
        assert run in [one["run"] for one in listed["items"]]
        await use(client, "answer", run=run, text="the second")
        assert (await use(client, "result", run=run, wait_seconds=30))["result"]["response"] == "done"


# --- who may what ---


async def test_strangers_and_other_sites_are_not_let_in(temporal: Temporal) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Accept": "application/json, text/event-stream"}
    async with served_mcp(temporal) as address, httpx.AsyncClient(headers=headers) as http:
        assert (await http.post(address, json=body)).status_code == 401
        for wrong in ("Bearer wrong", "Basic x"):
            answer = await http.post(address, json=body, headers={"Authorization": wrong})
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        known = {"Authorization": f"Bearer {TOKENS['olga']}"}
        assert (await http.post(address, json=body, headers={**known, "Host": "evil.example"})).status_code == 400
        assert (await http.get(address.replace("/mcp", "/healthz"))).text == "ok"
        large = {**body, "params": {"x": "x" * 2_000_000}}
        assert (await http.post(address, json=large, headers=known)).status_code == 413
    local = Access(local=Person(name="ada", role="operator"))
    async with served_mcp(temporal, local) as address, httpx.AsyncClient(headers=headers) as http:
        assert (await http.post(address, json=body)).status_code == 200
        assert (await http.post(address, json=body, headers={"Origin": "https://evil.example"})).status_code == 403
        assert (await http.post(address, json=body, headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403


async def test_no_request_holds_a_connection_open(temporal: Temporal) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['olga']}", "Accept": "text/event-stream"}
    async with served_mcp(temporal) as address, httpx.AsyncClient(headers=headers, timeout=30) as http:
        assert [(await http.request(method, address)).status_code for method in ("GET", "DELETE")] == [405, 405]


async def test_a_run_of_somebody_else_is_as_one_that_does_not_exist(temporal: Temporal) -> None:
    amy, ben = (
        Person(name=name, role="operator", token=TOKENS[token], tenants=[f"{temporal.name}-{name}"], only_own=True)
        for name, token in (("amy", "olga"), ("ben", "ada"))
    )
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="Which secret account?")), "done"])
    served_it = served_mcp(temporal, Access(people=[amy, ben]), allow_decisions=True)
    async with temporal.worker(clerk, llm=model), served_it as address, client_of(address) as client:
        run, _ = await charging(temporal, client)
        assert run == f"clerk/@{temporal.name}-amy/{temporal.session()}"
        async with client_of(address, "ada") as other:
            assert (await use(other, "pending"))["items"] == []
            for name, given in (("status", {}), ("result", {"wait_seconds": 0}), ("pending", {}),
                                ("send_message", {"text": "x"}), ("answer", {"text": "x"}),
                                ("approve", {"gate": "c1", "digest": "x"})):  # fmt: skip
                told = await refusal(other, name, run=run, **given)
                missing = await refusal(other, name, run=f"{run}x", **given)
                assert told["message"] == missing["message"].replace(f"{run}x", run), name
                assert "secret" not in told["message"]
            mine = {"message": "x", "session_id": temporal.session(), "tenant_id": f"{temporal.name}-amy"}
            assert "tenant_id" in (await refusal(other, "start_clerk", **mine))["message"]


async def test_a_former_owner_keeps_the_result_of_a_run_from_the_next(temporal: Temporal) -> None:
    amy, ben = (
        Person(name=name, role="operator", token=TOKENS[token], tenants=["acme"], only_own=True)
        for name, token in (("amy", "olga"), ("ben", "ada"))
    )
    session = {"session_id": temporal.session()}
    model = ScriptedModel(lambda messages, tools: f"told of {messages[-1].content}")
    async with (
        temporal.worker(clerk, llm=model),
        served_mcp(temporal, Access(people=[amy, ben])) as address,
        client_of(address) as hers,
        client_of(address, "ada") as his,
    ):
        first = await use(hers, "start_clerk", message="a secret", message_id="a", **session)
        await use(hers, "result", run=first["run"], wait_seconds=30)
        await temporal.store.delete_session(f"@acme/{temporal.session()}")
        second = await use(his, "start_clerk", message="hi", message_id="b", **session)
        ended = await use(his, "result", run=second["run"], run_id=second["run_id"], wait_seconds=30)
        assert ended["result"]["response"] == "told of hi"
        assert second["run"] == first["run"]
        for name in ("status", "result"):
            told = await refusal(his, name, run=first["run"], run_id=first["run_id"])
            assert "There is no run" in told["message"]
            assert "secret" not in str(told)


async def test_a_token_has_its_scopes_and_its_rate(temporal: Temporal) -> None:
    narrow = Person(name="olga", role="operator", token=TOKENS["olga"], scopes=["read"], per_minute=4)
    async with served_mcp(temporal, Access(people=[narrow])) as address, client_of(address) as client:
        assert {one.name for one in (await client.list_tools()).tools} == {"status", "result", "pending"}
        headers = {"Authorization": f"Bearer {TOKENS['olga']}", "Accept": "application/json, text/event-stream"}
        async with httpx.AsyncClient(headers=headers) as http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            statuses = [(await http.post(address, json=body)).status_code for _ in range(5)]
    assert statuses[-1] == 429


def test_nobody_listens_for_strangers(temporal: Temporal) -> None:
    local = Access(local=Person(name="ada", role="operator"))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"host": "0.0.0.0"}, "where anyone who reaches it could decide"),
        ({"items": [Agent("a" * 63)]}, "at most 64 characters"),
        ({"root_path": "ops"}, "root_path must be a path"),
        ({"root_path": "/mcp"}, "the page itself has the path /mcp"),
        ({"cors": ["*"]}, "cors must name origins"),
    ]
    for options, why in wrong:
        with pytest.raises(DefinitionError, match=why):
            offering(temporal, local, **options)


@pytest.mark.parametrize("arguments", [{}, {"message": ""}, {"message": "x", "session_id": "a/b"}, {"message": 1},
                                       {"message": "x", "by": "ada"}, {"message": "x" * 300_000}])  # fmt: skip
async def test_wrong_arguments_are_told_to_the_model(temporal: Temporal, arguments: dict[str, Any]) -> None:
    async with served_mcp(temporal) as address, client_of(address) as client:
        assert (await refusal(client, "start_clerk", **arguments))["code"] == "INPUT_ERROR"


# --- in an application, and behind a proxy ---

NAME = "runs.example.com"
FORWARDED = {"X-Forwarded-Host": NAME, "X-Forwarded-Proto": "https"}


@pytest.mark.parametrize("removes", ["", "/ops"])
async def test_an_application_has_the_server_below_a_path_of_its_own_and_a_proxy_before_it(
    temporal: Temporal, removes: str
) -> None:
    people = [Person(name=name, role="operator", token=TOKENS[token], tenants=[f"{temporal.name}-{name}"])
              for name, token in (("amy", "olga"), ("ben", "ada"))]  # fmt: skip
    access = Access(people=people, https=True, proxies=["127.0.0.1"])
    tools = offering(temporal, access, names=[NAME])
    page = create_app(temporal.client, access=access, store=temporal.store, names=[NAME])
    # The application has the path of its proxy itself, if the proxy passes it on.
    below = Mount("/ops", routes=[Mount("/shop", tools), Mount("/page", page)])
    own = Starlette(routes=[below] if not removes else list(below.routes))
    async with (
        temporal.worker(clerk, llm=ScriptedModel(["Hello."])),
        served(own) as inside,
        served(proxy(inside, removes=removes, **FORWARDED)) as outside,
        client_of(f"{outside}/ops/shop/mcp") as client,
    ):
        begun = await use(client, "start_clerk", message="hi", session_id=temporal.session())
        assert begun["run"] == f"clerk/@{temporal.name}-amy/{temporal.session()}"
        ended = await use(client, "result", run=begun["run"], wait_seconds=30)
        assert ended["result"]["response"] == "Hello."
        async with client_of(f"{outside}/ops/shop/mcp", "ada") as other:
            assert "There is no run" in (await refusal(other, "status", run=begun["run"]))["message"]
        async with httpx.AsyncClient(headers={"Accept": "application/json"}) as http:
            answer = await http.post(f"{outside}/ops/shop/mcp", json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHENTICATED")
            # A request that bypasses the proxy uses a name that the server does not have.
            inner = f"{inside}{'' if removes else '/ops'}/shop/mcp"
            assert (await http.post(inner, json={}, headers={"Host": "evil.example"})).status_code == 400
    tools.state.close()
    page.state.close()


@pytest.mark.parametrize("removes", ["", "/ops"])
async def test_a_proxy_has_the_server_below_a_path_that_it_passes_on_or_removes(
    temporal: Temporal, removes: str
) -> None:
    access = Access(people=PEOPLE, https=True, proxies=["127.0.0.1"])
    app = offering(temporal, access, names=[NAME], root_path="/ops/", cors=["https://app.example.com"])
    async with (
        served(app) as inside,
        served(proxy(inside, removes=removes, **FORWARDED)) as outside,
        client_of(f"{outside}/ops/mcp") as client,
    ):
        assert "start_clerk" in {one.name for one in (await client.list_tools()).tools}
        async with httpx.AsyncClient(base_url=outside) as http:
            for origin, is_allowed in (("https://app.example.com", True), ("https://evil.example", False)):
                wanted = "authorization,content-type,mcp-protocol-version"
                asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
                asked |= {"Origin": origin}
                told = await http.options("/ops/mcp", headers=asked)
                assert (told.headers.get("access-control-allow-origin") == origin) is is_allowed
                assert (told.status_code == 200) is is_allowed
    app.state.close()


PROGRAM = """
import asyncio
import sys

from standfast import Agent, sqlite_store
from standfast.temporal import connect
from standfast.web import Person, serve_mcp_stdio

clerk = Agent("clerk", description="Looks after accounts.")


async def main() -> None:
    ada = Person(name="ada", role="operator")
    options = {"agents": [clerk], "task_queue": sys.argv[2], "store": sqlite_store(sys.argv[3])}
    await serve_mcp_stdio(await connect(sys.argv[1]), person=ada, **options)


asyncio.run(main())
"""


async def test_a_program_serves_a_client_that_has_started_it(temporal: Temporal, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    at = temporal.client.service_client.config.target_host
    arguments = [str(tmp_path / "program.py"), at, temporal.name, temporal.store.path]
    server = mcp.StdioServerParameters(command=sys.executable, args=arguments)
    async with temporal.worker(clerk, llm=ScriptedModel(["Hello."])), mcp.Client(stdio_client(server)) as client:
        begun = await use(client, "start_clerk", message="hi", session_id=temporal.session())
        assert (await use(client, "result", run=begun["run"], wait_seconds=30))["result"]["response"] == "Hello."
    found = await temporal.store.load_session(temporal.session())
    assert found is not None
    assert found.user_id == "ada"


# --- the command ---

APPLICATION = """
from standfast import Agent

print("what an application writes is not for the client")

clerk = Agent("clerk", description="Looks after accounts.")
"""


def command(temporal: Temporal, folder: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    (folder / "app.py").write_text(APPLICATION)
    address = temporal.client.service_client.config.target_host
    given = ["--address", address, "--app", str(folder / "app.py"), "--store", temporal.store.path,
             "--task-queue", temporal.name, *words]  # fmt: skip
    return ["-m", "standfast", "mcp", "serve", *given], {**os.environ, "STANDFAST_USER": "ada"}


@asynccontextmanager
async def over_stdio(temporal: Temporal, folder: Path, *words: str) -> AsyncIterator[Any]:
    arguments, environment = command(temporal, folder, *words)
    server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    async with mcp.Client(stdio_client(server)) as client:
        yield client


async def test_over_stdio_the_user_of_this_machine_acts(temporal: Temporal, tmp_path: Path) -> None:
    session = temporal.session()
    async with temporal.worker(clerk, llm=ScriptedModel(["Hello."])), over_stdio(temporal, tmp_path) as client:
        tools = {one.name for one in (await client.list_tools()).tools}
        assert tools == {"start_clerk", "send_message", "status", "result", "pending"}
        begun = await use(client, "start_clerk", message="hi", session_id=session)
        assert (await use(client, "result", run=begun["run"], wait_seconds=30))["result"]["response"] == "Hello."
    found = await temporal.store.load_session(session)
    assert found is not None
    assert found.user_id == "ada"


@asynccontextmanager
async def http_server(temporal: Temporal, folder: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the command; yields the process and its address."""
    arguments, environment = command(temporal, folder, "--http", "--port", "0")
    with subprocess.Popen([sys.executable, *arguments], env=environment, stderr=subprocess.PIPE) as process:  # noqa: ASYNC220
        try:
            assert process.stderr is not None
            line = b""
            while b"MCP is served at" not in line:  # after what the application has written
                line = await asyncio.to_thread(process.stderr.readline)
            yield process, line.decode().split()[-1]
        finally:
            process.kill()


@pytest.mark.slow
async def test_a_server_starts_before_the_first_worker_of_its_queue(temporal: Temporal, tmp_path: Path) -> None:
    """Other queues of the namespace, whose workers have another store, are other applications."""
    other = replace(temporal, name=f"{temporal.name}-other", store=sqlite_store(tmp_path / "other.db"))
    async with other.worker(clerk, llm=ScriptedModel([])), over_stdio(temporal, tmp_path) as client:
        assert "start_clerk" in {one.name for one in (await client.list_tools()).tools}


@pytest.mark.slow
async def test_runs_continue_when_the_server_is_killed_and_the_same_start_finds_them(
    temporal: Temporal, tmp_path: Path
) -> None:
    let_go = threading.Event()  # models are called on another loop

    async def answer(*_: Any) -> str:
        while not let_go.is_set():
            await asyncio.sleep(0.05)
        return "Hello."

    model, given = ScriptedModel(answer), {"message": "hi", "session_id": temporal.session()}
    async with temporal.worker(clerk, llm=model):
        async with http_server(temporal, tmp_path) as (process, address):
            with contextlib.suppress(ExceptionGroup):  # the SDK's, for a server that is gone
                async with client_of(address, None) as client:
                    begun = await use(client, "start_clerk", **given)
                    await until(lambda: model.calls)
                    waiting = asyncio.create_task(client.call_tool("result", {"run": begun["run"], "wait_seconds": 50}))
                    await asyncio.sleep(0.1)
                    process.kill()
                    waiting.cancel()
                    await asyncio.wait({waiting})
        assert begun["is_new"]
        async with http_server(temporal, tmp_path) as (process, address):
            async with client_of(address, None) as client:
                again = await use(client, "start_clerk", **given)
                assert (again["run"], again["run_id"], again["is_new"]) == (begun["run"], begun["run_id"], False)
                let_go.set()
                ended = await use(client, "result", run=again["run"], wait_seconds=30)
            assert ended["result"]["response"] == "Hello."
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
    assert len(model.calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_server_on_stdio_although_its_client_says_nothing(
    temporal: Temporal, tmp_path: Path, name: signal.Signals
) -> None:
    arguments, environment = command(temporal, tmp_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *arguments], env=environment, **pipes) as process:  # noqa: ASYNC220
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        answer = await asyncio.to_thread(process.stdout.readline)
        assert answer, await asyncio.to_thread(process.communicate)
        assert json.loads(answer)["id"] == 1
        process.send_signal(name)
        try:
            assert await asyncio.to_thread(process.wait, 20) == -name
        finally:
            process.kill()


async def test_wrong_options_are_refused_before_anybody_is_connected_to(tmp_path: Path) -> None:
    people = tmp_path / "people.toml"
    people.write_text("[people]\n")
    for words in (("--people", str(people)), ("--name", "x"), ("--root-path", "/ops"), ("--cors", "https://x.example"),
                  ("--proxy-from", "127.0.0.1"), ("--https",)):  # fmt: skip
        assert f"{words[0]} is for --http" in await refused(None, "mcp", "serve", *words, code=2)
    given = ("--http", "--people", str(people), "--proxy-header", "X-User")
    assert "--proxy-header needs --proxy-from" in await refused(None, "mcp", "serve", *given, code=2)
