"""The calls of a turn, in both drivers: their order, their outcomes, and their retries."""

import asyncio
import json
import threading
from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver
from support.questions import ask
from support.transcripts import (
    asks_for,
    call,
    error_of,
    kind_of,
    result_of,
    tool_contents,
    tool_results,
)

from standfast import (
    Agent,
    Loop,
    RetryableError,
    RetryPolicy,
    TerminalError,
    Tool,
    tool,
)
from standfast.testing import ScriptedModel

# --- several calls in a turn ---


class Track:
    """Tools that note when they start and end, and how many ran at once."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.log: list[str] = []
        self.most = 0
        self._now = 0
        self._guard = threading.Lock()
        self._seconds = seconds

    def tool(self, name: str, **options: Any) -> Tool[..., Any]:
        @tool(name=name, **options)
        async def work(text: str = "") -> str:
            """Work."""
            with self._guard:
                self._now += 1
                self.most = max(self.most, self._now)
                self.log.append(f"+{text}")
            await asyncio.sleep(self._seconds)
            with self._guard:
                self._now -= 1
                self.log.append(f"-{text}")
            if text == "bad":
                raise ValueError("no")
            return text

        return work


async def test_parallel_calls_that_stand_next_to_each_other_run_at_once(driver: Driver) -> None:
    track = Track()
    tools = [track.tool("fetch", parallel=True), track.tool("post")]
    calls = [call(name, f"c{text}", text=text) for name, text in
             (("fetch", "A"), ("post", "B"), ("fetch", "C"), ("fetch", "D"))]  # fmt: skip
    ended = await driver.run(Agent("a", tools=tools), ScriptedModel([asks_for(*calls), "ok"]))
    assert track.log[:4] == ["+A", "-A", "+B", "-B"]
    assert sorted(track.log[4:6]) == ["+C", "+D"]
    assert tool_contents(ended.messages) == [("cA", "A"), ("cB", "B"), ("cC", "C"), ("cD", "D")]


async def test_an_unknown_tool_between_parallel_calls_keeps_them_apart(driver: Driver) -> None:
    track = Track()
    calls = [call("fetch", "c1", text="A"), call("nope", "c2"), call("fetch", "c3", text="B")]
    await driver.run(Agent("a", tools=[track.tool("fetch", parallel=True)]), ScriptedModel([asks_for(*calls), "ok"]))
    assert track.log == ["+A", "-A", "+B", "-B"]


async def test_siblings_of_a_failing_parallel_call_finish(driver: Driver) -> None:
    track = Track()
    calls = [call("fetch", f"c{text}", text=text) for text in ("A", "bad", "C")]
    ended = await driver.run(
        Agent("a", tools=[track.tool("fetch", parallel=True)]), ScriptedModel([asks_for(*calls), "ok"])
    )
    assert [message.status for message in tool_results(ended.messages)] == ["completed", "failed", "completed"]


async def test_no_more_parallel_calls_run_at_once_than_allowed(driver: Driver) -> None:
    track = Track(0.05)
    calls = [call("fetch", f"c{n}", text=str(n)) for n in range(6)]
    agent = Agent("a", tools=[track.tool("fetch", parallel=True)], loop=Loop(max_tool_concurrency=2))
    ended = await driver.run(agent, ScriptedModel([asks_for(*calls), "ok"]))
    assert track.most == 2
    assert tool_contents(ended.messages) == [(f"c{n}", str(n)) for n in range(6)]


async def test_calls_beyond_the_limit_are_refused_to_the_model(driver: Driver) -> None:
    calls = [call("echo", f"c{n}", text=str(n)) for n in range(5)]
    agent = Agent("a", tools=[echo], loop=Loop(max_tool_calls=2))
    ended = await driver.run(agent, ScriptedModel([asks_for(*calls), "ok"]))
    assert [message.status for message in tool_results(ended.messages)] == ["completed"] * 2 + ["failed"] * 3
    assert error_of(tool_results(ended.messages)[2]) == (
        "Not run: at most 2 tool calls per turn (max_tool_calls); ask again for the others"
    )


@pytest.mark.parametrize("ids", [["c", "c", "c"], ["", "", ""], ["a\0b", "\ud800", "x" * 5_000]], ids=str)
async def test_duplicate_and_unusable_ids_are_replaced(driver: Driver, ids: list[str]) -> None:
    calls = [{"id": given, "name": "echo", "arguments": {"text": f"x{n}"}} for n, given in enumerate(ids)]
    ended = await driver.run(Agent("a", tools=[echo]), ScriptedModel([{"tool_calls": calls}, "done"]))
    asked = [requested.id for requested in ended.messages[1].tool_calls or ()]
    assert len(set(asked)) == 3
    assert tool_contents(ended.messages) == [(call_id, f"x{n}") for n, call_id in enumerate(asked)]


async def test_an_id_that_an_earlier_turn_used_is_replaced(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", "c", text="1")), asks_for(call("echo", "c", text="2")), "done"])
    ended = await driver.run(Agent("a", tools=[echo]), model)
    first, second = (message.tool_calls[0].id for message in ended.messages if message.tool_calls)
    assert first != second
    assert tool_contents(ended.messages) == [(first, "1"), (second, "2")]


# --- terminal errors ---


@tool
async def give_up(text: str = "") -> str:
    """Fail for good."""
    raise TerminalError("gone", status_code=410, metadata={"where": "there"})


@pytest.mark.parametrize(
    ("rule", "status", "response", "ran"),
    [
        ("message", "complete", "ok", ["completed", "failed", "completed"]),
        ("stop", "error", "gone", ["completed", "failed", "completed"]),
        ("fail", "raised", "gone", ["completed", "failed", "cancelled"]),
    ],
)
async def test_a_terminal_error_is_read_stops_the_run_or_fails_it(
    driver: Driver, rule: Any, status: str, response: str, ran: list[str]
) -> None:
    agent = Agent("a", tools=[echo, give_up], on_terminal_tool_error=rule)
    calls = [call("echo", "c1", text="x"), call("give_up", "c2"), call("echo", "c3", text="y")]
    ended = await driver.run(agent, ScriptedModel([asks_for(*calls), "ok"]))
    assert (ended.status, ended.response) == (status, response)
    assert [message.status for message in tool_results(ended.messages)] == ran
    if status == "raised":
        assert ended.output == {"where": "there"}


# --- retries and timeouts ---


@pytest.mark.parametrize(
    ("options", "attempts", "status"),
    [
        ({"safe_to_retry": True, "retry": RetryPolicy(initial_interval=0.01, maximum_attempts=3)}, 2, "completed"),
        ({"safe_to_retry": True, "retry": RetryPolicy(initial_interval=0.01, maximum_attempts=1)}, 1, "failed"),
        ({}, 1, "failed"),
    ],
    ids=["safe", "one attempt", "with effects"],
)
async def test_a_retryable_error_is_retried_where_that_is_harmless(
    driver: Driver, options: dict[str, Any], attempts: int, status: str
) -> None:
    tries: list[int] = []

    @tool(**options)
    async def busy() -> str:
        """Succeed the second time."""
        tries.append(1)
        if len(tries) == 1:
            raise RetryableError("busy", retry_after=0.01)
        return "at last"

    ended = await driver.run(Agent("a", tools=[busy]), ScriptedModel([asks_for(call("busy", "c1")), "ok"]))
    assert len(tries) == attempts
    assert [message.status for message in tool_results(ended.messages)] == [status]


@pytest.mark.parametrize("safe", [True, False], ids=["safe", "with effects"])
async def test_a_call_that_is_cut_off_has_an_unknown_outcome_unless_it_is_harmless(driver: Driver, safe: bool) -> None:
    @tool(timeout=0.05, safe_to_retry=safe)
    async def slow() -> str:
        """Take too long."""
        await asyncio.sleep(30)
        return "late"

    ended = await driver.run(Agent("a", tools=[slow]), ScriptedModel([asks_for(call("slow", "c1")), "ok"]))
    assert "cut off after its timeout of 0.05 s" in error_of(tool_results(ended.messages)[0])
    assert kind_of(ended.messages, "c1") == (None if safe else "tool-durability-error")


async def test_two_questions_of_a_turn_are_asked_without_a_model_call_between(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("ask", "a1", question="1?"), call("ask", "a2", question="2?")), "ok"])
    ended = await driver.run(Agent("a", tools=[ask]), model, answers=["one", "two"])
    assert (ended.status, ended.questions, len(model.calls)) == ("complete", ("1?", "2?"), 2)
    assert tool_contents(ended.messages) == [("a1", "one"), ("a2", "two")]


async def test_a_question_beside_a_terminal_error_that_ends_the_run_is_not_asked(driver: Driver) -> None:
    agent = Agent("a", tools=[ask, give_up], on_terminal_tool_error="stop")
    model = ScriptedModel([asks_for(call("ask", "a1", question="?"), call("give_up", "g1"))])
    ended = await driver.run(agent, model)
    assert ended.status == "error"
    assert json.loads(result_of(ended.messages, "a1")) == {"error": "Not answered: the run ended"}
