"""Large data and many items: histories stay small, whatever the size of messages, answers and results."""

import asyncio
import hashlib
from typing import Any

import pytest
from support.doubles import echo
from support.questions import ask
from support.temporal_runs import (
    Temporal,
    check_healthy,
    events,
    failure,
    pending,
    result,
    scheduled,
    status,
)
from support.transcripts import asks_for, call, error_of, result_of, tool_contents, tool_results

from standfast import Agent, InputError, InterruptError, Loop, Message, tool
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel

MB = 1024 * 1024


async def _largest(run: Any) -> int:
    return max(event.ByteSize() for event in await events(run))


@pytest.mark.parametrize("size", [10 * MB, 10 * MB + 1], ids=["at the limit", "over it"])
async def test_a_result_of_ten_megabytes_is_in_the_store_and_not_in_the_history(temporal: Temporal, size: int) -> None:
    times: list[int] = []

    @tool
    async def fetch() -> str:
        """Fetch much."""
        times.append(1)
        return "x" * size

    agent = Agent("fetcher", tools=[fetch])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("fetch", "f1")), "done"])):
        run = await temporal.start(agent)
        assert (await result(run))["status"] == "complete"
        assert await _largest(run) < 1_000
        await check_healthy(run)
    (fetched,) = tool_results(await temporal.messages())
    if size > 10 * MB:
        assert "its result was lost: 10,485,761 bytes, more than max_message_bytes=10,485,760" in error_of(fetched)
    else:
        assert len(fetched.content) == size
    assert times == [1]


async def test_arguments_of_ten_megabytes_reach_the_handler_and_not_the_history(temporal: Temporal) -> None:
    got: list[str] = []

    @tool
    async def post(text: str) -> str:
        """Post much."""
        got.append(hashlib.sha256(text.encode()).hexdigest())
        return "posted"

    text = "é" * (4 * MB)
    agent = Agent("poster", tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "p1", text=text)), "done"])):
        run = await temporal.start(agent)
        assert (await result(run))["status"] == "complete"
        assert await _largest(run) < 1_500
        assert len(str(await status(run))) < 3_000
        await check_healthy(run)
    assert got == [hashlib.sha256(text.encode()).hexdigest()]


async def test_arguments_over_the_limit_are_refused_and_not_run(temporal: Temporal) -> None:
    agent = Agent("poster", tools=[echo])
    model = ScriptedModel([asks_for(call("echo", "p1", text="x" * (10 * MB + 1))), "done"])
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert "max_message_bytes" in error_of(tool_results(await temporal.messages())[0])


async def test_an_answer_of_three_megabytes_is_cut_in_the_result_and_whole_in_the_store(temporal: Temporal) -> None:
    text = "y" * (3 * MB)
    async with temporal.worker(Agent("talker"), llm=ScriptedModel([text])):
        run = await temporal.start("talker")
        ended = await result(run)
        await check_healthy(run)
    assert ended["status"] == "complete"
    assert ended["response"] == "y" * 262_144 + "\n[cut: 262,144 of 3,145,728 bytes]"
    assert ended["size"] == 3 * MB
    assert (await temporal.messages())[-1].content == text


@pytest.mark.parametrize("status_at_end", ["max-iterations", "stuck"])
async def test_a_long_text_beside_calls_is_whole_in_the_result_of_a_run_at_its_limit(
    temporal: Temporal, status_at_end: str
) -> None:
    text = "y" * 100_000
    loop = Loop(max_iterations=1, stuck_threshold=1 if status_at_end == "stuck" else 0)
    agent = Agent("talker", tools=[echo], loop=loop)
    calls = [call("echo", "c1", text="x") if status_at_end == "max-iterations" else call("nope", "c1")]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls, text=text)])):
        ended = await temporal.run(agent)
    assert (ended["status"], ended["response"]) == (status_at_end, "" if status_at_end == "stuck" else text)


