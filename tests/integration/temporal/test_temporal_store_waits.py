"""A store that is unavailable for a while: people see it, and the run recovers automatically."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.questions import ask
from support.stores import Refusing
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    events,
    pending,
    result,
    status,
    until,
    waiting,
)
from support.transcripts import asks_for, call, tool_contents

from standfast import Agent, Approval, ModelError, RetryPolicy, StoreError, pipeline, sqlite_store, tool
from standfast.agents import Loop
from standfast.messages import Message
from standfast.temporal import Webhook, start_pipeline
from standfast.temporal.activities.tools import tool_activities
from standfast.temporal.wire import snapshots
from standfast.testing import ModelServer, Reply, ScriptedModel

SOON = 0.3  # seconds instead of 30


async def waits_for_the_store(run: Run) -> dict[str, Any] | None:
    return next((item for item in await waiting(run) if item["kind"] == "store"), None)


async def test_a_run_that_cannot_be_opened_says_that_its_store_is_away_and_since_when(temporal: Temporal) -> None:
    store = Refusing(temporal.store)
    helper = Agent("helper")
    async with temporal.worker(helper, llm=ScriptedModel(["done"]), store=store, store_patience=SOON):
        store.refuses = None
        run = await temporal.start(helper)
        shown = await until(partial(waits_for_the_store, run))
        assert (shown["name"], shown["message"]) == ("store", "the database is away")
        assert (await status(run))["status"] == "waiting"
        query = f"WorkflowId = '{run.id}' AND StandfastWaiting = 'store' AND StandfastStatus = 'waiting'"
        await until(partial(_is_found, temporal, query))
        store.refuses = set()
        assert (await result(run))["response"] == "done"
        assert await waiting(run) == []
        await check_healthy(run)


async def _is_found(temporal: Temporal, query: str) -> bool:
    return (await temporal.client.count_workflows(query)).count == 1


@pytest.mark.parametrize("door", ["signal", "execute_update"])
async def test_a_store_that_is_away_after_an_answer_is_shown_until_it_is_back(temporal: Temporal, door: str) -> None:
    store, model = Refusing(temporal.store), ScriptedModel(ask_once)
    async with temporal.worker(clerk, llm=model, store=store, store_patience=SOON):
        run = await temporal.start(clerk)
        await pending(run)
        store.refuses = None
        answered = asyncio.create_task(getattr(run, door)("answer", {"text": "Ada"}))  # an update waits for the store
        await until(partial(waits_for_the_store, run))
        store.refuses = set()
        assert (await result(run))["response"] == "done"
        await answered
        assert await waiting(run) == []
        await check_healthy(run)
    assert len(model.calls) == 2


async def test_a_model_that_fails_when_the_store_is_back_has_all_its_attempts(temporal: Temporal) -> None:
    store, down = Refusing(temporal.store), [False]

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        if down[0]:
            raise ModelError("overloaded", transient=True)
        return ask_once(messages, tools)

    agent = Agent(
        "clerk", tools=clerk.tools, loop=Loop(model_retry=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
    )
    model = ScriptedModel(answer)
    async with temporal.worker(agent, llm=model, store=store, store_patience=SOON):
        run = await temporal.start(agent)
        await pending(run)
        store.refuses, down[0] = None, True
        await run.signal("answer", {"text": "Ada"})
        await until(partial(waits_for_the_store, run))
        store.refuses = set()
        assert (await result(run))["status"] == "error"  # as the agent's own limit of attempts says
        assert len(model.calls) == 1 + 1 + 3  # one found that the store is back


@pytest.mark.parametrize("is_safe", [False, True])
async def test_a_call_that_cannot_be_claimed_waits_for_the_store_and_runs_once(
    temporal: Temporal, is_safe: bool
) -> None:
    store, effects = Refusing(temporal.store), list[str]()

    @tool(safe_to_retry=is_safe)
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        return text

    agent = Agent("poster", tools=[post])
    model = ScriptedModel([asks_for(call("post", "p1", text="x")), "done"])
    async with temporal.worker(agent, llm=model, store=store, store_patience=SOON):
        store.refuses = {"claim", "settle"}
        run = await temporal.start(agent)
        await until(partial(waits_for_the_store, run))
        store.refuses = set()
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert effects == ["x"]
    assert tool_contents(await temporal.messages()) == [("p1", "x")]


async def test_a_store_that_is_away_when_people_decide_is_shown_beside_the_gate(temporal: Temporal) -> None:
    store, agent = Refusing(temporal.store), Agent("sayer")
    line = pipeline("line").step("ok", approval=Approval(message="Go on?")).step("say", agent=agent).build()
    model = ScriptedModel(["said"])
    async with temporal.worker(agent, pipelines=[line], llm=model, store=store, store_patience=SOON):
        run = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
        await pending(run)
        store.refuses = None
        await run.signal("approve", {"gate": "ok", "by": "ada"})
        await until(partial(waits_for_the_store, run))
        assert [item["kind"] for item in await waiting(run)] == ["approval", "store"]
        store.refuses = set()
        assert (await result(run))["status"] == "complete"
        assert await waiting(run) == []
        await check_healthy(run)


async def test_a_pipeline_that_cannot_be_opened_says_that_its_store_is_away(temporal: Temporal) -> None:
    store, agent = Refusing(temporal.store), Agent("sayer")
    line = pipeline("line").step("say", agent=agent).build()
    async with temporal.worker(agent, pipelines=[line], llm=ScriptedModel(["x"]), store=store, store_patience=SOON):
        store.refuses = None
        run = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
        await until(partial(waits_for_the_store, run))
        store.refuses = set()
        assert (await result(run))["status"] == "complete"


async def test_a_run_that_waits_for_its_store_is_not_filled_with_events(temporal: Temporal) -> None:
    store = Refusing(temporal.store)
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once), store=store, store_patience=SOON):
        run = await temporal.start(clerk)
        await pending(run)
        store.refuses = None
        await run.signal("answer", {"text": "Ada"})
        await until(partial(waits_for_the_store, run))
        before = len(await events(run))
        await until(partial(_is_tried_again, temporal, run))
        assert len(await events(run)) == before
        store.refuses = set()
        await result(run)


async def _is_tried_again(temporal: Temporal, run: Run) -> bool:
    tried = (await run.describe()).raw_description.pending_activities
    return any(activity.attempt > 4 for activity in tried)


async def test_people_are_told_by_webhook_that_a_store_is_away(temporal: Temporal) -> None:
    store, helper = Refusing(temporal.store), Agent("helper")
    async with ModelServer(lambda request: Reply(b"ok")) as server:
        hooks = [Webhook(url=server.url, kinds=["store"])]
        options = {"llm": ScriptedModel(["done"]), "store": store, "store_patience": SOON, "webhooks": hooks}
        async with temporal.worker(helper, **options):
            store.refuses = None
            run = await temporal.start(helper)
            await until(lambda: server.requests)
            store.refuses = set()
            await result(run)
    (request,) = server.requests
    assert (request.body["data"]["kind"], request.body["data"]["message"]) == ("store", "the database is away")


async def test_a_cancelled_run_that_waits_to_be_opened_ends_without_its_store(temporal: Temporal) -> None:
    store, helper = Refusing(temporal.store), Agent("helper")
    async with temporal.worker(helper, llm=ScriptedModel(["done"]), store=store, store_patience=SOON):
        store.refuses = None
        run = await temporal.start(helper)
        await until(partial(waits_for_the_store, run))
        await run.cancel()
        await until(partial(_is_cancelled, run))


async def _is_cancelled(run: Run) -> bool:
    return (await status(run))["status"] == "cancelled"


# --- what is held until the store is back ---

LONG = 40.0  # seconds that a call may take: the test is over long before


@pytest.mark.parametrize("refused", [{"finish"}, {"append_reply", "save_reply"}], ids=["a result", "an answer"])
async def test_what_a_store_does_not_take_is_held_in_sight_and_is_not_lost(temporal: Temporal, refused: Any) -> None:
    store, effects = Refusing(temporal.store), list[str]()

    @tool(timeout=LONG)
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        if "finish" in refused:
            store.refuses = refused
        return text

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        asked = [message for message in messages if message.role == "tool"]
        if "finish" not in refused and len(asked) == 1:
            store.refuses = refused
        return [asks_for(call("post", "p1", text="x")), asks_for(call("ask", "q1", question="Ok?")), "done"][len(asked)]

    agent, model = Agent("poster", tools=[post, ask]), ScriptedModel(answer)
    async with temporal.worker(agent, llm=model, store=store, store_patience=SOON):
        run = await temporal.start(agent)
        shown = await until(partial(waits_for_the_store, run))
        assert (shown["name"], shown["message"]) == ("store", "the database is away")
        query = f"WorkflowId = '{run.id}' AND StandfastWaiting = 'store' AND StandfastStatus = 'waiting'"
        await until(partial(_is_found, temporal, query))
        store.refuses = set()
        await until(partial(_waits_alone, run, "question"))
        await run.signal("answer", {"text": "yes"})
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert (effects, len(model.calls)) == (["x"], 3)
    assert tool_contents(await temporal.messages()) == [("p1", "x"), ("q1", "yes")]


async def test_a_result_is_held_for_longer_than_the_handler_may_take(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, effects = Refusing(temporal.store), list[str]()
    for module in (snapshots, tool_activities):
        monkeypatch.setattr(module, "GRACE", 0.5)

    @tool(timeout=0.5)
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        store.refuses = {"finish"}
        return text

    model = ScriptedModel([asks_for(call("post", "p1", text="x")), "done"])
    async with temporal.worker(Agent("poster", tools=[post]), llm=model, store=store, store_patience=SOON):
        run = await temporal.start("poster")
        await until(partial(waits_for_the_store, run))
        passed = time.monotonic() + 3  # a second of the call, and a moment in which the server notices that
        await until(lambda: time.monotonic() > passed)
        store.refuses = set()
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert (effects, tool_contents(await temporal.messages())) == (["x"], [("p1", "x")])


async def _waits_alone(run: Run, kind: str) -> bool:
    return [item["kind"] for item in await waiting(run)] == [kind]


async def test_the_result_of_a_pipelines_tool_is_held_in_sight(temporal: Temporal) -> None:
    store, effects = Refusing(temporal.store), list[str]()

    @tool(timeout=LONG)
    async def post() -> str:
        """Post."""
        effects.append("x")
        store.refuses = {"finish"}
        return "posted"

    line = pipeline("line").step("post", run=post).step("ok", approval=Approval(message="Go on?")).build()
    async with (
        ModelServer(lambda request: Reply(b"ok")) as server,
        temporal.worker(
            pipelines=[line], store=store, store_patience=SOON, webhooks=[Webhook(url=server.url, kinds=["store"])]
        ),
    ):
        run = await start_pipeline(temporal.client, "line", task_queue=temporal.name, run_key=temporal.session())
        await until(partial(waits_for_the_store, run))
        await until(lambda: server.requests)
        store.refuses = set()
        await until(partial(_waits_alone, run, "approval"))
        await run.signal("approve", {"gate": "ok"})
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert (effects, len(server.requests)) == (["x"], 1)


async def test_nobody_else_can_say_that_a_run_waits_for_its_store(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await temporal.start(clerk)
        await pending(run)
        for told in (None, 7, {"holder": ["x"], "message": "m"}, {"holder": "call_model 1.0", "message": "m"}):
            await run.signal("standfast.store_waits", told)
        assert [item["kind"] for item in await waiting(run)] == ["question"]
        await run.signal("answer", {"text": "Ada"})
        await result(run)
        await check_healthy(run)


# --- a worker that cannot use its store ---


async def test_a_worker_that_cannot_use_its_store_takes_no_run_and_says_why(temporal: Temporal, tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    async with sqlite_store(path) as made:
        await made.load_session("s")
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO standfast_schema (version) VALUES (1000)")
        database.commit()
    with pytest.raises(StoreError, match="written by a newer standfast"):
        async with temporal.worker(Agent("helper"), llm=ScriptedModel(["done"]), store=sqlite_store(path)) as worker:
            await until(lambda: not worker)


@pytest.mark.slow
async def test_twenty_runs_complete_beside_a_worker_that_has_lost_its_store(temporal: Temporal) -> None:
    broken, effects = Refusing(temporal.store), list[str]()

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        return text

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        done = any(message.role == "tool" for message in messages)
        return "done" if done else asks_for(call("post", "p1", text=messages[-1].content))

    agent, model = Agent("poster", tools=[post]), ScriptedModel(answer)
    async with (
        temporal.worker(agent, llm=model),
        (await temporal.elsewhere()).worker(agent, llm=model, store=broken),
    ):
        broken.refuses = None
        runs = [await temporal.start(agent, f"m{n}", session=f"s{n}") for n in range(20)]
        for run in runs:
            assert (await result(run))["response"] == "done"
            assert await waiting(run) == []
            await check_healthy(run)
    assert sorted(effects) == sorted(f"m{n}" for n in range(20))
