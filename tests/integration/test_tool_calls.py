"""Tool calls in a run: validation, injected handlers, batches, retries, timeouts, terminal errors, the context."""

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import (
    Agent,
    InterruptError,
    LLMResponse,
    Loop,
    Message,
    RetryableError,
    RetryPolicy,
    RunResult,
    TerminalError,
    Tool,
    ToolCall,
    ToolContext,
    assert_complete,
    is_interrupted,
    run,
    tool,
)
from holdfast.stores import SQLiteStore
from holdfast.testing import ScriptedModel, crash_after_tool_results

SOON = RetryPolicy(initial_interval=0.001, maximum_attempts=3)


def call(name: str, call_id: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def asks_for(*calls: ToolCall) -> LLMResponse:
    return LLMResponse(tool_calls=calls)


async def ask(agent: Agent, *calls: ToolCall, **options: Any) -> RunResult:
    """Run an agent whose model asks for these calls in one turn and then is done."""
    model = ScriptedModel([asks_for(*calls), "done"])
    async with asyncio.timeout(30):
        return assert_complete(await run(agent, message="go", llm=model, **options))


def results(result: RunResult) -> list[Message]:
    return [message for message in result.messages if message.role == "tool"]


def contents(result: RunResult) -> list[str]:
    return [message.content for message in results(result)]


def error(result: RunResult, position: int = 0) -> str:
    return str(json.loads(contents(result)[position])["error"])


# --- arguments and results ---


async def test_arguments_of_the_wrong_type_are_refused_before_the_handler() -> None:
    ran: list[int] = []

    @tool
    async def double(number: int) -> int:
        ran.append(number)
        return number * 2

    result = await ask(Agent("a", tools=[double]), call("double", "c1", number="many"))
    assert ran == []
    assert error(result).startswith('Invalid input for tool "double": number:')
    assert result.status == "complete"


async def test_extra_arguments_are_dropped_and_the_rest_converted_and_filled_in() -> None:
    seen: list[Any] = []

    @tool
    async def book(seats: int, name: str = "nobody") -> None:
        seen.append((seats, name))

    await ask(Agent("a", tools=[book]), call("book", "c1", seats="2", color="red"))
    assert seen == [(2, "nobody")]


async def test_a_model_as_input_reaches_the_handler_as_its_first_argument() -> None:
    class Order(BaseModel):
        item: str
        count: int = 1

    seen: list[Any] = []

    async def handler(order: Order, context: ToolContext) -> str:
        seen.append((order, context.tool_call_id))
        return "ok"

    order_tool = Tool("order", description="Order.", input=Order, handler=handler)
    await ask(Agent("a", tools=[order_tool]), call("order", "c1", item="tea", more=1))
    assert seen == [(Order(item="tea"), "c1")]


async def test_a_result_that_misses_the_output_type_is_an_error() -> None:
    @tool
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    result = await ask(Agent("a", tools=[count]), call("count", "c1"))
    assert error(result).startswith('Tool "count" returned invalid output: ')


async def test_extra_keys_of_a_result_are_dropped() -> None:
    class Issue(TypedDict):
        id: str

    @tool
    async def get_issue() -> Issue:
        return {"id": "I-1", "secret": 1}  # type: ignore[typeddict-unknown-key]

    result = await ask(Agent("a", tools=[get_issue]), call("get_issue", "c1"))
    assert contents(result) == ['{"id":"I-1"}']


@pytest.mark.parametrize(
    ("value", "content"),
    [("text", "text"), ("", ""), (None, "null"), (5, "5"), ([1], "[1]"), ({"a": 1}, '{"a":1}'), (b"x", '"x"')],
)
async def test_a_text_is_recorded_as_it_is_and_anything_else_as_json(value: Any, content: str) -> None:
    @tool
    async def give() -> Any:
        return value

    assert contents(await ask(Agent("a", tools=[give]), call("give", "c1"))) == [content]


@pytest.mark.parametrize("value", [object(), {"a": object()}, {1, object()}, b"\xff", {"a": "\ud800"}], ids=repr)
async def test_a_result_that_is_no_json_is_an_error_that_says_it_ran(value: Any) -> None:
    @tool
    async def give() -> Any:
        return value

    result = await ask(Agent("a", tools=[give]), call("give", "c1"))
    assert error(result).startswith('Tool "give" ran, but its result was lost')


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [math.nan]}], ids=repr)
async def test_what_a_result_becomes_is_strict_json(value: Any) -> None:
    @tool
    async def give() -> Any:
        return value

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for content in contents(await ask(Agent("a", tools=[give]), call("give", "c1"))):
        json.loads(content, parse_constant=refuse)


