"""PostgreSQL: the number of queries per step; round trips are counted, not timed."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from support.postgres import PostgresServer
from support.postgres_proxies import PostgresProxy
from support.temporal_runs import until
from support.transcripts import asks_for, call
from temporalio.worker import Worker

from standfast import Agent, Loop, run, tool
from standfast.temporal import StandfastPlugin, connect, start_agent
from standfast.testing import DevServer, ScriptedModel

STEPS = 6
WRITES_MESSAGES = "INSERT INTO agent_messages + UPDATE agent_sessions"
WRITES_ANSWER = "INSERT INTO agent_messages + INSERT INTO model_replies + UPDATE agent_sessions"


@tool
async def charge(amount: int) -> str:
    """An effect."""
    return f"charged {amount}"


def clerk(steps: int) -> tuple[Agent, ScriptedModel]:
    turns = [asks_for(call("charge", f"c{number}", amount=number)) for number in range(steps)]
    return Agent("clerk", tools=[charge], loop=Loop(max_iterations=50)), ScriptedModel([*turns, "ok"])


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[PostgresProxy]:
    async with PostgresProxy(postgres).running() as running:
        yield running


def kinds(statements: list[str]) -> Counter[str]:
    """Count statements by what they write or read first; what a worker asks every second is left out."""
    found: Counter[str] = Counter()
    for statement in statements:
        text = re.sub(r'"s[0-9a-f]+"\.', "", statement)
        if re.fullmatch(r"SELECT [\w, ]+ FROM (running_calls|sessions_at_work.*)", text):
            continue
        written = re.findall(r"(INSERT INTO|UPDATE(?! SET)|DELETE FROM) (\w+)", text)
        found[" + ".join(sorted(f"{verb} {table}" for verb, table in written)) or text] += 1
    return found


async def in_process(proxy: PostgresProxy, steps: int) -> Counter[str]:
    agent, model = clerk(steps)
    async with proxy.store() as store:
        await store.hold("warm")
        before = len(proxy.statements)
        await run(agent, message="hi", llm=model, store=store, session_id="s")
        return kinds(proxy.statements[before:])


async def on_temporal(proxy: PostgresProxy, address: str, steps: int) -> Counter[str]:
    client, queue = await connect(address), f"trips-{steps}"
    agent, model = clerk(steps)
    async with proxy.store() as store:
        plugin = StandfastPlugin(agents=[agent], store=store, llm=model)
        async with Worker(client, task_queue=queue, plugins=[plugin]) as worker:
            await until(lambda: worker.is_running)  # it has looked at its store
            await store.hold("warm")
            before = len(proxy.statements)
            started = await start_agent(client, agent, message="hi", session_id=f"{queue}-s", task_queue=queue)
            await asyncio.wait_for(started.result(), 60)
            return kinds(proxy.statements[before:])


async def test_a_tool_step_in_process_is_two_round_trips(proxy: PostgresProxy) -> None:
    few, many = await in_process(proxy, 2), await in_process(proxy, 2 + STEPS)
    assert many - few == {WRITES_MESSAGES: 2 * STEPS}


async def test_a_tool_step_on_temporal_is_three_round_trips(proxy: PostgresProxy, temporal_server: DevServer) -> None:
    address = temporal_server.address
    few, many = await on_temporal(proxy, address, 2), await on_temporal(proxy, address, 2 + STEPS)
    # What a worker asks from time to time, as a look at its board or a new connection, may fall into either run.
    each_step = {kind: count for kind, count in (many - few).items() if count >= STEPS}
    assert each_step == {
        "INSERT INTO running_calls + INSERT INTO tool_ledger": STEPS,  # the claim
        "DELETE FROM running_calls + UPDATE tool_ledger": STEPS,  # the result
        WRITES_ANSWER: STEPS,  # the results of the turn before, and the answer to them
    }
