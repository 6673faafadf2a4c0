"""Automated accessibility checks of the pages (axe-core: names, contrast, landmarks, tables), light and dark."""

from typing import Any, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect
from pydantic import BaseModel
from support.questions import ask_user
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from browser.test_page import CHARGES, LOCAL, PEOPLE, charge
from standfast import Agent, Approval, Step, pipeline
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

clerk = Agent("clerk", tools=[charge, ask_user])


class Order(BaseModel):
    """What is ordered."""

    number: int
    kind: Literal["tea", "coffee"]
    gift: bool = False
    notes: list[str] = []


orders = (
    pipeline("orders", input=Order)
    .parallel("look", Step("first", agent=clerk), Step("second", agent=clerk))
    .step("ok", approval=Approval(message="Send it?", timeout="1h"))
    .build()
)


async def faults_of(page: Page, address: str) -> list[str]:
    """Return what axe finds wrong with a page, and where."""
    await page.goto(address)
    return await faults_here(page)


async def faults_here(page: Page) -> list[str]:
    found = await Axe().run(page)
    return [
        f"{fault['id']}: {node['html'][:120]} {node['failureSummary'][:300]}"
        for fault in found.response["violations"]
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_machine_finds_nothing_wrong_with_the_pages(
    temporal: Temporal, chromium: Browser, serve: Any, scheme: Literal["light", "dark"]
) -> None:
    model = ScriptedModel(
        lambda messages, tools: (
            CHARGES
            if messages[-1].content == "charge"
            else asks_for(call("ask_user", "q1", question="Which?"), text="Let me ask.")
            if messages[-1].content == "ask"
            else "done"
        )
    )
    async with temporal.worker(clerk, pipelines=[orders], llm=model), serve(PEOPLE) as guarded:
        charges, asks = await temporal.start(clerk, "charge"), await temporal.start(clerk, "ask", session="asks")
        going = await start_pipeline(
            temporal.client, orders, input={"number": 1, "kind": "tea"}, task_queue=temporal.name,
            run_key=temporal.session(),
        )  # fmt: skip
        for run in (charges, asks):
            await pending(run)
        await until(lambda: _waits(temporal, going.id))
        async with serve(LOCAL, agents=[clerk], pipelines=[orders]) as address:
            page = await chromium.new_page(color_scheme=scheme)
            paths = [
                "/",
                "/runs",
                "/runs?status=waiting&since=1h",
                "/runs?q=nothing",
                "/overview",
                "/start",
                "/start/orders",
            ]
            paths += ["/start/clerk", "/runs/nobody"]
            paths += [f"/runs/{run.id}" for run in (charges, asks, going)]
            faults = {path: await faults_of(page, address + path) for path in paths}
            await temporal.people.decide(going.id, "ok", "approve", by="ada")
            await result(going)
            faults["ended"] = await faults_of(page, f"{address}/runs/{going.id}")
            await page.get_by_text("Transcript of the session").or_(page.get_by_text("Its run,")).first.click()
            faults["unfolded"] = await faults_here(page)
            await page.goto(f"{address}/runs")
            await page.get_by_label("Select all").check()
            await page.get_by_text("With the selected runs").click()
            faults["chosen"] = await faults_here(page)
            await page.get_by_role("button", name="Resume").click()
            await expect(page.get_by_role("heading", name="Tried again")).to_be_visible()
            faults["outcomes"] = await faults_here(page)
            faults["login"] = await faults_of(page, f"{guarded}/login")
        assert {path: found for path, found in faults.items() if found} == {}


async def _waits(temporal: Temporal, run: str) -> bool:
    return [item["name"] for item in await temporal.people.pending(run)] == ["ok"]
