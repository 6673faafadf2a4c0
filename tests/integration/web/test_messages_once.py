"""A message that a client repeats counts once at every door, and one without an id counts separately."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support.pages import CHARGES, PEOPLE, TOKENS, charge, served
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel
from standfast.web import Access, create_app

CLERK = Agent("clerk", tools=[charge])
Door = Callable[[str, str, str | None], tuple[str, dict[str, Any]]]


def _with(name: str, value: str | None) -> dict[str, Any]:
    return {} if value is None else {name: value}


DOORS: dict[str, Door] = {
    "api": lambda session, text, key: (
        "/api/v1/runs",
        {"name": "clerk", "message": text, "session_id": session, "if_running": "message"},
    ),
    "api, to the run": lambda session, text, key: (
        f"/api/v1/runs/{quote(f'clerk/{session}', safe='')}/message", {"text": text},
    ),
    "ag-ui": lambda session, text, key: (
        "/agents/clerk/ag-ui",
        {"threadId": session, "runId": "r", "messages": [{**_with("id", key), "role": "user", "content": text}]},
    ),
    "ai-sdk": lambda session, text, key: (
        "/agents/clerk/ai-sdk",
        {"id": session,
         "messages": [{**_with("id", key), "role": "user", "parts": [{"type": "text", "text": text}]}]},
    ),
    "chat": lambda session, text, key: (
        "/v1/chat/completions",
        {"model": "clerk", "messages": [{"role": "user", "content": text}], "metadata": {"session_id": session}},
    ),
    "responses": lambda session, text, key: (
        "/v1/responses", {"model": "clerk", "input": text, "metadata": {"session_id": session}},
    ),
}  # fmt: skip


@asynccontextmanager
async def program(temporal: Temporal) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        temporal.client, access=Access(people=PEOPLE), store=temporal.store, agents=[CLERK], task_queue=temporal.name
    )
    headers = {"Authorization": f"Bearer {TOKENS['olga']}"}
    async with served(app) as address, httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as client:
        yield client


async def send(client: httpx.AsyncClient, door: str, temporal: Temporal, text: str, key: str | None) -> httpx.Response:
    path, body = DOORS[door](temporal.session(), text, key)
    return await client.post(path, json=body, headers=_with("Idempotency-Key", key))


async def said(temporal: Temporal) -> list[str]:
    return [message.content for message in await temporal.messages() if message.role == "user"]


def echoes() -> ScriptedModel:
    return ScriptedModel(lambda messages, tools: f"answer to {messages[-1].content}")


@pytest.mark.parametrize("door", [door for door in DOORS if door != "api, to the run"])
async def test_a_message_that_is_sent_again_counts_once(temporal: Temporal, door: str) -> None:
    model = echoes()
    async with temporal.worker(CLERK, llm=model), program(temporal) as client:
        run = temporal.client.get_workflow_handle(f"clerk/{temporal.session()}")
        for text in ("one", "one", "two", "two"):
            told = await send(client, door, temporal, text, f"k-{text}")
            assert told.status_code < 300, told.text
            assert door == "api" or f"answer to {text}" in told.text
            await result(run)
        other = await send(client, door, temporal, "other", "k-one")
        assert (other.status_code, "already used for another message" in other.text) == (422, True)
    assert await said(temporal) == ["one", "two"]
    assert len(model.calls) == 2


@pytest.mark.parametrize("door", ["api", "api, to the run"])
async def test_a_message_to_a_run_in_flight_counts_once(temporal: Temporal, door: str) -> None:
    async with temporal.worker(CLERK, llm=ScriptedModel([CHARGES, "done"])), program(temporal) as client:
        run = await temporal.start(CLERK, "one", user_id="olga")
        (item,) = await pending(run)
        for _ in range(2):
            assert (await send(client, door, temporal, "two", "k-2")).status_code < 300
        other = await send(client, door, temporal, "other", "k-2")
        assert other.status_code in (409, 422), other.text
        await temporal.people.decide(run.id, "c1", "approve", by="ada", digest=item["digest"])
        assert (await result(run))["response"] == "done"
    assert await said(temporal) == ["one", "two"]


@pytest.mark.parametrize("door", ["ag-ui", "ai-sdk"])
@pytest.mark.parametrize("no_id", [None, ""])
async def test_messages_without_an_id_are_separate_messages(temporal: Temporal, door: str, no_id: str | None) -> None:
    model = echoes()
    async with temporal.worker(CLERK, llm=model), program(temporal) as client:
        for text in ("one", "two", "two"):
            path, body = DOORS[door](temporal.session(), text, no_id)
            body |= {"runId": f"r-{len(model.calls)}"} if door == "ag-ui" else {}
            told = await client.post(path, json=body)
            assert f"answer to {text}" in told.text
    assert await said(temporal) == ["one", "two", "two"]


TELLS = [door for door in DOORS if not door.startswith("api")]


@pytest.mark.parametrize("door", TELLS)
async def test_a_door_that_joins_a_run_says_at_once_what_it_waits_for(temporal: Temporal, door: str) -> None:
    async with temporal.worker(CLERK, llm=ScriptedModel([CHARGES, "done"])), program(temporal) as client:
        run = await temporal.start(CLERK, "one", user_id="olga")
        await pending(run)
        for text in ("two", "two"):
            async with asyncio.timeout(50):  # before, it hung
                told = await send(client, door, temporal, text, "k-2")
            assert "Charge the customer?" in told.text


@pytest.mark.parametrize("quorum", [False, True])
async def test_what_a_run_still_waits_for_after_an_answer_is_said(temporal: Temporal, quorum: bool) -> None:
    approval = (
        Approval(message="Charge?", quorum=2, approvers=["olga", "ada"]) if quorum else Approval(message="Charge?")
    )
    agent = Agent("clerk", tools=[tool(approval=approval)(charge.handler)])
    ids = ("c1",) if quorum else ("c1", "c2")
    model = ScriptedModel([asks_for(*(call("charge", one, amount=5) for one in ids)), "done"])
    async with temporal.worker(agent, llm=model), program(temporal) as client:
        asked = {"threadId": temporal.session(), "runId": "r-1", "messages": [{"role": "user", "content": "go"}]}

        async def told(**given: Any) -> list[dict[str, Any]]:
            async with asyncio.timeout(50):
                text = (await client.post("/agents/clerk/ag-ui", json=asked | given)).text
            events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data")]
            found: list[dict[str, Any]] = events[-1].get("outcome", {}).get("interrupts", events[-1:])
            return found

        waits = {one["toolCallId"]: one["id"] for one in await told()}
        assert waits.keys() == set(ids)
        answer = {"interruptId": waits["c1"], "status": "resolved", "payload": {"decision": "approve"}}
        (left,) = await told(runId="r-2", resume=[answer])
        assert (left["toolCallId"], "Charge?" in left["message"]) == (ids[-1], True)
