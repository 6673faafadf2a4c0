"""Workers, servers and processes are killed while runs wait for the end of an outage; the runs continue."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.temporal_servers import start_program, until

from standfast import LLMResponse, ToolCall
from standfast.temporal import connect, dev_server, start_agent
from standfast.testing import Fault, ModelServer

WORKER = """
import asyncio, dataclasses, sys
from datetime import timedelta
from temporalio.worker import Worker
from standfast import Agent, Loop, sqlite_store
from standfast.llm import create_adapter
from standfast.temporal import StandfastPlugin, connect
from standfast.temporal.workflows.calls import model_calls

address, store, url = sys.argv[1:]
usual = model_calls.model_options
model_calls.model_options = lambda retry, asks: usual(dataclasses.replace(retry, maximum_attempts=1), asks)
model_calls.OUTAGE_WAITS = (timedelta(seconds=0.5), timedelta(seconds=2))


async def main():
    client = await connect(address)
    model = create_adapter(provider="openai-compatible", model="m", base_url=url)
    agents = [Agent("clerk"), Agent("hasty", loop=Loop(answer_timeout=5))]
    plugin = StandfastPlugin(agents=agents, store=sqlite_store(store), llm=model)
    async with Worker(client, task_queue="q", plugins=[plugin]):
        await asyncio.Event().wait()


asyncio.run(main())
"""

PROCESS = """
import asyncio, sys
from standfast import Agent, run, sqlite_store, tool
from standfast.llm import create_adapter

store, paid, url, *message = sys.argv[1:]


@tool
async def pay() -> str:
    with open(paid, "a") as file:
        file.write("paid ")
    return "paid"


async def main():
    model = create_adapter(provider="openai-compatible", model="m", base_url=url)
    given = {"message": message[0]} if message else {}
    result = await run(Agent("clerk", tools=[pay]), llm=model, store=sqlite_store(store), session_id="s", **given)
    print(result.status, result.response)


asyncio.run(main())
"""


def most_calls(seconds: float) -> int:
    """Return how often a run may call its model in so many seconds: its waits are half as long as said, at least."""
    calls, wait = 1, 0.25
    while (seconds := seconds - wait) >= 0:
        calls, wait = calls + 1, min(2 * wait, 1.0)
    return calls


@pytest.mark.slow
async def test_an_outage_is_outlasted_though_its_worker_and_its_server_die(tmp_path: Path) -> None:
    calls, is_up, began = Counter[str](), False, time.monotonic()

    def answer(request: Any) -> Any:
        calls[request.body["messages"][-1]["content"]] += 1
        return "done" if is_up else Fault(503)

    database, store = tmp_path / "temporal.db", str(tmp_path / "standfast.db")
    async with ModelServer(answer) as model, asyncio.timeout(120):
        async with dev_server(db_filename=database) as server:
            address = server.address
            doomed = start_program(WORKER, address, store, model.url)
            client = await connect(address)
            waits, ends = [
                (await start_agent(client, name, message=name, session_id=name, task_queue="q")).id
                for name in ("clerk", "hasty")
            ]
            await until(lambda: min(calls["clerk"], calls["hasty"]) >= 3, 60)
            (before,) = await client.get_workflow_handle(waits).query("pending")
            doomed.kill()
            doomed.communicate()
            server.kill()
        async with dev_server(db_filename=database, port=int(address.rpartition(":")[2])):
            second = start_program(WORKER, address, store, model.url)
            client = await connect(address)
            assert (await client.get_workflow_handle(ends).result())["status"] == "error"
            known = calls["clerk"]
            await until(lambda: calls["clerk"] > known, 60)
            (after,) = await client.get_workflow_handle(waits).query("pending")
            assert after == before  # it has waited since then, and its deadline is the same
            is_up = True
            assert (await client.get_workflow_handle(waits).result())["response"] == "done"
            assert calls["clerk"] <= most_calls(time.monotonic() - began)
            second.kill()
            second.communicate()


@pytest.mark.slow
async def test_a_process_that_dies_while_it_waits_is_gone_on_with_by_another(tmp_path: Path) -> None:
    asked, is_up = Counter[str](), False

    def answer(request: Any) -> Any:
        role = request.body["messages"][-1]["role"]
        asked[role] += 1
        if role == "user":
            return LLMResponse(tool_calls=(ToolCall(id="c1", name="pay", arguments={}),))
        return "done" if is_up else Fault(503)

    paid = tmp_path / "paid"
    async with ModelServer(answer) as model, asyncio.timeout(120):
        arguments = (PROCESS, str(tmp_path / "standfast.db"), str(paid), model.url)
        doomed = start_program(*arguments, "Pay.")
        await until(lambda: asked["tool"] >= 2, 60)  # it waits, or is asking again
        doomed.kill()
        doomed.communicate()
        is_up = True
        second = start_program(*arguments)
        await until(lambda: second.poll() is not None, 60)
        out, _ = second.communicate()
    assert (out, paid.read_text(), asked["user"]) == ("complete done\n", "paid ", 1)
