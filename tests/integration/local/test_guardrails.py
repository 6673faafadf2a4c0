"""Guardrails on a model's input, answers and calls; the same with both drivers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.drivers import Driver, OnTemporal
from support.resets import resets
from support.stores import crash_on_write
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call, tool_results

from standfast import (
    Agent,
    AgentContext,
    Approval,
    DefinitionError,
    Guardrail,
    Image,
    LLMResponse,
    Loop,
    Message,
    StandfastError,
    TextDelta,
    ToolCall,
    Tripped,
    Usage,
    run,
    run_streaming,
    tool,
)
from standfast.stores import SQLiteStore
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


async def test_a_call_that_trips_a_guardrail_is_refused_and_the_run_continues(driver: Driver) -> None:
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


async def test_a_guardrail_that_raises_ends_a_run_in_process_and_lets_one_on_temporal_wait(driver: Driver) -> None:
    mended: list[bool] = []

    def fragile(ctx: AgentContext, value: Message) -> None:
        if not mended:
            raise OSError("no connection")

    for options in ({"input_guardrails": [fragile]}, {"output_guardrails": [fragile]}):
        mended.clear()
        agent, session = Agent("guarded", model="m", **options), next(iter(options))  # type: ignore[arg-type]
        if not isinstance(driver, OnTemporal):
            with pytest.raises(OSError, match="no connection"):
                await driver.run(agent, ScriptedModel(["Hello"]), session=session)
            continue
        async with driver.temporal.worker(agent, llm=ScriptedModel(["Hello", "Hello"])):
            handle = await driver.temporal.start(agent, "go", session=session)
            (paused,) = await pending(handle)
            assert "fragile raised OSError: no connection" in paused["message"]
            mended.append(True)
            await handle.signal("resume", {"action": "retry"})
            assert (await result(handle))["status"] == "complete"


async def test_a_value_that_is_not_a_verdict_is_an_error_and_lets_nothing_pass() -> None:
    agent = Agent("guarded", input_guardrails=[lambda ctx, said: False])
    model = ScriptedModel([])
    with pytest.raises(StandfastError, match="returned False: return None to let it pass, or Tripped"):
        await run(agent, message="hi", llm=model)
    assert model.calls == []


async def test_a_verdict_is_found_again_after_the_run_was_reset(temporal: Temporal) -> None:
    asked: list[str] = []

    def once(ctx: AgentContext, answer: Message) -> str | None:
        asked.append(answer.content)
        return "first" if len(asked) == 1 else None

    agent = Agent("guarded", model="m", output_guardrails=[once])
    async with temporal.worker(agent, llm=ScriptedModel(["secret", "another"])):
        handle = await temporal.start(agent, "go")
        before = await result(handle)
        found = [await result(again) async for again in resets(temporal, handle)]
    assert found
    assert all(again == before for again in found)
    assert asked == ["secret"]
    assert before["tripped"] == {"guardrail": "once", "reason": "first", "metadata": {}}


@pytest.mark.parametrize("is_safe", [True, False])
async def test_a_refused_call_never_runs_and_is_refused_again_after_a_crash(store: SQLiteStore, is_safe: bool) -> None:
    ran: list[str] = []
    verdicts = iter(["not this one"])

    @tool(safe_to_retry=is_safe)
    def post(text: str) -> str:
        ran.append(text)
        return "posted"

    agent = Agent("poster", tools=[post], tool_guardrails=[lambda ctx, call: next(verdicts, None)])
    await crash_on_write(store, agent, [asks_for(call("post", "c1", text="x"))], 2)
    ended = await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    (told,) = tool_results(ended.messages)
    assert told.content.endswith('refused it: not this one"}')
    assert (ended.status, ran) == ("complete", [])


async def test_no_word_of_an_answer_is_streamed_before_it_was_checked() -> None:
    agent = Agent("guarded", output_guardrails=[no_secrets])
    for answer, shown_text in (
        ("It is hunter2", "[withheld by the guardrail no_secrets: it has a password]"),
        ("It is fine", "It is fine"),
    ):
        events = [event async for event in run_streaming(agent, message="hi", llm=ScriptedModel([answer]))]
        assert [event.text for event in events if isinstance(event, TextDelta)] == [shown_text]
        assert ("hunter2" in repr(events)) is False


async def test_a_guardrail_sees_images_and_cannot_change_the_message() -> None:
    def dim(ctx: AgentContext, said: Message) -> str | None:
        return "no images" if said.images else None

    image = Image(url="https://example.org/a.png")
    agent = Agent("guarded", input_guardrails=[dim])
    ended = await run(agent, message="look", images=[image], llm=ScriptedModel([]))
    assert ended.tripped == Tripped("no images", {}, "dim")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"input_guardrails": ["x"]}, "input_guardrails: 'x' is not a function"),
        ({"tool_guardrails": no_weapons}, "tool_guardrails must be a list of functions"),
        ({"output_guardrails": [Guardrail(no_secrets, beside=True)]}, "only input guardrails can have beside=True"),
        ({"handoffs": [Agent("other", input_guardrails=[no_weapons])]}, "has its own guardrails"),
    ],
    ids=["text", "no list", "beside", "handoff"],
)
def test_wrong_guardrails_are_refused_when_they_are_declared(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Agent("guarded", **options)


async def test_guardrails_of_the_first_agent_stay_when_it_hands_over(driver: Driver) -> None:
    billing = Agent("billing", model="n")
    agent = Agent("desk", model="m", handoffs=[billing], output_guardrails=[no_secrets])
    model = ScriptedModel([asks_for(call("transfer_to_billing", "c1")), "hunter2"])
    ended = await driver.run(agent, model, also=[billing])
    assert (ended.status, ended.messages[-1].agent) == ("guardrail-tripped", "billing")


async def test_what_we_tell_the_model_of_its_answer_is_not_put_to_guardrails(driver: Driver) -> None:
    seen: list[str] = []

    def look(ctx: AgentContext, said: Message) -> str | None:
        seen.append(said.content)
        return "it is about JSON" if "JSON" in said.content else None

    agent = Agent("guarded", model="m", output=list[int], input_guardrails=[look])
    ended = await driver.run(agent, ScriptedModel(["one", "[1]"]))
    assert (ended.status, ended.output, seen) == ("complete", [1], ["go"])
    quoted = ended.messages[2].content
    again = await driver.run(agent, ScriptedModel([]), message=quoted)  # someone else may not say the same
    assert (again.status, seen) == ("guardrail-tripped", ["go", quoted])


async def test_wrong_arguments_do_not_get_a_handoff_past_a_guardrail(driver: Driver) -> None:
    seen: list[Any] = []

    def stay(ctx: AgentContext, asked: ToolCall) -> str:
        seen.append((asked.name, asked.arguments))
        return "stay"

    billing = Agent("billing", model="n")
    agent = Agent("desk", model="m", handoffs=[billing], tool_guardrails=[stay])
    model = ScriptedModel([{"tool_calls": [{"name": "transfer_to_billing", "arguments": "{no json"}]}, "here"])
    ended = await driver.run(agent, model, also=[billing])
    assert (ended.messages[-1].agent, seen) == ("desk", [("transfer_to_billing", {})])


async def test_a_guardrail_of_any_name_has_one_that_can_be_kept(driver: Driver) -> None:
    def never(ctx: AgentContext, said: Message) -> str:
        return "no"

    never.__name__ = "\ud800\0" + "n" * 300
    ended = await driver.run(Agent("guarded", model="m", input_guardrails=[never]), ScriptedModel([]))
    assert ended.tripped == Tripped("no", {}, "\ufffd\ufffd" + "n" * 198)


@pytest.mark.parametrize(
    "more", [{"user_id": "eve"}, {"images": [{"url": "https://a.b/c.png"}]}], ids=["user", "image"]
)
async def test_a_user_who_says_what_we_tell_the_model_is_put_to_guardrails(
    more: dict[str, Any], tmp_path: Path
) -> None:
    seen: list[str] = []

    def look(ctx: AgentContext, said: Message) -> None:
        seen.append(said.content)

    agent = Agent(
        "poet", input_guardrails=[look], output_validators=[lambda ctx, text: "no verse"], loop=Loop(output_retries=0)
    )
    who: Any = {"user_id": more.get("user_id")}
    async with SQLiteStore(tmp_path / "s.db") as store:
        given: Any = {"llm": ScriptedModel(["Roses", "Roses"]), "store": store, "session_id": "s"}
        assert (await run(agent, message="hi", **given, **who)).status == "error"
        copied = "Your answer was not accepted: no verse. Answer again."
        await run(agent, message=copied, **given, **{**who, **more})
    assert seen == ["hi", copied]
