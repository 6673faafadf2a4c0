"""Calls reported to the model as not run: no reset, cancel, restart or later message runs them."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.any_store import opener_of
from support.held_activities import Hold, Holding
from support.questions import ask
from support.resets import reset, resets, tasks
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    clerk,
    failure,
    has_ended,
    pending,
    result,
    until,
    waiting,
)
from support.told_calls import Shop, check_told
from support.transcripts import asks_for, call, tool_contents
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from standfast import Agent, InputError, Loop, Message, run, tool
from standfast.llm import ToolDescription
from standfast.runtime.call_ledger import NOT_RUN
from standfast.temporal import StandfastPlugin
from standfast.temporal.activities.gates import open_gates
from standfast.temporal.wire import names
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


async def ends(run: Run) -> None:
    with suppress(WorkflowFailureError):
        await result(run)


async def decides(temporal: Temporal, run: Run, decision: str) -> list[str]:
    """Decide on everything that waits, by as many people as it takes; return whose decisions count, at which gate."""
    counted = []
    for item in await waiting(run):
        for by in ("ada", "bob"):
            with suppress(InputError):
                await temporal.people.decide(run.id, item["name"], decision, by=by)
                counted.append(f"{by} at {item['name']}")
    return counted


async def rejected(temporal: Temporal, shop: Shop, run: Run) -> None:
    await pending(run, 2)
    await decides(temporal, run, "reject")


async def cancelled_at_a_gate(temporal: Temporal, shop: Shop, run: Run) -> None:
    await pending(run, 2)
    await run.cancel()


async def cancelled_before_it_started(temporal: Temporal, shop: Shop, run: Run) -> None:
    await until(shop.began.is_set)
    await run.cancel()
    shop.may_return.set()


async def denied(temporal: Temporal, shop: Shop, run: Run) -> None:
    await pending(run, 1)
    await temporal.people.resume(run.id, "abort", by="ada")


async def repaired(temporal: Temporal, shop: Shop, run: Run) -> None:
    """The model is asked again once there are dependencies: the calls have been answered before."""
    await pending(run, 1)
    shop.has_dependencies, shop.loses_them = True, False
    await temporal.people.resume(run.id, "retry", by="ada")


async def by_itself(temporal: Temporal, shop: Shop, run: Run) -> None:
    """Nothing has to be done."""


REASONS: dict[str, Callable[[Temporal, Shop, Run], Awaitable[None]]] = {
    "rejected": rejected,
    "cancelled at a gate": cancelled_at_a_gate,
    "cancelled before it started": cancelled_before_it_started,
    "unapproved": by_itself,
    "nothing": by_itself,  # both run
    "max iterations": by_itself,  # both run, and nothing after them
    "stopped": by_itself,
    "guardrail": by_itself,
    "too many": by_itself,
    "cut": by_itself,
    "not found": by_itself,
    "spent": by_itself,
    "denied": denied,
    "no dependencies": repaired,
    "too many gates": by_itself,
    "a stopped call is not approved": by_itself,
}


async def check(temporal: Temporal, shop: Shop) -> None:
    await check_told(temporal.store, temporal.session(), shop)


async def nothing(temporal: Temporal, run: Run) -> None:
    """Let the run end, try to approve what it shows, and let it go on where it has paused."""
    async with asyncio.timeout(30):
        while not await has_ended(run):
            for item in await waiting(run):
                if item["kind"] == "pause":
                    await run.signal("resume", {"name": item["name"]})
            assert await decides(temporal, run, "approve") == []


async def check_resets(
    temporal: Temporal, shop: Shop, first: Run, act: Callable[[Temporal, Run], Awaitable[None]]
) -> None:
    """Reset a run to each of its tasks, act on it, and check each time that what was told has happened."""
    async for again in resets(temporal, first):
        await act(temporal, again)
        await ends(again)
        await check_healthy(again)
        await check(temporal, shop)


async def cancel(temporal: Temporal, run: Run) -> None:
    await run.cancel()


async def terminate(temporal: Temporal, run: Run) -> None:
    with suppress(RPCError):
        await run.terminate()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("act", [nothing, cancel, terminate])
@pytest.mark.parametrize("reason", REASONS)
async def test_what_was_told_not_to_have_run_does_not_run_after_a_reset(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, reason: str, act: Callable[[Temporal, Run], Awaitable[None]]
) -> None:
    shop = Shop(reason)
    if reason == "too many gates":
        monkeypatch.setattr(open_gates, "GATES_BYTES", 10)
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await REASONS[reason](temporal, shop, first)
        await ends(first)
        await check(temporal, shop)
        assert (sorted(shop.paid) == ["c1", "c2"]) == (reason in ("nothing", "max iterations"))
        monkeypatch.undo()
        await check_resets(temporal, shop, first, act)
        on_temporal = await temporal.start(shop.agent, "more")
        await ends(on_temporal)
        await check(temporal, shop)
    await run(shop.agent, message="more", session_id=temporal.session(), store=temporal.store, llm=shop.llm)
    await check(temporal, shop)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "d1"])
@pytest.mark.parametrize("reason", ["rejected", "cancelled before it started", "spent", "guardrail", "unapproved"])
async def test_what_was_told_not_to_have_run_does_not_run_with_any_store(
    temporal: Temporal, request: pytest.FixtureRequest, tmp_path: Path, kind: str, reason: str
) -> None:
    temporal = replace(temporal, store=opener_of(kind, request, tmp_path)())
    shop = Shop(reason)
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await REASONS[reason](temporal, shop, first)
        await ends(first)
        await check(temporal, shop)
        await check_resets(temporal, shop, first, nothing)
        await ends(await temporal.start(shop.agent, "more"))
        await check(temporal, shop)
    assert sorted(shop.paid) != ["c1", "c2"]


@pytest.mark.slow
@pytest.mark.parametrize("act", [nothing, cancel, terminate])
async def test_calls_that_were_skipped_do_not_run_when_a_worker_has_their_tools_again(
    temporal: Temporal, act: Callable[[Temporal, Run], Awaitable[None]]
) -> None:
    shop = Shop("rejected")
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await pending(first, 2)
    async with (await temporal.elsewhere()).worker(Agent("shop"), llm=shop.llm):
        await decides(temporal, first, "approve")
        for _ in range(2):
            await until(lambda: _skips(first))
        await ends(first)
        await check(temporal, shop)
    told = tool_contents(await temporal.messages())
    assert all("Not run: skipped by ada: gone" in content for _, content in told)
    async with (await temporal.elsewhere()).worker(shop.agent, llm=shop.llm):
        await check_resets(temporal, shop, first, act)
        await ends(await temporal.start(shop.agent, "more"))
    assert tool_contents(await temporal.messages()) == told
    assert shop.paid == []


async def _skips(run: Run) -> bool:
    missing = [item for item in await waiting(run) if item["kind"] == "worker"]
    for item in missing:
        await run.signal("resume", {"action": "skip", "name": item["name"], "reason": "gone", "by": "ada"})
    return bool(missing)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("answer_timeout", [0.3, 60])
async def test_a_question_that_was_told_as_unanswered_takes_no_answer_after_a_reset(
    temporal: Temporal, answer_timeout: float
) -> None:
    """The answer is late, or the run is reset to before its question and then cancelled."""
    agent = Agent("a", tools=[ask], loop=Loop(answer_timeout=answer_timeout))
    llm = ScriptedModel([asks_for(call("ask", "c1", question="?")), *["done"] * 9])
    async with temporal.worker(agent, llm=llm):
        first = await temporal.start(agent)
        if answer_timeout == 60:
            await pending(first, 1)
            again = await reset(temporal, first, 1)
            await again.cancel()
            await ends(again)
        else:
            await ends(first)
        ((_, told),) = tool_contents(await temporal.messages())
        assert "Not run" not in told  # the call itself has run
        async for again in resets(temporal, first):
            taken = await answers(temporal, again)
            assert taken == []
            assert tool_contents(await temporal.messages()) == [("c1", told)]


async def answers(temporal: Temporal, run: Run) -> list[str]:
    """Answer what a run asks until it has ended; return the questions whose answers were taken."""
    taken = []

    async def has_answered() -> bool:
        for item in await waiting(run):
            with suppress(InputError):
                await temporal.people.answer(run.id, "late", tool_call_id=item["name"], by="ada")
                taken.append(item["name"])
        return await has_ended(run)

    await until(has_answered)
    return taken


async def test_calls_that_ran_before_a_reset_are_not_told_as_cancelled(temporal: Temporal) -> None:
    """Both have run: when the cancel comes, the ledger has the result of only one."""
    shop = Shop("cancelled while the second runs")
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await until(shop.began.is_set)
        again = await reset(temporal, first, len(await tasks(first)) - 1)
        await again.cancel()
        shop.may_return.set()
        await ends(again)
        async for again in resets(temporal, first):
            await again.cancel()
            await ends(again)
        await ends(await temporal.start(shop.agent, "more"))
        await check(temporal, shop)
    assert sorted(shop.paid) == ["c1", "c2"]


async def test_a_cancel_that_no_worker_has_seen_settles_by_the_ledger(temporal: Temporal) -> None:
    shop = Shop("nothing")
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await ends(first)
    async for again in resets(temporal, first):
        await again.cancel()
        async with (await temporal.elsewhere()).worker(shop.agent, llm=shop.llm):
            await ends(again)
            await check(temporal, shop)
    assert sorted(shop.paid) == ["c1", "c2"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("reason", ["cancelled at a gate", "unapproved", "cancelled before it started"])
async def test_a_run_that_was_told_before_another_message_is_reset_in_vain(temporal: Temporal, reason: str) -> None:
    shop = Shop(reason)
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await REASONS[reason](temporal, shop, first)
        await ends(first)
        await ends(await temporal.start(shop.agent, "more"))
        told = await temporal.messages()
        async for again in resets(temporal, first):
            await nothing(temporal, again)
            await ends(again)
            await check(temporal, shop)
    assert (await temporal.messages())[: len(told)] == told


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("reason", ["cancelled at a gate", "rejected", "cancelled before it started"])
async def test_two_resets_and_two_cancels_at_once_agree(temporal: Temporal, reason: str) -> None:
    shop = Shop(reason)
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await REASONS[reason](temporal, shop, first)
        last = len(await tasks(first)) - 1
        found = await asyncio.gather(*(reset(temporal, first, task) for task in (0, last)), return_exceptions=True)
        runs = [one for one in found if not isinstance(one, BaseException)]
        await asyncio.gather(*(one.cancel() for one in (first, *runs)), return_exceptions=True)
        shop.may_return.set()
        for one in (first, *runs):
            await ends(one)
        await ends(await temporal.start(shop.agent, "more"))
        await check(temporal, shop)


async def test_a_cancel_after_a_reset_to_the_beginning_answers_the_calls_that_the_run_had_asked_for(
    temporal: Temporal,
) -> None:
    """Its first run was ended by the reset before it could answer them, and this one has not asked the model yet."""
    shop = Shop("cancelled at a gate")
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await pending(first, 2)
    again = await reset(temporal, first, 0)
    holding = Holding()
    hold = holding.holds[again.id, names.KEEP] = Hold(names.KEEP)
    plugin = StandfastPlugin(agents=[shop.agent], store=temporal.store, llm=shop.llm)
    client = (await temporal.elsewhere()).client
    async with Worker(client, task_queue=temporal.name, plugins=[plugin], interceptors=[holding]):
        await until(hold.inside.is_set)
        await again.cancel()
        hold.go_on.set()
        await ends(again)
        await check_healthy(again)
        await ends(await temporal.start(shop.agent, "more"))
        await check(temporal, shop)
    assert shop.paid == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("at", [(0, -1), None], ids=["the first and the last task", "every task"])
async def test_a_gate_that_has_gone_on_as_new_does_not_open_again_after_its_call_was_answered(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, at: Sequence[int] | None
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 12)
    shop = Shop("cancelled at a gate")
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await pending(first, 2)
        await temporal.people.decide(first.id, "c1", "approve", by="ada")
        await until(lambda: has_moved(temporal, first))
        monkeypatch.undo()
        here = temporal.client.get_workflow_handle(first.id, result_type=dict)
        run_id = (await here.describe()).run_id
        moved: Run = temporal.client.get_workflow_handle(first.id, run_id=run_id, result_type=dict)
        await pending(moved, 2)
        await moved.cancel()
        await ends(moved)
        await check(temporal, shop)
        for run_of_chain in (moved, first):
            async for again in resets(temporal, run_of_chain, at):
                await nothing(temporal, again)
                await ends(again)
                await check(temporal, shop)
    assert shop.paid == []


async def has_moved(temporal: Temporal, first: Run) -> bool:
    described = await temporal.client.get_workflow_handle(first.id).describe()
    return bool(described.run_id != first.result_run_id)


async def test_a_run_stops_where_its_transcript_and_the_ledger_differ(temporal: Temporal) -> None:
    """As after a release that told of calls without entering that in the ledger."""
    shop = Shop("cancelled before it started")
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await cancelled_before_it_started(temporal, shop, first)
        await ends(first)
        with sqlite3.connect(str(temporal.store.path)) as db:
            db.execute("DELETE FROM tool_ledger WHERE owner = ?", (NOT_RUN,))
        again = await reset(temporal, first, 1)
        error = await failure(again)
    assert error.type == "SessionConflictError"
    assert "its transcript and the ledger differ on call c2 of tool pay" in error.message
    assert "Not run: the run was cancelled before this call started" in error.message
    assert "paid c2" in error.message


class _Answers(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        found = await self.next.execute_activity(input)
        return {"returned": "Ada", "call": found["call"]} if activity.info().activity_type == "ask" else found


class _ReportsAnAnswer(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Answers(next)


async def test_a_run_stops_before_it_asks_a_model_with_a_call_without_a_result(temporal: Temporal) -> None:
    """Providers refuse such a request. The run believes that the call has returned; the ledger has its question."""
    model = ScriptedModel([asks_for(call("ask", "c1", question="Who?")), "done"])
    plugin = StandfastPlugin(agents=[clerk], store=temporal.store, llm=model)
    interceptors = [_ReportsAnAnswer()]
    async with Worker(temporal.client, task_queue=temporal.name, plugins=[plugin], interceptors=interceptors):
        error = await failure(await temporal.start(clerk))
    assert error.type == "SessionConflictError"
    assert "call c1 of tool ask has no result" in error.message
    assert len(model.calls) == 1


async def test_an_agent_that_was_not_run_as_a_tool_does_not_begin_after_a_reset(temporal: Temporal) -> None:
    paid, began, may_return = [], threading.Event(), threading.Event()

    @tool
    def pay_slowly() -> str:
        """Pay."""
        began.set()
        may_return.wait()
        return "paid"

    @tool
    def pay_more() -> str:
        """Pay more."""
        paid.append("more")
        return "paid more"

    clerk = Agent("clerk", description="Pays.", tools=[pay_more])
    boss = Agent("boss", tools=[pay_slowly, clerk])

    def answer(messages: Sequence[Message], tools: Sequence[ToolDescription]) -> Any:
        if any(message.role == "tool" for message in messages):
            return "done"
        if any(one.name == "pay_more" for one in tools):
            return asks_for(call("pay_more", "m1"))
        return asks_for(call("pay_slowly", "c1"), call("clerk", "c2", message="pay"))

    async with temporal.worker(boss, clerk, llm=ScriptedModel(answer)):
        first = await temporal.start(boss)
        await until(began.is_set)
        await first.cancel()
        may_return.set()
        await ends(first)
        told = tool_contents(await temporal.messages())
        async for again in resets(temporal, first):
            await ends(again)
            await check_healthy(again)
            assert tool_contents(await temporal.messages()) == told
    assert "Not run" in told[1][1]
    assert paid == []
