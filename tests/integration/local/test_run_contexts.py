"""The context of a run, and the dependencies made from it; the same with both drivers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel
from support.drivers import Driver, OnTemporal
from support.pipeline_drivers import PipelineDriver
from support.temporal_runs import Temporal, failure, pending, result
from support.transcripts import asks_for, call, tool_results

from standfast import (
    Agent,
    AgentContext,
    DefinitionError,
    Happened,
    InputError,
    NotHappened,
    Step,
    ToolContext,
    pipeline,
    resume,
    run,
    run_pipeline,
    tool,
)
from standfast.messages import Message
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel


class Shop(BaseModel):
    shop: str
    limit: int = 10


class Till:
    """What a shop's tools depend on."""

    def __init__(self, shop: Shop, log: list[str]) -> None:
        self.shop, self._log, self.is_open = shop, log, True

    def close(self) -> None:
        self.is_open = False
        self._log.append("closed")


LOOKS = asks_for(call("look", "c1"))


def clerk(log: list[str], **options: Any) -> Agent[Any]:
    @asynccontextmanager
    async def till(ctx: AgentContext) -> AsyncIterator[Till]:
        opened = Till(ctx.context, log)
        try:
            yield opened
        finally:
            opened.close()

    @tool
    def look(ctx: ToolContext[Till]) -> str:
        assert ctx.deps.is_open
        log.append(f"tool {ctx.deps.shop}")
        return ctx.deps.shop.shop

    def note(name: str) -> Any:
        return lambda ctx: log.append(f"{name} {ctx.deps.shop.shop} {ctx.deps.is_open}")

    return Agent(
        "clerk", model="clerk", context=Shop, deps=till, tools=[look],
        instructions=lambda ctx: f"You serve in {ctx.deps.shop.shop}.",
        on_start=note("start"), on_complete=note("complete"), **options,
    )  # fmt: skip


async def test_tools_hooks_and_instructions_have_what_is_made_of_the_context(driver: Driver) -> None:
    log: list[str] = []
    model = ScriptedModel([LOOKS, "done"])
    ended = await driver.run(clerk(log), model, context={"shop": "Bakery"})
    assert ended.status == "complete"
    assert [said.content for said in tool_results(ended.messages)] == ["Bakery"]
    assert [line for line in log if line != "closed"] == [
        "start Bakery True", "tool shop='Bakery' limit=10", "complete Bakery True"
    ]  # fmt: skip
    assert log[-1] == "closed"
    assert model.calls[0].messages[0].content == "You serve in Bakery."


async def test_a_session_continues_with_the_context_that_it_has_until_another_is_given(driver: Driver) -> None:
    model = ScriptedModel([LOOKS, "done"] * 3)
    await driver.run(clerk([]), model, context=Shop(shop="Bakery"))
    await driver.run(clerk([]), model)
    ended = await driver.run(clerk([]), model, context=Shop(shop="Mill"))
    assert [said.content for said in tool_results(ended.messages)] == ["Bakery", "Bakery", "Mill"]


@pytest.mark.parametrize(
    ("agent", "context", "why"),
    [
        (clerk([]), None, "Agent 'clerk': needs a context (context=…): shop: Field required"),
        (clerk([]), {"shop": 5}, "Agent 'clerk': the context does not fit its type: shop: Input should be"),
        (clerk([]), {"shop": "x" * 70_000}, "Agent 'clerk': the context is longer than 65,536 bytes"),
        (Agent("clerk"), {"shop": "x"}, "Agent 'clerk' does not take a context: declare the type with Agent("),
        (Agent("clerk", context=dict[str, float]), {"x": inf}, "Agent 'clerk': the context does not fit its type"),
    ],
    ids=["none", "wrong", "large", "not declared", "not JSON"],
)  # fmt: skip
async def test_a_context_that_cannot_be_used_is_refused_before_anything_begins(
    driver: Driver, agent: Agent[Any], context: Any, why: str
) -> None:
    model = ScriptedModel(["never said"])
    if isinstance(driver, OnTemporal) and context is None:
        async with driver.temporal.worker(agent, llm=model):
            error = await failure(await driver.temporal.start(agent))
            assert (error.type, error.message.startswith(why)) == ("InputError", True)
    else:
        with pytest.raises(InputError) as caught:
            await driver.run(agent, model, context=context)
        assert str(caught.value).startswith(why)
    assert model.calls == []
    assert await driver.temporal.store.load_session(driver.temporal.session()) is None


