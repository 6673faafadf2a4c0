"""Guardrails on what a model reads, answers and calls; the same with both drivers."""

import asyncio
from typing import Any

from support.drivers import Driver, OnTemporal
from support.transcripts import asks_for, call, tool_results

from standfast import (
    Agent,
    AgentContext,
    Approval,
    Guardrail,
    LLMResponse,
    Message,
    ToolCall,
    Tripped,
    Usage,
    tool,
)
from standfast.testing import ScriptedModel

USED = Usage(input_tokens=10, output_tokens=5)


def no_weapons(ctx: AgentContext, said: Message) -> Tripped | None:
    return Tripped("about weapons", {"words": ["gun"]}) if "gun" in said.content else None


async def no_secrets(ctx: AgentContext, answer: Message) -> str | None:
    return "it has a password" if "hunter2" in answer.content else None


def spender(ran: list[int], **options: Any) -> Agent[Any]:
    @tool
    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    def no_large_sums(ctx: AgentContext, asked: ToolCall) -> Tripped | None:
        assert isinstance(asked.arguments, dict)
        return Tripped("more than 100") if asked.arguments["amount"] > 100 else None

    return Agent("spender", model="spender", tools=[pay], tool_guardrails=[no_large_sums], **options)


def shown(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


async def test_a_message_that_trips_a_guardrail_does_not_reach_the_model(driver: Driver) -> None:
    agent, model = Agent("guarded", model="m", input_guardrails=[no_weapons]), ScriptedModel(["Hello"])
    ended = await driver.run(agent, model, message="a gun")
    text = "[withheld by the guardrail no_weapons: about weapons]"
    assert (ended.status, ended.response) == ("guardrail-tripped", text)
    assert ended.tripped == Tripped("about weapons", {"words": ["gun"]}, "no_weapons")
    assert model.calls == []
    assert shown(ended.messages) == [("user", "a gun"), ("assistant", text)]
    again = await driver.run(agent, model, message="a flower")
    assert (again.status, again.response, again.tripped) == ("complete", "Hello", None)
    assert [said.content for said in model.calls[0].messages][1:] == ["a gun", text, "a flower"]


async def test_a_guardrail_is_asked_about_what_the_user_says_once_and_sees_the_context_of_the_run(
    driver: Driver,
) -> None:
    seen: list[Any] = []
    ran: list[int] = []

    def look(ctx: AgentContext, said: Message) -> bool:
        seen.append((ctx.user_id, ctx.deps, said.content))
        said.content.encode()
        return True

    agent = spender(ran, input_guardrails=[look], context=dict[str, str])
    model = ScriptedModel([asks_for(call("pay", "c1", amount=1)), "done"])
    ended = await driver.run(agent, model, user_id="ann", context={"shop": "Mill"})
    assert (ended.status, ran) == ("complete", [1])
    assert seen == [("ann", {"shop": "Mill"}, "go")]


async def test_a_guardrail_beside_the_model_drops_the_answer_and_counts_what_it_used(driver: Driver) -> None:
    ran: list[int] = []
    begun = asyncio.Event() if not isinstance(driver, OnTemporal) else None

    async def slow(ctx: AgentContext, said: Message) -> str:
        if begun is not None:
            await begun.wait()
        return "too late"

    class Noting(ScriptedModel):
        async def chat(self, *given: Any, **options: Any) -> LLMResponse:
            if begun is not None:
                begun.set()
            return await super().chat(*given, **options)

    asks = LLMResponse(tool_calls=(call("pay", "c1", amount=1),), usage=USED)
    agent = spender(ran, input_guardrails=[Guardrail(slow, beside=True)])
    ended = await driver.run(agent, model := Noting([asks]))
    assert (ended.status, ended.tripped) == ("guardrail-tripped", Tripped("too late", {}, "slow"))
    assert (len(model.calls), ended.usage, ran) == (1, USED, [])
    assert ended.messages[-1].tool_calls is None


async def test_an_answer_that_trips_a_guardrail_is_stored_nowhere(driver: Driver) -> None:
    agent = Agent("guarded", model="m", output_guardrails=[no_secrets])
    model = ScriptedModel([LLMResponse(text="It is hunter2", usage=USED), "Sorry"])
    ended = await driver.run(agent, model)
    assert (ended.status, ended.usage, ended.tripped) == (
        "guardrail-tripped", USED, Tripped("it has a password", {}, "no_secrets")
    )  # fmt: skip
    assert "hunter2" not in repr(ended)
    again = await driver.run(agent, model, message="And now?")
    assert (again.status, again.response) == ("complete", "Sorry")
    assert "hunter2" not in repr(model.calls[1].messages)


async def test_a_call_that_trips_a_guardrail_is_refused_and_the_run_goes_on(driver: Driver) -> None:
    ran: list[int] = []
    calls = asks_for(call("pay", "c1", amount=500), call("pay", "c2", amount=5), call("pay", "c3", amount="no"))
    ended = await driver.run(spender(ran), ScriptedModel([calls, "done"]))
    assert (ended.status, ran) == ("complete", [5])
    first, second, third = tool_results(ended.messages)
    assert first.content == '{"error": "Not run: the guardrail no_large_sums refused it: more than 100"}'
    assert (second.content, third.status) == ("paid 5", "failed")


async def test_a_call_that_is_refused_is_not_put_to_people(driver: Driver) -> None:
    ran: list[int] = []

    @tool(approval=Approval())
    def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    agent = Agent("payer", model="m", tools=[pay], tool_guardrails=[lambda ctx, call: "never"])
    ended = await driver.run(agent, ScriptedModel([asks_for(call("pay", "c1", amount=1)), "done"]))
    assert (ended.status, ended.waits, ran) == ("complete", {}, [])


async def test_a_run_that_a_guardrail_has_ended_ends_so_again_without_asking_anybody(driver: Driver) -> None:
    asked: list[str] = []

    def never(ctx: AgentContext, said: Message) -> str:
        asked.append(said.content)
        return "no"

    agent, model = Agent("guarded", model="m", input_guardrails=[never]), ScriptedModel([])
    first = await driver.run(agent, model)
    again = await driver.run(agent, model, message=None)
    assert (again.status, again.tripped, again.messages) == (first.status, first.tripped, first.messages)
    assert asked == ["go"]
