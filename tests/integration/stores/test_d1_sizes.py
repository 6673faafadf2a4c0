"""D1 stores at most 2 MB per row: larger values are refused at once, with an actionable error."""

import asyncio
from typing import Any

import pytest
from support.d1 import D1Server
from support.d1_proxies import D1Proxy
from support.transcripts import asks_for, call
from temporalio.worker import Worker

from standfast import Agent, pipeline, run, run_pipeline, tool
from standfast.stores import D1Store
from standfast.temporal import StandfastPlugin, connect, start_agent, start_pipeline
from standfast.testing import DevServer, ScriptedModel

TEXTS = {"long": "x" * 2_100_000, "twice as long in JSON": '"' * 1_200_000, "six times": "\x01" * 400_000}
RUNS: list[str] = []


@tool
async def export(kind: str) -> str:
    """Return a text that is too long."""
    RUNS.append(kind)
    return TEXTS[kind]


def told(messages: list[Any]) -> str:
    return next(message.content for message in messages if message.role == "tool")


@pytest.fixture(params=TEXTS)
def kind(request: pytest.FixtureRequest) -> str:
    RUNS.clear()
    return str(request.param)


def exporter(kind: str) -> tuple[Agent, ScriptedModel]:
    return Agent("exporter", tools=[export]), ScriptedModel([asks_for(call("export", "c1", kind=kind)), "lost"])


async def test_a_result_that_is_too_large_for_a_row_is_lost_in_process_and_the_model_is_told(
    d1_store: D1Store, kind: str
) -> None:
    agent, model = exporter(kind)
    result: Any = await run(agent, message="go", session_id="s", store=d1_store, llm=model)
    assert (result.response, RUNS) == ("lost", [kind])
    text = told(await d1_store.load_messages("s"))
    assert "ran, but its result was lost" in text
    assert "more than the 1,980,000 that the store keeps of a result" in text


async def test_a_result_that_is_too_large_for_a_row_is_lost_on_temporal_and_no_write_of_it_is_tried(
    d1: D1Server, temporal_server: DevServer, kind: str
) -> None:
    client, (agent, model) = await connect(temporal_server.address), exporter(kind)
    queue = f"d1-sizes-{list(TEXTS).index(kind)}"
    async with D1Proxy(d1).running() as proxy, proxy.store() as store:
        plugin = StandfastPlugin(agents=[agent], store=store, llm=model)
        async with Worker(client, task_queue=queue, plugins=[plugin]):
            started = await start_agent(client, agent, message="go", session_id=queue, task_queue=queue)
            result = await asyncio.wait_for(started.result(), 60)
        assert (result["response"], RUNS) == ("lost", [kind])
        assert "ran, but its result was lost" in told(await store.load_messages(queue))
        assert max(len(str(value)) for batch in proxy.requests for _, values in batch for value in values) < 100_000


@pytest.mark.parametrize("size", [1_900_000, 600_000])
async def test_a_result_that_fits_is_kept(d1_store: D1Store, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS, "fits", "x" * size)
    agent, model = exporter("fits")
    await run(agent, message="go", session_id="s", store=d1_store, llm=model)
    assert told(await d1_store.load_messages("s")) == "x" * size


long = pipeline("long").step("export", run=export, input=lambda ctx: {"kind": "long"}).build()


def check_failed(found: Any) -> None:
    assert found["status"] == "error"
    assert "ran, but its result was lost" in str(found["step_results"]["export"])


async def test_a_step_whose_result_is_too_large_for_a_row_fails_at_once_in_process(d1_store: D1Store) -> None:
    found = await run_pipeline(long, input=None, run_key="r", store=d1_store)
    results = {name: {"error": str(step)} for name, step in found.step_results.items()}
    check_failed({"status": found.status, "step_results": results})


async def test_a_step_whose_result_is_too_large_for_a_row_fails_at_once_on_temporal(
    d1: D1Server, temporal_server: DevServer
) -> None:
    client = await connect(temporal_server.address)
    async with d1.store() as store:
        plugin = StandfastPlugin(pipelines=[long], store=store)
        async with Worker(client, task_queue="d1-long", plugins=[plugin]):
            started = await start_pipeline(client, long, input=None, run_key="d1-long", task_queue="d1-long")
            check_failed(await asyncio.wait_for(started.result(), 60))