async def test_a_context_that_comes_as_json_is_read_by_the_worker(temporal: Temporal) -> None:
    model = ScriptedModel([LOOKS, "done"])
    async with temporal.worker(clerk([]), llm=model):
        for given in ({"shop": "Bakery"}, {"shop": []}):
            run = await start_agent(
                temporal.client,
                "clerk",
                message="go",
                context=given,
                session_id=temporal.session(),
                task_queue=temporal.name,
            )
            if given["shop"]:
                assert (await result(run))["status"] == "complete"
            else:
                assert (await failure(run)).type == "InputError"


async def test_without_a_factory_the_dependencies_are_the_context_itself(driver: Driver) -> None:
    @tool
    def look(ctx: ToolContext[Shop]) -> int:
        return ctx.deps.limit

    agent = Agent("clerk", context=Shop, tools=[look])
    ended = await driver.run(agent, ScriptedModel([LOOKS, "done"]), context={"shop": "Bakery", "limit": 3})
    assert [said.content for said in tool_results(ended.messages)] == ["3"]


async def test_a_factory_needs_no_context_and_may_be_plain_or_async(driver: Driver) -> None:
    async def shop(ctx: AgentContext) -> Shop:
        assert ctx.context is None
        return Shop(shop=f"{ctx.user_id}'s")

    @tool
    def look(ctx: ToolContext[Shop]) -> str:
        return ctx.deps.shop

    for number, deps in enumerate((shop, lambda ctx: Shop(shop=f"{ctx.user_id}'s"))):
        agent = Agent("clerk", deps=deps, tools=[look])
        ended = await driver.run(agent, ScriptedModel([LOOKS, "done"]), user_id="ada", session=f"s{number}")
        assert [said.content for said in tool_results(ended.messages)] == ["ada's"]


async def test_an_agent_that_a_tool_invokes_has_its_own_context(driver: Driver) -> None:
    helper = clerk([])

    @tool
    async def ask(ctx: ToolContext) -> str:
        said = await ctx.agents.invoke(helper, message="go", context={"shop": "Mill"})
        try:
            await ctx.agents.invoke(helper, message="go on")
        except InputError as error:
            return f"{said['response']}; {error}"
        return "never"

    script = {"boss": ScriptedModel([asks_for(call("ask", "c0")), "sent"]), "clerk": ScriptedModel([LOOKS, "done"])}
    boss = Agent("boss", model="boss", context=Shop, tools=[ask])
    ended = await driver.run(boss, script.__getitem__, also=[helper], context={"shop": "Bakery"})
    (said,) = tool_results(ended.messages)
    assert said.content.startswith("done; Agent 'clerk': needs a context (context=…): shop: Field required")


def test_an_agent_that_needs_a_context_is_not_a_tool_on_its_own() -> None:
    with pytest.raises(DefinitionError, match=r"agent 'clerk' needs a context, which a model does not give"):
        Agent("boss", tools=[clerk([])])
    Agent("boss", tools=[Agent("helper", context=dict[str, int])])


def test_a_validator_that_raises_anything_refuses_a_context_and_no_declaration() -> None:
    def odd(value: dict[str, int]) -> int:
        return value["x"]

    agent = Agent("clerk", context=Annotated[dict[str, int], AfterValidator(odd)])
    assert agent.needs_context
    with pytest.raises(InputError, match="the context cannot be read: KeyError: 'x'"):
        agent.write_context({"y": 1})


@pytest.mark.parametrize("what", ["context", "deps"])
def test_a_broken_declaration_is_found_at_once(what: str) -> None:
    broken: Any = {what: object()}
    with pytest.raises(DefinitionError, match=f"Agent 'clerk': {what}"):
        Agent("clerk", **broken)


async def test_a_factory_that_raises_ends_a_run_in_process_before_anything_is_done() -> None:
    def broken(ctx: AgentContext) -> None:
        raise ConnectionError("no till")

    model = ScriptedModel(["never said"])
    with pytest.raises(ConnectionError, match="no till"):
        await run(Agent("clerk", deps=broken, on_start=lambda ctx: model.calls.clear()), message="go", llm=model)
    assert model.calls == []


