"""Idempotency keys: always the same for one call, different for any other."""

import asyncio
from typing import Any

import pytest
from support.doubles import SOON, ask, delegating, recording
from support.stores import crash_on_write
from support.transcripts import asks_for, call, calls

from standfast import Agent, Message, RetryPolicy, Tool, ToolContext, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel, crash_after_tool_results


def keys_of(seen: list[str], failures: int = 0) -> Tool[..., Any]:
    @tool(safe_to_retry=True, retry=SOON)
    async def work(ctx: ToolContext) -> str:
        seen.append(ctx.idempotency_key)
        if len(seen) <= failures:
            raise ValueError("no")
        return "done"

    return work


# --- after a crash, in one session, under an old id ---


def keyed(keys: list[str], **options: Any) -> Tool[..., Any]:
    @tool(safe_to_retry=True, **options)
    async def post(text: str, ctx: ToolContext) -> str:
        """Post a text."""
        keys.append(ctx.idempotency_key)
        return "ok"

    return post


async def test_a_safe_call_run_again_after_a_crash_has_the_same_idempotency_key(store: SQLiteStore) -> None:
    keys: list[str] = []
    agent = Agent("poster", tools=[keyed(keys)])
    await run(agent, message="hello", llm=ScriptedModel(["hello"]), store=store, session_id="s")
    await crash_on_write(store, agent, [calls("c1", "c2")], 2)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(
            agent, message="more", llm=ScriptedModel([]), store=crash_after_tool_results(store, 1), session_id="s"
        )
    await run(agent, message="more", llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert keys == keys[:2] * 3
    assert keys[0] != keys[1]


async def test_no_two_calls_of_a_session_have_the_same_idempotency_key(store: SQLiteStore) -> None:
    keys: list[str] = []
    agent = Agent("poster", tools=[keyed(keys, parallel=True)])
    for _ in range(2):
        script: list[Any] = [calls("same", "same"), calls("same", "other"), "done"]
        await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s", max_stored_messages=2)
    assert len(keys) == len(set(keys)) == 8


async def test_a_session_made_again_under_an_old_id_has_new_idempotency_keys(store: SQLiteStore) -> None:
    keys: list[str] = []
    agent = Agent("poster", tools=[keyed(keys)])
    for _ in range(2):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
        await store.delete_session("s")
    assert len(set(keys)) == 2


# --- over attempts, turns, sessions and runs ---


async def test_the_idempotency_key_is_the_same_on_every_attempt() -> None:
    seen: list[str] = []
    await ask(Agent("a", tools=[keys_of(seen, failures=2)]), call("work", "c1"))
    assert seen == [seen[0]] * 3
    assert seen[0]


async def test_the_idempotency_key_differs_from_call_to_call_and_from_turn_to_turn(store: SQLiteStore) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    for _ in range(2):
        model = ScriptedModel([asks_for(call("work", "c"), call("work", "c")), asks_for(call("work", "c")), "done"])
        await run(agent, message="go", session_id="s", store=store, llm=model)
    assert len(seen) == len(set(seen)) == 6


async def test_the_idempotency_key_differs_between_sessions(store: SQLiteStore) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    for session_id in ("one", "two"):
        await ask(agent, call("work", "c1"), session_id=session_id, store=store)
    assert len(set(seen)) == 2


async def test_the_idempotency_key_is_the_same_after_a_crash(store: SQLiteStore) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    model = ScriptedModel([asks_for(call("work", "c1"), call("work", "c2"))])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, message="go", session_id="s", store=crash_after_tool_results(store), llm=model)
    await run(agent, session_id="s", store=store, llm=ScriptedModel(["done"]))
    assert seen == [seen[0], seen[1]] * 2
    assert seen[0] != seen[1]


@pytest.mark.parametrize("instance_id", [None, "i-1"])
async def test_the_idempotency_key_differs_between_runs_without_a_session(instance_id: str | None) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    for _ in range(2):
        await ask(agent, call("work", "c1"), instance_id=instance_id)
    assert len(set(seen)) == 2


# --- invoked agents ---


async def test_keys_of_a_child_differ_from_those_of_its_siblings() -> None:
    seen: list[str] = []
    child = Agent("child", tools=[recording(seen, lambda ctx: ctx.idempotency_key)])
    model = ScriptedModel(
        [
            asks_for(call("child", "c1", message="go"), call("child", "c2", message="go")),
            asks_for(call("record", "c")),
            "ok",
            asks_for(call("record", "c")),
            "ok",
            "done",
        ]
    )
    await run(Agent("parent", tools=[child]), message="hi", llm=model)
    assert len(seen) == len(set(seen)) == 2


async def test_keys_of_two_runs_of_one_child_instance_differ() -> None:
    seen: list[str] = []
    child = Agent("child", tools=[recording(seen, lambda ctx: ctx.idempotency_key)])
    parent = Agent("parent", tools=[delegating(child, instance_id="i-7")])
    model = ScriptedModel(
        [
            asks_for(call("delegate", "c1"), call("delegate", "c2")),
            asks_for(call("record", "c")),
            "ok",
            asks_for(call("record", "c")),
            "ok",
            "done",
        ]
    )
    await run(parent, message="hi", llm=model)
    assert len(seen) == len(set(seen)) == 2


async def test_the_calls_of_an_invoked_agent_have_the_same_keys_after_a_crash(store: SQLiteStore) -> None:
    keys: list[str] = []

    @tool
    async def pay(ctx: ToolContext) -> None:
        """Pay."""
        keys.append(ctx.idempotency_key)

    child = Agent("child", tools=[pay])

    @tool(safe_to_retry=True)
    async def delegate(ctx: ToolContext) -> None:
        """Delegate twice."""
        await ctx.agents.invoke(child, message="one")
        await ctx.agents.invoke(child, message="two")

    def answer(messages: list[Message], tools: list[Any]) -> Any:
        if messages[-1].role == "tool":
            return "done"
        name = tools[0].name
        return {"tool_calls": [{"id": "c", "name": name}]}

    agent = Agent("parent", tools=[delegate])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, message="go", session_id="s", store=crash_after_tool_results(store), llm=ScriptedModel(answer))
    await run(agent, session_id="s", store=store, llm=ScriptedModel(answer))
    assert (keys[:2], len(set(keys))) == (keys[2:], 2)


async def test_agents_that_are_invoked_at_once_have_keys_by_what_they_are_asked() -> None:
    keys: dict[str, set[str]] = {}

    @tool
    async def pay(who: str, ctx: ToolContext) -> None:
        """Pay."""
        keys.setdefault(who, set()).add(ctx.idempotency_key)

    child = Agent("child", tools=[pay])
    order = ["ada", "bob"]

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.001, maximum_attempts=2))
    async def delegate(ctx: ToolContext) -> None:
        """Delegate to two at once, in another order the second time."""
        await asyncio.gather(*(ctx.agents.invoke(child, message=name) for name in order))
        order.reverse()
        if ctx.attempt == 1:
            raise ValueError("again")

    def answer(messages: list[Message], tools: list[Any]) -> Any:
        if messages[-1].role == "tool":
            return "done"
        if tools[0].name == "delegate":
            return {"tool_calls": [{"id": "c", "name": "delegate"}]}
        return {"tool_calls": [{"name": "pay", "arguments": {"who": messages[-1].content}}]}

    await run(Agent("parent", tools=[delegate]), message="go", llm=ScriptedModel(answer))
    assert {who: len(seen) for who, seen in keys.items()} == {"ada": 1, "bob": 1}
    assert not keys["ada"] & keys["bob"]
