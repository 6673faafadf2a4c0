"""Edits before an approval, in a real browser: also without JavaScript, and on a narrow screen."""

from typing import Any, Literal

import pytest
from playwright.async_api import Browser, FloatRect, Locator, Page, expect
from pydantic import BaseModel, Field
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from browser.test_accessibility import faults_here
from browser.test_page import LOCAL
from standfast import Agent, Approval, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


class Sender(BaseModel):
    name: str
    since: str | None = None


class Letter(BaseModel):
    """What is sent."""

    to: str = Field(description="One person.")
    text: str
    copies: int = Field(default=1, ge=1)
    price: float = 1.0
    urgent: bool = True
    kind: Literal["letter", "card"] = "letter"
    tags: list[str] = []
    sender: Sender
    reply_to: Sender | None = None
    note: str | None = None
    empty: str = ""
    big: int = 0
    day: str = Field(default="2026-1-5", json_schema_extra={"format": "date"})
    mail: str = Field(default=" a b@bücher.example ", json_schema_extra={"format": "email"})
    hidden: str = "a\r\nb\u202e\u200b"
    hebrew: str = "שלום 12 עולם"
    rows: list[dict[str, float]] = [{"n": 1.0}]


LETTER = Letter(
    to="Ada",
    text="\nDear Ada,\n\n  yours\t\n",
    tags=["a", " b"],
    sender=Sender(name="</textarea>Eve"),
    big=10**40,
    copies=3,
)
ok = Approval(message="Send it?", edit=Letter, show=lambda ctx: {"letter": LETTER})
letters = pipeline("letters").step("ok", approval=ok).build()


async def waits(temporal: Temporal) -> Any:
    run = await start_pipeline(temporal.client, letters, task_queue=temporal.name, run_key=temporal.session())
    await until(lambda: _is_at_gate(run))
    return run


async def _is_at_gate(run: Any) -> bool:
    return [item["name"] for item in await pending(run)] == ["ok"]


async def edit_of(temporal: Temporal, run: Any) -> Any:
    rows = await temporal.store.load_decisions((await run.describe()).raw_info.first_run_id)
    (row,) = [one for one in rows if one.refused is None]
    return row.edit


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
async def test_a_form_that_nobody_touches_changes_nothing(
    temporal: Temporal, chromium: Browser, serve: Any, script: bool
) -> None:
    async with temporal.worker(pipelines=[letters], llm=ScriptedModel([])), serve(LOCAL) as address:
        run = await waits(temporal)
        page = await chromium.new_page(java_script_enabled=script)
        await page.goto(f"{address}/runs/{run.id}")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
        assert (await result(run))["outputs"]["ok"] == LETTER.model_dump(mode="json")
        assert await edit_of(temporal, run) is None


@pytest.mark.parametrize("script", [True, False], ids=["with JavaScript", "without"])
async def test_one_field_is_changed_by_the_keyboard_and_nothing_else(
    temporal: Temporal, chromium: Browser, serve: Any, script: bool
) -> None:
    async with temporal.worker(pipelines=[letters], llm=ScriptedModel([])), serve(LOCAL) as address:
        run = await waits(temporal)
        page = await chromium.new_page(java_script_enabled=script)
        await page.goto(f"{address}/runs/{run.id}")
        # Cards are low: short fields share a row, and the comment shares one with the buttons.
        short, long = await box_of(page.locator("[name$='.to']")), await box_of(page.locator("[name$='.text']"))
        assert 2 * short["width"] < long["width"]
        comment = await box_of(page.get_by_label("Comment"))
        approve = await box_of(page.get_by_role("button", name="Approve", exact=True))
        assert approve["y"] < comment["y"] + comment["height"]
        await page.get_by_label("Copies").focus()
        await page.keyboard.press("Control+a")
        await page.keyboard.type("many")
        await page.get_by_label("Urgent").focus()
        await page.keyboard.press("Space")
        await page.get_by_role("button", name="Approve").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("'many' is not a number")
        copies = page.get_by_label("Copies")
        await expect(copies).to_have_value("many")
        await expect(copies).to_have_accessible_description("Copies: 'many' is not a number. Nothing was approved.")
        await copies.fill("0")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_label("Copies")).to_have_accessible_description(
            "Input should be greater than or equal to 1"
        )
        await expect(page.get_by_label("Urgent")).not_to_be_checked()
        await page.get_by_label("Copies").fill("4")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
        changed = {**LETTER.model_dump(mode="json"), "copies": 4, "urgent": False}
        assert (await result(run))["outputs"]["ok"] == changed
        assert await edit_of(temporal, run) == changed


