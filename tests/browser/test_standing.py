"""Later calls are approved on a card by keyboard alone, on a narrow screen, and ended in the list."""

from typing import Any

from playwright.async_api import Browser, expect
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from browser.test_accessibility import faults_here
from browser.test_page import LOCAL
from standfast import Agent, Approval, tool
from standfast.stores import StandingFilter
from standfast.testing import ScriptedModel


@tool(approval=Approval(message="Pay the supplier?", remember="session"))
async def pay(to: str, amount: float, urgent: bool = False) -> str:
    """Pay somebody."""
    return "paid"


payer = Agent("payer", tools=[pay])


async def test_later_calls_are_approved_by_the_keyboard_and_ended_in_the_list(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    asked = [asks_for(call("pay", f"c{n}", to="a", amount=amount)) for n, amount in enumerate((5, 7), 1)]
    async with temporal.worker(payer, llm=ScriptedModel([*asked, "done"])), serve(LOCAL) as address:
        run = await temporal.start(payer)
        await pending(run)
        page = await chromium.new_page(viewport={"width": 360, "height": 740})
        await page.goto(f"{address}/runs/{run.id}")
        summary = page.get_by_text("Approve and remember…")
        await summary.focus()
        await page.keyboard.press("Enter")
        assert await faults_here(page) == []
        await page.get_by_label("Later calls", exact=True).select_option("session")
        await page.get_by_label("amount of later calls", exact=True).select_option("most")
        await page.get_by_label("amount of later calls, at most").fill("7")
        options = await page.get_by_label("urgent of later calls", exact=True).locator("option").all_text_contents()
        assert options == ["exactly this", "anything"]
        wide = await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not wide
        approve = page.get_by_role("button", name="Approve")
        await approve.focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**?said=approve")
        assert (await result(run))["status"] == "complete"
        [given] = await temporal.store.standing_approvals(StandingFilter())
        assert (given.arguments["amount"], given.used) == ({"maximum": 7}, 1)
        await page.goto(f"{address}/standing")
        assert await faults_here(page) == []
        await page.get_by_role("button", name="Revoke").click()
        await expect(page.get_by_text("revoked by")).to_be_visible()
        await page.close()
