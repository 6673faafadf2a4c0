"""Calls left by an earlier run belong to the message that they answer, and to its context."""

from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from support.drivers import Driver
from support.transcripts import asks_for, call, tool_results

from standfast import Agent, AgentContext, InputError, NotHappened, ToolContext, run, tool
from standfast.testing import ScriptedModel, crash_after_tool_results

Tenant = dict[str, str]


def looker(ran: list[str], **options: Any) -> Agent[Any]:
    async def verify(ctx: ToolContext[Tenant]) -> NotHappened:
        ran.append(f"verified for {ctx.deps['tenant']}")
        return NotHappened()

    @tool(safe_to_retry=True)
    def look(ctx: ToolContext[Tenant]) -> str:
        ran.append(f"looked for {ctx.deps['tenant']}")
        return ctx.deps["tenant"]

    @tool(verify=verify)
    def pay(ctx: ToolContext[Tenant]) -> str:
        ran.append(f"paid for {ctx.deps['tenant']}")
        return ctx.deps["tenant"]

    return Agent("looker", model="m", context=Tenant, tools=[look, pay], **options)


async def leave(driver: Driver, agent: Agent[Any], model: ScriptedModel, context: Any) -> None:
    """Run an agent in a process that dies when it writes the results of its first calls."""
    store = crash_after_tool_results(driver.temporal.store, 2)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, message="go", llm=model, store=store, session_id=driver.temporal.session(), context=context)


async def test_a_call_that_an_earlier_run_has_left_does_not_run_for_whom_a_later_message_is(driver: Driver) -> None:
    ran: list[str] = []
    agent, calls = looker(ran), asks_for(call("look", "c1"), call("pay", "c2"))
    await leave(driver, agent, ScriptedModel([calls]), {"tenant": "ann"})
    assert ran == ["looked for ann", "paid for ann"]
    ran.clear()
    again = ScriptedModel([asks_for(call("look", "c3")), "done"])
    ended = await driver.run(agent, again, message="more", context={"tenant": "bob"})
    assert sorted(ran[:3]) == ["looked for ann", "paid for ann", "verified for ann"]
    assert ran[3:] == ["looked for bob"]
    assert [one.content for one in tool_results(ended.messages)] == ["ann", "ann", "bob"]


async def test_a_session_continues_without_calls_whose_context_cannot_be_served_any_more(driver: Driver) -> None:
    ran: list[str] = []
    closed: list[str] = []

    def deps(ctx: AgentContext) -> Tenant:
        if ctx.context["tenant"] in closed:
            raise LookupError("no such tenant")
        return dict(ctx.context)

    agent, calls = looker(ran, deps=deps), asks_for(call("look", "c1"), call("pay", "c2"))
    await leave(driver, agent, ScriptedModel([calls]), {"tenant": "ann"})
    ran.clear()
    closed.append("ann")
    ended = await driver.run(agent, ScriptedModel(["done"]), message="more", context={"tenant": "bob"})
    first, second = (one.content for one in tool_results(ended.messages))
    assert "Not run: the dependencies of 'looker' could not be made: no such tenant" in first
    assert "tool-durability-error" in second
    assert (ended.status, ran) == ("complete", [])


class Login(BaseModel):
    key: SecretStr = SecretStr("")


class Base(BaseModel):
    name: str = ""


class Wider(Base):
    tenant: str = "ann"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Login, Login(key=SecretStr("hunter2"))),
        (Base, Wider()),
        (dict[str, Any], {"limit": float("nan")}),
        (dict[str, Any], {"\ud800": 1}),
        (dict[str, Any], {"pair": (1, 2)}),
    ],
    ids=["secret", "subclass", "NaN", "surrogate", "tuple"],
)
async def test_a_context_that_json_would_change_is_refused(kind: Any, given: Any) -> None:
    model = ScriptedModel([])
    with pytest.raises(InputError, match="Agent 'host': the context would change when it is stored as JSON"):
        await run(Agent("host", context=kind), message="go", context=given, llm=model)
    assert model.calls == []
