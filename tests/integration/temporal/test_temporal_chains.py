"""Long runs: continue-as-new gives the same result as in process, and a step costs the same at any length."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.doubles import echo, fail
from support.questions import ask
from support.temporal_runs import Run, Temporal, chain, events, pending, result, scheduled, until, waiting, wedges
from support.transcripts import asks_for, call, result_of, says, without_ids
from temporalio.api.enums.v1 import EventType

from standfast import (
    Agent,
    ContextCompression,
    DiminishingReturns,
    Loop,
    Message,
    ToolContext,
    ToolDurabilityError,
    assert_complete,
    is_interrupted,
    resume,
    run,
    tool,
)
from standfast.messages import Reasoning
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs continue as new after three steps."""
    monkeypatch.setattr(agent_workflows, "STEPS", 3)


@dataclass(frozen=True)
class Scenario:
    """A run that is long enough to go on in several runs of a chain.

    Args:
        agent: made again for each driver.
        script: what the model answers.
        answers: to the questions on the way.
    """

    agent: Callable[[], Agent]
    script: Callable[[], list[Any]]
    answers: Sequence[str] = ()
    limit: int | None = None


def steps(count: int, **options: Any) -> list[Any]:
    return [asks_for(call("echo", f"c{n}", text=f"x{n}"), text=f"step {n}", **options) for n in range(count)]


def thoughtful(count: int) -> list[Any]:
    """Steps that each begin with a thought, as its provider wants it back."""
    blocks = [({"type": "thinking", "thinking": f"Hm {n}.", "signature": "Eo8C"},) for n in range(count)]
    thoughts = [Reasoning(provider="anthropic", blocks=block) for block in blocks]
    return [turn.model_copy(update={"reasoning": one}) for turn, one in zip(steps(count), thoughts, strict=True)]


def shorten(messages: Sequence[Message]) -> list[Message]:
    return [Message(role="user", content=f"{len(messages)} messages before"), *messages[-2:]]


def counting() -> Agent:
    @tool
    async def count(ctx: ToolContext) -> str:
        """Return the key of the call, which must be the same for every driver and after every crash."""
        return ctx.idempotency_key.partition("/")[2]

    return Agent("a", tools=[count])


SCENARIOS = {
    "tools": Scenario(lambda: Agent("a", tools=[echo]), lambda: [*steps(10), "done"]),
    "a limit": Scenario(lambda: Agent("a", tools=[echo], loop=Loop(max_iterations=7)), lambda: steps(9)),
    "questions": Scenario(
        lambda: Agent("a", tools=[ask, echo]),
        lambda: [
            *steps(2),
            asks_for(
                call("ask", "a1", question="One?"), call("echo", "e1", text="x"), call("ask", "a2", question="2?")
            ),
            *[asks_for(call("echo", f"d{n}", text="y")) for n in range(3)],
            asks_for(call("ask", "a3", question="Three?")),
            "done",
        ],
        ["one", "two", "three"],
    ),
    "a budget and its warning": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(token_budget=1_000)),
        lambda: [*steps(8, tokens=100), *steps(2, tokens=40), says("done", 5)],
    ),
    "a budget that is spent": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(token_budget=1_000)), lambda: steps(12, tokens=100)
    ),
    "short answers": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(diminishing_returns=DiminishingReturns(5, 50))),
        lambda: [*steps(2, tokens=100), *[asks_for(call("echo", f"d{n}", text="y"), tokens=10) for n in range(9)]],
    ),
    "idle turns": Scenario(
        lambda: Agent("a", tools=[fail], loop=Loop(stuck_threshold=4, on_stuck="retry", stuck_retries=1)),
        lambda: [asks_for(call("fail", f"f{n}")) for n in range(9)],
    ),
    "an escalation": Scenario(
        lambda: Agent("a", tools=[fail, echo], loop=Loop(stuck_threshold=4, on_stuck="escalate")),
        lambda: [*[asks_for(call("fail", f"f{n}")) for n in range(4)], *steps(3), "done"],
        ["go on"],
    ),
    "compression": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(context_compression=ContextCompression(shorten, max_messages=6))),
        lambda: [*steps(11), "done"],
    ),
    "ids that come again": Scenario(
        lambda: Agent("a", tools=[echo]),
        lambda: [*[asks_for(call("echo", "c", text=f"x{n}"), call("echo", "c", text=f"y{n}")) for n in range(7)], "ok"],
    ),
    "keys of calls": Scenario(
        counting, lambda: [*[asks_for(call("count", f"c{n}"), call("count", f"d{n}")) for n in range(7)], "ok"]
    ),
    "thoughts": Scenario(lambda: Agent("a", tools=[echo]), lambda: [*thoughtful(7), "done"]),
    "thoughts and compression": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(context_compression=ContextCompression(shorten, max_messages=6))),
        lambda: [*thoughtful(7), "done"],
    ),
    "a session's budget that is spent": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(session_token_budget=800)), lambda: steps(12, tokens=100)
    ),
    "answers that do not fit": Scenario(
        lambda: Agent("a", tools=[echo], output=list[int], loop=Loop(output_retries=3)),
        lambda: [*steps(3), "no", *steps(3), "not yet", "[1]"],
    ),
    "answers that were cut off": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(stuck_threshold=0)),
        lambda: [*[turn.model_copy(update={"stop_reason": "length"}) for turn in steps(7)], "done"],
    ),
    "calls beyond the limit": Scenario(
        lambda: Agent("a", tools=[echo], loop=Loop(max_tool_calls=1)),
        lambda: [*[asks_for(call("echo", f"c{n}", text="1"), call("echo", f"d{n}", text="2")) for n in range(7)], "ok"],
    ),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.usefixtures("short_runs")
