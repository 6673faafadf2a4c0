"""Starting and watching runs in a real browser: forms, pictures, streamed words, links."""

import re
from typing import Any, Literal

import pytest
from integration.temporal.test_partial_answers import Speaker, talker
from playwright.async_api import Browser, expect
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.routing import Mount
from support.pages import served
from support.temporal_runs import Temporal, pending, result, until

from browser.conftest import LOOK_AWAY, faults_of
from standfast import Approval, pipeline, tool
from standfast.temporal import ApprovalLinks, start_pipeline
from standfast.web import Access, Person, create_app

SECRET = "a secret of workers and the page"
ADA = Person(name="ada", role="operator", token="ada's token, which is long enough")
LOCAL = Access(local=Person(name="ada", role="operator"))


class Article(BaseModel):
    title: str
    words: int = Field(default=800, ge=100)
    tone: Literal["dry", "warm"] = "dry"
    draft: bool = True


@tool(safe_to_retry=True)
async def write(title: str, words: int, tone: str, draft: bool) -> str:
    return f"{title}, {words} words, {tone}{', a draft' if draft else ''}"


article = (
    pipeline("article", input=Article)
    .step("write", run=write, input=lambda ctx: ctx.input.model_dump())
    .step("publish", approval=Approval(message=lambda ctx: f"Publish {ctx.prev['write']}?"))
    .build()
)


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
async def test_a_person_starts_a_pipeline_by_its_form_and_sees_how_far_it_is(
    temporal: Temporal, chromium: Browser, serve: Any, script: bool
) -> None:
    async with temporal.worker(pipelines=[article]), serve(LOCAL, pipelines=[article]) as address:
        page = await chromium.new_page(java_script_enabled=script)
        faults = await faults_of(page)
        await page.goto(address)
        await page.get_by_role("link", name="Start", exact=True).click()
        await page.get_by_role("link", name="article").click()
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_label("Title")).to_be_focused()  # the browser demands required fields
        await page.get_by_label("Title").fill("Tea")
        await page.get_by_label("Words").fill("200")
        await page.get_by_label("Tone").select_option(label="warm")
        await page.get_by_label("Draft").uncheck()
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("status").filter(has_text="Started.")).to_be_visible()
        run = await page.locator("h1").evaluate("title => title.firstChild.textContent.trim()")
        await pending(temporal.client.get_workflow_handle(run))
        await page.goto(f"{address}/runs/{run}")
        await expect(page.locator("svg .step.done")).to_contain_text("write")
        await expect(page.locator("svg .step.waits")).to_contain_text("publish")
        await expect(page.locator("article.card h2")).to_contain_text("Publish Tea, 200 words, warm?")
        await page.get_by_text("As a table").click()
        await page.get_by_role("heading", name="Steps").click()
        await page.evaluate("() => document.activeElement.blur()")
        await temporal.people.decide(run, "publish", "approve", by="ada")
        await result(temporal.client.get_workflow_handle(run))
        if not script:
            await page.reload()
        await expect(page.locator("svg .step.done")).to_have_count(2, timeout=20_000)
        assert await page.locator("details[open] table").count() == (1 if script else 0)  # as it was left
        assert faults == []


async def test_words_appear_on_the_page_as_they_come(temporal: Temporal, chromium: Browser, serve: Any) -> None:
    model = Speaker("<b>Hel", "lo", " you")
    async with temporal.worker(agent := talker(), llm=model, stream=True), serve(LOCAL) as address:
        run = await temporal.start(agent)
        page = await chromium.new_page()
        faults = await faults_of(page)
        await page.goto(f"{address}/runs/{run.id}")
        says = page.locator("[data-words]")
        await expect(says).to_have_text("<b>Hel", timeout=20_000)
        await page.evaluate("() => { window.sameDocument = true }")
        model.go_on()
        await expect(says).to_have_text("<b>Hello", timeout=20_000)
        for hidden in (True, False) * 2:  # someone looks at another page, and comes back
            await page.evaluate(LOOK_AWAY, hidden)
        model.go_on()
        await expect(says).to_have_text("<b>Hello you", timeout=20_000)
        model.go_on()
        await result(run)
        await expect(page.locator("h1 .status")).to_have_text("complete", timeout=20_000)
        await expect(page.locator("#answer + div")).to_have_text("<b>Hello you")
        assert await page.evaluate("() => window.sameDocument")
        assert faults == []


