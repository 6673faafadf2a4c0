"""Tools read and change their agent's state, and a change is stored with the result; the same with both drivers."""

import asyncio
import base64
import json
import re
import threading
from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from support.drivers import Driver, InProcess, OnTemporal
from support.resets import resets
from support.stores import crash_on_write
from support.temporal_runs import Temporal, result, until
from support.transcripts import asks_for, call, tool_contents, tool_results

from integration.local.test_contradicting_checks import Rival
from standfast import (
    Agent,
    AgentContext,
    Happened,
    InterruptError,
    NotHappened,
    RetryableError,
    RetryPolicy,
    ToolContext,
    pipeline,
    run,
    tool,
)
from standfast.runtime.call_ledger import hash_of
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


class Basket(BaseModel):
    items: list[str] = []


@tool
def add(item: str, ctx: ToolContext) -> list[str]:
    """Put something into the basket."""
    ctx.state.items.append(item)
    return list(ctx.state.items)


@tool(parallel=True)
def look(ctx: ToolContext) -> list[str]:
    """Look into the basket."""
    return list(ctx.state.items)


def shop(*tools: Any, **options: Any) -> Agent[Any]:
    return Agent("shop", state=Basket, initial_state=Basket(), tools=[add, look, *tools], **options)


def adds(*items: str) -> Any:
    return asks_for(*(call("add", f"c{item}", item=item) for item in items))


LOOKS = asks_for(call("look", "l1"), call("look", "l2"))


async def kept(temporal: Temporal, session: str = "s") -> Any:
    found = await temporal.store.load_session(temporal.session(session))
    assert found is not None
    return json.loads(found.state)


async def test_calls_that_run_one_after_another_see_what_the_earlier_ones_left(driver: Driver) -> None:
    seen: list[Any] = []
    model = ScriptedModel([adds("a", "b"), adds("c"), LOOKS, "done"])
    agent = shop(
        instructions=lambda ctx: f"In the basket: {ctx.state.items}",
        on_complete=lambda ctx: seen.append(list(ctx.state.items)),
    )
    ended = await driver.run(agent, model)
    assert [said.content for said in tool_results(ended.messages)] == [
        '["a"]', '["a","b"]', '["a","b","c"]', '["a","b","c"]', '["a","b","c"]'
    ]  # fmt: skip
    assert (await kept(driver.temporal), seen) == ({"items": ["a", "b", "c"]}, [["a", "b", "c"]])


async def test_a_session_has_its_state_whichever_driver_runs_it(temporal: Temporal) -> None:
    for number, runs in enumerate((InProcess, OnTemporal, InProcess, OnTemporal), 1):
        driver: Driver = runs(temporal)
        await driver.run(shop(), ScriptedModel([adds(str(number)), "done"]))
        assert (await kept(temporal))["items"] == [str(one + 1) for one in range(number)]


async def test_a_call_that_sets_another_state_and_one_that_only_reads(driver: Driver) -> None:
    @tool
    async def empty(ctx: ToolContext) -> int:
        before, ctx.state = len(ctx.state.items), {"items": ["nothing"]}
        return before

    model = ScriptedModel([adds("a"), asks_for(call("empty", "e1"), call("look", "l1")), "done"])
    ended = await driver.run(shop(empty), model)
    assert tool_contents(ended.messages)[1:] == [("e1", "1"), ("l1", '["nothing"]')]
    assert await kept(driver.temporal) == {"items": ["nothing"]}


async def test_a_call_that_fails_asks_or_is_cut_off_leaves_the_state_as_it_was(driver: Driver) -> None:
    @tool
    def fail(ctx: ToolContext) -> None:
        ctx.state.items.append("half")
        raise ValueError("no")

    @tool
    def ask(ctx: ToolContext) -> None:
        ctx.state.items.append("half")
        raise InterruptError("Which?")

    @tool(timeout=0.1)
    async def hang(ctx: ToolContext) -> None:
        ctx.state.items.append("half")
        await asyncio.Event().wait()

    calls = asks_for(call("add", "c1", item="a"), call("fail", "f1"), call("hang", "h1"), call("ask", "a1"))
    model = ScriptedModel([calls, adds("b"), "done"])
    ended = await driver.run(shop(fail, ask, hang), model, answers=["this"])
    assert ended.status == "complete"
    assert await kept(driver.temporal) == {"items": ["a", "b"]}
    assert dict(tool_contents(ended.messages))["cb"] == '["a","b"]'


