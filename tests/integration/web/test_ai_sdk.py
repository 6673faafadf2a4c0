"""The UI message stream: the transport of Vercel's AI SDK talks with an agent, and approves its calls."""

from pathlib import Path

import httpx
import pytest
from support.node_clients import missing, run_client
from support.pages import CHARGES, PEOPLE, charge, served
from support.temporal_runs import Temporal

from integration.temporal.test_partial_answers import thinking
from standfast import Agent, LLMResponse
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

CLERK = Agent("clerk", tools=[charge])
ADA = Person(name="ada", role="operator", token="ada-the-operator-with-a-long-token")
CLIENT = """
import { DefaultChatTransport, readUIMessageStream } from "ai";
const given = JSON.parse(process.argv[2]);
const transport = new DefaultChatTransport({ api: given.url, headers: { Authorization: `Bearer ${given.token}` } });
const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text: "hi" }] }];
async function send() {
  const last = messages.at(-1);
  const stream = await transport.sendMessages(
    { chatId: given.chat, messages, trigger: "submit-message", abortSignal: undefined });
  let found;
  const message = last.role === "assistant" ? structuredClone(last) : undefined;
  for await (const one of readUIMessageStream({ stream, message })) found = one;
  if (last.role === "assistant") messages.pop();
  messages.push(structuredClone({ ...found, id: found.id || "a1" }));
}
await send();
const asked = structuredClone(messages.at(-1));
for (const part of messages.at(-1).parts)
  if (part.state === "approval-requested") {
    part.state = "approval-responded";
    part.approval = { ...part.approval, approved: given.approved, reason: given.reason };
  }
if (given.answers) await send();
console.log(JSON.stringify([asked.parts, messages.at(-1).parts]));
"""


async def talk(temporal: Temporal, tmp_path: Path, **given: object) -> tuple[list[dict], list[dict]]:  # type: ignore[type-arg]
    app = create_app(
        temporal.client,
        access=Access(people=[ADA, *(one for one in PEOPLE if one.name != "ada")]),
        store=temporal.store,
        agents=[CLERK],
        task_queue=temporal.name,
    )
    async with served(app) as address:
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{address}/agents/clerk/ai-sdk", json={})).status_code == 401
        url = f"{address}/agents/clerk/ai-sdk"
        first, last = await run_client(CLIENT, tmp_path, url=url, token=ADA.token, chat=temporal.session(), **given)
    return first, last


async def test_an_answer_is_read_as_a_message_of_the_sdk(temporal: Temporal, tmp_path: Path) -> None:
    async with temporal.worker(CLERK, llm=ScriptedModel(["It rains."]), stream=True):
        _, parts = await talk(temporal, tmp_path, answers=False)
    assert [part["text"] for part in parts if part["type"] == "text"] == ["It rains."]


@pytest.mark.parametrize("streams", [True, False])
async def test_thoughts_are_a_part_before_the_text(temporal: Temporal, tmp_path: Path, streams: bool) -> None:
    model = ScriptedModel([LLMResponse(text="It rains.", reasoning=thinking("It is wet."))])
    async with temporal.worker(CLERK, llm=model, stream=streams):
        _, parts = await talk(temporal, tmp_path, answers=False)
    told = [(part["type"], part["text"], part["state"]) for part in parts if "text" in part]
    assert told == [("reasoning", "It is wet.", "done"), ("text", "It rains.", "done")]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("approved", "result"), [(True, "charged 5"), (False, "too much")])
async def test_a_gate_is_an_approval_request_that_is_answered(
    temporal: Temporal, tmp_path: Path, approved: bool, result: str
) -> None:
    async with temporal.worker(CLERK, llm=ScriptedModel([CHARGES, "Done."])):
        asked, parts = await talk(temporal, tmp_path, answers=True, approved=approved, reason="too much")
    (request,) = [part for part in asked if part["type"] == "dynamic-tool"]
    assert (request["state"], request["input"]) == ("approval-requested", {"amount": 5})
    (call,) = [part for part in parts if part["type"] == "dynamic-tool"]
    assert result in (call.get("output") or call.get("errorText"))
    assert [part["text"] for part in parts if part["type"] == "text"] == ["Done."]
