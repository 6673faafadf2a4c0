"""The context tells a handler which call it serves."""

from support.doubles import ask
from support.transcripts import call, results

from standfast import Agent, ToolContext, tool
from standfast.stores import SQLiteStore


async def test_a_handler_learns_about_the_call_it_serves(store: SQLiteStore) -> None:
    seen: list[ToolContext] = []

    @tool
    async def work(ctx: ToolContext) -> None:
        seen.append(ctx)

    options = {"session_id": "s", "store": store, "user_id": "ada", "tenant_id": "acme", "instance_id": "i-1"}
    await ask(Agent("worker", tools=[work]), call("work", "c1"), **options)
    (ctx,) = seen
    assert (ctx.agent_name, ctx.agent_id, ctx.session_id, ctx.tool_call_id) == ("worker", "i-1", "s", "c1")
    assert (ctx.user_id, ctx.tenant_id, ctx.attempt) == ("ada", "acme", 1)
    assert callable(ctx.agents.invoke)
    ctx.heartbeat("alive")


async def test_the_agent_has_a_new_id_in_every_run_unless_one_is_given() -> None:
    seen: list[str] = []

    @tool
    async def work(ctx: ToolContext) -> None:
        seen.append(ctx.agent_id)

    agent = Agent("a", tools=[work])
    await ask(agent, call("work", "c1"))
    await ask(agent, call("work", "c1"))
    assert len(set(seen)) == 2
    assert all(seen)


async def test_the_result_carries_the_id_that_the_model_gave_its_call() -> None:
    @tool
    async def work() -> str:
        return "x"

    result = await ask(Agent("a", tools=[work]), call("work", "toolu_01"))
    assert [message.tool_call_id for message in results(result)] == ["toolu_01"]