async def test_a_safe_tool_that_is_tried_again_starts_from_the_kept_state(driver: Driver) -> None:
    tried: list[int] = []

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01))
    def stutter(ctx: ToolContext) -> list[str]:
        tried.append(1)
        ctx.state.items.append("once")
        if len(tried) < 3:
            raise RetryableError("busy")
        return list(ctx.state.items)

    ended = await driver.run(shop(stutter), ScriptedModel([asks_for(call("stutter", "c1")), "done"]))
    assert (tool_contents(ended.messages), len(tried)) == ([("c1", '["once"]')], 3)
    assert await kept(driver.temporal) == {"items": ["once"]}


async def test_a_parallel_tool_may_not_change_the_state(driver: Driver) -> None:
    @tool(parallel=True)
    def push(ctx: ToolContext) -> str:
        ctx.state.items.append("x")
        return "pushed"

    model = ScriptedModel([asks_for(call("push", "p1"), call("look", "l1"), call("push", "p2")), LOOKS, "done"])
    ended = await driver.run(shop(push), model)
    said = dict(tool_contents(ended.messages))
    assert [said["l1"], said["l2"]] == ["[]", "[]"]
    for refused in (said["p1"], said["p2"]):
        assert 'Tool \\"push\\" ran, but its result and its change of the state were lost' in refused
        assert "declared parallel=True" in refused
    assert await kept(driver.temporal) == {"items": []}


def _odd(value: int) -> int:
    if value > 1:
        raise KeyError("odd")
    return value


@pytest.mark.parametrize(
    ("kind", "left", "why"),
    [
        (Basket, {"items": 5}, "its state does not fit its type: items"),
        (dict[str, Any], {"x": object()}, "its state is not JSON"),
        (dict[str, Any], {"x": float("nan")}, "NaN"),
        (dict[str, str], {"x": "y" * 300_000}, "more than 262,144"),
        (dict[str, Annotated[int, AfterValidator(_odd)]], {"x": 2}, "odd"),
        (None, {"x": 1}, "'shop' has no state: declare its type with Agent(state=…)"),
    ],
    ids=["misfit", "no JSON", "NaN", "large", "validator", "not declared"],
)
async def test_a_state_that_cannot_be_kept_is_an_error_of_its_call_and_the_old_one_stays(
    driver: Driver, kind: Any, left: Any, why: str
) -> None:
    found: list[Any] = []

    @tool
    def change(ctx: ToolContext) -> str:
        found.append(ctx.state)
        ctx.state = left
        return "changed"

    agent = Agent("shop", state=kind, tools=[change])
    ended = await driver.run(agent, ScriptedModel([asks_for(call("change", "c1")), "done"]))
    (said,) = tool_results(ended.messages)
    assert 'Tool \\"change\\" ran, but its result and its change of the state were lost' in said.content
    assert why in said.content
    assert ended.status == "complete"
    assert await kept(driver.temporal) in ({}, {"items": []})
    assert (found == [None]) is (kind is None)


async def test_a_state_with_aliases_is_found_again(driver: Driver) -> None:
    class Named(BaseModel):
        model_config = ConfigDict(extra="forbid")
        count: int = Field(default=0, alias="theCount")

    @tool
    def more(ctx: ToolContext) -> int:
        ctx.state.count += 1
        return int(ctx.state.count)

    model = ScriptedModel([asks_for(call("more", "c1"), call("more", "c2")), "done"])
    ended = await driver.run(Agent("shop", state=Named, tools=[more]), model)
    assert tool_contents(ended.messages) == [("c1", "1"), ("c2", "2")]


async def test_agents_of_a_conversation_share_the_state_of_the_first(driver: Driver) -> None:
    second = Agent("second", model="second", state=dict[str, int], tools=[add])
    first = shop(handoffs=[second], model="first")
    script = {
        "first": ScriptedModel([adds("a"), asks_for(call("transfer_to_second", "t1"))]),
        "second": ScriptedModel([adds("b"), "done"]),
    }
    ended = await driver.run(first, script.__getitem__, also=[second])
    assert ended.status == "complete"
    assert await kept(driver.temporal) == {"items": ["a", "b"]}


async def test_tools_of_steps_have_no_state(pipelines: Any) -> None:
    @tool
    def check(ctx: ToolContext) -> str:
        assert ctx.state is None
        return "none"

    @tool
    def change(ctx: ToolContext) -> None:
        ctx.state = 5

    went = await pipelines.run(pipeline("line").step("one", run=check).build(), ScriptedModel([]))
    assert went.status == "complete"
    went = await pipelines.run(pipeline("other").step("one", run=change).build(), ScriptedModel([]))
    assert went.status != "complete"