async def test_a_chain_of_runs_comes_to_the_same_as_a_run_in_process(temporal: Temporal, scenario: Scenario) -> None:
    here, there = ScriptedModel(scenario.script()), ScriptedModel(scenario.script())
    agent = scenario.agent()
    expected = await run(agent, message="go", llm=here, store=temporal.store, session_id=temporal.session("here"))
    for answer in scenario.answers:
        assert is_interrupted(expected)
        expected = await resume(agent, expected.checkpoint, answer, llm=here, store=temporal.store)
    expected = assert_complete(expected)
    async with temporal.worker(scenario.agent(), llm=there):
        handle = await temporal.start("a")
        for answer in scenario.answers:
            await pending(handle)
            await handle.execute_update("answer", {"text": answer})
        ended = await result(handle)
        runs = await chain(temporal.client, handle)
    assert len(runs) >= 3
    assert [wedges(history) for history in runs] == [[]] * len(runs)
    usage = None if expected.usage is None else expected.usage.model_dump()
    assert (ended["status"], ended["response"], ended["iterations"], ended["usage"]) == (
        expected.status, expected.response, expected.iterations, usage,
    )  # fmt: skip
    assert without_ids(await temporal.messages()) == await temporal.messages("here")
    assert [without_ids(asked.messages) for asked in there.calls] == [asked.messages for asked in here.calls]