async def test_the_json_is_changed_instead(temporal: Temporal, chromium: Browser, serve: Any) -> None:
    @tool(approval=Approval(message="Charge?"))
    async def charge(amount: int, note: str = "") -> str:
        return f"charged {amount}"

    agent, model = Agent("clerk", tools=[charge]), ScriptedModel([asks_for(call("charge", "c1", amount=5)), "done"])
    async with temporal.worker(agent, llm=model), serve(LOCAL) as address:
        run = await temporal.start(agent)
        await pending(run)
        page = await chromium.new_page()
        await page.goto(f"{address}/")
        await page.get_by_text("Arguments as JSON").click()
        await page.get_by_label("JSON", exact=True).fill('{"amount": 7}')
        await page.get_by_label("Amount").fill("8")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("alert")).to_contain_text("changed differently")
        await expect(page.get_by_label("JSON", exact=True)).to_have_value('{"amount": 7}')  # unfolded
        await page.get_by_label("Amount").fill("5")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("status").filter(has_text="Approved.")).to_be_visible()
        await result(run)
    assert "charged 7" in (await temporal.messages())[2].content


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_machine_finds_nothing_wrong_with_the_form_also_on_a_narrow_screen(
    temporal: Temporal, chromium: Browser, serve: Any, scheme: Any
) -> None:
    async with temporal.worker(pipelines=[letters], llm=ScriptedModel([])), serve(LOCAL) as address:
        run = await waits(temporal)
        page = await chromium.new_page(viewport={"width": 360, "height": 700}, color_scheme=scheme)
        for path in ("/", f"/runs/{run.id}"):
            await page.goto(address + path)
            await page.get_by_text("letter as JSON").click()
            assert [await faults_here(page), await is_wide(page)] == [[], False]
        await page.get_by_label("Copies").fill("many")
        await page.get_by_role("button", name="Approve", exact=True).click()
        await expect(page.get_by_role("alert")).to_be_visible()
        assert [await faults_here(page), await is_wide(page)] == [[], False]


async def box_of(part: Locator) -> FloatRect:
    box = await part.bounding_box()
    assert box is not None
    return box


async def is_wide(page: Page) -> bool:
    wide: bool = await page.locator("body").evaluate("body => body.scrollWidth > body.clientWidth")
    return wide


async def test_a_page_keeps_what_somebody_chooses_and_follows_what_nobody_has_touched(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    asked = Approval(message="Send it?", edit=Letter, show=lambda ctx: LETTER, approvers=["ada", "bob"], quorum=2)
    async with (
        temporal.worker(pipelines=[pipeline("letters").step("ok", approval=asked).build()], llm=ScriptedModel([])),
        serve(LOCAL) as address,
    ):
        run = await waits(temporal)
        (item,) = await pending(run)
        touched, other = await chromium.new_page(), await chromium.new_page()
        for page in (touched, other):
            await page.goto(f"{address}/runs/{run.id}")
        await touched.get_by_label("Kind").select_option("card")
        await touched.locator("h1").click()  # nothing has the focus
        edit = {**LETTER.model_dump(mode="json"), "to": "Bob"}
        await temporal.people.decide(run.id, "ok", "approve", by="bob", digest=item["digest"], edit=edit)
        await expect(other.get_by_label("To", exact=True)).to_have_value("Bob", timeout=20_000)
        await expect(touched.locator(".changed")).to_be_visible(timeout=20_000)
        await expect(touched.get_by_label("Kind")).to_have_value('"card"')


async def test_a_card_that_was_changed_is_not_decided_among_several(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    """Its change would be dropped: several at once are decided as they were shown."""
    async with temporal.worker(pipelines=[letters], llm=ScriptedModel([])), serve(LOCAL) as address:
        await waits(temporal)
        page = await chromium.new_page()
        await page.goto(f"{address}/")
        choice = page.get_by_label("Select", exact=True)
        await choice.check()
        await page.get_by_label("Urgent").uncheck()
        await expect(choice).to_be_disabled()
        await expect(choice).not_to_be_checked()
        await page.get_by_label("All on this page").check()
        await expect(page.locator('#several [value="approve"]')).to_be_hidden()
        await page.get_by_label("Urgent").check()
        await expect(choice).to_be_enabled()
        await page.get_by_label("Copies").fill("4")
        await expect(choice).to_be_disabled()


@tool(approval=Approval(message="Refund it?", approvers=["ada", "bob"], quorum=2))
async def refund(amount: float, to: str) -> str:
    """Refund."""
    return f"{amount} to {to}"


async def test_an_edit_is_on_the_card_of_the_next_approver_and_in_the_timeline(
    temporal: Temporal, chromium: Browser, serve: Any
) -> None:
    agent = Agent("refunds", tools=[refund])
    model = ScriptedModel([asks_for(call("refund", "c1", amount=129.9, to="shop")), "done"])
    async with temporal.worker(agent, llm=model), serve(LOCAL) as address:
        run = await temporal.start(agent)
        await pending(run)
        page = await chromium.new_page()
        await page.goto(f"{address}/runs/{run.id}")
        await page.get_by_label("Amount").fill("80")
        await page.get_by_role("button", name="Approve", exact=True).click()
        card = page.get_by_role("article")
        await expect(card.get_by_text("Edited by ada: amount: 129.9 → 80")).to_be_visible()
        await expect(card).to_contain_text("1 of 2 have approved: ada")
        await expect(card.get_by_label("Amount")).to_have_value("80")
        assert await faults_here(page) == []
        await temporal.people.decide(run.id, "c1", "approve", by="bob")
        await result(run)
        await page.reload()
        ran = page.get_by_role("listitem").filter(has_text="Edited by ada").filter(has_text="80.0 to shop")
        await expect(ran).to_be_visible()