# --- crashes and resets ---


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_process_that_dies_keeps_a_change_with_its_result_or_not_at_all(
    store: SQLiteStore, number: int
) -> None:
    @tool(safe_to_retry=True)
    def again(ctx: ToolContext) -> list[str]:
        ctx.state.items.append("again")
        return list(ctx.state.items)

    agent = shop(again)
    await crash_on_write(store, agent, [asks_for(call("add", "c1", item="a"), call("again", "c2")), "done"], number)
    session = await store.load_session("s")
    if number == 1:
        assert session is None
        return
    assert session is not None
    assert json.loads(session.state) == {"items": [] if number == 2 else ["a", "again"]}
    driver = ScriptedModel([LOOKS, "done"])
    await run(agent, llm=driver, store=store, session_id="s")
    said = dict(tool_contents(await store.load_messages("s")))
    assert said["l1"] == ('["again"]' if number == 2 else '["a","again"]')  # the outcome of c1 is unknown


async def test_a_run_that_is_reset_to_each_of_its_tasks_has_every_change_once(temporal: Temporal) -> None:
    agent = shop(on_start=lambda ctx: ctx.state.items.append("start"))
    async with temporal.worker(agent, llm=ScriptedModel([adds("a", "b"), adds("c"), LOOKS, *["done"] * 30])):
        going = await temporal.start(agent)
        first = await result(going)
        before, told = await kept(temporal), tool_contents(await temporal.messages())
        assert before == {"items": ["start", "a", "b", "c"]}
        async for again in resets(temporal, going):
            assert await result(again) == first
    assert tool_contents(await temporal.messages()) == told
    assert (await kept(temporal))["items"][-3:] == ["a", "b", "c"]


async def test_a_call_that_the_ledger_has_from_a_lost_run_brings_its_state_along(temporal: Temporal) -> None:
    may_end, began = threading.Event(), threading.Event()

    @tool(safe_to_retry=True)
    async def wait(ctx: ToolContext) -> list[str]:
        began.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)
        ctx.state.items.append("waited")
        return list(ctx.state.items)

    calls = asks_for(call("add", "c1", item="a"), call("wait", "w1"), call("add", "c2", item="b"))
    async with temporal.worker(shop(wait), llm=ScriptedModel([calls, "done"])):
        going = await temporal.start("shop")
        await until(began.is_set)
        await going.terminate("lost")
        assert await kept(temporal) == {"items": []}
        may_end.set()
        await until(lambda: has_ended(temporal))
        assert (await temporal.run("shop", None))["status"] == "complete"
    assert tool_contents(await temporal.messages()) == [
        ("c1", '["a"]'),
        ("w1", '["a","waited"]'),
        ("c2", '["a","waited","b"]'),
    ]
    assert await kept(temporal) == {"items": ["a", "waited", "b"]}


async def test_calls_that_a_lost_run_has_left_run_in_their_order(temporal: Temporal) -> None:
    may_end, began = threading.Event(), threading.Event()

    @tool(safe_to_retry=True)
    async def wait(ctx: ToolContext) -> list[str]:
        began.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)
        ctx.state.items.append("waited")
        return list(ctx.state.items)

    calls = asks_for(call("wait", "w1"), call("add", "c2", item="b"))
    async with temporal.worker(shop(wait), llm=ScriptedModel([calls, "done"])):
        lost = await temporal.start("shop")
        await until(began.is_set)
        await lost.terminate("lost")
        began.clear()
        run = await temporal.start("shop", None)
        await until(began.is_set)
        may_end.set()
        assert (await result(run))["status"] == "complete"
    assert tool_contents(await temporal.messages()) == [("w1", '["waited"]'), ("c2", '["waited","b"]')]
    assert await kept(temporal) == {"items": ["waited", "b"]}


async def has_ended(temporal: Temporal) -> bool:
    """Whether the calls of a run have results in the ledger."""
    return not await temporal.store.running_calls()


class Cut(BaseException):
    """The end of a process, as far as a run in it can see."""


@tool(safe_to_retry=True)
async def cut(item: str, ctx: ToolContext) -> None:
    """Die in the middle of it."""
    ctx.state.items.append(item)
    raise Cut("cut")