async def test_an_output_of_three_megabytes_is_checked_and_left_in_the_store(temporal: Temporal) -> None:
    agent = Agent("lister", output=list[int])
    async with temporal.worker(agent, llm=ScriptedModel(["[" + ",".join(["1"] * MB) + "]"])):
        run = await temporal.start(agent)
        ended = await result(run)
        await check_healthy(run)
    assert (ended["status"], "output" in ended) == ("complete", False)


@pytest.mark.parametrize("count", [64, 100])
async def test_sixty_four_parallel_calls_of_a_turn_run_and_the_rest_are_refused(temporal: Temporal, count: int) -> None:
    @tool(parallel=True, safe_to_retry=True)
    async def look(number: int) -> str:
        """Look."""
        return f"saw {number}"

    agent = Agent("looker", tools=[look], loop=Loop(max_tool_concurrency=16))
    calls = [call("look", f"c{number}", number=number) for number in range(count)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"])):
        run = await temporal.start(agent)
        assert (await result(run))["status"] == "complete"
        assert scheduled(await events(run)) == ["call_model", *["look"] * 64, "call_model"]
        await check_healthy(run)
    results = tool_contents(await temporal.messages())
    assert results[:64] == [(f"c{number}", f"saw {number}") for number in range(64)]
    assert len(results) == count


@pytest.mark.slow
async def test_as_many_calls_as_the_loop_allows_run(temporal: Temporal) -> None:
    @tool(parallel=True, safe_to_retry=True)
    async def look(number: int) -> str:
        """Look."""
        return f"saw {number}"

    agent = Agent("looker", tools=[look], loop=Loop(max_tool_calls=300, max_tool_concurrency=50))
    calls = [call("look", f"c{number}", number=number) for number in range(300)]
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(*calls), "done"]), max_stored_messages=1_000):
        run = await temporal.start(agent)
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert tool_contents(await temporal.messages()) == [(f"c{number}", f"saw {number}") for number in range(300)]


@pytest.mark.parametrize("size", [200_000, 1_000_000])
async def test_a_long_message_is_told_whole(temporal: Temporal, size: int) -> None:
    text = "z" * size
    model = ScriptedModel(["done"])
    async with temporal.worker(Agent("listener"), llm=model):
        run = await temporal.start("listener", text)
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert model.calls[0].messages[-1].content == text
    assert (await temporal.messages())[0].content == text


async def test_a_message_over_the_limit_is_refused_before_anything_is_sent(temporal: Temporal) -> None:
    with pytest.raises(InputError, match="more than 1,048,576; keep large data elsewhere"):
        await temporal.start("listener", "z" * MB)


async def test_a_message_that_fits_no_signal_is_refused_before_anything_is_sent(temporal: Temporal) -> None:
    with pytest.raises(InputError, match="more than 262,144; keep large data elsewhere"):
        await temporal.start("listener", "z" * 300_000, if_running="message")


async def test_a_message_over_the_agent_s_limit_fails_the_run_with_the_reason(temporal: Temporal) -> None:
    agent = Agent("listener", loop=Loop(max_message_bytes=2_000))
    async with temporal.worker(agent, llm=ScriptedModel(["never"])):
        error = await failure(await temporal.start(agent, "z" * 2_001))
    assert (error.type, "longer than 2,000 bytes" in error.message) == ("InputError", True)


async def test_a_later_message_over_the_agent_s_limit_is_not_told_whole(temporal: Temporal) -> None:
    agent = Agent("listener", tools=[ask], loop=Loop(max_message_bytes=2_000))
    model = ScriptedModel([asks_for(call("ask", "a1", question="?")), "done"])
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await pending(run)
        with pytest.raises(InputError, match="2,000"):
            await temporal.people.message(run.id, "z" * 2_001)
        with pytest.raises(InputError, match="2,000"):
            await temporal.people.answer(run.id, "z" * 2_001)
        await temporal.people.answer(run.id, "ok")
        await result(run)


