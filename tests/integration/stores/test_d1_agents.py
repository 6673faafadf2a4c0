"""D1: agents act at most once on it, and query it rarely; requests are counted, not timed."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from support.d1 import D1Server
from support.d1_proxies import D1Proxy
from support.transcripts import asks_for, call
from temporalio.worker import Worker

from standfast import Agent, Loop, RunResult, run, tool
from standfast.stores import D1Store
from standfast.stores.d1 import database as d1_database
from standfast.temporal import StandfastPlugin, connect, start_agent
from standfast.temporal.activities.worker import dead_workers
from standfast.testing import DevServer, ScriptedModel, crash_after_tool_results

STEPS = 6
CHARGED: list[int] = []


@tool
async def charge(amount: int) -> str:
    """An effect."""
    CHARGED.append(amount)
    return f"charged {amount}"


def clerk(steps: int) -> tuple[Agent, ScriptedModel]:
    CHARGED.clear()
    turns = [asks_for(call("charge", f"c{number}", amount=number)) for number in range(steps)]
    return Agent("clerk", tools=[charge], loop=Loop(max_iterations=50)), ScriptedModel([*turns, "ok"])


@pytest.fixture
async def proxy(d1: D1Server) -> AsyncIterator[D1Proxy]:
    async with D1Proxy(d1).running() as running:
        yield running


async def test_an_unsafe_call_whose_run_crashed_is_not_made_again_in_process(d1_store: D1Store) -> None:
    agent, model = clerk(1)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, message="pay", llm=model, store=crash_after_tool_results(d1_store, 2), session_id="s")
    seen: list[Any] = []

    def answer(messages: Any, *_: Any) -> str:
        seen.append(messages[-1].content)
        return "it may have been paid"

    result = await run(agent, message="and now?", llm=ScriptedModel(answer), store=d1_store, session_id="s")
    assert (type(result), CHARGED) == (RunResult, [0])
    messages = await d1_store.load_messages("s")
    assert "tool-durability-error" in next(message.content for message in messages if message.role == "tool")


async def test_a_run_on_temporal_charges_once_though_answers_are_lost(
    proxy: D1Proxy, temporal_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(d1_database, "REPEATS", (0.01, 0.01, 0.01))
    client, (agent, model) = await connect(temporal_server.address), clerk(3)
    async with proxy.store() as store:
        plugin = StandfastPlugin(agents=[agent], store=store, llm=model)
        async with Worker(client, task_queue="d1-lost", plugins=[plugin]):
            await store.hold("warm")
            started = await start_agent(client, agent, message="hi", session_id="d1-lost", task_queue="d1-lost")
            losing = asyncio.create_task(lose_now_and_then(proxy))
            result = await asyncio.wait_for(started.result(), 60)
            losing.cancel()
            proxy.faults = []
        assert (result["response"], CHARGED) == ("ok", [0, 1, 2])
        contents = [message.content for message in await store.load_messages("d1-lost")]
        assert [text for text in contents if text.startswith("charged")] == ["charged 0", "charged 1", "charged 2"]


async def lose_now_and_then(proxy: D1Proxy) -> None:
    while True:
        proxy.faults = ["", "", "", "lose", "", "", "", "drop"]
        while proxy.faults:
            await asyncio.sleep(0.01)


async def test_a_worker_looks_for_lost_calls_as_rarely_as_the_store_says(
    proxy: D1Proxy, temporal_server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals = list[float]()

    def repeating(work: Callable[[], Awaitable[object]], every: float, failed: str, **options: Any) -> Any:
        intervals.append(every)
        return usual(work, every, failed, **options)

    usual = dead_workers.repeating
    monkeypatch.setattr(dead_workers, "repeating", repeating)
    client, (agent, model) = await connect(temporal_server.address), clerk(1)
    async with proxy.store() as store:
        plugin = StandfastPlugin(agents=[agent], store=store, llm=model)
        async with Worker(client, task_queue="d1-looks", plugins=[plugin]):
            while not intervals:
                await asyncio.sleep(0.01)
    assert intervals == [D1Store.look_every]


# --- round trips ---


def kinds(requests: list[list[tuple[str, list[Any]]]]) -> Counter[str]:
    """Count requests by the table that they use first, without the ones that a worker repeats every second."""
    found: Counter[str] = Counter()
    for batch in requests:
        text = "; ".join(sql for sql, _ in batch)
        if re.fullmatch(
            r"SELECT [\w, ]+ FROM (running_calls|sessions_at_work.*|store_identity.*)|UPDATE holds .*", text
        ):
            continue
        written = re.findall(r"(INSERT INTO|INSERT OR REPLACE INTO|UPDATE(?! SET)|DELETE FROM) (\w+)", text)
        found[" + ".join(sorted({table for _, table in written})) or text] += 1
    return found


async def in_process(proxy: D1Proxy, steps: int) -> Counter[str]:
    agent, model = clerk(steps)
    async with proxy.store() as store:
        await store.hold("warm")
        before = len(proxy.requests)
        await run(agent, message="hi", llm=model, store=store, session_id="s")
        return kinds(proxy.requests[before:])


async def on_temporal(proxy: D1Proxy, address: str, steps: int) -> Counter[str]:
    client, queue = await connect(address), f"d1-trips-{steps}"
    agent, model = clerk(steps)
    async with proxy.store() as store:
        plugin = StandfastPlugin(agents=[agent], store=store, llm=model)
        async with Worker(client, task_queue=queue, plugins=[plugin]):
            await store.hold("warm")
            before = len(proxy.requests)
            started = await start_agent(client, agent, message="hi", session_id=f"{queue}-s", task_queue=queue)
            await asyncio.wait_for(started.result(), 60)
            return kinds(proxy.requests[before:])


async def test_a_tool_step_in_process_is_two_round_trips(proxy: D1Proxy) -> None:
    few, many = await in_process(proxy, 2), await in_process(proxy, 2 + STEPS)
    assert many - few == {"agent_messages + agent_sessions": 2 * STEPS}


async def test_a_tool_step_on_temporal_is_three_round_trips(proxy: D1Proxy, temporal_server: DevServer) -> None:
    address = temporal_server.address
    few, many = await on_temporal(proxy, address, 2), await on_temporal(proxy, address, 2 + STEPS)
    # What a worker asks from time to time, as a look at its board, may fall into either run.
    each_step = {kind: count for kind, count in (many - few).items() if count >= STEPS}
    assert each_step == {
        "running_calls + tool_ledger": 2 * STEPS,  # the claim, and the result
        "agent_messages + agent_sessions + model_replies": STEPS,  # results of the turn before, and the answer to them
    }
