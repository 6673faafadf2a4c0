"""A pipeline's picture on the page: each step and its state."""

import contextlib
import re
from typing import Any

import pytest
from support.pages import CHARGES, browser, charge, fields, shows
from support.temporal_runs import Run, Temporal, has_ended, pending, result, until, waiting
from temporalio.client import WorkflowFailureError

from standfast import Agent, Approval, Step, StepContext, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

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


def no(ctx: StepContext) -> Any:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("stage", "drawn_as", "says"),
    [
        (lambda line: line.step("here", run=fetch, input=no), {"here": "failed"}, "fetch · failed"),
        (
            lambda line: line.branch("here", on=lambda ctx: "x", cases={"y": fetching("way")}),
            {"way": "not-run"},
            "here: failed",
        ),
        (
            lambda line: line.loop("here", fetching("again"), until=lambda ctx: False, max=2),
            {"again": "done"},
            "here: failed after 2 of at most 2 rounds",
        ),
        (
            lambda line: line.map("here", fetching("one", "nowhere"), over=lambda ctx: [1, 2]),
            {"one": "failed"},
            "here: 1 failed of 2",
        ),
    ],
    ids=["input", "branch", "loop", "map"],
)
async def test_what_failed_is_drawn_so_whatever_it_was(
    temporal: Temporal, stage: Any, drawn_as: dict[str, str], says: str
) -> None:
    line = stage(pipeline("line").step(fetching("first"))).step(fetching("last")).build()
    async with temporal.worker(pipelines=[line]), browser(temporal) as client:
        run = await start_pipeline(temporal.client, line, task_queue=temporal.name, run_key=temporal.session())
        found = await until(lambda: _waits_or_has_ended(run))
        if isinstance(found, list):  # the function is not fixed
            await temporal.people.resume(run.id, "abort")
        with contextlib.suppress(WorkflowFailureError):
            await result(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert drawn(page) == {"first": "done", "last": "not-run"} | drawn_as
        assert says in texts(page)


async def _waits_or_has_ended(run: Run) -> Any:
    return await has_ended(run) or await waiting(run)


async def test_a_pipeline_shows_that_the_agent_of_a_step_waits_for_a_person(temporal: Temporal) -> None:
    clerk = Agent("clerk", tools=[charge])
    line = pipeline("line").step("say", agent=clerk).build()
    async with (
        temporal.worker(clerk, pipelines=[line], llm=ScriptedModel([CHARGES, "done"])),
        browser(temporal) as client,
    ):
        run = await start_pipeline(temporal.client, line, task_queue=temporal.name, run_key=temporal.session())
        await until(lambda: shows(client, f"/runs/{run.id}", "Charge the customer?"))
        page = (await client.get(f"/runs/{run.id}")).text
        assert drawn(page) == {"say": "waits"}
        assert f'action="/runs/{run.id}/say/decide"' in page
        form = fields(page, f"/runs/{run.id}/say/decide")
        await client.post(f"/runs/{run.id}/say/decide", data=form | {"decision": "approve"})
        assert (await result(run))["status"] == "complete"


async def test_items_of_a_map_in_a_map_are_all_counted(temporal: Temporal) -> None:
    inner = pipeline("inner").map("im", fetching("one"), over=lambda ctx: [1, 2, 3]).build()
    outer = pipeline("outer").map("om", Step("nested", pipeline=inner), over=lambda ctx: [1, 2]).build()
    async with temporal.worker(pipelines=[outer]), browser(temporal) as client:
        run = await start_pipeline(temporal.client, outer, task_queue=temporal.name, run_key=temporal.session())
        await result(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert {"om: 2 done of 2", "im: 6 done of 6"} <= set(texts(page))


async def test_a_pipeline_of_very_many_steps_says_what_it_has_not_looked_up(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.web.page.runs._MOST", 4)
    line = pipeline("line").map("all", fetching("one"), over=lambda ctx: [*range(9)]).step(fetching("last")).build()
    async with temporal.worker(pipelines=[line]), browser(temporal) as client:
        run = await start_pipeline(temporal.client, line, task_queue=temporal.name, run_key=temporal.session())
        await result(run)
        page = (await client.get(f"/runs/{run.id}")).text
        assert "Not all of its steps are shown" in page
        assert "fetch · not looked up" in texts(page)


async def test_a_pipeline_whose_worker_is_gone_still_shows_what_is_done(temporal: Temporal) -> None:
    gated = pipeline("gated").step(fetching("first")).step("ok", approval=Approval(message="Go?")).build()
    async with browser(temporal) as client:
        async with temporal.worker(pipelines=[gated]):
            run = await start_pipeline(temporal.client, gated, task_queue=temporal.name, run_key=temporal.session())
            await pending(run)
        await run.terminate()
        page = (await client.get(f"/runs/{run.id}")).text
        assert drawn(page)["first"] == "done"
        assert "approval · not known" in texts(page)  # it may have begun


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
        assert "&lt;b&gt;it&#39;s&lt;/b&gt; &amp; ‹U+202E›" in texts(page)
        assert "<b>" not in page
