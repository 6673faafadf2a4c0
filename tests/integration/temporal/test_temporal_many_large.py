"""Many inputs, each within its limit: together they must not exceed a history's limits."""

import asyncio
import contextlib
from typing import Any

import pytest
from support.questions import ask
from support.temporal_runs import SECONDS, Run, Temporal, chain, has_ended, last_words, pending, result, wedges
from support.transcripts import asks_for, call, result_of, tool_contents, tool_results

from standfast import Agent, Happened, InputError, InterruptError, Loop, TerminalError, ToolDurabilityError, run, tool
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel, crash_after_tool_results

MB = 1024 * 1024


async def soon(handle: Run) -> dict[str, Any]:
    """Return a run's result; if it does not come, say why."""
    try:
        async with asyncio.timeout(SECONDS):
            return await result(handle)
    except TimeoutError:
        raise AssertionError(f"the run did not end: {await last_words(handle)}") from None


async def check_chain(temporal: Temporal, handle: Run) -> None:
    for history in await chain(temporal.client, handle):
        failed = wedges(history)
        assert not failed, failed


@pytest.mark.slow
async def test_what_is_parked_fits_into_the_run_that_continues(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    agent = Agent("listener", tools=[ask])
    two = asks_for(call("ask", "a1", question="?"), call("ask", "a2", question="?"))
    heavy, parked = "\x01" * 40_000, 0  # six times as long in JSON
    async with temporal.worker(agent, llm=ScriptedModel([two, "done"])):
        handle = await temporal.start(agent)
        await pending(handle, 2)
        for _ in range(20):
            with contextlib.suppress(InputError):  # it is full: the sender knows
                await temporal.people.message(handle.id, heavy)
                parked += 1
        for call_id in ("a1", "a2"):
            await temporal.people.answer(handle.id, "ok", tool_call_id=call_id)
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)
    assert len([message for message in await temporal.messages() if message.content == heavy]) == parked


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 100])
async def test_sixty_four_long_questions_are_asked(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", steps)

    @tool(parallel=True)
    async def confirm() -> str:
        """Ask at length."""
        raise InterruptError("Sure? " + "x" * 50_000)

    agent = Agent("careful", tools=[confirm], loop=Loop(max_tool_concurrency=16))
    calls = [call("confirm", f"c{number}") for number in range(64)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"])):
        handle = await temporal.start(agent)
        try:
            async with asyncio.timeout(SECONDS):
                await pending(handle, 64)
        except TimeoutError:
            raise AssertionError(f"no gate opened: {await last_words(handle)}") from None
        for number in range(64):
            await handle.signal("answer", {"text": "yes", "tool_call_id": f"c{number}"})
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)
    assert len(tool_results(await temporal.messages())) == 64


@pytest.mark.slow
async def test_many_long_answers_are_all_read(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask])
    calls = [call("ask", f"a{number}", question="?") for number in range(12)]
    text = "y" * 250_000
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"])):
        handle = await temporal.start(agent)
        await pending(handle, 12)
        taken = []
        for number in range(12):
            with contextlib.suppress(InputError):  # it is too much: the sender knows, and sends less
                await temporal.people.answer(handle.id, text, tool_call_id=f"a{number}")
                taken.append(number)
        for number in set(range(12)) - set(taken):
            await temporal.people.answer(handle.id, "short", tool_call_id=f"a{number}")
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)
    results = dict(tool_contents(await temporal.messages()))
    assert [number for number in range(12) if results[f"a{number}"] == text] == taken
    assert len(taken) >= 1


@pytest.mark.slow
async def test_many_long_decisions_of_an_operator_are_all_kept(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_workflows, "STEPS", 1)

    @tool
    async def pay() -> str:
        """Pay, and do not know."""
        raise ToolDurabilityError("pay", "p")

    agent = Agent("payer", tools=[pay], loop=Loop(on_unknown="ask"))
    calls = [call("pay", f"p{number}") for number in range(12)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"])):
        handle = await temporal.start(agent)
        await pending(handle, 12)
        for number in range(12):
            long: dict[str, Any] = {"result": "y" * 200_000, "reason": "z" * 50_000}
            try:
                await temporal.people.resolve(handle.id, f"p{number}", "happened", **long)
            except InputError:  # it is too much
                await temporal.people.resolve(handle.id, f"p{number}", "happened", result="short")
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)
    assert len(tool_results(await temporal.messages())) == 12


async def test_what_verify_finds_may_be_as_long_as_any_result(temporal: Temporal) -> None:
    found = "x" * (3 * MB)

    @tool(verify=lambda: Happened(found))
    async def post() -> str:
        """Post."""
        return "posted"

    agent = Agent("poster", tools=[post])
    with pytest.raises(RuntimeError, match="simulated"):
        await run(
            agent, message="go", llm=ScriptedModel([asks_for(call("post", "p1"))]), session_id=temporal.session(),
            store=crash_after_tool_results(temporal.store),
        )  # fmt: skip
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start(agent, "more")
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)
    assert result_of(await temporal.messages(), "p1") == found


async def test_sixty_four_terminal_errors_with_metadata_are_read(temporal: Temporal) -> None:
    @tool(parallel=True)
    async def give_up() -> str:
        """Fail for good, at length."""
        raise TerminalError("gone " + "x" * 50_000, metadata={"more": "y" * 15_000})

    agent = Agent("failing", tools=[give_up], loop=Loop(max_tool_concurrency=16))
    calls = [call("give_up", f"g{number}") for number in range(64)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"])):
        handle = await temporal.start(agent)
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)


async def test_a_terminal_error_that_fails_the_run_fits_its_failure(temporal: Temporal) -> None:
    @tool
    async def give_up() -> str:
        """Fail for good, at length."""
        raise TerminalError("gone " + "x" * (3 * MB), metadata={"more": "y" * (3 * MB)})

    agent = Agent("failing", tools=[give_up], on_terminal_tool_error="fail")
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("give_up", "g1"))])):
        handle = await temporal.start(agent)
        with pytest.raises(Exception, match="Workflow execution failed"):
            await soon(handle)
        await check_chain(temporal, handle)


async def test_an_agent_with_hundreds_of_tools_and_long_names_runs(temporal: Temporal) -> None:
    def make(number: int) -> Any:
        @tool(name=f"look_{number}_" + "x" * 50, safe_to_retry=True)
        async def look() -> str:
            return "seen"

        return look

    tools = [make(number) for number in range(300)]
    agent = Agent("armed", tools=tools)
    model = ScriptedModel([asks_for(call("nope", "n1")), asks_for(call(tools[-1].name, "c1")), "done"])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        assert (await soon(handle))["status"] == "complete"
        assert await has_ended(handle)
        await check_chain(temporal, handle)


@pytest.mark.slow
async def test_a_paused_run_that_is_flooded_is_still_there(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask])
    model = ScriptedModel([asks_for(call("ask", "a1", question="?")), "done"])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        await pending(handle)
        await asyncio.gather(*(handle.signal("message", {"text": "x" * 250_000}) for _ in range(40)))
        await temporal.people.answer(handle.id, "ok")
        assert (await soon(handle))["status"] == "complete"
        await check_chain(temporal, handle)
