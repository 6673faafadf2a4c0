"""Starting agents and pipelines from the page."""

import asyncio
import html
import re

import pytest
from pydantic import BaseModel, Field
from support.pages import PEOPLE, TOKENS, browser
from support.temporal_runs import Temporal, result

from standfast import Agent, Pipeline, pipeline, tool
from standfast.testing import ScriptedModel
from standfast.web import Access

writer = Agent("writer", description="Writes <b>what</b> is asked for.")


class Article(BaseModel):
    title: str
    words: int = Field(default=800, ge=100)


@tool(safe_to_retry=True)
async def write(title: str, words: int) -> str:
    return f"{title}: {words} words"


def article_pipeline() -> Pipeline:
    return (
        pipeline("article", input=Article)
        .step("write", run=write, input=lambda ctx: {"title": ctx.input.title, "words": ctx.input.words})
        .build()
    )


def key_of(page: str) -> str:
    return re.findall(r'name="key" value="(\w+)"', page)[0]


async def test_a_pipeline_is_started_with_a_form_for_its_input(temporal: Temporal) -> None:
    article = article_pipeline()
    async with (
        temporal.worker(pipelines=[article]),
        browser(temporal, agents=[writer], pipelines=[article], task_queue=temporal.name) as client,
    ):
        listed = (await client.get("/start")).text
        assert '<a href="/start/article">article</a>' in listed
        assert "Writes &lt;b&gt;what&lt;/b&gt; is asked for." in listed
        page = (await client.get("/start/article")).text
        typed = {"input.title": "Tea", "input.words": "200"}
        started = await client.post("/start/article", data=fields_of(page) | typed)
        run = started.headers["Location"].removeprefix("/runs/").removesuffix("?said=start")
        assert (started.status_code, run) == (303, f"article/{key_of(page)}")
        ended = await result(temporal.client.get_workflow_handle(run))
        assert ended["outputs"]["write"] == "Tea: 200 words"


async def test_a_form_that_is_sent_twice_starts_one_run(temporal: Temporal) -> None:
    article = article_pipeline()
    async with (
        temporal.worker(writer, pipelines=[article], llm=ScriptedModel(["hello"])),
        browser(temporal, agents=[writer], pipelines=[article], task_queue=temporal.name) as client,
    ):
        page = (await client.get("/start/article")).text
        both = [await client.post("/start/article", data=fields_of(page) | {"input.title": "Tea"}) for _ in range(2)]
        run = f"article/{key_of(page)}"
        assert [answer.headers["Location"] for answer in both] == [
            f"/runs/{run}?said=start",
            f"/runs/{run}?said=started",
        ]
        page = (await client.get("/start/writer")).text
        for said in ("start", "started"):  # even when the first run has ended
            started = await client.post("/start/writer", data=fields_of(page) | {"message": "Hi"})
            run = f"writer/{key_of(page)}"
            assert started.headers["Location"] == f"/runs/{run}?said={said}"
            await result(temporal.client.get_workflow_handle(run))


@pytest.mark.parametrize("has_store", [True, False])
async def test_a_form_that_names_a_session_and_is_sent_twice_says_its_message_once(
    temporal: Temporal, has_store: bool
) -> None:
    model, session = ScriptedModel(lambda messages, tools: f"{messages[-1].content}!"), temporal.session()
    store = temporal.store if has_store else None
    async with (
        temporal.worker(writer, llm=model),
        browser(temporal, agents=[writer], task_queue=temporal.name, store=store) as client,
    ):
        typed = fields_of((await client.get("/start/writer")).text) | {"session": session, "message": "Hi"}
        for _ in range(2):
            sent = await asyncio.gather(*(client.post("/start/writer", data=typed) for _ in range(2)))
            assert [answer.status_code for answer in sent] == [303, 303]
            await result(temporal.client.get_workflow_handle(f"writer/{session}"))
        assert (await client.post("/start/writer", data=typed | {"message": "Bye"})).status_code == 303
        await result(temporal.client.get_workflow_handle(f"writer/{session}"))
    assert [one.content for one in await temporal.messages()] == ["Hi", "Hi!", "Bye", "Bye!"]


