"""The types that users can rely on; `mypy --strict` checks this file, nothing runs it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, assert_type

from pydantic import BaseModel
from temporalio.client import Client

from standfast import (
    Agent,
    AgentContext,
    Approval,
    Guardrail,
    InterruptedResponse,
    Message,
    Pipeline,
    PipelineResult,
    RunResult,
    Step,
    StepContext,
    Tool,
    ToolContext,
    assert_complete,
    is_interrupted,
    memory_store,
    pipeline,
    resume,
    run,
    tool,
)
from standfast.temporal import StandfastClient, StandfastPlugin, approval, start_agent


@tool
async def greet(name: str, ctx: ToolContext, *, loud: bool = False) -> dict[str, str]:
    """Greet somebody."""
    return {"text": name}


@tool(safe_to_retry=True)
def count(items: list[str]) -> int:
    """Count items."""
    return len(items)


async def a_tool_keeps_the_signature_of_its_function() -> None:
    assert_type(await greet("Ada", ToolContext(), loud=True), dict[str, str])
    assert_type(count(["a"]), int)
    count("a", 1)  # type: ignore[call-arg, arg-type]


class Invoice(BaseModel):
    total: int


class Shop:
    name: str


@tool
def look_up(article: str, ctx: ToolContext[Shop]) -> str:
    """Look up an article."""
    assert_type(ctx.deps, Shop)
    return ctx.deps.name


class Bazaar(Shop):
    pass


class Bank:
    pass


def open_shop(ctx: AgentContext) -> Shop:
    assert_type(ctx.deps, Any)
    return Shop()


async def open_shop_later(ctx: AgentContext[None]) -> Shop:
    assert_type(ctx.deps, None)
    return Shop()


@asynccontextmanager
async def opened_bazaar(ctx: AgentContext) -> AsyncIterator[Bazaar]:
    yield Bazaar()


def greet_in(ctx: AgentContext[Shop]) -> str:
    return ctx.deps.name


async def pay_at(ctx: AgentContext[Bank]) -> str:
    return ""


def check_at(ctx: AgentContext[Bank], said: Message) -> None:
    pass


def untyped(ctx: AgentContext) -> str:
    return str(ctx.deps.anything)


def dependencies_have_the_type_that_a_context_names(agent: AgentContext[Shop], plain: ToolContext) -> None:
    assert_type(agent.deps, Shop)
    assert_type(plain.deps, Any)
    ToolContext[Shop]().deps.title  # type: ignore[attr-defined]  # noqa: B018


def dependencies_give_their_agent_a_second_type() -> None:
    assert_type(Agent("clerk", deps=open_shop, tools=[look_up]), Agent[None, Shop])
    assert_type(Agent("clerk", deps=lambda ctx: Bank(), context=Invoice), Agent[None, Bank])
    assert_type(Agent("clerk", output=Invoice, deps=open_shop), Agent[Invoice, Shop])
    assert_type(Agent("clerk", output=Invoice | None, deps=open_shop), Agent[Any, Shop])
    assert_type(Agent("clerk", context=Shop), Agent[None, Shop])  # without deps, they are the context
    assert_type(Agent("clerk", output=Invoice, context=dict[str, int]), Agent[Invoice, dict[str, int]])
    assert_type(Agent("clerk", instructions=greet_in), Agent[None])  # the first of its conversation has them
    named: Agent[None, Bazaar] = Agent("clerk", deps=opened_bazaar, on_start=lambda ctx: ctx.deps.name)
    later: Agent[None, Shop] = Agent("clerk", deps=open_shop_later)
    wrong: Agent[None, Bank] = Agent("clerk", deps=opened_bazaar)  # type: ignore[arg-type]
    assert [named, later, wrong]


def functions_of_an_agent_take_its_dependencies() -> None:
    Agent("clerk", deps=open_shop, instructions=["Sell.", greet_in, untyped], on_start=greet_in)
    Agent("clerk", deps=opened_bazaar, instructions=greet_in, on_stuck=untyped)
    Agent("clerk", deps=open_shop, instructions=lambda ctx: ctx.deps.name)
    Agent("clerk", context=Shop, on_complete=greet_in, input_guardrails=[lambda ctx, said: ctx.deps.name])
    Agent("clerk", deps=open_shop, on_start=lambda ctx: ctx.deps.title)  # type: ignore[attr-defined]
    Agent("clerk", deps=open_shop, on_start=pay_at)  # type: ignore[misc]
    Agent("clerk", deps=open_shop, instructions=["Pay.", pay_at])  # type: ignore[list-item]
    Agent("clerk", output=Invoice, deps=open_shop_later, on_stuck=pay_at)  # type: ignore[arg-type]
    Agent("clerk", output=Invoice, context=Shop, instructions=pay_at)  # type: ignore[arg-type]
    Agent("clerk", deps=open_shop, input_guardrails=[check_at])  # type: ignore[misc]
    Agent("clerk", deps=open_shop, output_guardrails=[Guardrail(check_at)])  # type: ignore[misc]
    Agent("clerk", deps=open_shop, output_validators=[check_at])  # type: ignore[misc]
    Agent("clerk", deps=greet_in)  # type: ignore[arg-type]  # there are none yet


def agents_with_other_dependencies_stand_beside_each_other(seller: Agent[None, Shop]) -> None:
    def all_of(agents: Sequence[Agent]) -> None:
        pass

    banker = Agent("banker", output=Invoice, deps=lambda ctx: Bank())
    desk = Agent("desk", tools=[look_up, seller, banker], handoffs=[seller, banker, Agent("helper"), "desk"])
    all_of([seller, banker, desk])
    agents = [seller, banker, desk]
    all_of(agents)
    StandfastPlugin(agents=agents, store=memory_store())
    Agent("other", tools=agents, handoffs=agents)
    StandfastPlugin(agents=[seller, banker, desk], store=memory_store())
    pipeline("w").step("sell", agent=seller).step(Step("bank", agent=banker)).build()
    assert_type(Step("bank", agent=banker), Step[Invoice])
    assert_type(Step("sell", agent=seller), Step[None])


async def an_agent_with_dependencies_runs_as_any_other(seller: Agent[Invoice, Shop], client: Client) -> None:
    assert_type(await run(seller, message="hi"), RunResult[Invoice])
    assert_type(await StandfastClient(client).result("seller/s", seller), RunResult[Invoice])
    await start_agent(client, seller, message="hi")


def an_output_gives_its_agent_its_type() -> None:
    assert_type(Agent("clerk", output=Invoice), Agent[Invoice])
    assert_type(Agent("clerk", output=list[Invoice], model="openai:gpt-5"), Agent[list[Invoice]])
    assert_type(Agent("clerk", output=Invoice | None), Agent[Any])  # not a class, which no checker reads yet
    assert_type(Agent("greeter", instructions="Greet."), Agent[None])
    Agent("clerk", output=Invoice, modle="openai:gpt-5")  # type: ignore[call-overload]

    def shows(agent: Agent) -> str:
        assert_type(agent, Agent[Any])
        return agent.name

    shows(Agent("clerk", output=Invoice, tools=[greet, Agent("helper")]))
    shows(Agent("greeter"))


async def a_run_has_one_type_of_result_with_the_output_of_its_agent() -> None:
    clerk = Agent("clerk", output=Invoice)
    result = await run(clerk, message="hi", session_id="s", max_stored_messages=10)
    assert_type(result, RunResult[Invoice])
    if result.status == "complete":
        assert_type(result.output, Invoice)
    if result.status == "interrupted":
        assert_type(await resume(clerk, result.checkpoint, f"{result.question} yes"), RunResult[Invoice])
    assert_type(assert_complete(result).output.total, int)
    assert_type((await run(Agent("greeter"), message="hi")).output, None)


async def a_result_on_temporal_has_the_type_of_one_in_process(people: StandfastClient, line: Pipeline) -> None:
    assert_type(await people.result("clerk/s", Agent("clerk", output=Invoice)), RunResult[Invoice])
    assert_type(await people.result("line/1", line), PipelineResult)
    assert_type(await people.result("clerk/s"), dict[str, Any])


async def a_gate_has_options_with_names() -> None:
    decided = await approval("ship", message="Ship?", approvers=["ada"], timeout="3d")
    assert_type(decided["by"], list[str])
    await approval("ship", mesage="Ship?")  # type: ignore[call-arg]


async def a_result_is_narrowed_both_ways() -> None:
    agent = Agent("greeter", tools=[greet, count])
    result = await run(agent, message="hi")
    if is_interrupted(result):
        assert_type(result, InterruptedResponse[None])
        await resume(agent, result.checkpoint, "yes", user_id="ada")
    else:
        assert_type(result, RunResult[None])


async def an_unknown_option_is_an_error() -> None:
    await run(Agent("greeter"), message="hi", sesion_id="s")  # type: ignore[call-arg]


def a_tool_without_a_handler_is_a_declaration() -> None:
    declared: Tool[..., object] = Tool("look", description="Look.")
    assert_type(declared.safe_to_retry, bool)


class Findings(BaseModel):
    findings: list[str]


def a_step_gives_its_output_its_type(any_agent: Agent) -> None:
    reviewer = Agent("reviewer")
    review = Step("review", agent=reviewer, output=Findings)
    assert_type(review, Step[Findings])
    plain = Step("plain", agent=reviewer)
    numbers = Step("numbers", agent=reviewer, output=list[int])
    clerk = Step("clerk", agent=Agent("clerk", output=Invoice))
    other = Step("other", agent=Agent("clerk", output=Invoice), output=Findings)
    anybodys = Step("anybodys", agent=any_agent)
    release = Step("release", approval=Approval(message="Release?"))
    edited = Step("edited", approval=Approval(edit=Invoice))
    counted = Step("counted", run=count)
    assert_type(Step("maybe", agent=reviewer, output=Findings | None), Step[Any])
    Step("review", agent=reviewer, outptu=Findings)  # type: ignore[call-overload]

    def message(ctx: StepContext) -> str:
        assert_type(ctx[review], Findings)
        assert_type(ctx[numbers], list[int])
        assert_type(ctx[plain], dict[str, str])
        assert_type(ctx[clerk], Invoice)
        assert_type(ctx[other], Findings)
        assert_type(ctx[release], dict[str, Any])
        assert_type(ctx[edited], Invoice)
        assert_type(ctx[counted], Any)
        assert_type(ctx[anybodys], Any)
        return ctx[review].findings[0]

    made = pipeline("w").step(review).step(plain).step("publish", agent=reviewer, input=message).build()
    assert_type(made, Pipeline)
    pipeline("w").step(review, agent=reviewer)  # type: ignore[call-overload]