async def test_a_result_that_contains_itself_is_an_error() -> None:
    @tool
    async def give() -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    result = await ask(Agent("a", tools=[give]), call("give", "c1"))
    assert error(result).startswith('Tool "give" ran, but its result was lost')


async def test_a_result_over_the_limit_is_an_error_that_names_the_limit() -> None:
    @tool
    async def give(size: int) -> str:
        return "é" * size

    agent = Agent("a", tools=[give], loop=Loop(max_message_bytes=2_000))
    result = await ask(agent, call("give", "c1", size=1_000), call("give", "c2", size=1_001))
    assert contents(result)[0] == "é" * 1_000
    assert error(result, 1) == (
        'Tool "give" ran, but its result was lost: 2,002 bytes, more than max_message_bytes=2,000'
    )


async def test_an_error_over_the_limit_is_cut() -> None:
    @tool
    async def give() -> None:
        raise ValueError("x" * 50_000)

    agent = Agent("a", tools=[give], loop=Loop(max_message_bytes=2_000))
    result = await ask(agent, call("give", "c1"))
    assert len(contents(result)[0]) < 2_500
    assert error(result).startswith("xxx")


async def test_what_a_handler_raises_can_be_stored_whatever_it_says(store: SQLiteStore) -> None:
    @tool
    async def give() -> None:
        raise ValueError("a\0b\ud800")

    result = await ask(Agent("a", tools=[give]), call("give", "c1"), store=store, session_id="s")
    assert error(result) == "a\ufffdb\ufffd"
    assert await store.load_messages("s") == list(result.messages)


# --- injected handlers ---


async def test_a_tool_without_any_handler_is_answered_with_what_to_do() -> None:
    result = await ask(Agent("a", tools=[Tool("post", description="Post.")]), call("post", "c1"))
    assert error(result).startswith('Tool "post" has no handler.')
    assert result.status == "complete"


async def test_an_injected_handler_serves_a_declared_tool() -> None:
    result = await ask(
        Agent("a", tools=[Tool("post", description="Post.")]), call("post", "c1"), tools={"post": lambda: "injected"}
    )
    assert contents(result) == ["injected"]


async def test_an_injected_handler_wins_and_leaves_the_definition_alone() -> None:
    @tool
    async def greet(name: str) -> str:
        return f"declared {name}"

    async def other(name: str) -> str:
        return f"injected {name}"

    agent = Agent("a", tools=[greet])
    result = await ask(agent, call("greet", "c1", name="Ada"), tools={"greet": other})
    assert contents(result) == ["injected Ada"]
    assert contents(await ask(agent, call("greet", "c1", name="Ada"))) == ["declared Ada"]
    assert agent.tools == (greet,)


async def test_an_injected_handler_may_take_the_context() -> None:
    @tool
    async def greet(name: str) -> str:
        return name

    async def other(name: str, ctx: ToolContext) -> str:
        return f"{name} {ctx.tool_call_id}"

    assert contents(await ask(Agent("a", tools=[greet]), call("greet", "c1", name="A"), tools={"greet": other})) == [
        "A c1"
    ]


async def test_injected_handlers_of_tools_that_the_agent_lacks_are_ignored() -> None:
    result = await ask(Agent("a"), call("post", "c1"), tools={"post": lambda: "never"})
    assert error(result) == 'Tool "post" not found. Available tools: none'


async def test_an_injected_handler_gets_validated_arguments_too() -> None:
    @tool
    async def double(number: int) -> int:
        return number

    result = await ask(Agent("a", tools=[double]), call("double", "c1", number="x"), tools={"double": lambda number: 1})
    assert error(result).startswith('Invalid input for tool "double"')


