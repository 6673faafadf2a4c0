"""AG-UI: the official client talks with an agent, approves, rejects and answers, through any process of the page."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.node_clients import missing, run_client
from support.pages import CHARGES, PEOPLE, TOKENS, charge, served
from support.questions import ask
from support.temporal_runs import Temporal
from support.transcripts import asks_for, call

from integration.temporal.test_partial_answers import thinking
from standfast import Agent, LLMResponse
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

CLERK = Agent("clerk", tools=[charge, ask])
ADA = Person(name="ada", role="operator", token="ada-the-operator-with-a-long-token")
CLIENT = """
import { HttpAgent } from "@ag-ui/client";
const given = JSON.parse(process.argv[2]), told = [];
const headers = { Authorization: `Bearer ${given.token}` };
for (const [index, url] of given.urls.entries()) {  // each answer goes to another process of the page
  const agent = new HttpAgent({ url, headers, threadId: given.thread });
  const events = [];
  const listener = { onEvent: ({ event }) => { events.push(event); } };
  const before = told.at(-1)?.events.at(-1)?.outcome?.interrupts ?? [];
  agent.messages = index === 0 ? [{ id: "m1", role: "user", content: given.message }] : [];
  if (before.length) agent.pendingInterrupts = before;
  const resume = before.map((one) => ({ interruptId: one.id, status: "resolved", payload: given.payloads[index - 1] }));
  let error = null;
  const asked = { runId: `run-${given.thread}-${index}`, ...(resume.length ? { resume } : {}) };
  try { await agent.runAgent(asked, listener); }
  catch (caught) { error = String(caught); }
  told.push({ events, error, messages: agent.messages });
}
console.log(JSON.stringify(told));
"""


@asynccontextmanager
async def pages(temporal: Temporal, number: int = 1, **options: Any) -> AsyncIterator[list[str]]:
    """Serve that many processes of the page, which share nothing but Temporal and the store."""

    def app() -> Any:
        access = Access(people=[ADA, *(one for one in PEOPLE if one.name != "ada")])
        options.setdefault("task_queue", temporal.name)
        return create_app(temporal.client, access=access, store=temporal.store, agents=[CLERK], **options)

    async with served(app()) as first, served(app()) as second:
        yield [f"{address}/agents/clerk/ag-ui" for address in [first, second, first, second][:number]]


def types(told: dict[str, Any]) -> list[str]:
    return [event["type"] for event in told["events"]]


async def test_a_thread_is_told_what_an_agent_says_and_does_and_approves_in_another_process(
    temporal: Temporal, tmp_path: Path
) -> None:
    model = ScriptedModel([CHARGES, "All done."])
    async with temporal.worker(CLERK, llm=model, stream=True), pages(temporal, 2) as urls:
        first, second = await run_client(
            CLIENT, tmp_path, urls=urls, token=ADA.token, thread=temporal.session(), message="Charge 5",
            payloads=[{"decision": "approve"}],
        )  # fmt: skip
    assert first["error"] is second["error"] is None
    assert types(first) == ["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]
    (interrupt,) = first["events"][-1]["outcome"]["interrupts"]
    assert (interrupt["toolCallId"], interrupt["message"]) == ("c1", "Charge the customer?")
    assert interrupt["metadata"]["arguments"] == {"amount": 5}
    assert interrupt["metadata"]["digest"]
    assert interrupt["responseSchema"]["properties"]["decision"] == {"enum": ["approve", "reject"]}
    assert types(second)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
    assert "".join(event.get("delta", "") for event in second["events"]) == "All done."
    assert second["events"][-1]["outcome"] == {"type": "success"}
    (row,) = [one for one in await temporal.store.load_decisions(await key_of(temporal)) if one.decision == "approve"]
    assert row.by == "ada"


@pytest.mark.parametrize("streams", [True, False])
async def test_thoughts_are_their_own_message_before_the_answer(
    temporal: Temporal, tmp_path: Path, streams: bool
) -> None:
    model = ScriptedModel(
        [
            asks_for(call("ask", "c1", question="Who?")).model_copy(update={"reasoning": thinking("Whom?")}),
            LLMResponse(text="It rains.", reasoning=thinking("It is wet. " * 50)),
        ]
    )
    async with temporal.worker(CLERK, llm=model, stream=streams), pages(temporal, 2) as urls:
        first, second = await run_client(
            CLIENT, tmp_path, urls=urls, token=ADA.token, thread=temporal.session(), message="go",
            payloads=[{"text": "Ada"}],
        )  # fmt: skip
    assert first["error"] is second["error"] is None
    assert types(first)[:7] == [
        "RUN_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TOOL_CALL_START",
    ]
    assert "parentMessageId" not in first["events"][6]
    told = [(message["role"], message["content"]) for message in second["messages"] if message["role"] != "tool"]
    assert told == [("reasoning", "It is wet. " * 50), ("assistant", "It rains.")]


async def key_of(temporal: Temporal) -> str:
    run = await temporal.client.get_workflow_handle(f"clerk/{temporal.session()}").describe()
    return str(run.raw_info.first_run_id)


async def test_a_rejection_with_its_reason_and_an_edit_reach_the_agent(temporal: Temporal, tmp_path: Path) -> None:
    model = ScriptedModel([CHARGES, asks_for(call("charge", "c2", amount=7)), "Done."])
    payloads = [{"decision": "reject", "comment": "too much"}, {"decision": "approve", "edit": {"amount": 1}}]
    async with temporal.worker(CLERK, llm=model), pages(temporal, 3) as urls:
        told = await run_client(
            CLIENT, tmp_path, urls=urls, token=ADA.token, thread=temporal.session(), message="go", payloads=payloads
        )
    assert [one["error"] for one in told] == [None] * 3
    results = [event["content"] for event in told[-1]["events"] if event["type"] == "TOOL_CALL_RESULT"]
    assert [json.loads(one)["result"] for one in results] == ["charged 1"]
    assert "too much" in str(model.calls[1].messages)


async def test_a_question_is_an_interrupt_that_is_answered(temporal: Temporal, tmp_path: Path) -> None:
    model = ScriptedModel([asks_for(call("ask", "c1", question="Who?")), "Hello Ada."])
    async with temporal.worker(CLERK, llm=model), pages(temporal, 2) as urls:
        first, second = await run_client(
            CLIENT, tmp_path, urls=urls, token=ADA.token, thread=temporal.session(), message="go",
            payloads=[{"text": "Ada"}],
        )  # fmt: skip
    assert first["events"][-1]["outcome"]["interrupts"][0]["message"] == "Who?"
    assert second["events"][-1]["result"] == "Hello Ada."


async def test_a_thread_continues_with_what_was_said_before(temporal: Temporal, tmp_path: Path) -> None:
    model = ScriptedModel(["First.", "Second."])
    async with temporal.worker(CLERK, llm=model), pages(temporal, 1) as urls:
        for number in range(2):
            given = {"urls": urls, "token": ADA.token, "thread": temporal.session(), "payloads": []}
            script = CLIENT.replace("`run-", f"`run{number}-").replace('"m1"', f'"m{number}"')
            (told,) = await run_client(script, tmp_path, message=f"message {number}", **given)
            assert told["events"][-1]["result"] == ["First.", "Second."][number]
    assert [message.role for message in await temporal.messages()] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    ("who", "change", "status"),
    [
        ("nobody", {}, 401),
        (TOKENS["vera"], {}, 403),
        (ADA.token, {"threadId": "a/b"}, 409),
        (ADA.token, {"tools": [{"name": "x"}]}, 422),
        (ADA.token, {"messages": []}, 422),
        (ADA.token, {"resume": [{"interruptId": "x", "status": "resolved", "payload": {}}]}, 422),
    ],
)
async def test_what_cannot_be_used_is_refused(
    temporal: Temporal, who: str, change: dict[str, Any], status: int
) -> None:
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hi"}], **change}
    async with pages(temporal) as (url,), httpx.AsyncClient(headers={"Authorization": f"Bearer {who}"}) as client:
        answer = await client.post(url, json=body)
        assert (answer.status_code, "error" in answer.json()) == (status, True)
        assert (await client.post(url.replace("clerk", "nobody"), json=body)).status_code in (401, 403, 404, 409, 422)
