"""Several approvals are decided at once in a real browser: by keyboard alone, without JavaScript, on a phone."""

from typing import Any

import pytest
from playwright.async_api import Browser, expect
from support.temporal_runs import Run, Temporal, pending, result
from support.transcripts import asks_for, call

from browser.conftest import faults_of
from browser.test_accessibility import faults_here
from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel
from standfast.web import Access, Person

LOCAL = Access(local=Person(name="ada", role="operator"))


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"], timeout="1h"))
async def charge(amount: int) -> str:
    return f"charged {amount}"


@tool(approval=Approval(message="Who else would decide this?", approvers=["bob"]))
async def other(amount: int) -> str:
    return f"charged {amount}"


clerk = Agent("clerk", tools=[charge, other])
MODEL = ScriptedModel(
    lambda messages, tools: (
        asks_for(call("other" if messages[-1].content == "other" else "charge", "c1", amount=5))
        if messages[-1].role == "user"
        else "done"
    )
)


async def three(temporal: Temporal) -> list[Run]:
    runs = [await temporal.start(clerk, text, session=text) for text in ("one", "two", "three", "other")]
    for run in runs:
        await pending(run)
    return runs[:3]


async def test_three_are_chosen_and_approved_by_the_keyboard_alone(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    async with temporal.worker(clerk, llm=MODEL), serve(LOCAL) as address:
        runs = await three(temporal)
        page = await chromium.new_page()
        faults = await faults_of(page)
        await page.goto(address)
        boxes = page.get_by_role("checkbox", name="Select")
        await expect(boxes).to_have_count(3, timeout=20_000)
        approve = page.locator('#several [value="approve"]')
        await expect(approve).to_be_hidden()
        await expect(approve).to_be_disabled()
        for number in range(3):
            for _ in range(60):
                await page.keyboard.press("Tab")
                if await boxes.nth(number).evaluate("box => box === document.activeElement"):
                    break
            await page.keyboard.press("Enter")  # which decides nothing
            await page.keyboard.press("Space")
        await expect(approve).to_have_text("Approve 3")
        for _ in range(60):
            await page.keyboard.press("Tab")
            if await approve.evaluate("button => button === document.activeElement"):
                break
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Approved: 3 of 3")
        await expect(page.locator(".status", has_text="counted")).to_have_count(3)
        for run in runs:
            assert (await result(run))["status"] == "complete"
        assert faults == []


async def test_without_javascript_two_of_three_are_rejected(temporal: Temporal, chromium: Browser, serve: Any) -> None:
    async with temporal.worker(clerk, llm=MODEL), serve(LOCAL) as address:
        runs = await three(temporal)
        page = await chromium.new_page(java_script_enabled=False)
        await page.goto(address)
        for run in runs[:2]:
            card = page.locator("article.card", has=page.get_by_role("link", name=run.id, exact=True))
            await card.get_by_role("checkbox", name="Select").check()
        await page.get_by_role("checkbox", name="Select").first.press("Enter")  # which decides nothing
        await expect(page.get_by_role("heading", level=1)).to_have_text("Inbox")
        for run in runs[:2]:
            card = page.locator("article.card", has=page.get_by_role("link", name=run.id, exact=True))
            await card.get_by_role("checkbox", name="Select").check()
        await page.locator("#several").get_by_role("textbox").fill("not today")
        await page.get_by_role("button", name="Reject selected").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Rejected: 2 of 2")
        for run in runs[:2]:
            await result(run)
        assert len(await pending(runs[2])) == 1


@pytest.mark.parametrize("width", [1280, 320])
async def test_the_inbox_and_an_opened_item_are_for_everybody_at_every_width(
    temporal: Temporal, chromium: Browser, serve: Any, width: int
) -> None:
    async with temporal.worker(clerk, llm=MODEL), serve(LOCAL) as address:
        await three(temporal)
        page = await chromium.new_page(viewport={"width": width, "height": 800})
        for at in (f"{address}/", "opened"):
            if at == "opened":
                await page.get_by_role("link", name="Who else would decide this?").click()
                await page.get_by_text("The last").click()
                await expect(page.locator(".transcript .user")).to_contain_text("other")
            else:
                await page.goto(at)
                await expect(page.get_by_role("checkbox", name="Select")).to_have_count(3, timeout=20_000)
            wide = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0
            assert await faults_here(page) == []
