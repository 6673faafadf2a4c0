"""An agent's state is stored as it was left: JSON changes nothing, and no change is lost."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from support.drivers import Driver
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call, tool_contents, tool_results

from integration.local.test_tool_states import adds, kept, shop, starts
from standfast import Agent, AgentContext, DefinitionError, ToolContext, run, tool
from standfast.testing import ScriptedModel


class Login(BaseModel):
    key: SecretStr = SecretStr("")


class Base(BaseModel):
    name: str = ""


class Wider(Base):
    tenant: str = "ann"


CHANGED = "its state would change when it is stored as JSON"
changed = pytest.mark.parametrize(
    ("kind", "left"),
    [
        (Login, Login(key=SecretStr("hunter2"))),
        (Base, Wider()),
        (dict[str, Any], {"limit": float("nan")}),
        (dict[str, Any], {"pair": (1, 2)}),
    ],
    ids=["secret", "subclass", "NaN", "tuple"],
)


@changed
async def test_a_state_that_json_would_change_is_an_error_of_the_tool_that_leaves_it(
    driver: Driver, kind: Any, left: Any
) -> None:
    @tool
    def change(ctx: ToolContext) -> str:
        ctx.state = left
        return "changed"

    model = ScriptedModel([asks_for(call("change", "c1")), "done"])
    ended = await driver.run(Agent("shop", state=kind, tools=[change]), model)
    (said,) = tool_results(ended.messages)
    assert 'Tool \\"change\\" ran, but its result and its change of the state were lost' in said.content
    assert CHANGED in said.content
    assert "hunter2" not in said.content
    assert (await kept(driver.temporal)) in ({}, {"key": ""}, {"name": ""})


@changed
async def test_a_state_that_json_would_change_is_an_error_of_the_hook_that_leaves_it(kind: Any, left: Any) -> None:
    def starts(ctx: Any) -> None:
        ctx.state = left

    with pytest.raises(DefinitionError, match=CHANGED):
        await run(Agent("shop", state=kind, on_start=starts), message="go", llm=ScriptedModel(["done"]))


@pytest.mark.parametrize("hook", ["on_start", "on_complete"])
async def test_a_run_on_temporal_waits_until_the_hook_is_mended(temporal: Temporal, hook: str) -> None:
    def leaves(ctx: AgentContext) -> None:
        ctx.state.key = SecretStr("hunter2")

    def mended(ctx: AgentContext) -> None:
        assert ctx.state.key.get_secret_value() == ""

    options: Any = {"state": Login}
    async with temporal.worker(Agent("shop", **{hook: leaves}, **options), llm=ScriptedModel(["done"])):
        going = await temporal.start("shop")
        (waits,) = await pending(going)
        assert (waits["kind"], waits["name"], CHANGED in waits["message"]) == ("pause", hook, True)
    async with temporal.worker(Agent("shop", **{hook: mended}, **options), llm=ScriptedModel(["done"])):
        await temporal.people.resume(going.id, "retry")
        assert (await result(going))["response"] == "done"
    assert "hunter2" not in (await going.fetch_history()).to_json()


@changed
def test_an_initial_state_that_json_would_change_is_found_at_the_declaration(kind: Any, left: Any) -> None:
    with pytest.raises(DefinitionError, match=CHANGED):
        Agent("shop", state=kind, initial_state=left)


async def test_a_start_hook_changes_what_the_calls_of_a_lost_run_have_left(temporal: Temporal) -> None:
    began = asyncio.Event()

    @tool(safe_to_retry=True)
    async def wait(ctx: ToolContext) -> list[str]:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()
        ctx.state.items.append("waited")
        return list(ctx.state.items)

    calls = asks_for(call("add", "c1", item="a"), call("wait", "w1"))
    agent = shop(wait, on_start=starts)
    async with temporal.worker(agent, llm=ScriptedModel([calls, adds("c"), "done"])):
        going = await temporal.start("shop")
        await until(began.is_set)
        await going.terminate("lost")
        assert await kept(temporal) == {"items": ["start"]}
        assert (await temporal.run("shop", None))["status"] == "complete"
    assert tool_contents(await temporal.messages()) == [
        ("c1", '["start","a"]'),
        ("w1", '["start","a","start","waited"]'),
        ("cc", '["start","a","start","waited","c"]'),
    ]
    assert await kept(temporal) == {"items": ["start", "a", "start", "waited", "c"]}


async def test_a_start_hooks_change_stays_if_no_call_of_a_lost_run_changes_more(temporal: Temporal) -> None:
    began = asyncio.Event()

    @tool
    async def block() -> None:
        began.set()
        await asyncio.Event().wait()

    agent, calls = shop(block, on_start=starts), asks_for(call("add", "c1", item="a"), call("block", "b1"))
    async with temporal.worker(agent, llm=ScriptedModel([calls, "done"])):
        going = await temporal.start("shop")
        await until(began.is_set)
        await going.terminate("lost")
        assert (await temporal.run("shop", None))["status"] == "complete"
    assert await kept(temporal) == {"items": ["start", "a", "start"]}
