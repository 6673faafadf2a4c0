"""OpenAI's protocols: the official clients call an agent like a model, complete and streamed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.doubles import echo
from support.node_clients import missing, run_client
from support.pages import CHARGES, PEOPLE, TOKENS, charge, served
from support.temporal_runs import Temporal, pending
from support.transcripts import asks_for, call

from integration.temporal.test_partial_answers import thinking
from standfast import Agent, LLMResponse
from standfast.testing import ScriptedModel
from standfast.web import Access, create_app

CLERK = Agent("clerk", tools=[charge, echo])
USED = {"input_tokens": 7, "output_tokens": 3}


@asynccontextmanager
async def door(temporal: Temporal, access: Access | None = None) -> AsyncIterator[str]:
    access = access or Access(people=PEOPLE)
    app = create_app(temporal.client, access=access, store=temporal.store, agents=[CLERK], task_queue=temporal.name)
    async with served(app) as address:
        yield f"{address}/v1"


@asynccontextmanager
async def sdk(temporal: Temporal, who: str = "olga") -> AsyncIterator[openai.AsyncOpenAI]:
    async with door(temporal) as url, openai.AsyncOpenAI(base_url=url, api_key=TOKENS[who], max_retries=0) as client:
        yield client


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_a_chat_completion_is_what_the_agent_says(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), text="Look."), {"text": "Done.", "usage": USED}])
    async with temporal.worker(CLERK, llm=model), sdk(temporal) as client:
        assert [one.id async for one in await client.models.list()] == ["clerk"]
        found = await client.chat.completions.create(model="clerk", messages=[user("hi")])
    assert found.choices[0].message.content == "Look.\n\nDone."
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (7, 3)


async def test_a_page_without_people_takes_the_key_that_every_client_must_have(temporal: Temporal) -> None:
    async with (
        temporal.worker(CLERK, llm=ScriptedModel(["Hello."])),
        door(temporal, Access(local=PEOPLE[2])) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        found = await client.chat.completions.create(model="clerk", messages=[user("hi")])
        assert found.choices[0].message.content == "Hello."
        with pytest.raises(openai.PermissionDeniedError):  # on a page elsewhere, the key proves nothing either
            await client.models.list(extra_headers={"Origin": "https://evil.example"})


async def test_a_conversation_that_is_sent_whole_is_heard_whole(temporal: Temporal) -> None:
    model = ScriptedModel(["Hello Ada."])
    said = [user("I am Ada."), {"role": "assistant", "content": "Hi."}, user("Who am I?")]
    async with temporal.worker(CLERK, llm=model), sdk(temporal) as client:
        await client.chat.completions.create(model="clerk", messages=said)
    assert [message.content for message in model.calls[0].messages][1:] == ["I am Ada.", "Hi.", "Who am I?"]


async def test_a_session_continues_with_the_new_messages(temporal: Temporal) -> None:
    model = ScriptedModel(["One.", "Two."])
    async with temporal.worker(CLERK, llm=model), sdk(temporal) as client:
        for text in ("first", "second"):
            await client.chat.completions.create(
                model="clerk", messages=[user(text)], metadata={"session_id": temporal.session()}
            )
    assert [message.content for message in await temporal.messages()] == ["first", "One.", "second", "Two."]


@pytest.mark.parametrize("streams", [True, False])
async def test_the_words_come_one_after_the_other(temporal: Temporal, streams: bool) -> None:
    model = ScriptedModel([{"text": "It rains in Rome.", "usage": USED}])
    async with temporal.worker(CLERK, llm=model, stream=streams), sdk(temporal) as client:
        chunks = [
            one async for one in await client.chat.completions.create(model="clerk", messages=[user("hi")], stream=True)
        ]
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == "It rains in Rome."
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_response_is_what_the_agent_says_whole_and_in_events(temporal: Temporal, streams: bool) -> None:
    model = ScriptedModel([{"text": "It rains.", "usage": USED}] * 2)
    async with temporal.worker(CLERK, llm=model, stream=streams), sdk(temporal) as client:
        whole = await client.responses.create(model="clerk", input="hi")
        async with client.responses.stream(model="clerk", input="hi") as events:
            kinds = [event.type async for event in events]
            final = await events.get_final_response()
    assert whole.output_text == final.output_text == "It rains."
    assert whole.usage is not None
    assert whole.usage.total_tokens == 10
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


THOUGHTFUL = [
    asks_for(call("echo", "c1", text="x")).model_copy(update={"reasoning": thinking("Whom?")}),
    LLMResponse(text="It rains.", reasoning=thinking("It is wet.")),
]
THOUGHTS = "Whom?\n\nIt is wet."


@pytest.mark.parametrize("streams", [True, False])
async def test_thoughts_are_in_their_own_field(temporal: Temporal, streams: bool) -> None:
    async with temporal.worker(CLERK, llm=ScriptedModel(THOUGHTFUL * 2), stream=streams), sdk(temporal) as client:
        asked: dict[str, Any] = {"model": "clerk", "messages": [user("hi")]}
        whole = (await client.chat.completions.create(**asked)).choices[0].message
        deltas = [one.choices[0].delta async for one in await client.chat.completions.create(**asked, stream=True)]
    assert (whole.content, whole.to_dict()["reasoning_content"]) == ("It rains.", THOUGHTS)
    assert "".join(str(one.to_dict().get("reasoning_content", "")) for one in deltas) == THOUGHTS
    assert "".join(one.content or "" for one in deltas) == "It rains."


@pytest.mark.parametrize("streams", [True, False])
async def test_thoughts_are_an_item_of_a_response_that_may_be_sent_again(temporal: Temporal, streams: bool) -> None:
    model = ScriptedModel([*THOUGHTFUL * 2, "Yes."])
    async with temporal.worker(CLERK, llm=model, stream=streams), sdk(temporal) as client:
        whole = await client.responses.create(model="clerk", input="hi")
        async with client.responses.stream(model="clerk", input="hi") as events:
            kinds = [event.type async for event in events]
            final = await events.get_final_response()
        before = [one.to_dict() for one in final.output]
        again = await client.responses.create(model="clerk", input=[user("hi"), *before, user("Really?")])
    for one in (whole, final):
        assert [(item.type, item.id[:3]) for item in one.output] == [("reasoning", "rs_"), ("message", "msg")]
        assert one.output[0].to_dict()["summary"] == [{"type": "summary_text", "text": THOUGHTS}]
        assert one.output_text == "It rains."
    assert kinds.index("response.reasoning_summary_text.delta") < kinds.index("response.output_text.delta")
    assert again.output_text == "Yes."
    assert [message.content for message in model.calls[-1].messages][1:] == ["hi", "It rains.", "Really?"]


async def test_an_agent_that_waits_for_a_person_says_so_and_continues_with_the_same_key(temporal: Temporal) -> None:
    model = ScriptedModel([CHARGES, "Done."])
    once = {"Idempotency-Key": temporal.session("once")}
    async with temporal.worker(CLERK, llm=model), sdk(temporal) as client:
        asked: dict[str, Any] = {"model": "clerk", "messages": [user("go")], "extra_headers": once}
        waits = await client.chat.completions.create(**asked)
        assert waits.choices[0].message.content == "[Waits for a person: Charge the customer?]"
        run = (waits.model_extra or {})["standfast"]["workflow_id"]
        await pending(temporal.client.get_workflow_handle(run))
        await temporal.people.decide(run, "c1", "approve", by="ada")
        await temporal.client.get_workflow_handle(run).result()
        assert "Done." in str((await client.chat.completions.create(**asked)).choices[0].message.content)
    assert len(model.calls) == 2


@pytest.mark.parametrize(
    ("who", "change", "error"),
    [
        ("vera", {}, openai.PermissionDeniedError),
        ("olga", {"model": "nobody"}, openai.NotFoundError),
        ("olga", {"messages": [{"role": "system", "content": "Obey"}, user("x")]}, openai.UnprocessableEntityError),
        ("olga", {"tools": [{"type": "function", "function": {"name": "x"}}]}, openai.UnprocessableEntityError),
        ("olga", {"metadata": {"session_id": "a/b"}}, openai.ConflictError),
    ],
)
async def test_what_an_agent_does_not_take_is_refused(
    temporal: Temporal, who: str, change: dict[str, Any], error: type[Exception]
) -> None:
    async with sdk(temporal, who) as client:
        with pytest.raises(error):
            await client.chat.completions.create(**{"model": "clerk", "messages": [user("hi")], **change})


async def test_a_stranger_is_refused(temporal: Temporal) -> None:
    async with door(temporal) as url, httpx.AsyncClient() as client:
        for path in ("/chat/completions", "/responses"):
            assert (await client.post(url + path, json={})).status_code == 401
        assert (await client.get(url + "/models")).status_code == 401


NODE = """
import OpenAI from "openai";
const given = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: given.url, apiKey: given.token, maxRetries: 0 });
const ask = { model: "clerk", messages: [{ role: "user", content: "hi" }] };
const whole = await client.chat.completions.create(ask);
let words = "";
for await (const one of await client.chat.completions.create({ ...ask, stream: true }))
  words += one.choices[0].delta.content ?? "";
const stream = client.responses.stream({ model: "clerk", input: "hi" });
const final = await stream.finalResponse();
console.log(JSON.stringify([whole.choices[0].message.content, words, final.output_text]));
"""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
async def test_the_client_for_node_reads_the_same(temporal: Temporal, tmp_path: Path) -> None:
    async with temporal.worker(CLERK, llm=ScriptedModel(["Hello."] * 3), stream=True), door(temporal) as url:
        assert await run_client(NODE, tmp_path, url=url, token=TOKENS["olga"]) == ["Hello."] * 3
