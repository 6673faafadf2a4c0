"""A pipeline's picture on the page: each step, and how far it is."""

import re
from typing import Any

from holdfast import Agent, Approval, Step, pipeline, tool
from holdfast.temporal import start_pipeline
from holdfast.testing import ScriptedModel
from integration.temporal_runs import Temporal, pending, result
from integration.test_web import browser

writer = Agent("writer")
EVIL = "<b>it's</b> & \u202e"


@tool(safe_to_retry=True)
async def fetch(url: str) -> str:
    if url == "nowhere":
        raise ValueError("no such page")
    return url


def fetching(name: str, url: str = "somewhere") -> Step[Any]:
    return Step(name, run=fetch, input=lambda ctx: {"url": url})


def drawn(page: str) -> dict[str, str]:
    """Return the state that each step of the picture is drawn in, by its name."""
    found = re.findall(r'<g class="step ([\w-]+)"><title>([^<]*)</title>', page)
    return {name: state for state, name in found}


def texts(page: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", page)


async def test_a_pipeline_is_drawn_with_what_is_done_what_waits_and_what_is_to_come(temporal: Temporal) -> None:
    inner = pipeline("inner").step("draft", agent=writer).build()
    staged = (
        pipeline("staged")
        .parallel("gather", fetching("web"), fetching("archive"))
        .map("notes", Step("note", agent=writer), over=lambda ctx: [1, 2, 3], concurrency=2)
        .branch("route", on=lambda ctx: "short", cases={"long": fetching("essay"), "short": fetching("letter")})
        .loop("refine", fetching("round"), until=lambda ctx: ctx.iteration == 1, max=5)
        .step("nested", pipeline=inner)
        .step("ok", approval=Approval(message="Publish?"))
        .step("publish", run=fetch, input=lambda ctx: {"url": "x"})
        .build()
    )
    async with (
        temporal.worker(writer, pipelines=[staged], llm=ScriptedModel(lambda messages, tools: "text")),
        browser(temporal) as client,
    ):
        run = await start_pipeline(temporal.client, staged, task_queue=temporal.name, run_key=temporal.session())
        await pending(run)
        page = (await client.get(f"/runs/{run.id}")).text
        done = dict.fromkeys(["web", "archive", "note", "letter", "round", "draft"], "done")
        assert drawn(page) == done | {"essay": "not-run", "ok": "waits", "publish": "to-come"}
        assert {"notes: 3 done of 3", "refine: round 2 of at most 5", "nested", "short", "long"} <= set(texts(page))
        assert f'<a href="/runs/{run.id}/nested/draft"><g class="step done">' in page
        assert f'<a href="/runs/{run.id}/notes/2">notes/2</a>' in page
        assert (await client.get(f"/runs/{run.id}/notes/2")).status_code == 200
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        await result(run)
        assert drawn((await client.get(f"/runs/{run.id}")).text)["publish"] == "done"


async def test_a_pipeline_that_has_ended_shows_where_and_what_never_ran(temporal: Temporal) -> None:
    failing = (
        pipeline("failing").step(fetching("first")).step(fetching("second", "nowhere")).step(fetching("third")).build()
    )
    async with temporal.worker(pipelines=[failing]), browser(temporal) as client:
        run = await start_pipeline(temporal.client, failing, task_queue=temporal.name, run_key=temporal.session())
        await result(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert drawn(page) == {"first": "done", "second": "failed", "third": "not-run"}


async def test_a_pipeline_whose_worker_is_gone_still_shows_what_is_done(temporal: Temporal) -> None:
    gated = pipeline("gated").step(fetching("first")).step("ok", approval=Approval(message="Go?")).build()
    async with browser(temporal) as client:
        async with temporal.worker(pipelines=[gated]):
            run = await start_pipeline(temporal.client, gated, task_queue=temporal.name, run_key=temporal.session())
            await pending(run)
        await run.terminate()
        assert drawn((await client.get(f"/runs/{run.id}")).text) == {"first": "done", "ok": "not-run"}


async def test_names_in_the_picture_are_text(temporal: Temporal) -> None:
    odd = (
        pipeline("odd")
        .branch("way", on=lambda ctx: EVIL, cases={EVIL: Step("ok", approval=Approval(message="?"))})
        .build()
    )
    async with temporal.worker(pipelines=[odd]), browser(temporal) as client:
        run = await start_pipeline(temporal.client, odd, task_queue=temporal.name, run_key=temporal.session())
        await pending(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert "&lt;b&gt;it&#39;s&lt;/b&gt; &amp; \N{REPLACEMENT CHARACTER}" in texts(page)
        assert "<b>" not in page
