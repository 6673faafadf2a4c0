"""A real browser draws approved text in its actual order."""

from typing import Any

from playwright.async_api import Browser
from support.temporal_runs import Temporal, pending
from support.transcripts import asks_for, call

from standfast import Agent, Approval, tool
from standfast.testing import ScriptedModel
from standfast.web import Access, Person

LOCAL = Access(local=Person(name="ada", role="operator"))
IBAN = "IBAN 1234 אבג 5678 900"

# Where each number is drawn, from the left.
DRAWN = """(element) => {
  const places = [];
  const walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    for (const found of walk.currentNode.data.matchAll(/[0-9]+/g)) {
      const range = document.createRange();
      range.setStart(walk.currentNode, found.index);
      range.setEnd(walk.currentNode, found.index + found[0].length);
      places.push([range.getBoundingClientRect().left, found[0]]);
    }
  }
  return places.sort((one, other) => one[0] - other[0]).map((place) => place[1]);
}"""


@tool(approval=Approval(message=f"Pay to {IBAN}?"))
async def pay(to: str) -> str:
    return to


async def test_the_digits_of_an_account_are_drawn_in_their_order(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    agent = Agent("clerk", tools=[pay])
    async with (
        temporal.worker(agent, llm=ScriptedModel([asks_for(call("pay", "c1", to=IBAN))])),
        serve(LOCAL) as page_at,
    ):
        run = await temporal.start(agent)
        await pending(run)
        page = await chromium.new_page()
        await page.set_content(f"<p>{IBAN}</p>")
        assert await page.locator("p").evaluate(DRAWN) == ["1234", "900", "5678"]  # as a browser does it automatically
        await page.goto(f"{page_at}/runs/{run.id}")
        for part in ("article h2", "article pre"):
            assert await page.locator(part).evaluate(DRAWN) == ["1234", "5678", "900"], part
        field = await page.locator("textarea[name=edit]").evaluate(
            "(field) => [getComputedStyle(field).unicodeBidi, getComputedStyle(field).direction]"
        )
        assert field == ["bidi-override", "ltr"]
