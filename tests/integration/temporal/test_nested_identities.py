"""Identities of agents that a handler invokes: inherited, given, or none."""

import json
from typing import Any

import pytest
from support.doubles import delegating, recording
from support.drivers import Driver
from support.transcripts import asks_for, call, error_of, result_of

from integration.temporal.test_temporal_nested import models, writer
from standfast import (
    Agent,
    Message,
    ToolContext,
    tool,
)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, ("ada", "acme")),
        ({"user_id": None}, (None, "acme")),
        ({"user_id": None, "tenant_id": None}, (None, None)),
        ({"user_id": "bob"}, ("bob", "acme")),
    ],
    ids=["not given", "no user", "nobody", "somebody else"],
)
async def test_an_invoked_agent_inherits_the_identity_that_is_not_given_and_none_is_nobodys(
    driver: Driver, given: dict[str, Any], seen: tuple[str | None, str | None]
) -> None:
    found: list[Any] = []
    child = Agent("child", model="child", tools=[recording(found, lambda ctx: (ctx.user_id, ctx.tenant_id))])
    caller = Agent("boss", model="boss", tools=[delegating(child, **given)])
    script = models(boss=[asks_for(call("delegate", "d1")), "ok"], child=[asks_for(call("record", "r1")), "done"])
    ended = await driver.run(caller, script, also=[child], user_id="ada", tenant_id="acme")
    assert (ended.status, found) == ("complete", [seen])


async def test_an_agent_without_identity_is_another_than_the_one_that_inherits_it(driver: Driver) -> None:
    @tool
    async def letters(ctx: ToolContext) -> list[str]:
        """Write letters."""
        own = await ctx.agents.invoke(writer, message="write")
        nobodys = await ctx.agents.invoke(writer, message="write", user_id=None)
        return [own["response"], nobodys["response"]]

    def write(messages: list[Message], tools: Any) -> str:
        heard = [message.content for message in messages if message.role != "system"]
        return f"{len(written)} {heard}" if written.append("") is None else ""

    written: list[str] = []
    caller = Agent("boss", model="boss", tools=[letters])
    script = models(boss=[asks_for(call("letters", "l1")), "ok"], writer=write)
    ended = await driver.run(caller, script, also=[writer], user_id="ada")
    assert json.loads(result_of(ended.messages, "l1")) == ["1 ['write']", "2 ['write']"]


async def test_an_agent_without_identity_may_not_start_what_only_its_callers_user_may(driver: Driver) -> None:
    private = Agent("private", model="private", access={"start": lambda user: user == "ada"})
    caller = Agent("boss", model="boss", tools=[delegating(private, user_id=None)])
    script = models(boss=[asks_for(call("delegate", "d1")), "ok"], private=["secret"])
    ended = await driver.run(caller, script, also=[private], user_id="ada")
    assert "start it" in error_of(next(one for one in ended.messages if one.role == "tool"))