async def test_a_factory_that_raises_pauses_a_run_on_temporal_until_it_is_mended(temporal: Temporal) -> None:
    works: list[bool] = []

    def shaky(ctx: AgentContext) -> str:
        if not works:
            raise ConnectionError("no till")
        return "till"

    @tool
    def look(ctx: ToolContext[str]) -> str:
        return ctx.deps

    agent = Agent("clerk", deps=shaky, tools=[look])
    async with temporal.worker(agent, llm=ScriptedModel([LOOKS, "done"])):
        handle = await temporal.start(agent)
        (item,) = await pending(handle)
        assert (item["kind"], "deps raised ConnectionError: no till" in item["message"]) == ("pause", True)
        works.append(True)
        await temporal.people.resume(handle.id, "retry")
        assert (await result(handle))["status"] == "complete"


async def test_a_call_for_which_nothing_could_be_made_has_not_run_and_says_so(temporal: Temporal) -> None:
    ran: list[str] = []
    made: list[int] = []

    def once(ctx: AgentContext) -> str:
        made.append(1)
        if len(made) > 1 and len(made) < 5:  # for the model's activity, but not for the tool's
            raise ConnectionError("no till")
        return "till"

    @tool
    def look(ctx: ToolContext[str]) -> None:
        ran.append(ctx.deps)

    agent = Agent("clerk", deps=once, tools=[look])
    async with temporal.worker(agent, llm=ScriptedModel([LOOKS, "done"])):
        assert (await temporal.run(agent))["status"] == "complete"
    (said,) = tool_results(await temporal.messages())
    assert "Not run: the dependencies of 'clerk' could not be made: no till" in said.content
    assert ran == []


@pytest.mark.parametrize("safe", [True, False])
async def test_a_call_whose_dependencies_could_not_be_closed_is_not_a_success(temporal: Temporal, safe: bool) -> None:
    ran: list[str] = []

    @asynccontextmanager
    async def leaky(ctx: AgentContext) -> AsyncIterator[list[str]]:
        before = len(ran)
        yield ran
        if len(ran) > before:
            raise ConnectionError("not committed")

    @tool(safe_to_retry=safe)
    def post(ctx: ToolContext[list[str]]) -> str:
        ctx.deps.append("posted")
        return "posted"

    agent = Agent("clerk", deps=leaky, tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "c1")), "done"])):
        assert (await temporal.run(agent))["status"] == "complete"
    (said,) = tool_results(await temporal.messages())
    assert "could not be closed: not committed" in said.content
    assert ("tool-durability-error" in said.content) is not safe
    assert ran == ["posted"]


async def test_verify_is_asked_about_a_call_whose_dependencies_could_not_be_closed(temporal: Temporal) -> None:
    ran: list[str] = []

    @asynccontextmanager
    async def leaky(ctx: AgentContext) -> AsyncIterator[list[str]]:
        before = len(ran)
        yield ran
        if len(ran) > before:
            raise ConnectionError("not committed")

    def found(how: str) -> Happened | NotHappened:
        return Happened("receipt") if how == "happened" else NotHappened()

    @tool(verify=found)
    def post(how: str, ctx: ToolContext[list[str]]) -> str:
        ctx.deps.append(how)
        return "posted"

    agent, ways = Agent("clerk", deps=leaky, tools=[post]), ("happened", "not-happened")
    turn = asks_for(*(call("post", how, how=how) for how in ways))
    async with temporal.worker(agent, llm=ScriptedModel([turn, "done"])):
        assert (await temporal.run(agent))["status"] == "complete"
    happened, not_happened = tool_results(await temporal.messages())
    assert happened.content == "receipt"
    assert "could not be closed: not committed" in not_happened.content
    assert "tool-durability-error" not in not_happened.content
    assert ran == list(ways)


async def test_dependencies_are_closed_with_the_error_of_what_had_them(temporal: Temporal) -> None:
    closed: list[str] = []

    @asynccontextmanager
    async def watched(ctx: AgentContext) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            closed.append(repr(error))
            raise

    def broken(ctx: AgentContext) -> str:
        raise LookupError("no shop")

    @tool(timeout=0.05)
    async def wait(ctx: ToolContext) -> None:
        await asyncio.Event().wait()

    shy, slow = Agent("shy", deps=watched, instructions=broken), Agent("slow", deps=watched, tools=[wait])
    async with temporal.worker(shy, slow, llm=ScriptedModel([asks_for(call("wait", "c1")), "done"])):
        handle = await temporal.start(shy, session="shy")
        (item,) = await pending(handle)
        assert "raised LookupError: no shop" in item["message"]
        assert ["no shop" in one for one in closed] == [True]
        assert (await temporal.run(slow))["status"] == "complete"
        await temporal.people.resume(handle.id, "abort")
    assert "its timeout of 0.05 s" in tool_results(await temporal.messages())[0].content


