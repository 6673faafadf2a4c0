"""The page in a real browser: people decide and answer, the page stays current, and strangers' text stays text."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect
from support.questions import ask_user
from support.temporal_runs import Temporal, ask_models_once, pending, result
from support.transcripts import asks_for, call

from browser.conftest import LOOK_AWAY, faults_of
from standfast import Agent, Approval, ModelError, tool
from standfast.testing import ScriptedModel
from standfast.web import Access, Person

TOKEN = "ada's token, which is long enough"
PEOPLE = Access(people=[Person(name="ada", role="operator", token=TOKEN)])
LOCAL = Access(local=Person(name="ada", role="operator"))
XSS = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>"


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"]))
async def charge(amount: int) -> str:
    return f"charged {amount}"


CHARGES = asks_for(call("charge", "c1", amount=5))
ASKS = asks_for(call("ask_user", "q1", question=f"Which account? {XSS}"), text=XSS)


async def card(page: Page, run: str) -> Any:
    """Return what waits of a run, once it is on the page."""
    found = page.locator("article.card", has=page.get_by_role("link", name=run, exact=True))
    await expect(found).to_have_count(1, timeout=20_000)
    return found


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
async def test_a_person_signs_in_approves_with_an_edit_and_answers(
    temporal: Temporal, chromium: Browser, serve: Any, script: bool
) -> None:
    agent = Agent("clerk", tools=[charge, ask_user])
    model = ScriptedModel([CHARGES, ASKS, f"done {XSS}"])
    async with temporal.worker(agent, llm=model), serve(PEOPLE) as address:
        run = await temporal.start(agent, f"please {XSS}")
        await pending(run)
        page = await chromium.new_page(java_script_enabled=script)
        faults = await faults_of(page)
        await page.goto(address)
        await page.get_by_label("Token").fill("wrong wrong wrong wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
        faults.clear()  # a status 401 is one, for the console
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()
        await page.goto(f"{address}/runs/{run.id}")
        await page.get_by_label("Amount").fill("7")
        await page.get_by_label("Comment").fill("less")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
        await pending(run)
        await page.goto(f"{address}/runs/{run.id}")
        await page.get_by_label("Answer", exact=True).fill("savings")
        await page.get_by_role("button", name="Answer").click()
        await result(run)
        await page.goto(f"{address}/runs/{run.id}")
        await expect(page.locator("h1 .status")).to_have_text("complete")
        await expect(page.locator("#answer + div")).to_have_text(f"done {XSS}")
        await expect(page.locator("section", has=page.locator("#audit")).locator("tbody")).to_contain_text("ada")
        assert faults == []
    assert "charged 7" in (await temporal.messages())[2].content


async def test_a_rejection_and_a_resume_by_the_keyboard_alone(
    temporal: Temporal, chromium: Browser, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    agent = Agent("clerk", tools=[charge])
    model = ScriptedModel([CHARGES, ModelError("down", transient=True), "done"])
    async with temporal.worker(agent, llm=model), serve(LOCAL) as address:
        run = await temporal.start(agent)
        await pending(run)
        page = await chromium.new_page()
        await page.goto(f"{address}/runs/{run.id}")
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_text("Skip to the content")
        await page.get_by_role("button", name="Reject").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").filter(has_text="Rejected.")).to_be_visible()
        await expect(page.get_by_role("button", name="Try again")).to_be_visible(timeout=20_000)  # by itself
        await page.get_by_role("button", name="Try again").focus()
        await page.keyboard.press("Enter")
        await result(run)
        await expect(page.locator("h1 .status")).to_have_text("complete", timeout=20_000)
    assert "rejected by ada" in (await temporal.messages())[2].content


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
async def test_nobody_decides_by_the_enter_key_in_a_field(
    temporal: Temporal, chromium: Browser, serve: Any, script: bool
) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, "done"])), serve(LOCAL) as address:
        run = await temporal.start(agent)
        await pending(run)
        page = await chromium.new_page(java_script_enabled=script)
        await page.goto(f"{address}/runs/{run.id}")
        await page.get_by_label("Comment").fill("No, rejected")
        await page.get_by_label("Comment").press("Enter")
        await page.get_by_role("button", name="Reject").click()
        await expect(page.get_by_role("status").filter(has_text="Rejected.")).to_be_visible()
        await result(run)
    assert "No, rejected" in (await temporal.messages())[2].content


async def test_no_other_gate_comes_under_a_button_that_somebody_is_about_to_press(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    soon = tool(approval=Approval(message="Delete everything?", timeout="1h"), name="delete")(lambda: "deleted")
    agent, other = Agent("clerk", tools=[charge]), Agent("other", tools=[soon])
    models = {
        "clerk": ScriptedModel([CHARGES, "done"]),
        "other": ScriptedModel([asks_for(call("delete", "d1")), "done"]),
    }
    agents = (replace(agent, model="clerk"), replace(other, model="other"))
    async with temporal.worker(*agents, llm=lambda model: models[model]), serve(LOCAL) as address:
        run = await temporal.start(agents[0])
        page = await chromium.new_page()
        await page.goto(address)
        waiting = await card(page, run.id)
        await waiting.get_by_role("button", name="Approve").hover()
        before = await waiting.bounding_box()
        late = await temporal.start(agents[1], session="late")
        await expect(page.locator(".changed")).to_be_visible(timeout=20_000)
        assert await waiting.bounding_box() == before
        await waiting.get_by_role("button", name="Approve").click()
        await result(run)
        assert [item["name"] for item in await temporal.people.pending(late.id)] == ["d1"]


async def test_many_pages_can_be_open(temporal: Temporal, chromium: Browser, serve: Any) -> None:
    """A browser has six connections to a site; only the page that is looked at listens."""
    async with serve(LOCAL) as address:
        context = await chromium.new_context()
        for _ in range(9):
            page = await context.new_page()
            for earlier in context.pages[:-1]:
                await earlier.evaluate(LOOK_AWAY, True)
            await page.goto(address)
            await expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


async def test_an_open_page_stays_true_but_for_what_somebody_is_typing(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    agent = Agent("clerk", tools=[charge, ask_user])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES, ASKS, "done"])), serve(LOCAL) as address:
        page = await chromium.new_page()
        faults = await faults_of(page)
        await page.goto(address)
        run = await temporal.start(agent)
        waiting = await card(page, run.id)
        await waiting.get_by_label("Comment").fill("I am still thinking")
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await expect(page.locator(".changed")).to_be_visible(timeout=20_000)
        assert await waiting.get_by_label("Comment").input_value() == "I am still thinking"
        await page.get_by_role("link", name="Show it").click()
        waiting = await card(page, run.id)
        await expect(waiting.locator("h2")).to_contain_text(f"Which account? {XSS}")
        await temporal.people.answer(run.id, "savings")
        await expect(page.locator("article.card")).to_have_count(0, timeout=20_000)
        assert faults == []


async def test_another_site_cannot_decide_in_somebodys_name(temporal: Temporal, chromium: Browser, serve: Any) -> None:
    """Its form is sent by a signed-in person's browser, with the values that an attacker could know."""
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([CHARGES])), serve(PEOPLE) as address:
        run = await temporal.start(agent)
        (item,) = await pending(run)
        page = await chromium.new_page()
        await page.goto(address)
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text("ada · operator")).to_be_visible()
        fields = {"gate": "c1", "digest": item["digest"], "decision": "approve", "csrf": "0" * 64}
        inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
        form = f'<form method="post" action="{address}/runs/{run.id}/decide">{inputs}<button>Win</button></form>'

        async def evil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 200 It\r\nContent-Type: text/html\r\nContent-Length: {len(form)}\r\n\r\n"
            writer.write((head + form).encode())
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(evil, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await page.goto(f"http://localhost:{port}/")
            await page.get_by_role("button", name="Win").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()  # no cookie came along
        assert len(await pending(run)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_narrow_screen_shows_all_of_it(temporal: Temporal, chromium: Browser, serve: Any, scheme: Any) -> None:
    agent = Agent("clerk", tools=[charge])
    model = ScriptedModel([asks_for(call("charge", "c1", amount=10**60), text="x" * 500)])
    async with temporal.worker(agent, llm=model), serve(LOCAL) as address:
        run = await temporal.start(agent, "y" * 500)
        await pending(run)
        page = await chromium.new_page(viewport={"width": 360, "height": 700}, color_scheme=scheme)
        for path in ("/", "/runs", f"/runs/{run.id}"):
            await page.goto(address + path)
            widths = await page.locator("body").evaluate("body => [body.scrollWidth, body.clientWidth]")
            assert widths[0] <= widths[1], path
