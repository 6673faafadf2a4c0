"""Cancelled runs: known results are stored, effects are not repeated, and unstarted calls are reported."""

import asyncio
import json
from typing import Any

import pytest
from support.cancellations import Place, cancelled, go_on, staying, stored_results
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    InterruptError,
    Loop,
    Message,
    RetryPolicy,
    StoreError,
    Tool,
    ToolContext,
    is_interrupted,
    run,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


def counting(ran: list[str], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def note(text: str) -> str:
        ran.append(text)
        return text

    return note


# --- in the model ---


async def test_a_run_cancelled_in_its_first_model_call_leaves_nothing(store: SQLiteStore) -> None:
    place = Place()
    model = ScriptedModel(lambda messages, tools: place.stay())
    await cancelled(run(Agent("a"), message="go", session_id="s", store=store, llm=model), place.reached)
    assert await store.load_session("s") is None
    result = await go_on(Agent("a"), store, message="go")
    assert [message.content for message in result.messages] == ["go", "done"]


async def test_a_run_cancelled_in_a_later_model_call_keeps_the_steps_before_it(store: SQLiteStore) -> None:
    place, ran = Place(), list[str]()
    agent = Agent("a", tools=[counting(ran)])

    def answer(messages: list[Message], tools: Any) -> Any:
        return place.stay() if messages[-1].role == "tool" else asks_for(call("note", "c1", text="x"))

    await cancelled(run(agent, message="go", session_id="s", store=store, llm=ScriptedModel(answer)), place.reached)
    assert [message.role for message in await store.load_messages("s")] == ["user", "assistant", "tool"]
    assert (await go_on(agent, store)).status == "complete"
    assert ran == ["x"]


async def test_a_cancelled_run_leaves_its_session_free(store: SQLiteStore) -> None:
    place = Place()
    model = ScriptedModel(lambda messages, tools: place.stay())
    await cancelled(run(Agent("a"), message="go", session_id="s", store=store, llm=model), place.reached)
    assert await store.hold("s")
    await store.let_go("s")


# --- in a handler ---


async def test_a_cancelled_call_with_effects_has_an_unknown_outcome_and_is_not_run_again(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place)])
    model = ScriptedModel([asks_for(call("stay", "c1"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    (result,) = await stored_results(store)
    payload = json.loads(result.content)
    assert (result.status, payload["kind"], payload["toolName"], payload["toolCallId"]) == (
        "failed",
        "tool-durability-error",
        "stay",
        "c1",
    )
    assert (await go_on(agent, store)).status == "complete"
    assert place.visits == 1


async def test_a_cancelled_safe_call_is_recorded_as_cancelled(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place, safe_to_retry=True)])
    model = ScriptedModel([asks_for(call("stay", "c1"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    (result,) = await stored_results(store)
    assert (result.status, result.tool_call_id) == ("cancelled", "c1")
    assert list(json.loads(result.content)) == ["error"]


async def test_the_model_of_the_next_run_reads_the_outcome_of_every_call(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place), counting([])])
    model = ScriptedModel([asks_for(call("note", "c1", text="x"), call("stay", "c2"), call("note", "c3", text="y"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    next_model = ScriptedModel(["done"])
    await run(agent, message="what now?", session_id="s", store=store, llm=next_model)
    seen = next_model.calls[0].messages
    assert [message.role for message in seen] == ["system", "user", "assistant", "tool", "tool", "tool", "user"]
    assert [message.tool_call_id for message in seen if message.role == "tool"] == ["c1", "c2", "c3"]


async def test_finished_results_are_kept_and_calls_never_started_are_cancelled(store: SQLiteStore) -> None:
    place, ran = Place(), list[str]()
    agent = Agent("a", tools=[staying(place, safe_to_retry=True), counting(ran)])
    model = ScriptedModel([asks_for(call("note", "c1", text="x"), call("stay", "c2"), call("note", "c3", text="y"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    results = await stored_results(store)
    assert [message.status for message in results] == ["completed", "cancelled", "cancelled"]
    assert results[0].content == "x"
    assert json.loads(results[2].content)["error"].startswith("Not run: ")
    await go_on(agent, store)
    assert ran == ["x"]


async def test_a_handler_that_finishes_in_spite_of_the_cancel_keeps_its_result(store: SQLiteStore) -> None:
    place = Place()

    @tool
    async def post() -> str:
        try:
            await place.stay()
        except asyncio.CancelledError:
            return "posted"
        return "never"

    agent = Agent("a", tools=[post])
    model = ScriptedModel([asks_for(call("post", "c1"), call("post", "c2"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    results = await stored_results(store)
    assert [message.status for message in results] == ["completed", "cancelled"]
    assert results[0].content == "posted"
    assert place.visits == 1


async def test_a_handler_that_turns_the_cancel_into_an_error_is_not_tried_again(store: SQLiteStore) -> None:
    place, attempts = Place(), list[int]()

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.001))
    async def look(ctx: ToolContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt > 1:
            return "tried again"
        try:
            return await place.stay()
        except asyncio.CancelledError:
            raise ValueError("gave up") from None

    agent = Agent("a", tools=[look])
    model = ScriptedModel([asks_for(call("look", "c1"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    assert attempts == [1]
    assert [message.tool_call_id for message in await stored_results(store)] == ["c1"]


async def test_a_call_cancelled_between_two_attempts_is_recorded_as_cancelled(store: SQLiteStore) -> None:
    failed = asyncio.Event()

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval="1d", maximum_interval="1d"))
    async def look() -> None:
        failed.set()
        raise ValueError("busy")

    agent = Agent("a", tools=[look])
    model = ScriptedModel([asks_for(call("look", "c1"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), failed)
    assert [message.status for message in await stored_results(store)] == ["cancelled"]


async def test_a_second_cancel_does_not_undo_what_is_recorded(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place)])
    model = ScriptedModel([asks_for(call("stay", "c1"))])
    task = asyncio.create_task(run(agent, message="go", session_id="s", store=store, llm=model))
    async with asyncio.timeout(30):
        await place.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [message.tool_call_id for message in await stored_results(store)] == ["c1"]


# --- between parallel calls ---


async def test_parallel_calls_are_recorded_each_with_its_outcome(store: SQLiteStore) -> None:
    place, quick_done, both_started = Place(), asyncio.Event(), asyncio.Barrier(3)
    started: list[str] = []

    @tool(parallel=True)
    async def quick() -> str:
        quick_done.set()
        return "quick"

    @tool(parallel=True)
    async def slow(ctx: ToolContext) -> str:
        started.append(ctx.tool_call_id)
        await quick_done.wait()
        await both_started.wait()
        return await place.stay()

    agent = Agent("a", tools=[quick, slow], loop=Loop(max_tool_concurrency=2))
    model = ScriptedModel([asks_for(call("quick", "c1"), *(call("slow", f"c{n}") for n in range(2, 5)))])
    task = asyncio.create_task(run(agent, message="go", session_id="s", store=store, llm=model))
    async with asyncio.timeout(30):
        await both_started.wait()
        await place.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    results = await stored_results(store)
    assert [message.tool_call_id for message in results] == ["c1", "c2", "c3", "c4"]
    assert [message.status for message in results] == ["completed", "failed", "failed", "cancelled"]
    assert [json.loads(message.content).get("kind") for message in results[1:]] == [
        "tool-durability-error",
        "tool-durability-error",
        None,
    ]
    assert (await go_on(agent, store)).status == "complete"
    assert started == ["c2", "c3"]


async def test_a_cancelled_run_leaves_no_handler_running(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place, parallel=True)])
    model = ScriptedModel([asks_for(call("stay", "c1"), call("stay", "c2"))])
    before = asyncio.all_tasks()
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    assert asyncio.all_tasks() == before


# --- what a cancel does not mean ---


async def test_a_cancel_is_not_a_sign_of_being_stuck(store: SQLiteStore) -> None:
    place = Place()
    agent = Agent("a", tools=[staying(place)], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    model = ScriptedModel([asks_for(call("stay", "c1"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    result = await run(agent, session_id="s", store=store, llm=ScriptedModel(["done"]))
    assert not is_interrupted(result)
    assert result.response == "done"


async def test_a_cancel_reaches_the_invoked_agent_first(store: SQLiteStore) -> None:
    place, order = Place(), list[str]()

    @tool
    async def inner() -> None:
        try:
            await place.stay()
        except asyncio.CancelledError:
            order.append("child")
            raise

    child = Agent("child", tools=[inner])

    @tool
    async def delegate(ctx: ToolContext) -> None:
        try:
            await ctx.agents.invoke(child, message="go")
        finally:
            order.append("parent")

    agent = Agent("parent", tools=[delegate])
    model = ScriptedModel([asks_for(call("delegate", "c1")), asks_for(call("inner", "c1"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    assert order == ["child", "parent"]
    (result,) = await stored_results(store)
    assert json.loads(result.content)["kind"] == "tool-durability-error"


async def test_questions_of_a_cancelled_turn_are_still_asked(store: SQLiteStore) -> None:
    place = Place()

    @tool
    async def ask() -> None:
        raise InterruptError("Really?")

    agent = Agent("a", tools=[ask, staying(place)])
    model = ScriptedModel([asks_for(call("ask", "c1"), call("stay", "c2"))])
    await cancelled(run(agent, message="go", session_id="s", store=store, llm=model), place.reached)
    asked = await run(agent, session_id="s", store=store, llm=ScriptedModel([]))
    assert is_interrupted(asked)
    assert (asked.question, asked.checkpoint.pending_tool_use_id) == ("Really?", "c1")


async def test_a_cancel_is_a_cancel_also_when_the_store_then_fails() -> None:
    class Failing(SQLiteStore):
        writes = 0

        async def append_messages_atomic(self, *args: Any, **options: Any) -> int:
            self.writes += 1
            if self.writes > 1:
                raise StoreError("gone")
            return await super().append_messages_atomic(*args, **options)

    inside = asyncio.Event()

    @tool
    async def post() -> None:
        """Post."""
        inside.set()
        await asyncio.Event().wait()

    model = ScriptedModel([{"tool_calls": [{"id": "c1", "name": "post"}]}])
    async with Failing(":memory:") as failing:
        running = asyncio.create_task(run(Agent("a", tools=[post]), message="go", store=failing, llm=model))
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
