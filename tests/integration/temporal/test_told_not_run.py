"""Calls that the model was told have not run: no reset, cancel, restart or next message makes them run after all."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from support.resets import reset, tasks
from support.temporal_runs import Run, Temporal, check_healthy, has_ended, pending, result, until, waiting
from support.transcripts import DURABILITY, asks_for, call
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from standfast import (
    Agent,
    Approval,
    InputError,
    LLMResponse,
    Loop,
    Message,
    TerminalError,
    ToolContext,
    Tripped,
    run,
    tool,
)
from standfast.runtime.dispatches import last_dispatch
from standfast.testing import ScriptedModel
from standfast.tools.attempts import call_key, turn_scope

TEAM = Approval(approvers=["ada", "bob"], quorum=2)


class Shop:
    """An agent that asks for two payments at once, and an account of what was paid."""

    def __init__(self, name: str) -> None:
        self.paid: list[str] = []
        self.began, self.may_return = threading.Event(), threading.Event()
        self.told: list[list[Message]] = []  # the results that the model has read, at each call
        options: dict[str, Any] = {"loop": Loop(max_tool_calls=1)} if name == "too many" else {}

        async def paying(ctx: ToolContext) -> str:
            self.paid.append(ctx.tool_call_id)
            return f"paid {ctx.tool_call_id}"

        @tool
        async def pay(ctx: ToolContext) -> str:
            """Pay."""
            return await paying(ctx)

        @tool(approval=TEAM)
        async def pay_if_approved(ctx: ToolContext) -> str:
            """Pay, if two people approve."""
            return await paying(ctx)

        @tool(approval=Approval(approvers=["ada", "bob"], quorum=2, timeout=0.3))
        async def pay_soon(ctx: ToolContext) -> str:
            """Pay, if two people approve at once."""
            return await paying(ctx)

        @tool
        def pay_slowly(ctx: ToolContext) -> str:
            """Pay, and return when that is let go."""
            self.paid.append(ctx.tool_call_id)
            self.began.set()
            self.may_return.wait()
            return f"paid {ctx.tool_call_id}"

        @tool
        async def fail(ctx: ToolContext) -> str:
            """Fail for good."""
            raise TerminalError("closed")

        def no_second(context: Any, asked: Any) -> Tripped | None:
            return Tripped("only one") if asked.id == "c2" else None

        if name == "guardrail":
            options["tool_guardrails"] = [no_second]
        if name == "stopped":
            options["on_terminal_tool_error"] = "fail"
        self.asks = {
            "cancelled before it started": ("pay_slowly", "pay"),
            "unapproved": ("pay_soon", "pay"),
            "stopped": ("fail", "pay"),
            "nothing": ("pay", "pay"),
            "guardrail": ("pay", "pay"),
            "too many": ("pay", "pay"),
            "cut": ("pay", "pay"),
            "not found": ("pay", "ghost"),
        }.get(name, ("pay_if_approved", "pay_if_approved"))
        self.stop_reason = "max-tokens" if name == "cut" else None
        self.agent = Agent("shop", tools=[pay, pay_if_approved, pay_soon, pay_slowly, fail], **options)
        self.llm = ScriptedModel(self._answer)

    def _answer(self, messages: Sequence[Message], tools: Any) -> Any:
        results = [message for message in messages if message.role == "tool"]
        if not results:
            first, second = self.asks
            asked = asks_for(call(first, "c1"), call(second, "c2"))
            return LLMResponse(tool_calls=asked.tool_calls, stop_reason=self.stop_reason)  # type: ignore[arg-type]
        self.told.append(results)
        return "done"


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


async def by_itself(temporal: Temporal, shop: Shop, run: Run) -> None:
    """Nothing has to be done."""


REASONS: dict[str, Callable[[Temporal, Shop, Run], Awaitable[None]]] = {
    "rejected": rejected,
    "cancelled at a gate": cancelled_at_a_gate,
    "cancelled before it started": cancelled_before_it_started,
    "unapproved": by_itself,
    "nothing": by_itself,  # both run
    "stopped": by_itself,
    "guardrail": by_itself,
    "too many": by_itself,
    "cut": by_itself,
    "not found": by_itself,
}


async def check(temporal: Temporal, shop: Shop) -> None:
    """Check that what was told of each call is what happened, in the transcript and in the ledger."""
    messages = await temporal.messages()
    session = await temporal.store.load_session(temporal.session())
    assert session is not None
    (asked,) = [number for number, message in enumerate(messages) if message.tool_calls]
    scope = turn_scope(session.key, session.last_seq - (len(messages) - 1 - asked))
    for position, one in enumerate(messages[asked].tool_calls or ()):
        (told,) = [message for message in messages if message.tool_call_id == one.id]
        count = shop.paid.count(one.id)
        if told.content == f"paid {one.id}":
            assert count == 1, f"{one.id} was paid {count} times"
        elif DURABILITY in told.content:
            assert count <= 1
        else:
            assert count == 0 or (one.id == "c1" and shop.asks[0] == "fail"), (
                f"{told.content}, and it was paid {count} times"
            )
        last = await last_dispatch(temporal.store, scope, position, one.id)
        entry = (await temporal.store.load_entries(scope, [key := call_key(position, one.id, last)])).get(key)
        assert entry is not None, f"{one.id} is not in the ledger: {told.content}"
        assert entry.result is not None, f"{one.id} has no result in the ledger: {told.content}"
        said = next(iter(json.loads(entry.result).values()))
        assert said in told.content or said in json.loads(told.content).get("error", ""), (entry.result, told.content)
    stored = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    for results in shop.told:
        assert {message.tool_call_id: message.content for message in results} == stored


async def nothing(temporal: Temporal, run: Run) -> None:
    """Let the run end, and try to approve what it shows."""
    async with asyncio.timeout(30):
        while not await has_ended(run):
            assert await decides(temporal, run, "approve") == []


async def cancel(temporal: Temporal, run: Run) -> None:
    await run.cancel()


async def terminate(temporal: Temporal, run: Run) -> None:
    with suppress(RPCError):
        await run.terminate()


@pytest.mark.parametrize("act", [nothing, cancel, terminate])
@pytest.mark.parametrize("reason", REASONS)
async def test_what_was_told_not_to_have_run_does_not_run_after_a_reset(
    temporal: Temporal, reason: str, act: Callable[[Temporal, Run], Awaitable[None]]
) -> None:
    shop = Shop(reason)
    async with temporal.worker(shop.agent, llm=shop.llm):
        first = await temporal.start(shop.agent)
        await REASONS[reason](temporal, shop, first)
        await ends(first)
        await check(temporal, shop)
        one: Run = temporal.client.get_workflow_handle(first.id, run_id=first.result_run_id)
        for task in range(len(await tasks(one))):
            try:
                again = await reset(temporal, one, task)
            except RPCError as error:
                if "must be at the boundary" in error.message:
                    continue
                raise
            await act(temporal, again)
            await ends(again)
            await check_healthy(again)
            await check(temporal, shop)
        on_temporal = await temporal.start(shop.agent, "more")
        await ends(on_temporal)
        await check(temporal, shop)
    await run(shop.agent, message="more", session_id=temporal.session(), store=temporal.store, llm=shop.llm)
    await check(temporal, shop)
