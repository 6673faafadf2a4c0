"""Takes the screenshots in the README: the page's inbox, overview, and runs, and a run in Temporal Web.

`make pictures` runs it; it needs Debian's Chromium at /usr/bin/chromium.
"""

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from playwright.async_api import Browser, async_playwright
from support.pages import served
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from browser.conftest import ARGUMENTS, CHROMIUM
from standfast import Agent, Approval, Message, Step, pipeline, sqlite_store, tool
from standfast.stores import SQLiteStore
from standfast.temporal import StandfastPlugin, connect, dev_server, start_agent, start_pipeline
from standfast.testing import ScriptedModel
from standfast.web import Access, Person, create_app

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
ADA = Person(name="ada", role="operator")
LARGE = Approval(message="Refund the customer?", approvers=["ada"], timeout=timedelta(days=2))


@tool(safe_to_retry=True)
async def get_order(order: int) -> dict[str, object]:
    """Look up an order."""
    return {"order": order, "total": 129.9, "state": "delivered broken"}


@tool(approval=LARGE)
async def refund(order: int, amount: float, reason: str) -> str:
    """Refund an order."""
    return f"{amount} paid back"


@tool
async def order_replacement(order: int) -> str:
    """Order a replacement at the warehouse."""
    await asyncio.Event().wait()  # its worker dies here
    return "ordered"


clerk = Agent("clerk", tools=[get_order, refund, order_replacement])
writer = Agent("writer")
LOOKS_UP = [{"name": "get_order", "arguments": {"order": 42}}]
REPLACES = [{"name": "order_replacement", "arguments": {"order": 42}}]
REFUNDS = [{"name": "refund", "arguments": {"order": 42, "amount": 129.9, "reason": "arrived broken"}}]


def says(messages: Sequence[Message], tools: Sequence[object]) -> object:
    """Return what the model says of either agent."""
    used = {"input_tokens": 1_840, "output_tokens": 212, "cost": 0.0121 if tools else 0.0342}
    if not tools:
        return {"text": "Sessions keep budgets; a call that is cut off never runs.", "usage": used}
    match [message.tool_name for message in messages if message.role == "tool"]:
        case []:
            said, calls = "I look the order up.", LOOKS_UP
        case ["get_order"]:
            said, calls = "It arrived broken. I order a **replacement**.", REPLACES
        case _:
            said = "Nobody can tell whether the replacement was ordered, so I do not order it again:\n\n"
            said, calls = f"{said}- the warehouse should look\n- I would pay the order back", REFUNDS
    return {"text": said, "tool_calls": calls, "usage": used}


async def lose_worker(client: Client, store: SQLiteStore) -> None:
    """Report the call that runs as one whose worker has died, as another worker does."""
    while not (running := await store.running_calls()):
        await asyncio.sleep(0.05)
    died = ApplicationError("its worker died", type="WorkerDied", non_retryable=True)
    await client.get_async_activity_handle(task_token=base64.b64decode(running[0].task_token)).fail(died)


@tool(safe_to_retry=True)
async def look(name: str) -> str:
    """Look something up."""
    return f"{name} is ready"


@tool
async def publish(version: str) -> str:
    """Publish a version."""
    return f"{version} is out"


release = (
    pipeline("release")
    .parallel(
        "gather",
        Step("notes", agent=writer, input=lambda ctx: f"Write notes for {ctx.input}"),
        Step("build", run=look, input=lambda ctx: {"name": "build"}),
        Step("tests", run=look, input=lambda ctx: {"name": "tests"}),
    )
    .map("translate", Step("translation", agent=writer), over=lambda ctx: ["de", "fr", "ja"])
    .step("ok", approval=Approval(message=lambda ctx: f"Publish {ctx.input}? {ctx.prev['notes']['response']}"))
    .step("publish", run=publish, input=lambda ctx: {"version": ctx.input})
    .build()
)


async def take(browser: Browser, name: str, address: str, *shows: str, width: int = 1040, height: int) -> None:
    """Open a page, wait until it shows these texts, and keep a picture of it."""
    page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    await page.goto(address)
    for text in shows:
        await page.get_by_text(text).first.wait_for()
    await page.wait_for_timeout(1000)  # fonts and icons
    await page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
    await page.close()


async def main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        store = sqlite_store(f"{stack.enter_context(TemporaryDirectory())}/standfast.db")
        temporal = await stack.enter_async_context(dev_server(ui=True))
        client = await connect(temporal.address)
        plugin = StandfastPlugin(agents=[clerk, writer], pipelines=[release], store=store, llm=ScriptedModel(says))
        await stack.enter_async_context(Worker(client, task_queue="standfast", plugins=[plugin]))
        run = await start_agent(
            client, "clerk", message="The lamp of order 42 is broken", session_id="order-42", user_id="ada"
        )
        await lose_worker(client, store)
        for name in ("launch", "pricing", "support", "hiring", "billing", "roadmap"):
            await (await start_agent(client, "writer", message=f"Notes on {name}", session_id=name)).result()
        going = await start_pipeline(client, "release", input="2.0", run_key="2.0")
        app = create_app(client, access=Access(local=ADA), store=store, temporal_ui=temporal.ui_url)
        page = await stack.enter_async_context(served(app))
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        await take(browser, "inbox", page, "Refund the customer?", "Publish 2.0?", height=830)
        await take(browser, "run", f"{page}/runs/{run.id}", "it was not run again", height=1400)
        await take(browser, "runs", f"{page}/runs", "clerk/order-42", height=560)
        await take(browser, "overview", f"{page}/overview", "Waiting, by age", height=760)
        await take(browser, "pipeline", f"{page}/runs/{going.id}", "approval · waits", height=700)
        workflow = f"{temporal.ui_url}/namespaces/default/workflows/{quote(run.id, safe='')}/{run.result_run_id}"
        await take(browser, "temporal_web", f"{workflow}/user-metadata", "Current Details", width=1280, height=1240)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