async def test_what_fails_to_close_does_not_replace_the_error_of_a_run() -> None:
    @asynccontextmanager
    async def leaky(ctx: AgentContext) -> AsyncIterator[None]:
        try:
            yield
        finally:
            raise ConnectionError("not closed")

    def broken(ctx: AgentContext) -> None:
        raise LookupError("no shop")

    with pytest.raises(LookupError, match="no shop"):
        await run(Agent("clerk", deps=leaky, on_start=broken), message="go", llm=ScriptedModel(["never said"]))
    with pytest.raises(ConnectionError, match="not closed") as caught:
        await run(Agent("clerk", deps=leaky), message="go", llm=ScriptedModel(["done"]))
    assert caught.value.checkpoint.messages[-1].content == "done"  # type: ignore[attr-defined]


async def test_what_an_unsigned_checkpoint_says_of_its_context_does_not_count() -> None:
    key = b"0123456789abcdef"
    for given, refused in ((None, True), (key, False)):
        first = await run(
            clerk([]), message="go", context={"shop": "Bakery"}, llm=ScriptedModel(["What?"]), checkpoint_key=given
        )
        assert first.checkpoint is not None
        assert first.checkpoint.messages[0].context == '{"shop":"Bakery","limit":10}'
        options: Any = {"llm": ScriptedModel([LOOKS, "done"]), "checkpoint_key": given}
        if refused:
            with pytest.raises(InputError, match="needs a context"):
                await resume(clerk([]), first.checkpoint, "More", **options)
            options["context"] = {"shop": "Bakery"}
        ended = await resume(clerk([]), first.checkpoint, "More", **options)
        assert [said.content for said in tool_results(ended.messages)] == ["Bakery"]


async def test_a_transcript_cannot_bring_a_context_into_a_session(temporal: Temporal) -> None:
    said = Message(role="user", content="hi", context='{"shop":"Bank"}')
    options: Any = {"session_id": temporal.session(), "store": temporal.store, "llm": ScriptedModel([LOOKS, "done"])}
    with pytest.raises(InputError, match="needs a context"):
        await run(clerk([]), messages=[said], **options)
    ended = await run(clerk([]), messages=[said], context={"shop": "Bakery"}, **options)
    assert [one.content for one in tool_results(ended.messages)] == ["Bakery"]
    with pytest.raises(InputError, match="context= goes with message="):
        await run(clerk([]), context={"shop": "Bank"}, **options)


async def test_a_step_gives_its_agent_a_context(pipelines: PipelineDriver) -> None:
    helper = clerk([])
    both = [
        Step(shop, agent=helper, context=lambda ctx, shop=shop: Shop(shop=f"{ctx.input} {shop}"))
        for shop in ("bakery", "mill")
    ]
    line = pipeline("shops", input=str).step(both[0]).step(both[1]).build()
    seen = ScriptedModel([LOOKS, "done"] * 2)
    went = await pipelines.run(line, seen, "Acme")
    assert went.status == "complete"
    assert [call.messages[-1].content for call in seen.calls[1::2]] == ["Acme bakery", "Acme mill"]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (lambda: Step("one", agent=clerk([])), "agent 'clerk' needs a context: give context="),
        (lambda: Step("one", agent=Agent("a"), context=lambda ctx: {}), "context= is for an agent that declares"),
        (lambda: Step("one", agent=clerk([]), context={"shop": "x"}), "context must be a function"),  # type: ignore[call-overload]
    ],
    ids=["none", "not declared", "no function"],
)  # fmt: skip
def test_a_step_whose_context_cannot_fit_is_refused_when_it_is_declared(step: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        step()


async def test_a_context_of_a_step_that_does_not_fit_is_an_error_of_its_function(temporal: Temporal) -> None:
    line = pipeline("shops").step("one", agent=clerk([]), context=lambda ctx: {}).build()
    with pytest.raises(InputError, match="Agent 'clerk': the context does not fit its type: shop: Field required"):
        await run_pipeline(line, llm=ScriptedModel(["never said"]))