@pytest.mark.usefixtures("short_runs")
async def test_a_chain_keeps_what_was_said_answered_and_refused(temporal: Temporal) -> None:
    agent = Agent("a", tools=[echo, ask])
    script: list[Any] = [*steps(2), asks_for(call("ask", "a1", question="?")), *steps(4), "done", "heard you"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        handle = await temporal.start(agent)
        await handle.signal("answer", {"text": "early", "tool_call_id": "a1"})
        await handle.signal("message", {"text": "hello"})
        for _ in range(3):
            await handle.signal("message", {"nonsense": 1})
        latest = temporal.client.get_workflow_handle(handle.id)
        await pending(latest)
        await latest.signal("answer", {"text": "in time", "tool_call_id": "a1"})
        ended = await result(handle)
        runs = await chain(temporal.client, handle)
        described = await latest.query("status")
    assert (ended["status"], ended["iterations"], len(runs)) == ("complete", 8, 3)
    assert [item["name"] for item in described["refused"]] == ["answer", *["message"] * 3]
    assert described["turn"] == 8
    assert result_of(await temporal.messages(), "a1") == "in time"


@pytest.mark.usefixtures("short_runs")
async def test_a_chain_loses_no_message_that_comes_while_it_continues(temporal: Temporal) -> None:
    agent = Agent("a", tools=[echo], loop=Loop(max_iterations=5_000))
    over = asyncio.Event()

    def answer(messages: Sequence[Message], tools: Any) -> Any:
        number = sum(message.role == "assistant" for message in messages)
        return says("done") if over.is_set() or number > 4_000 else asks_for(call("echo", f"c{number}", text="x"))

    async with temporal.worker(agent, llm=ScriptedModel(answer), max_stored_messages=20_000):
        handle = await temporal.start(agent)
        texts, runs_seen = list[str](), set[str | None]()
        while len(runs_seen) < 4:
            texts.append(f"m{len(texts)}")
            door = handle.signal if len(texts) % 2 else handle.execute_update
            await door("message", {"text": texts[-1]})
            runs_seen.add((await handle.describe()).run_id)
        over.set()
        assert (await result(handle))["status"] == "complete"
        runs = await chain(temporal.client, handle)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert len(runs) >= 3
    assert [wedges(history) for history in runs] == [[]] * len(runs)
    assert said == ["go", *texts]


@pytest.mark.usefixtures("short_runs")
async def test_a_chain_keeps_the_deadline_and_the_date_of_a_question(temporal: Temporal) -> None:
    agent = Agent("a", tools=[echo, ask])
    script: list[Any] = [
        *steps(2),
        asks_for(call("ask", "a1", question="?"), call("ask", "a2", question="??")),
        *steps(2),
        "done",
    ]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        handle = await temporal.start(agent)
        before = await pending(handle, 2)
        await handle.execute_update("answer", {"text": "one"})

        async def second() -> list[dict[str, Any]]:
            left = await waiting(temporal.client.get_workflow_handle(handle.id))
            return left if len(left) == 1 else []

        (left,) = await until(second)
        assert left == before[1]
        await temporal.people.answer(handle.id, "two")
        assert (await result(handle))["status"] == "complete"


@pytest.mark.usefixtures("short_runs")
async def test_a_chain_keeps_what_nobody_knows_and_what_was_decided(temporal: Temporal) -> None:
    @tool
    async def pay() -> str:
        """Pay, and do not know."""
        raise ToolDurabilityError("pay", "p1")

    agent = Agent("a", tools=[echo, pay], loop=Loop(on_unknown="ask"))
    script: list[Any] = [*steps(2), asks_for(call("pay", "p1")), *steps(4), "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        handle = await temporal.start(agent)
        (asked,) = await pending(handle)
        assert (asked["kind"], asked["name"]) == ("unknown", "p1")
        await temporal.people.resolve(handle.id, "p1", "happened", result="receipt", by="eve")
        assert (await result(handle))["status"] == "complete"
        described = await temporal.people.status(handle.id)
    assert [(item["tool_call_id"], item["by"]) for item in described["resolved"]] == [("p1", "eve")]
    assert result_of(await temporal.messages(), "p1") == "receipt"


@pytest.mark.usefixtures("short_runs")
async def test_a_chain_has_one_ledger_and_one_search_attribute(temporal: Temporal) -> None:
    agent = counting()
    script: list[Any] = [*[asks_for(call("count", f"c{n}")) for n in range(7)], "done"]
    async with temporal.worker(agent, llm=ScriptedModel(script)):
        handle = await temporal.start(agent)
        await result(handle)
    keys = [message.content for message in await temporal.messages() if message.role == "tool"]
    assert len(set(keys)) == len(keys) == 7
    query = f"StandfastSession = '{temporal.session()}' AND StandfastStatus = 'complete'"

    async def found() -> list[str]:
        return [item.id async for item in temporal.client.list_workflows(query)]

    assert await until(found) == [handle.id]


# --- what a step costs ---


def speaking(size: int) -> Agent:
    @tool(safe_to_retry=True)
    async def look(number: int) -> str:
        """Look."""
        return "x" * size

    return Agent("a", tools=[look], loop=Loop(max_iterations=1_000))


def looking(count: int) -> ScriptedModel:
    return ScriptedModel([*[asks_for(call("look", f"c{n}", number=n)) for n in range(count)], "done"])


async def _history(temporal: Temporal, size: int, count: int) -> Run:
    async with temporal.worker(speaking(size), llm=looking(count), max_stored_messages=10_000):
        handle = await temporal.start("a")
        await result(handle)
        return handle


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("size", "steps"), [(10_000, 22), (100, 92), (10_000, 92)])
async def test_a_step_costs_the_same_at_any_length_whatever_the_size_of_results(
    temporal: Temporal, size: int, steps: int
) -> None:
    history = await events(await _history(temporal, size, steps))
    assert scheduled(history) == ["call_model", "look"] * steps + ["call_model"]
    starts = [
        position
        for position, event in enumerate(history)
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
    ]

    def cost(first: int, last: int) -> tuple[float, float]:
        part = history[starts[first] : starts[last]]
        return len(part) / (last - first), sum(event.ByteSize() for event in part) / (last - first)

    late = steps - 12
    for first in (1, 8, late):
        count, size_of_step = cost(first, first + 10)
        assert count <= 12.5, (first, count)
        assert size_of_step <= 1_600, (first, size_of_step)  # 1.5 KB, and the names of a test
    assert cost(late, late + 10)[1] - cost(1, 11)[1] < 50


async def test_a_long_run_continues_as_new_after_a_hundred_steps(temporal: Temporal) -> None:
    handle = await _history(temporal, 10, 105)
    runs = await chain(temporal.client, handle)
    assert [scheduled(history).count("call_model") for history in runs] == [agent_workflows.STEPS, 6]
    first = runs[1][0].workflow_execution_started_event_attributes
    assert first.input.payloads[0].ByteSize() < 3_000
