"""A run's context and its agent's state stay together wherever the run continues."""

from typing import Any

import pytest
from support.resets import resets
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call, tool_contents

from integration.local.test_context_pruning import Shop
from integration.local.test_tool_states import Basket, add, kept
from standfast import Agent, Approval, InputError, InterruptError, SessionConflictError, ToolContext, resume, run, tool
from standfast.testing import ScriptedModel


@tool(safe_to_retry=True)
def look(ctx: ToolContext[Shop]) -> str:
    """Say whose basket it is, and what is in it."""
    return f"{ctx.deps.shop}: {', '.join(ctx.state.items)}"


@tool(approval=Approval())
def post(ctx: ToolContext[Shop]) -> str:
    """Send the basket."""
    ctx.state.items.append("posted")
    return ctx.deps.shop


@tool
def ask(question: str, ctx: ToolContext[Shop]) -> str:
    """Ask a person."""
    raise InterruptError(f"{ctx.deps.shop}: {question}")


till = Agent("till", model="till", tools=[look, post, ask], description="Sells.")
desk = Agent("desk", model="desk", context=Shop, state=Basket, tools=[add, look, post, ask], handoffs=[till])


MILL = {"shop": "Mill"}
TO_TILL = call("transfer_to_till", "h1")


def puts(item: str) -> Any:
    return asks_for(call("add", f"c{item}", item=item))


def looks(call_id: str) -> Any:
    return asks_for(call("look", call_id))


@pytest.mark.slow
async def test_a_run_that_continues_as_new_has_its_context_its_state_and_its_speaker(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    from standfast.temporal.workflows.run import agent_workflows

    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    turns = [puts("a"), looks("l1"), asks_for(TO_TILL), looks("l2"), asks_for(call("post", "p1")), looks("l3"), "done"]
    async with temporal.worker(desk, till, llm=ScriptedModel(turns)):
        handle = await temporal.start(desk, context=MILL)
        await pending(handle)
        for given, is_ours in ((MILL, True), ({"shop": "Bakery"}, False), (None, True)):
            say = temporal.start(desk, "more", context=given, if_running="message")
            if is_ours:
                await say
            else:
                with pytest.raises(SessionConflictError, match="was not started with this context"):
                    await say
        await temporal.people.decide(handle.id, "p1", "approve")
        assert (await result(handle))["status"] == "complete"
    said = dict(tool_contents(await temporal.messages()))
    assert (said["l1"], said["l2"], said["p1"], said["l3"]) == ("Mill: a", "Mill: a", "Mill", "Mill: a, posted")
    heard = [one for one in await temporal.messages() if one.role == "user"]
    assert [one.context for one in heard] == ['{"shop":"Mill"}'] * 3


@pytest.mark.slow
async def test_a_run_that_is_reset_to_any_point_has_the_state_of_its_context(temporal: Temporal) -> None:
    turns = [puts("a"), asks_for(TO_TILL), looks("l1"), "done"]
    async with temporal.worker(desk, till, llm=ScriptedModel([*turns, *["done"] * 20])):
        handle = await temporal.start(desk, context=MILL)
        first = await result(handle)
        async for again in resets(temporal, handle):
            assert await result(again) == first
    assert dict(tool_contents(await temporal.messages()))["l1"] == "Mill: a"
    assert await kept(temporal) == {"items": ["a"]}


async def test_a_run_that_is_terminated_is_gone_on_with_in_its_context_in_either_driver(temporal: Temporal) -> None:
    async with temporal.worker(
        desk, till, llm=ScriptedModel([puts("a"), asks_for(TO_TILL), asks_for(call("post", "p1"))])
    ):
        handle = await temporal.start(desk, context=MILL)
        await pending(handle)
        await handle.terminate("lost")
    here: dict[str, Any] = {"session_id": temporal.session(), "store": temporal.store}
    with pytest.raises(InputError, match="waits for approval"):
        await run(desk, message="on", llm=ScriptedModel([]), context={"shop": "Bakery"}, **here)
    async with temporal.worker(desk, till, llm=ScriptedModel([looks("l1"), "done"])):
        again = await temporal.start(desk, None)
        await pending(again)
        await temporal.people.decide(again.id, "p1", "approve")
        assert (await result(again))["status"] == "complete"
    ended = await run(desk, message="on", llm=ScriptedModel([looks("l2"), "done"]), **here)
    assert ended.status == "complete"
    said = dict(tool_contents(await temporal.messages()))
    assert (said["p1"], said["l1"], said["l2"]) == ("Mill", "Mill: a, posted", "Mill: a, posted")


QUESTION = asks_for(call("ask", "q1", question="Now?"))


async def test_an_export_continues_in_process_with_its_context_and_state(temporal: Temporal) -> None:
    async with temporal.worker(desk, till, llm=ScriptedModel([puts("a"), asks_for(TO_TILL), QUESTION])):
        handle = await temporal.start(desk, context=MILL)
        await pending(handle)
        checkpoint = await temporal.people.export(handle.id)
        await handle.terminate("moved")
    here: dict[str, Any] = {"llm": ScriptedModel([looks("l1"), "done"]), "store": temporal.store}
    assert (await resume(desk, checkpoint, "yes", **here)).status == "complete"
    said = dict(tool_contents(await temporal.messages()))
    assert (said["q1"], said["l1"]) == ("yes", "Mill: a")


@pytest.mark.parametrize("key", [None, "a key of sixteen bytes"])
async def test_a_checkpoint_from_a_process_brings_its_context_to_temporal_if_it_is_signed(
    temporal: Temporal, key: str | None
) -> None:
    there = await run(desk, message="go", context=MILL, llm=ScriptedModel([QUESTION]), checkpoint_key=key)
    model = ScriptedModel([looks("l1"), "done"])
    async with temporal.worker(desk, till, llm=model, checkpoint_key=key):
        handle = await temporal.start(desk, None, checkpoint=there.checkpoint)
        await pending(handle)
        await handle.execute_update("answer", {"text": "yes"})
        assert (await result(handle))["status"] == "complete"
    whose = "anybody's" if key is None else "Mill"
    assert dict(tool_contents(await temporal.messages()))["l1"] == f"{whose}: "