async def test_an_injected_handler_of_the_wrong_shape_is_an_error_of_the_call() -> None:
    @tool
    async def double(number: int) -> int:
        return number

    result = await ask(Agent("a", tools=[double]), call("double", "c1", number=1), tools={"double": lambda: 1})
    assert "number" in error(result)


# --- batches ---


async def test_two_parallel_calls_both_start_before_either_ends() -> None:
    both = asyncio.Barrier(2)

    @tool(parallel=True)
    async def meet() -> str:
        await both.wait()
        return "met"

    assert contents(await ask(Agent("a", tools=[meet]), call("meet", "c1"), call("meet", "c2"))) == ["met", "met"]


class Recorder:
    """Tools that note when they start and end; a parallel one lets others start before it ends."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def _work(self, name: str) -> str:
        self.log.append(f"{name} starts")
        for _ in range(5):
            await asyncio.sleep(0)
        self.log.append(f"{name} ends")
        return name

    def agent(self) -> Agent:
        @tool(parallel=True)
        async def par(name: str) -> str:
            return await self._work(name)

        @tool
        async def serial(name: str) -> str:
            return await self._work(name)

        return Agent("a", tools=[par, serial])


async def test_a_serial_call_waits_for_all_before_it_and_holds_up_all_after_it() -> None:
    recorder = Recorder()
    calls = [call("par", "1", name="A"), call("serial", "2", name="B"), call("par", "3", name="C")]
    result = await ask(recorder.agent(), *calls, call("par", "4", name="D"))
    assert recorder.log[:4] == ["A starts", "A ends", "B starts", "B ends"]
    assert sorted(recorder.log[4:6]) == ["C starts", "D starts"]
    assert contents(result) == ["A", "B", "C", "D"]


async def test_serial_calls_run_one_after_the_other() -> None:
    recorder = Recorder()
    await ask(recorder.agent(), call("serial", "1", name="A"), call("serial", "2", name="B"))
    assert recorder.log == ["A starts", "A ends", "B starts", "B ends"]


async def test_an_unknown_tool_among_parallel_calls_counts_as_serial() -> None:
    recorder = Recorder()
    result = await ask(recorder.agent(), call("par", "1", name="A"), call("nope", "2"), call("par", "3", name="B"))
    assert recorder.log == ["A starts", "A ends", "B starts", "B ends"]
    assert [message.status for message in results(result)] == ["completed", "failed", "completed"]


async def test_siblings_of_a_failing_parallel_call_finish() -> None:
    failed = asyncio.Event()

    @tool(parallel=True)
    async def work(name: str) -> str:
        if name == "bad":
            failed.set()
            raise ValueError("no")
        await failed.wait()
        return name

    calls = [call("work", "1", name="one"), call("work", "2", name="bad"), call("work", "3", name="three")]
    result = await ask(Agent("a", tools=[work]), *calls)
    assert [contents(result)[0], error(result, 1), contents(result)[2]] == ["one", "no", "three"]


async def test_results_keep_the_order_of_the_calls_whatever_finished_first() -> None:
    done = {name: asyncio.Event() for name in "abc"}
    order: list[str] = []

    @tool(parallel=True)
    async def work(name: str, after: str = "") -> str:
        if after:
            await done[after].wait()
        order.append(name)
        done[name].set()
        return name

    calls = [
        call("work", "1", name="a", after="b"),
        call("work", "2", name="b", after="c"),
        call("work", "3", name="c"),
    ]
    result = await ask(Agent("a", tools=[work]), *calls)
    assert order == ["c", "b", "a"]
    assert contents(result) == ["a", "b", "c"]


@pytest.mark.parametrize(("loop", "limit"), [(Loop(max_tool_concurrency=2), 2), (Loop(), 5)], ids=["two", "default"])
async def test_at_most_max_tool_concurrency_calls_run_at_once(loop: Loop, limit: int) -> None:
    running: set[str] = set()
    peaks: list[int] = []
    full = asyncio.Event()

    @tool(parallel=True)
    async def work(name: str) -> str:
        running.add(name)
        peaks.append(len(running))
        if len(running) == limit:
            full.set()
        await full.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        running.discard(name)
        return name

    names = [f"n{position}" for position in range(2 * limit)]
    result = await ask(Agent("a", tools=[work], loop=loop), *(call("work", name, name=name) for name in names))
    assert max(peaks) == limit
    assert contents(result) == names


# --- plain functions ---


async def test_a_plain_function_runs_off_the_threads_of_the_loop() -> None:
    threads: list[int] = []

    @tool
    def work() -> str:
        threads.append(threading.get_ident())
        return "done"

    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["done"]
    assert threads != [threading.get_ident()]


async def test_a_plain_function_that_blocks_does_not_hold_up_the_loop() -> None:
    release = threading.Event()

    @tool(parallel=True)
    def block() -> bool:
        return release.wait(30)

    @tool(parallel=True)
    async def free() -> str:
        release.set()
        return "freed"

    assert contents(await ask(Agent("a", tools=[block, free]), call("block", "c1"), call("free", "c2"))) == [
        "true",
        "freed",
    ]


async def test_a_plain_function_may_raise_stop_iteration() -> None:
    @tool
    def work() -> str:
        return next(iter(()))

    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert "StopIteration" in error(result)


async def test_a_plain_function_may_return_a_coroutine() -> None:
    async def later() -> str:
        return "later"

    @tool
    def work() -> Any:
        return later()

    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["later"]


# --- retries ---


def flaky(failures: int, raised: Callable[[], Exception], seen: list[int], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def work(ctx: ToolContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) <= failures:
            raise raised()
        return "done"

    return work


async def test_a_retryable_error_of_a_safe_tool_is_retried_before_the_model_sees_it() -> None:
    seen: list[int] = []
    work = flaky(2, lambda: RetryableError("busy", retry_after=0.001), seen, safe_to_retry=True)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, contents(result), result.iterations) == ([1, 2, 3], ["done"], 2)


async def test_any_error_of_a_safe_tool_with_a_retry_policy_is_retried() -> None:
    seen: list[int] = []
    work = flaky(2, lambda: ValueError("no"), seen, safe_to_retry=True, retry=SOON)
    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["done"]
    assert seen == [1, 2, 3]


async def test_a_plain_function_is_retried_like_an_async_one() -> None:
    seen: list[int] = []

    @tool(safe_to_retry=True, retry=SOON)
    def work(ctx: ToolContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise ValueError("no")
        return "done"

    assert contents(await ask(Agent("a", tools=[work]), call("work", "c1"))) == ["done"]
    assert seen == [1, 2, 3]


async def test_maximum_attempts_counts_the_first_one() -> None:
    seen: list[int] = []
    work = flaky(99, lambda: ValueError("no"), seen, safe_to_retry=True, retry=SOON)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, error(result), result.status) == ([1, 2, 3], "no", "complete")


async def test_one_attempt_means_no_retry() -> None:
    seen: list[int] = []
    once = RetryPolicy(maximum_attempts=1)
    work = flaky(99, lambda: RetryableError("busy", retry_after=0.001), seen, safe_to_retry=True, retry=once)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, error(result)) == ([1], "busy")


async def test_an_ordinary_error_of_a_safe_tool_without_a_policy_is_not_retried() -> None:
    seen: list[int] = []
    work = flaky(1, lambda: ValueError("no"), seen, safe_to_retry=True)
    assert error(await ask(Agent("a", tools=[work]), call("work", "c1"))) == "no"
    assert seen == [1]


@pytest.mark.parametrize("raised", [RetryableError("busy", retry_after=0.001), ValueError("busy")], ids=repr)
async def test_a_tool_with_effects_is_never_retried(raised: Exception) -> None:
    seen: list[int] = []
    work = flaky(99, lambda: raised, seen)
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (seen, json.loads(contents(result)[0])) == ([1], {"error": "busy"})


async def test_a_terminal_error_is_never_retried() -> None:
    seen: list[int] = []
    work = flaky(99, lambda: TerminalError("gone"), seen, safe_to_retry=True, retry=SOON)
    assert error(await ask(Agent("a", tools=[work]), call("work", "c1"))) == "gone"
    assert seen == [1]


async def test_arguments_that_miss_the_schema_are_not_retried() -> None:
    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval="1d"))
    async def work(number: int) -> int:
        return number

    assert error(await ask(Agent("a", tools=[work]), call("work", "c1", number="x"))).startswith("Invalid input")


async def test_a_handler_that_changes_its_arguments_gets_the_same_ones_again() -> None:
    seen: list[str] = []

    @tool(safe_to_retry=True, retry=SOON)
    async def work(order: dict[str, Any]) -> str:
        seen.append(json.dumps(order))
        order["lines"].clear()
        if len(seen) < 2:
            raise ValueError("no")
        return "done"

    result = await ask(Agent("a", tools=[work]), call("work", "c1", order={"lines": [1, 2]}))
    assert seen == ['{"lines": [1, 2]}'] * 2
    requested = result.messages[1].tool_calls
    assert requested is not None
    assert requested[0].arguments == {"order": {"lines": [1, 2]}}


async def test_a_retry_after_that_is_no_number_does_not_end_the_run() -> None:
    seen: list[int] = []
    work = flaky(1, lambda: RetryableError("busy", retry_after="0.001"), seen, safe_to_retry=True, retry=SOON)  # type: ignore[arg-type]
    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (result.status, len(results(result))) == ("complete", 1)


# --- timeouts ---


async def test_a_call_with_effects_that_timed_out_has_an_unknown_outcome() -> None:
    @tool(timeout=0.01)
    async def post() -> None:
        await asyncio.Event().wait()

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    payload = json.loads(contents(result)[0])
    assert {key: payload[key] for key in ("kind", "toolName", "toolCallId")} == {
        "kind": "tool-durability-error",
        "toolName": "post",
        "toolCallId": "c1",
    }
    assert "timeout of 0.01 s" in payload["error"]
    assert result.status == "complete"


async def test_a_safe_call_that_timed_out_is_an_ordinary_error() -> None:
    @tool(timeout=0.01, safe_to_retry=True)
    async def look() -> None:
        await asyncio.Event().wait()

    result = await ask(Agent("a", tools=[look]), call("look", "c1"))
    assert list(json.loads(contents(result)[0])) == ["error"]
    assert "timeout of 0.01 s" in error(result)


async def test_a_safe_call_that_timed_out_is_retried_by_its_policy() -> None:
    seen: list[int] = []

    @tool(timeout=0.01, safe_to_retry=True, retry=SOON)
    async def look(ctx: ToolContext) -> str:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            await asyncio.Event().wait()
        return "done"

    assert contents(await ask(Agent("a", tools=[look]), call("look", "c1"))) == ["done"]
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("safe", [True, False])
async def test_a_plain_function_that_timed_out_is_left_behind(safe: bool) -> None:
    release = threading.Event()

    @tool(timeout=0.01, safe_to_retry=safe)
    def block() -> bool:
        return release.wait(30)

    try:
        result = await ask(Agent("a", tools=[block]), call("block", "c1"))
    finally:
        release.set()
    assert json.loads(contents(result)[0]).get("kind") == (None if safe else "tool-durability-error")
    assert [message.status for message in results(result)] == ["failed"]


async def test_a_timeout_error_of_the_handler_itself_is_an_ordinary_error() -> None:
    @tool
    async def post() -> None:
        raise TimeoutError("the printer is slow")

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    assert json.loads(contents(result)[0]) == {"error": "the printer is slow"}


async def test_a_handler_that_is_cancelled_from_within_fails_its_call_only() -> None:
    @tool
    async def post() -> None:
        raise asyncio.CancelledError

    result = await ask(Agent("a", tools=[post]), call("post", "c1"))
    assert (result.status, [message.status for message in results(result)]) == ("complete", ["failed"])


# --- terminal errors ---


@tool
async def charge() -> None:
    """Fail for good."""
    raise TerminalError("card is blocked", 402, {"card": "1234"})


def ledger(ran: list[str]) -> Tool[..., Any]:
    @tool
    async def note(text: str) -> str:
        ran.append(text)
        return text

    return note


async def test_a_terminal_error_is_read_by_the_model_by_default() -> None:
    ran: list[str] = []
    agent = Agent("a", tools=[charge, ledger(ran)])
    result = await ask(agent, call("charge", "c1"), call("note", "c2", text="after"))
    assert (error(result), ran, result.status) == ("card is blocked", ["after"], "complete")


async def test_stop_ends_the_run_with_error_after_the_calls_of_the_turn() -> None:
    ran: list[str] = []
    agent = Agent("a", tools=[charge, ledger(ran)], on_terminal_tool_error="stop")
    model = ScriptedModel([asks_for(call("charge", "c1"), call("note", "c2", text="after"))])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, ran) == ("error", "card is blocked", ["after"])
    assert [message.status for message in results(result)] == ["failed", "completed"]


async def test_fail_raises_the_error_and_starts_no_later_call(store: SQLiteStore) -> None:
    ran: list[str] = []
    agent = Agent("a", tools=[charge, ledger(ran)], on_terminal_tool_error="fail")
    model = ScriptedModel(
        [asks_for(call("note", "c1", text="before"), call("charge", "c2"), call("note", "c3", text="after"))]
    )
    with pytest.raises(TerminalError, match="card is blocked") as caught:
        await run(agent, message="go", session_id="s", store=store, llm=model)
    assert (caught.value.status_code, caught.value.metadata) == (402, {"card": "1234"})
    assert ran == ["before"]
    stored = await store.load_messages("s")
    assert [message.status for message in stored if message.role == "tool"] == ["completed", "failed", "cancelled"]


async def test_fail_starts_no_parallel_call_that_waits_for_a_slot() -> None:
    ran: list[str] = []

    @tool(parallel=True)
    async def work(name: str) -> None:
        ran.append(name)
        if name == "bad":
            raise TerminalError("no")

    agent = Agent("a", tools=[work], on_terminal_tool_error="fail", loop=Loop(max_tool_concurrency=1))
    names = ["good", "bad", "late", "later"]
    model = ScriptedModel([asks_for(*(call("work", name, name=name) for name in names))])
    with pytest.raises(TerminalError):
        await run(agent, message="go", llm=model)
    assert ran == ["good", "bad"]


async def test_a_session_that_failed_for_good_can_go_on(store: SQLiteStore) -> None:
    agent = Agent("a", tools=[charge], on_terminal_tool_error="fail")
    with pytest.raises(TerminalError):
        await run(agent, message="go", session_id="s", store=store, llm=ScriptedModel([asks_for(call("charge", "c1"))]))
    model = ScriptedModel(["ask for another card"])
    result = assert_complete(await run(agent, message="and now?", session_id="s", store=store, llm=model))
    assert result.response == "ask for another card"
    assert [message.role for message in model.calls[0].messages] == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_terminal_error_arrives_whole_through_nested_agents(levels: int) -> None:
    agent = Agent("innermost", tools=[charge], on_terminal_tool_error="fail")
    script = [asks_for(call("charge", "c"))]
    for level in range(levels):
        inner = agent
        agent = Agent(f"level-{level}", tools=[inner], on_terminal_tool_error="fail")
        script.insert(0, asks_for(call(inner.name, "c", message="go")))
    with pytest.raises(TerminalError, match="card is blocked") as caught:
        await run(agent, message="go", llm=ScriptedModel(script))
    assert (caught.value.status_code, caught.value.metadata) == (402, {"card": "1234"})


async def test_a_parent_that_reads_terminal_errors_reads_those_of_its_child() -> None:
    child = Agent("child", tools=[charge], on_terminal_tool_error="fail")
    model = ScriptedModel([asks_for(call("child", "c", message="go")), asks_for(call("charge", "c")), "sorry"])
    result = assert_complete(await run(Agent("parent", tools=[child]), message="go", llm=model))
    assert (result.response, error(result)) == ("sorry", "card is blocked")


# --- the context ---


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


def keys_of(seen: list[str], failures: int = 0) -> Tool[..., Any]:
    @tool(safe_to_retry=True, retry=SOON)
    async def work(ctx: ToolContext) -> str:
        seen.append(ctx.idempotency_key)
        if len(seen) <= failures:
            raise ValueError("no")
        return "done"

    return work


async def test_the_idempotency_key_is_the_same_on_every_attempt() -> None:
    seen: list[str] = []
    await ask(Agent("a", tools=[keys_of(seen, failures=2)]), call("work", "c1"))
    assert seen == [seen[0]] * 3
    assert seen[0]


async def test_the_idempotency_key_differs_from_call_to_call_and_from_turn_to_turn(store: SQLiteStore) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    for _ in range(2):
        model = ScriptedModel([asks_for(call("work", "c"), call("work", "c")), asks_for(call("work", "c")), "done"])
        await run(agent, message="go", session_id="s", store=store, llm=model)
    assert len(seen) == len(set(seen)) == 6


async def test_the_idempotency_key_differs_between_sessions(store: SQLiteStore) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    for session_id in ("one", "two"):
        await ask(agent, call("work", "c1"), session_id=session_id, store=store)
    assert len(set(seen)) == 2


async def test_the_idempotency_key_is_the_same_after_a_crash(store: SQLiteStore) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    model = ScriptedModel([asks_for(call("work", "c1"), call("work", "c2"))])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, message="go", session_id="s", store=crash_after_tool_results(store), llm=model)
    await run(agent, session_id="s", store=store, llm=ScriptedModel(["done"]))
    assert seen == [seen[0], seen[1]] * 2
    assert seen[0] != seen[1]


@pytest.mark.parametrize("instance_id", [None, "i-1"])
async def test_the_idempotency_key_differs_between_runs_without_a_session(instance_id: str | None) -> None:
    seen: list[str] = []
    agent = Agent("a", tools=[keys_of(seen)])
    for _ in range(2):
        await ask(agent, call("work", "c1"), instance_id=instance_id)
    assert len(set(seen)) == 2


@pytest.mark.parametrize("question", [None, 42])
async def test_a_question_that_is_no_text_is_asked_as_text(question: Any) -> None:
    @tool
    async def work() -> None:
        raise InterruptError(question)

    asked = await run(Agent("a", tools=[work]), message="go", llm=ScriptedModel([asks_for(call("work", "c1"))]))
    assert is_interrupted(asked)
    assert asked.question == str(question)


async def test_an_exception_that_cannot_be_printed_is_an_error_of_its_call() -> None:
    class Unprintable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError("no")

    @tool
    async def work() -> None:
        raise Unprintable

    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (result.status, error(result)) == ("complete", "Unprintable")


# --- threads --------------------------------------------------------------------------------------------------------


async def test_a_plain_function_starts_at_once_however_many_were_given_up(store: SQLiteStore) -> None:
    release, started = threading.Event(), []

    @tool(timeout=0.05)
    def hang(name: str) -> None:
        """Hang."""
        started.append(name)
        release.wait(30)

    agent = Agent("a", tools=[hang], loop=Loop(stuck_threshold=0, max_tool_calls=100))
    ids = [f"c{number}" for number in range(40)]
    model = ScriptedModel([{"tool_calls": [{"id": i, "name": "hang", "arguments": {"name": i}} for i in ids]}, "done"])
    result = assert_complete(await run(agent, message="go", llm=model))
    release.set()
    assert (result.status, started) == ("complete", ids)


async def test_a_function_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = (
        "import asyncio, threading\n"
        "from holdfast import Agent, run, tool\n"
        "from holdfast.testing import ScriptedModel\n"
        "@tool(timeout=0.05)\n"
        "def hang() -> None:\n"
        "    threading.Event().wait()\n"
        "model = ScriptedModel([{'tool_calls': [{'id': 'c', 'name': 'hang'}]}, 'done'])\n"
        "print(asyncio.run(run(Agent('a', tools=[hang]), message='go', llm=model)).response)\n"
    )
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.returncode) == ("done\n", 0)


async def test_a_plain_function_sees_the_context_variables_of_its_caller() -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    @tool
    def look() -> str:
        """Look."""
        return tenant.get()

    tenant.set("acme")
    model = ScriptedModel([{"tool_calls": [{"id": "c", "name": "look"}]}, "done"])
    result = assert_complete(await run(Agent("a", tools=[look]), message="go", llm=model))
    assert result.messages[2].content == "acme"


async def test_a_terminal_error_over_the_limit_is_cut() -> None:
    @tool
    async def fail() -> None:
        """Fail."""
        raise TerminalError("x" * 5_000)

    agent = Agent("a", tools=[fail], loop=Loop(max_message_bytes=1_024))
    model = ScriptedModel([{"tool_calls": [{"id": "c", "name": "fail"}]}, "done"])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert len(result.messages[2].content) < 1_200