async def test_what_cannot_be_used_is_said_and_what_was_typed_stays(temporal: Temporal) -> None:
    async with browser(temporal, pipelines=[article_pipeline()], task_queue=temporal.name) as client:
        page = (await client.get("/start/article")).text
        typed = {"input.title": "<Tea>", "input.words": "5"}
        refused = await client.post("/start/article", data=fields_of(page) | typed)
        assert refused.status_code == 422
        assert "words: Input should be greater than or equal to 100" in html.unescape(refused.text)
        assert "&lt;Tea&gt;</textarea>" in refused.text
        assert key_of(refused.text) == key_of(page)


async def test_what_a_browser_would_not_send_is_refused(temporal: Temporal) -> None:
    async with browser(temporal, agents=[writer], pipelines=[article_pipeline()], task_queue=temporal.name) as client:
        page = (await client.get("/start/article")).text
        file = await client.post("/start/article", data=fields_of(page), files={"input.title": ("a.txt", b"text")})
        assert file.status_code == 400
        word = await client.post("/start/article", data=fields_of(page) | {"input.title": "Tea", "input.words": "many"})
        assert (word.status_code, "Words: 'many' is not a number" in html.unescape(word.text)) == (422, True)
        for typed, says in (({"message": " "}, "Message is missing"), ({"session": "a b"}, "Session must be")):
            sent = fields_of((await client.get("/start/writer")).text) | {"message": "Hi"} | typed
            refused = await client.post("/start/writer", data=sent)
            assert (refused.status_code, says in refused.text) == (422, True)


async def test_an_agent_is_started_with_a_message_and_belongs_to_who_started_it(temporal: Temporal) -> None:
    async with (
        temporal.worker(writer, llm=ScriptedModel(["hello"])),
        browser(temporal, Access(people=PEOPLE), agents=[writer], task_queue=temporal.name) as client,
    ):
        client.headers["Authorization"] = f"Bearer {TOKENS['olga']}"
        session = temporal.session("talk")
        started = await client.post("/start/writer", data={"message": "Hi", "session": session})
        assert started.headers["Location"] == f"/runs/writer/{session}?said=start"
        ended = await result(temporal.client.get_workflow_handle(f"writer/{session}"))
        assert ended["response"] == "hello"
        kept = await temporal.store.load_session(session)
        assert kept is not None
        assert kept.user_id == "olga"


async def test_only_operators_start_and_only_what_is_there(temporal: Temporal) -> None:
    async with browser(temporal, Access(people=PEOPLE), agents=[writer], task_queue=temporal.name) as client:
        client.headers["Authorization"] = f"Bearer {TOKENS['ada']}"
        assert (await client.get("/start")).status_code == 403
        assert (await client.post("/start/writer", data={"message": "Hi"})).status_code == 403
        assert 'href="/start"' not in (await client.get("/")).text
        client.headers["Authorization"] = f"Bearer {TOKENS['olga']}"
        assert 'href="/start"' in (await client.get("/")).text
        assert (await client.get("/start/nobody")).status_code == 404


async def test_a_start_from_another_site_is_refused(temporal: Temporal) -> None:
    async with browser(temporal, agents=[writer], task_queue=temporal.name) as client:
        page = (await client.get("/start/writer")).text
        typed = fields_of(page) | {"message": "Hi"}
        foreign = await client.post("/start/writer", data=typed, headers={"Sec-Fetch-Site": "cross-site"})
        bare = await client.post("/start/writer", data={"message": "Hi"})
        assert (foreign.status_code, bare.status_code) == (403, 403)


def fields_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the page's form."""
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.split('action="/start/')[1]))