async def test_an_approver_decides_by_a_link_without_signing_in(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    access = Access(people=[ADA], link_secret=SECRET)
    async with temporal.worker(pipelines=[article]), serve(access) as address:
        run = await start_pipeline(
            temporal.client, article, input={"title": "Tea"}, task_queue=temporal.name, run_key=temporal.session()
        )
        (item,) = await pending(run)
        page = await chromium.new_page(java_script_enabled=False)
        await page.goto(ApprovalLinks(page=address, secret=SECRET, by="ada").to(run.id, item))
        await expect(page.locator("h1")).to_have_text("Decide as ada")
        await page.get_by_label("Comment").fill("by mail")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("status")).to_have_text("Approved.")
        await expect(page.locator("main")).to_contain_text("is no longer waiting")
        assert (await result(run))["outputs"]["publish"]["by"] == ["ada"]
        await page.goto(f"{address}/runs/{run.id}")
        await expect(page.locator("h1")).to_have_text("Sign in")  # the link was for that one thing


async def test_times_are_relative_with_the_exact_one_in_the_viewers_zone_on_hover(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    async with temporal.worker(pipelines=[article]), serve(LOCAL) as address:
        run = await start_pipeline(
            temporal.client, article, input={"title": "Tea"}, task_queue=temporal.name, run_key=temporal.session()
        )
        await pending(run)
        page = await chromium.new_page(timezone_id="Asia/Tokyo")
        faults = await faults_of(page)
        await page.goto(f"{address}/runs/{run.id}")
        time = page.locator("dl time").first
        await expect(time).to_have_text(re.compile(r"^(\d+ seconds? ago|now|\d+ minutes? ago)$"))
        title = str(await time.get_attribute("title"))
        assert re.search(r"GMT\+9 · 20\d\d-\d\d-\d\d \d\d:\d\d UTC$", title), title
        await page.goto(f"{address}/runs?q={run.id}")
        await expect(page.locator("td.at time")).to_have_attribute("title", re.compile("UTC$"))
        plain = await chromium.new_page(java_script_enabled=False)
        await plain.goto(f"{address}/runs/{run.id}")
        await expect(plain.locator("dl time").first).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d UTC$"))
        assert faults == []
        await run.cancel()


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
async def test_runs_are_filtered_saved_as_a_filter_and_cancelled_by_the_keyboard_alone(
    temporal: Temporal, chromium: Browser, serve: Any, script: bool
) -> None:
    async with temporal.worker(pipelines=[article]), serve(LOCAL) as address:
        run = await start_pipeline(
            temporal.client, article, input={"title": "Tea"}, task_queue=temporal.name, run_key=temporal.session()
        )
        await pending(run)
        await until(lambda: _is_listed(temporal, run.id))
        page = await chromium.new_page(java_script_enabled=script)
        faults = await faults_of(page)
        await page.goto(f"{address}/runs")
        await page.get_by_label("Search").focus()
        await page.keyboard.type(run.id)
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_text("Save this filter").focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Name").focus()
        await page.keyboard.type("The tea")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="The tea")).to_have_attribute("aria-current", "true")
        await page.get_by_label(f"Select {run.id}").focus()
        await page.keyboard.press("Space")
        await page.keyboard.press("Enter")  # which cancels nothing
        await page.wait_for_url("**/runs?q=*")
        await expect(page.locator("tbody .status")).to_have_text("waiting")
        await page.get_by_label(f"Select {run.id}").check()
        await page.get_by_text("With the selected runs").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_text("Cancel")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Cancelled: 1 of 1")).to_be_visible()
        await page.get_by_role("link", name="Back to the runs").click()
        await expect(page.get_by_label("Search")).to_have_value(run.id)
        await page.get_by_role("button", name="Forget the filter The tea").click()
        await expect(page.get_by_role("link", name="The tea")).to_have_count(0)
        assert faults == []


async def _is_listed(temporal: Temporal, run: str) -> bool:
    return [found.id async for found in temporal.client.list_workflows(f"WorkflowId = '{run}'")] == [run]


async def test_a_page_below_a_path_stays_true_and_asks_for_its_style_and_script_once(
    temporal: Temporal, chromium: Browser
) -> None:
    model = Speaker("<b>Hel", "lo")
    page_app = create_app(temporal.client, access=LOCAL, store=temporal.store)
    async with (
        temporal.worker(agent := talker(), llm=model, stream=True),
        served(Starlette(routes=[Mount("/ops", page_app)])) as address,
    ):
        run = await temporal.start(agent)
        page = await chromium.new_page()
        faults, asked = await faults_of(page), list[str]()
        page.on("response", lambda answer: asked.append(answer.url.removeprefix(address).partition("?")[0]))
        await page.goto(f"{address}/ops/runs/{run.id}")
        await expect(page.locator("[data-words]")).to_have_text("<b>Hel", timeout=20_000)
        model.go_on()
        await expect(page.locator("[data-words]")).to_have_text("<b>Hello", timeout=20_000)
        model.go_on()
        await result(run)
        await expect(page.locator("h1 .status")).to_have_text("complete", timeout=20_000)
        assert {path for path in asked if not path.startswith("/ops/")} == set()
        assert asked.count("/ops/static/page.css") == asked.count("/ops/static/page.js") == 1
        assert faults == []