async def cut_off(temporal: Temporal, *calls: Any, **options: Any) -> None:
    """Let a run in process die in the first of these calls."""
    agent = shop(replace(cut, name=calls[0].name), **options)
    with pytest.raises(Cut):
        await run(
            agent, message="go", session_id=temporal.session(), store=temporal.store,
            llm=ScriptedModel([asks_for(*calls), "never"]),
        )  # fmt: skip


@tool(safe_to_retry=True)
def safe_add(item: str, ctx: ToolContext) -> list[str]:
    """Put something into the basket, however often it takes."""
    ctx.state.items.append(item)
    return list(ctx.state.items)


def starts(ctx: AgentContext) -> None:
    ctx.state.items.append("start")


async def test_a_start_hook_comes_before_the_calls_that_an_earlier_run_has_left(driver: Driver) -> None:
    await cut_off(driver.temporal, call("safe_add", "c0", item="x"), on_start=starts)
    assert await kept(driver.temporal) == {"items": ["start"]}
    agent = shop(safe_add, on_start=starts)
    ended = await driver.run(agent, ScriptedModel([adds("b"), "done"]), message=None)
    assert tool_contents(ended.messages) == [("c0", '["start","start","x"]'), ("cb", '["start","start","x","b"]')]
    assert await kept(driver.temporal) == {"items": ["start", "start", "x", "b"]}


async def test_a_verify_handler_may_change_the_state_and_a_call_before_it_is_not_half_kept(driver: Driver) -> None:
    during: list[Any] = []

    def happened(item: str, ctx: ToolContext) -> Happened:
        ctx.state.items.append(f"verified {item}")
        return Happened("it did")

    @tool(verify=happened)
    def post(item: str, ctx: ToolContext) -> str:
        raise AssertionError("it has happened")

    def not_happened(item: str) -> NotHappened:
        return NotHappened()

    @tool(verify=not_happened)
    async def send(item: str) -> str:
        during.append(await kept(driver.temporal))
        return "sent"

    calls = [call(name, f"c{at}", item=name) for at, name in enumerate(("safe_add", "post", "send"))]
    await cut_off(driver.temporal, *calls)
    ended = await driver.run(shop(safe_add, post, send), ScriptedModel(["done"]), message=None)
    assert tool_contents(ended.messages) == [("c0", '["safe_add"]'), ("c1", "it did"), ("c2", "sent")]
    assert (during, await kept(driver.temporal)) == ([{"items": []}], {"items": ["safe_add", "verified post"]})


async def test_the_change_of_state_that_another_run_has_recorded_is_kept(driver: Driver) -> None:
    store, asked = driver.temporal.store, call("post", "c0", item="a")

    async def happened(item: str, ctx: ToolContext) -> Happened:
        scope, _, key = ctx.idempotency_key.rpartition(".")
        recorded = {"returned": "rival's", "state": [1, '{"items":["rival"]}']}
        rival = Rival(store, scope, key, hash_of(asked), json.dumps(recorded))
        await rival.look()
        await rival.records()
        return Happened("it did")

    @tool(verify=happened)
    def post(item: str, ctx: ToolContext) -> str:
        raise AssertionError("it has happened")

    await cut_off(driver.temporal, asked)
    ended = await driver.run(shop(post), ScriptedModel(["done"]), message=None)
    assert tool_contents(ended.messages) == [("c0", "rival's")]
    assert await kept(driver.temporal) == {"items": ["rival"]}


async def test_the_history_of_a_run_has_no_state(temporal: Temporal) -> None:
    @tool
    def hide(ctx: ToolContext) -> str:
        ctx.state.items.append("secret")
        return "hidden"

    async with temporal.worker(shop(hide), llm=ScriptedModel([asks_for(call("hide", "c1")), "done"])):
        going = await temporal.start("shop")
        await result(going)
        history = (await going.fetch_history()).to_json()
    payloads = [base64.b64decode(data) for data in re.findall(r'"data": ?"([^"]*)"', history)]
    assert any(b"hidden" in data for data in payloads)
    assert not any(b"secret" in data for data in payloads)
    assert await kept(temporal) == {"items": ["secret"]}


async def test_deps_and_hooks_see_the_state_that_the_tools_left(driver: Driver) -> None:
    def deps(ctx: AgentContext) -> int:
        return len(ctx.state.items)

    ended = await driver.run(shop(deps=deps), ScriptedModel([adds("a"), "done"]))
    again = await driver.run(shop(deps=deps, instructions=lambda ctx: str(ctx.deps)), model := ScriptedModel(["done"]))
    assert (ended.status, again.status) == ("complete", "complete")
    assert model.calls[0].messages[0].content == "1"
