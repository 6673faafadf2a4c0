"""Temporal Web in a real browser: people read what a run waits for, and decide with Web's own forms."""

import json
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FrameLocator, Page, expect
from support.questions import ask_user
from support.temporal_runs import Run, Temporal, check_healthy, pending, refusals, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import DevServer, ScriptedModel, dev_server

STRANGE = "# Pay <b>5</b> *now* [here](https://example.com) ![x](https://example.com/x) `5|6` https://example.com"
SECONDS = 20_000  # milliseconds of them, until something must be there


@tool(safe_to_retry=True)
async def look_up(order: int) -> str:
    return f"order {order}"


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"]))
async def charge(amount: int, note: str) -> str:
    return f"charged {amount}"


LOOKS_UP = asks_for(call("look_up", "c0", order=42))
CHARGES = asks_for(call("charge", "c1", amount=5, note=STRANGE))
clerk = Agent("clerk", tools=[look_up, charge, ask_user])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def temporal_server() -> AsyncIterator[DevServer]:
    """A server with Temporal Web, in place of the one that all other tests share."""
    async with dev_server(ui=True) as server:
        yield server


@pytest.fixture
async def web(chromium: Browser, temporal_server: DevServer) -> Page:
    """Temporal Web's list of workflows, on a page that is wide enough for all of it."""
    page = await chromium.new_page(
        viewport={"width": 1400, "height": 1300}, base_url=f"{temporal_server.ui_url}/namespaces/default/"
    )
    page.set_default_timeout(SECONDS)
    return page


async def open_run(web: Page, run: Run) -> None:
    await web.goto(f"workflows/{quote(run.id, safe='')}")
    await expect(web.get_by_role("heading", name=run.id)).to_be_visible(timeout=SECONDS)


async def details(web: Page, run: Run) -> FrameLocator:
    """Return what the run says of itself now."""
    await open_run(web, run)
    await web.get_by_role("tab", name="User Metadata").click()
    await expect(web.get_by_text("Current Details")).to_be_visible(timeout=SECONDS)
    return web.locator("iframe").last.content_frame


async def send(web: Page, kind: str, name: str, text: str) -> None:
    """Send a signal or an update with the form in the menu of the page of a run."""
    await web.get_by_role("button", name="More Actions").click()
    await web.get_by_role("menuitem", name=f"Send a{'n' if kind == 'Update' else ''} {kind}").click()
    form = web.get_by_role("dialog")
    await form.get_by_role("button", name="Select a").click()
    await form.get_by_role("option", name=re.compile(f"^{name} ")).click()
    await form.get_by_role("textbox", name="Data").click()
    await web.keyboard.insert_text(text)
    await form.get_by_role("button", name="Submit").click()


async def copied(shown: FrameLocator, position: int) -> str:
    """Return one of the blocks that the details have for people to read or to copy."""
    return await shown.locator("pre").nth(position).inner_text()


@pytest.mark.parametrize(("signal", "told"), [("approve", "charged 5"), ("reject", "rejected by ada")])
async def test_a_person_decides_on_a_call_by_a_signal(temporal: Temporal, web: Page, signal: str, told: str) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel([CHARGES, "done"])):
        run = await temporal.start(clerk)
        await pending(run)
        shown = await details(web, run)
        await expect(shown.get_by_role("heading")).to_have_text("Waits for the approval of c1")
        await expect(shown.locator("blockquote")).to_have_text("Charge the customer?")
        await expect(shown.locator("main")).to_contain_text("asks ada")
        assert json.loads(await copied(shown, 0)) == {"amount": 5, "note": STRANGE}
        await send(web, "Signal", signal, await copied(shown, 2))
        assert (await result(run))["response"] == "done"
        await expect((await details(web, run)).locator("main")).to_contain_text("complete · turn 2")
        await check_healthy(run)
    assert told in (await temporal.messages())[2].content


async def test_an_update_that_does_not_count_is_refused_on_the_form(temporal: Temporal, web: Page) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel([CHARGES, "done"])):
        run = await temporal.start(clerk)
        await pending(run)
        update = await copied(await details(web, run), 1)
        await send(web, "Update", "decide", update.replace("ada", "eve"))
        await expect(web.get_by_role("dialog")).to_contain_text("eve may not decide")
        await open_run(web, run)
        await send(web, "Update", "decide", update)
        await expect(web.get_by_text("Update successful").first).to_be_visible(timeout=SECONDS)
        assert (await result(run))["response"] == "done"
        await check_healthy(run)


async def test_a_signal_that_does_not_count_is_said_on_the_page_of_the_run(temporal: Temporal, web: Page) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel([CHARGES])):
        run = await temporal.start(clerk)
        await pending(run)
        signal = await copied(await details(web, run), 2)
        await send(web, "Signal", "approve", signal.replace("ada", "eve"))
        await until(lambda: refusals(run))
        await expect((await details(web, run)).get_by_text("Last refused")).to_contain_text("eve may not decide")
        assert len(await pending(run)) == 1


async def test_a_person_answers_a_question_whose_words_stay_words(temporal: Temporal, web: Page) -> None:
    model = ScriptedModel([asks_for(call("ask_user", "q1", question=STRANGE)), "done"])
    async with temporal.worker(clerk, llm=model):
        run = await temporal.start(clerk)
        await pending(run)
        shown = await details(web, run)
        await expect(shown.get_by_role("heading")).to_have_text("Waits for an answer to q1")
        await expect(shown.locator("blockquote")).to_have_text(STRANGE)
        await expect(shown.locator("a, img, b")).to_have_count(0)
        await send(web, "Signal", "answer", (await copied(shown, 0)).replace("your answer", "savings"))
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert (await temporal.messages())[2].content == "savings"


async def test_a_person_approves_at_the_gate_of_a_pipeline(temporal: Temporal, web: Page) -> None:
    notes = Agent("notes")
    release = pipeline("release").step("write", agent=notes).step("ok", approval=Approval(message="Publish?")).build()
    async with temporal.worker(notes, pipelines=[release], llm=ScriptedModel(["new"])):
        key = temporal.session()
        run = await start_pipeline(temporal.client, release, input="2.0", run_key=key, task_queue=temporal.name)
        await pending(run)
        shown = await details(web, run)
        await expect(shown.get_by_role("listitem")).to_have_text(["write done", "ok waits"])
        await send(web, "Signal", "approve", (await copied(shown, 2)).replace("your name", "ada"))
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)


async def test_a_run_is_found_by_what_it_waits_for_and_its_timeline_says_what_it_did(
    temporal: Temporal, web: Page
) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel([LOOKS_UP, CHARGES])):
        run = await temporal.start(clerk, "Order 42 is late")
        await pending(run)
        query = f"StandfastWaiting = 'approval' AND StandfastSession = '{temporal.session()}'"
        await web.goto(f"workflows?query={quote(query)}")
        await web.get_by_role("link", name=run.id).click()
        for text in ("turn 1", '{"order": 42} · safe to retry', "turn 2", "decision at c1"):
            await expect(web.get_by_role("list").get_by_text(text)).to_be_visible(timeout=SECONDS)
        await web.get_by_role("tab", name="Search Attributes").click()
        for text in ('"StandfastStatus": "waiting"', '"StandfastWaiting": [', '"StandfastDeadline": "20'):
            await expect(web.get_by_text(text)).to_be_visible(timeout=SECONDS)
        await web.get_by_role("tab", name="User Metadata").click()
        await expect(web.locator("iframe").first.content_frame.locator("main")).to_have_text("Order 42 is late")