async def test_a_question_of_a_megabyte_is_shown_in_part_and_stored_in_part(temporal: Temporal) -> None:
    @tool
    async def confirm() -> str:
        """Ask at length."""
        raise InterruptError("Sure? " + "x" * MB)

    agent = Agent("careful", tools=[confirm])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("confirm", "c1")), "done"])):
        run = await temporal.start(agent)
        (asked,) = await pending(run)
        assert asked["message"].startswith("Sure? ")
        assert len(asked["message"]) < 40_000
        await run.execute_update("answer", {"text": "yes"})
        assert (await result(run))["status"] == "complete"
        assert await _largest(run) < 100_000
        await check_healthy(run)
    assert result_of(await temporal.messages(), "c1") == "yes"


async def test_an_error_of_ten_megabytes_is_cut(temporal: Temporal) -> None:
    @tool
    async def fail() -> str:
        """Fail at length."""
        raise ValueError("x" * (10 * MB))

    agent = Agent("failing", tools=[fail])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("fail", "f1")), ValueError("y" * (10 * MB))])):
        run = await temporal.start(agent)
        ended = await result(run)
        assert ended["status"] == "error"
        assert len(ended["response"]) < 10_000
        assert await _largest(run) < 100_000
        await check_healthy(run)


async def test_a_state_of_a_megabyte_is_refused_or_stays_out_of_the_history(temporal: Temporal) -> None:
    def fill(context: Any) -> None:
        context.state["much"] = "x" * MB

    agent = Agent("hoarder", on_complete=fill)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        run = await temporal.start(agent)
        assert (await result(run))["status"] == "complete"
        assert await _largest(run) < 2_000
    session = await temporal.store.load_session(temporal.session())
    assert session is not None
    assert len(session.state) > MB


@pytest.mark.slow
async def test_many_runs_at_once_all_end(temporal: Temporal) -> None:
    agent = Agent("busy", tools=[echo])
    model = ScriptedModel(
        lambda messages, tools: "done" if messages[-1].role == "tool" else asks_for(call("echo", "c1", text="x"))
    )
    async with temporal.worker(agent, llm=model):
        runs = await asyncio.gather(*(temporal.start(agent, session=f"s{number}") for number in range(40)))
        ends = await asyncio.gather(*(result(run) for run in runs))
    assert [ended["status"] for ended in ends] == ["complete"] * 40


# --- long ids ---


writer = Agent("writer")
boss = Agent("boss", tools=[writer])


def delegate(messages: list[Message], tools: Any) -> Any:
    """Answer as a model that asks the writer, and as the writer, which says what it has heard so far."""
    if not tools:
        return " ".join(message.content for message in messages[1:])
    return messages[-1].content if messages[-1].role == "tool" else asks_for(call("writer", "w1", message="hi"))


async def test_agents_of_sessions_with_long_ids_do_not_share_a_session(temporal: Temporal) -> None:
    names = [f"{first}-{temporal.name}".ljust(200, "x") for first in ("a", "b")]
    async with temporal.worker(boss, writer, llm=ScriptedModel(delegate)):
        runs = [
            await start_agent(temporal.client, boss, message="go", session_id=name, task_queue=temporal.name)
            for name in names
        ]
        assert [(await result(run))["response"] for run in runs] == ["hi", "hi"]


async def test_agents_six_deep_run_whatever_the_length_of_their_calls_ids(temporal: Temporal) -> None:
    agents = [Agent("a0")]
    for number in range(1, 7):
        agents.append(Agent(f"a{number}", tools=[agents[-1]]))

    def answer(messages: list[Message], tools: Any) -> Any:
        if not tools:
            return "the bottom"
        return (
            messages[-1].content
            if messages[-1].role == "tool"
            else asks_for(call(tools[0].name, "x" * 250, message="go"))
        )

    async with temporal.worker(*agents, llm=ScriptedModel(answer)):
        run = await temporal.start(agents[-1])
        assert (await result(run))["response"] == "the bottom"
        await check_healthy(run)
