"""Gates of in-process runs that wait in the store: people see and decide them where no process runs them."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.any_store import KINDS, opener_of, place_of
from support.gated_runs import check_killed_everywhere
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    AgentContext,
    Approval,
    Guardrail,
    InputError,
    SessionConflictError,
    ToolCall,
    is_interrupted,
    pipeline,
    run,
    run_pipeline,
    tool,
)
from standfast.stores import WaitFilter
from standfast.temporal import load_arguments
from standfast.temporal.client.clients import RunsInProcess
from standfast.testing import ScriptedModel

ASKED = "in-process:shop/s"
EVERYTHING = WaitFilter(namespace="default")


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    return opener_of(request.param, request, tmp_path)


class Shop:
    """An agent whose tool asks before it charges; `model` is asked once a turn."""

    def __init__(self, approval: Approval, **arguments: Any) -> None:
        charged = self.charged = list[int]()

        @tool(approval=approval)
        async def charge(cents: int, note: str = "") -> str:
            charged.append(cents)
            return f"charged {cents}"

        self.agent = Agent("shop", tools=[charge])
        asks = asks_for(call("charge", "c1", **{"cents": 5, **arguments}))
        self.model = ScriptedModel(lambda messages, tools: "done" if messages[-1].role == "tool" else asks)

    async def run(self, store: Any, **options: Any) -> Any:
        return await run(self.agent, llm=self.model, store=store, **{"session_id": "s", **options})


ADA_OR_BOB = Approval(message="Charge it?", approvers=["ada", "bob"], timeout="2d")


async def yes(store: Any, by: str = "ada", run: str = ASKED, **more: Any) -> None:
    """Decide on what waits, as another process sees it."""
    people = RunsInProcess(store)
    item = more.pop("item", None) or (await people.pending(run))[0]
    said = {"gate": item["name"], "decision": "approve", "by": by, "digest": item["digest"], **more}
    await people.decide(run, said)


async def test_a_call_waits_where_people_look_and_continues_by_what_they_decide_there(
    opened: Callable[[], Any],
) -> None:
    shop = Shop(ADA_OR_BOB)
    async with opened() as process, opened() as page:
        assert is_interrupted(await shop.run(process, message="Charge me.", user_id="eve", tenant_id="acme"))
        where = "in-process:shop/@acme/s"
        (item,) = await RunsInProcess(page).waiting(EVERYTHING)
        told = {name: item[name] for name in ("workflow_id", "agent", "session_id", "user_id", "tenant_id", "message")}
        assert list(told.values()) == [where, "shop", "s", "eve", "acme", "Charge it?"]
        assert (item["tool"], item["arguments"], item["approvers"]) == (
            "charge",
            {"cents": 5, "note": ""},
            ["ada", "bob"],
        )
        for by, more, why in (
            ("mallory", {}, "mallory may not decide it"),
            ("ada", {"digest": "of something else"}, "has changed"),
            ("ada", {"edit": {"cents": "many"}}, "edit: cents"),
            ("ada", {"remember": {"scope": "run", "until": "1d"}}, "approve only this one"),
        ):
            with pytest.raises(InputError, match=why):
                await yes(page, by, where, **more)
        for _ in range(2):  # the same again changes nothing
            await yes(page, "ada", where, edit={"cents": 4}, item=item)
        with pytest.raises(InputError, match="was decided already; ada has approved it"):
            await yes(page, "bob", where, item=item)
        assert (await RunsInProcess(page).waiting(EVERYTHING), shop.charged) == ([], [])  # nothing runs there
        done = await shop.run(process, user_id="eve", tenant_id="acme")
        assert (done.response, shop.charged, len(shop.model.calls)) == ("done", [4], 2)
        rows = await process.load_decisions("shop/@acme/s")
        assert [(row.by, row.refused is None) for row in rows] == [
            ("mallory", False), *[("ada", False)] * 3, ("ada", True), ("bob", False),
        ]  # fmt: skip


async def test_of_a_page_and_a_run_that_decide_at_once_one_counts(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval(approvers=["ada", "bob"]))
    async with opened() as process, contextlib.AsyncExitStack() as stack:
        pages = [await stack.enter_async_context(opened()) for _ in range(3)]
        (waits,) = (await shop.run(process, message="Charge me.")).approvals
        (item,) = await RunsInProcess(process).pending(ASKED)
        own = {"gate": "c1", "decision": "reject", "by": "bob", "digest": waits.digest}
        outcomes = await asyncio.gather(
            *(yes(page, "ada", item=item, edit={"cents": number + 1}) for number, page in enumerate(pages)),
            shop.run(process, decisions=[own]),
            return_exceptions=True,
        )
        for one in outcomes:
            assert not isinstance(one, BaseException) or isinstance(one, InputError | SessionConflictError), one
        rows = [row for row in await process.load_decisions("shop/s") if row.refused is None]
        assert len(rows) <= 1
        if not rows:
            await yes(pages[0], item=item)
            rows = [row for row in await process.load_decisions("shop/s") if row.refused is None]
        await shop.run(process)
        (counted,) = rows
        assert len(shop.charged) == (counted.decision == "approve")


@pytest.mark.slow(but=1)
async def test_a_decision_counts_after_a_deadline_that_passed_while_nobody_ran_if_it_was_made_before(
    opened: Callable[[], Any],
) -> None:
    shop = Shop(Approval(timeout=1.5))
    async with opened() as process, opened() as page:
        for session in ("s", "late"):
            await shop.run(process, message="Charge me.", session_id=session)
        late = "in-process:shop/late"
        (item,) = await RunsInProcess(page).pending(late)
        await yes(page)
        while datetime.now(UTC) <= datetime.fromisoformat(item["deadline"]):
            await asyncio.sleep(0.05)
        with pytest.raises(InputError, match="is no longer open: its deadline has passed"):
            await yes(page, run=late, item=item)
        assert await RunsInProcess(page).waiting(EVERYTHING) == []
        assert (await shop.run(process)).response == "done"
        assert (await shop.run(process, session_id="late")).response == "done"
        assert shop.charged == [5]


async def test_the_next_to_be_asked_are_shown_when_a_deadline_has_passed_that_nobody_noticed(
    opened: Callable[[], Any],
) -> None:
    shop = Shop(
        Approval(approvers=["ada"], timeout=0.1, on_timeout="escalate", escalate_to=Approval(approvers=["bob"]))
    )
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        while (item := (await RunsInProcess(page).pending(ASKED))[0])["approvers"] != ["bob"]:
            await asyncio.sleep(0.05)
        await yes(page, "bob", item=item)
        await shop.run(process)
        assert shop.charged == [5]


async def test_todays_declaration_has_the_last_word_when_the_run_continues(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval(approvers=["ada", "bob"]))
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        await yes(page)
        stricter = Shop(Approval(approvers=["bob"]))
        waits = await stricter.run(process)  # ada may not decide any more
        assert is_interrupted(waits)
        await yes(page, "bob")
        assert (await stricter.run(process)).response == "done"
        assert (stricter.charged, shop.charged) == ([5], [])
        rows = await process.load_decisions("shop/s")
        assert [(row.by, row.refused) for row in rows if row.refused is None or "may no longer" in row.refused] == [
            ("ada", None), ("ada", "gate c1: ada may no longer decide it; bob may"), ("bob", None),
        ]  # fmt: skip


async def test_several_must_approve_wherever_they_do(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval(approvers=["ada", "bob", "cy"], quorum=3))
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        await yes(page, "ada")
        (item,) = await RunsInProcess(page).pending(ASKED)
        assert (item["quorum"], item["approved_by"]) == (3, ["ada"])
        with pytest.raises(InputError, match="ada has approved it already"):
            await yes(page, "ada", comment="again", item=item)
        own = {"gate": "c1", "decision": "approve", "by": "bob", "digest": item["digest"]}
        assert is_interrupted(await shop.run(process, decisions=[own]))
        await yes(page, "cy")
        await shop.run(process)
        assert shop.charged == [5]


@pytest.mark.parametrize("edit", [None, {"cents": 700}], ids=["approved", "changed"])
async def test_those_of_a_guardrail_decide_there_after_those_of_the_tool_before_the_run_continues(
    opened: Callable[[], Any], edit: Any
) -> None:
    shop = Shop(Approval(message="Charge it?", approvers=["bob"]), cents=500)

    def large(ctx: AgentContext, asked: ToolCall) -> str:
        return "a large sum"

    stops = Guardrail(large, approval=Approval(approvers=["ada"]))
    shop.agent = replace(shop.agent, tool_guardrails=[stops])
    async with opened() as store:
        assert is_interrupted(await shop.run(store, message="Charge me."))
        await yes(store, "bob")
        (second,) = await RunsInProcess(store).pending(ASKED)
        assert second["approvers"] == ["ada"]
        assert "a large sum" in second["message"]
        await yes(store, "ada", edit=edit)
        again = await shop.run(store)
        refused = [row.refused for row in await store.load_decisions("shop/s") if row.refused is not None]
        if edit is None:
            assert (again.status, shop.charged, refused) == ("complete", [500], [])
        else:
            assert (is_interrupted(again), shop.charged) == (True, [])
            assert refused == ["gate c1: edit: these arguments need a different approval; reject it, and explain why"]


async def test_a_deleted_session_is_not_on_the_board_and_nobody_decides_there(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval())
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        (item,) = await RunsInProcess(page).pending(ASKED)
        await process.delete_session("s")
        assert await RunsInProcess(page).waiting(EVERYTHING) == []
        with pytest.raises(InputError, match="There is no run 'in-process:shop/s' in this store"):
            await yes(page, item=item)


async def test_a_decision_for_an_earlier_gate_of_the_same_id_does_not_count(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval())
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        (old,) = await RunsInProcess(page).pending(ASKED)
        await yes(page)
        await shop.run(process)
        await shop.run(process, message="Once more.")
        (new,) = await RunsInProcess(page).pending(ASKED)
        said = {"gate": new["name"], "decision": "approve", "by": "ada", "digest": old["digest"]}
        with pytest.raises(InputError, match="has changed"):
            await RunsInProcess(page).decide(ASKED, said)
        assert shop.charged == [5]
        await yes(page)
        await shop.run(process)
        assert shop.charged == [5, 5]


async def test_a_run_at_work_is_not_decided_on_in_the_meantime(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval())
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        (item,) = await RunsInProcess(page).pending(ASKED)
        assert await process.hold("s")
        with pytest.raises(SessionConflictError, match="is active; try again"):
            await yes(page, item=item)
        await process.let_go("s")
        await yes(page, item=item)


async def test_large_arguments_are_read_whole_from_the_store(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval(), note="ä" * 20_000)
    async with opened() as process, opened() as page:
        await shop.run(process, message="Charge me.")
        (item,) = await RunsInProcess(page).pending(ASKED)
        assert (len(item["arguments"]), item["size"] > 20_000) == (41, True)
        assert await load_arguments(page, item) == {"cents": 5, "note": "ä" * 20_000}
        await yes(page, item=item)


async def test_the_gates_of_a_pipeline_and_of_its_agents_are_decided_there_too(opened: Callable[[], Any]) -> None:
    shop = Shop(Approval())
    review = (
        pipeline("review", input=str)
        .step("first", approval=Approval(message="Begin?", approvers=["ada"]))
        .step("sell", agent=shop.agent, input=lambda ctx: ctx.input)
        .step("last", approval=Approval(message="Send it?"))
        .build()
    )

    async def go(**given: Any) -> Any:
        return await run_pipeline(review, store=process, run_key="k", llm=shop.model, **given)

    async with opened() as process, opened() as page:
        people = RunsInProcess(page)
        assert (await go(input="Sell it.")).pending_step == "first"
        (item,) = await people.waiting(EVERYTHING)
        assert (item["workflow_id"], item["name"], item["message"]) == ("in-process:review/k", "first", "Begin?")
        with pytest.raises(InputError, match="bob may not decide it"):
            await yes(page, "bob", item["workflow_id"])
        await yes(page, "ada", item["workflow_id"])
        assert (await go()).pending_step == "sell/c1"
        (item,) = await people.waiting(EVERYTHING)
        assert (item["agent"], item["name"]) == ("shop", "c1")
        await yes(page, run=item["workflow_id"])
        assert (await go()).pending_step == "last"
        (item,) = await people.waiting(EVERYTHING)
        said = {"gate": "last", "decision": "reject", "by": "cy", "digest": item["digest"], "comment": "not now"}
        await people.decide(item["workflow_id"], said)
        ended = await go()
        assert (ended.error_reason, shop.charged) == ("approval-rejected", [5])
        assert await people.waiting(EVERYTHING) == []
        assert [row.by for row in await process.load_decisions("review/k")] == ["bob", "ada", "cy"]


async def test_a_message_is_heard_after_what_people_have_decided_elsewhere(opened: Callable[[], Any]) -> None:
    shop = Shop(ADA_OR_BOB)
    async with opened() as process, opened() as page:
        assert is_interrupted(await shop.run(process, message="Charge me."))
        with pytest.raises(InputError, match="waits for approval of call c1: give decisions="):
            await shop.run(process, message="And?")
        await yes(page)
        again = await shop.run(process, message="And?")
        roles = [message.role for message in await page.load_messages("s")]
    assert (is_interrupted(again), shop.charged) == (True, [5])
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("sqlite", 12),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("sqlite", 1), ("postgres", 4), ("d1", 12))),
    ],
)
def test_a_run_that_is_killed_between_its_gates_asks_and_runs_each_call_once(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, every: int
) -> None:
    check_killed_everywhere("support.gated_runs", tmp_path, lambda where: place_of(kind, request, where), every)
