"""The loop as a caller sees it: what `run` returns, what the model is shown, what is stored."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from holdfast import (
    Agent,
    AgentContext,
    Checkpoint,
    ContextCompression,
    DiminishingReturns,
    HoldfastError,
    InputError,
    LLMResponse,
    Loop,
    Message,
    TokenBudget,
    Tool,
    ToolCall,
    Usage,
    assert_complete,
    is_interrupted,
    memory_store,
    resume,
    run,
    tool,
)
from holdfast.stores import SQLiteStore
from holdfast.testing import ScriptedModel


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@tool
async def fail() -> None:
    """Raise."""
    raise ValueError("out of paper")


def call(name: str, call_id: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def asks_for(*calls: ToolCall, text: str = "", tokens: int | None = None) -> LLMResponse:
    return LLMResponse(text=text, tool_calls=calls, usage=None if tokens is None else Usage(input_tokens=tokens))


def says(text: str, tokens: int | None = None) -> LLMResponse:
    return asks_for(text=text, tokens=tokens)


def error_of(message: Message) -> str:
    return str(json.loads(message.content)["error"])


def tool_results(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role == "tool"]


# --- how a run ends ---


async def test_a_text_answer_completes_the_run_after_one_iteration() -> None:
    result = assert_complete(await run(Agent("greeter"), message="hi", llm=ScriptedModel(["Hello"])))
    assert (result.status, result.response, result.iterations) == ("complete", "Hello", 1)


async def test_an_empty_answer_completes_the_run_with_an_empty_response() -> None:
    result = assert_complete(await run(Agent("greeter"), message="hi", llm=ScriptedModel([{}])))
    assert (result.status, result.response) == ("complete", "")


async def test_the_model_sees_the_result_of_its_tool_call() -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="ping")), "done"])
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", llm=model))
    assert (result.status, result.iterations) == ("complete", 2)
    assert model.calls[1].messages[-1] == Message(
        role="tool", content="ping", tool_call_id="c1", tool_name="echo", status="completed"
    )


async def test_a_model_that_never_stops_is_ended_at_max_iterations() -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text=f"step {n}") for n in range(9)])
    agent = Agent("a", tools=[echo], loop=Loop(max_iterations=3))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.iterations, result.response) == ("max-iterations", 3, "step 2")
    assert len(model.calls) == 3


async def test_a_failing_model_call_ends_the_run_with_its_text_and_counts() -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel([RuntimeError("no quota")])))
    assert (result.status, result.response, result.iterations) == ("error", "no quota", 1)


async def test_a_model_error_without_text_is_named_by_its_type() -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel([RuntimeError()])))
    assert (result.status, result.response) == ("error", "RuntimeError")


async def test_a_second_model_call_that_fails_keeps_what_was_stored(store: SQLiteStore) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), RuntimeError("down")])
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", session_id="s", store=store, llm=model))
    assert (result.status, result.session_id, result.iterations) == ("error", "s", 2)
    assert [message.role for message in await store.load_messages("s")] == ["user", "assistant", "tool"]


# --- what a call can come to ---


async def test_an_unknown_tool_is_answered_with_the_tools_there_are() -> None:
    model = ScriptedModel([asks_for(call("nope", "c1")), "ok"])
    result = assert_complete(await run(Agent("a", tools=[echo, fail]), message="go", llm=model))
    assert result.status == "complete"
    assert error_of(model.calls[1].messages[-1]) == 'Tool "nope" not found. Available tools: echo, fail'


async def test_an_unknown_tool_of_an_agent_without_tools_is_answered_with_none() -> None:
    model = ScriptedModel([asks_for(call("nope", "c1")), "ok"])
    await run(Agent("a"), message="go", llm=model)
    assert error_of(model.calls[1].messages[-1]) == 'Tool "nope" not found. Available tools: none'


async def test_the_model_reads_what_a_handler_raised() -> None:
    model = ScriptedModel([asks_for(call("fail", "c1")), "ok"])
    result = assert_complete(await run(Agent("a", tools=[fail]), message="go", llm=model))
    assert result.status == "complete"
    assert json.loads(model.calls[1].messages[-1].content) == {"error": "out of paper"}


async def test_an_exception_without_text_is_named_by_its_type() -> None:
    @tool
    async def silent() -> None:
        raise KeyError

    model = ScriptedModel([asks_for(call("silent", "c1")), "ok"])
    await run(Agent("a", tools=[silent]), message="go", llm=model)
    assert error_of(model.calls[1].messages[-1]) == "KeyError"


async def test_every_call_of_a_turn_gets_one_result_in_call_order() -> None:
    calls = [call("echo", "c1", text="one"), call("nope", "c2"), call("fail", "c3"), call("echo", "c4", text="four")]
    result = assert_complete(
        await run(Agent("a", tools=[echo, fail]), message="go", llm=ScriptedModel([asks_for(*calls), "ok"]))
    )
    assert [message.tool_call_id for message in tool_results(result.messages)] == ["c1", "c2", "c3", "c4"]


# --- stuck ---


async def test_as_many_idle_turns_as_the_threshold_are_stuck() -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}"), text="trying") for n in range(9)])
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=2))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, result.iterations) == ("stuck", "", 2)


async def test_a_success_starts_the_count_of_idle_turns_again() -> None:
    model = ScriptedModel(
        [asks_for(call("fail", "c1")), asks_for(call("echo", "c2", text="x")), asks_for(call("fail", "c3")), "done"]
    )
    agent = Agent("a", tools=[echo, fail], loop=Loop(stuck_threshold=2))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.iterations) == ("complete", 4)


async def test_one_success_beside_a_failure_is_progress() -> None:
    model = ScriptedModel([asks_for(call("fail", "c1"), call("echo", "c2", text="x")), "done"])
    agent = Agent("a", tools=[echo, fail], loop=Loop(stuck_threshold=1))
    assert assert_complete(await run(agent, message="go", llm=model)).status == "complete"


async def test_stuck_wins_over_max_iterations() -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}")) for n in range(3)])
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=3, max_iterations=3))
    assert assert_complete(await run(agent, message="go", llm=model)).status == "stuck"


async def test_a_threshold_of_zero_turns_stuck_detection_off() -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}")) for n in range(5)])
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=0, max_iterations=5))
    assert assert_complete(await run(agent, message="go", llm=model)).status == "max-iterations"


@tool
async def wrong_result() -> int:
    """Return what the annotation does not allow."""
    return "many"  # type: ignore[return-value]


no_handler: Tool[..., Any] = Tool("no_handler", description="Has no handler.")


@pytest.mark.parametrize(
    "failing",
    [call("nope", "c1"), call("echo", "c1"), call("wrong_result", "c1"), call("no_handler", "c1"), call("fail", "c1")],
    ids=["not found", "invalid input", "invalid output", "no handler", "handler raised"],
)
async def test_every_kind_of_failed_call_counts_as_no_progress(failing: ToolCall) -> None:
    agent = Agent("a", tools=[echo, wrong_result, no_handler, fail], loop=Loop(stuck_threshold=1))
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([asks_for(failing)])))
    assert result.status == "stuck"
    assert [message.status for message in tool_results(result.messages)] == ["failed"]


async def test_on_stuck_retry_nudges_the_model_once_per_allowed_retry() -> None:
    model = ScriptedModel([asks_for(call("fail", f"c{n}")) for n in range(4)])
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=2, on_stuck="retry", stuck_retries=1))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.iterations) == ("stuck", 4)
    nudges = [[m.content for m in asked.messages[1:] if m.role == "system"] for asked in model.calls]
    assert [len(texts) for texts in nudges] == [0, 0, 1, 1]
    assert model.calls[2].messages[-1].role == "system"


async def test_a_nudge_is_not_part_of_the_transcript(store: SQLiteStore) -> None:
    model = ScriptedModel([asks_for(call("fail", "c1")), "done"])
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="retry"))
    result = assert_complete(await run(agent, message="go", session_id="s", store=store, llm=model))
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert await store.load_messages("s") == list(result.messages)


async def test_on_stuck_escalate_pauses_the_run_for_a_person() -> None:
    agent = Agent("a", tools=[fail], loop=Loop(stuck_threshold=2, on_stuck="escalate"))
    asked = await run(
        agent, message="go", llm=ScriptedModel([asks_for(call("fail", "c1")), asks_for(call("fail", "c2"))])
    )
    assert is_interrupted(asked)
    assert (asked.checkpoint.iterations, asked.checkpoint.pending_tool_use_id) == (2, None)
    model = ScriptedModel(["done"])
    result = assert_complete(await resume(agent, asked.checkpoint, "leave it", llm=model))
    assert (result.status, result.iterations) == ("complete", 3)
    assert model.calls[0].messages[-1] == Message(role="user", content="leave it")


# --- what the model is shown ---


async def test_the_order_is_system_then_earlier_messages_then_the_new_one() -> None:
    model = ScriptedModel(["ok"])
    earlier = [Message(role="user", content="one"), Message(role="assistant", content="two")]
    await run(Agent("a", instructions="Be brief."), messages=earlier, message="three", llm=model)
    assert [(m.role, m.content) for m in model.calls[0].messages] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]


async def test_without_instructions_the_agent_is_introduced_by_its_name() -> None:
    model = ScriptedModel(["ok"])
    await run(Agent("helper"), message="go", llm=model)
    assert model.calls[0].messages == [
        Message(
            role="system",
            content='You are an AI agent named "helper". Use the available tools to accomplish the user\'s request.',
        ),
        Message(role="user", content="go"),
    ]


async def test_instructions_may_be_texts_and_functions_of_the_context() -> None:
    async def who(context: AgentContext) -> str:
        return f"You serve {context.user_id}."

    agent = Agent("a", instructions=["Be brief.", who, lambda context: f"You are {context.agent.name}."])
    model = ScriptedModel(["ok"])
    await run(agent, message="go", user_id="ada", llm=model)
    assert model.calls[0].messages[0].content == "Be brief.\nYou serve ada.\nYou are a."


async def test_the_system_prompt_is_neither_returned_nor_stored(store: SQLiteStore) -> None:
    result = assert_complete(
        await run(
            Agent("a", instructions="secret"), message="go", session_id="s", store=store, llm=ScriptedModel(["ok"])
        )
    )
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert await store.load_messages("s") == list(result.messages)


async def test_the_model_is_offered_the_tools_and_the_settings_of_the_agent() -> None:
    model = ScriptedModel(["ok"])
    await run(Agent("a", tools=[echo], settings={"max_tokens": 9}), message="go", llm=model)
    assert [described.name for described in model.calls[0].tools] == ["echo"]
    assert model.calls[0].settings == {"max_tokens": 9}


# --- adapters ---


class PlainAdapter:
    """Answers with a plain dict."""

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> Mapping[str, Any]:
        if messages[-1].role == "tool":
            return {"text": f"it said {messages[-1].content}", "usage": {"input_tokens": 2, "output_tokens": 1}}
        return {"tool_calls": [{"id": "c1", "name": "echo", "arguments": '{"text": "ping"}'}]}


class ObjectAdapter:
    """Answers with an LLMResponse."""

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> LLMResponse:
        return LLMResponse(text="hello", stop_reason="end_turn")


async def test_an_adapter_may_answer_with_a_plain_dict() -> None:
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", llm=PlainAdapter()))
    assert (result.status, result.response, result.usage) == (
        "complete",
        "it said ping",
        Usage(input_tokens=2, output_tokens=1),
    )


async def test_an_adapter_may_answer_with_an_llm_response() -> None:
    assert assert_complete(await run(Agent("a"), message="go", llm=ObjectAdapter())).response == "hello"


async def test_llm_may_be_a_function_from_the_agents_model_to_an_adapter() -> None:
    asked: list[str | None] = []

    def choose(model: str | None) -> ObjectAdapter:
        asked.append(model)
        return ObjectAdapter()

    result = assert_complete(await run(Agent("a", model="anthropic:claude-sonnet-4-6"), message="go", llm=choose))
    assert (asked, result.response) == (["anthropic:claude-sonnet-4-6"], "hello")


@pytest.mark.parametrize("answer", [None, 5, "text", [], {"answer": "x"}, {"text": 5}, {"tool_calls": 5}])
async def test_an_answer_that_is_no_llm_response_ends_the_run_with_error(answer: Any) -> None:
    class Broken:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> Any:
            return answer

    result = assert_complete(await run(Agent("a"), message="go", llm=Broken()))
    assert (result.status, result.iterations) == ("error", 1)
    assert "LLMResponse" in result.response


@pytest.mark.parametrize("tokens", ["many", -1, 1.5, 10**400], ids=["text", "negative", "part", "endless"])
async def test_usage_that_is_no_usage_is_taken_for_none(store: SQLiteStore, tokens: Any) -> None:
    answer = {"text": "ok", "usage": {"input_tokens": tokens}}
    agent = Agent("a", loop=Loop(token_budget=1_000))
    result = assert_complete(await run(agent, message="go", store=store, session_id="s", llm=ScriptedModel([answer])))
    assert (result.status, result.usage) == ("complete", None)
    assert await store.load_messages("s") == list(result.messages)


async def test_a_model_call_that_is_cancelled_from_within_ends_the_run_with_error() -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel([asyncio.CancelledError()])))
    assert (result.status, result.iterations) == ("error", 1)


# --- budgets ---


async def test_a_spent_token_budget_ends_the_run_before_the_next_model_call() -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text="part", tokens=500) for n in range(3)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(1_000, stop_threshold=0.9)))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, len(model.calls)) == ("token-budget-exhausted", "part", 2)
    assert (result.usage, result.budget_percent) == (Usage(input_tokens=1_000), 100.0)


async def test_calls_of_the_answer_that_spent_the_budget_are_cancelled_and_not_run() -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> str:
        ran.append(text)
        return text

    agent = Agent("a", tools=[post], loop=Loop(token_budget=100))
    model = ScriptedModel([asks_for(call("post", "c1", text="x"), tokens=100)])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert ran == []
    assert [message.status for message in tool_results(result.messages)] == ["cancelled"]


async def test_an_answer_that_is_final_completes_the_run_whatever_it_cost() -> None:
    agent = Agent("a", loop=Loop(token_budget=100))
    assert assert_complete(await run(agent, message="go", llm=ScriptedModel([says("done", 500)]))).status == "complete"


async def test_the_model_is_warned_once_when_its_budget_runs_low() -> None:
    answers = [asks_for(call("echo", f"c{n}", text="x"), tokens=tokens) for n, tokens in enumerate([700, 150, 10])]
    model = ScriptedModel([*answers, says("done", 10)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(1_000)))
    await run(agent, message="go", llm=model)
    warnings = [[m.content for m in asked.messages[1:] if m.role == "system"] for asked in model.calls]
    text = "Warning: You have used 85% of your token budget (850/1000 tokens). Please wrap up your current task."
    assert warnings == [[], [], [text], [text]]


async def test_the_warning_stands_before_the_answer_and_never_between_call_and_result() -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=85), says("done", 1)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(100)))
    result = assert_complete(await run(agent, message="go", llm=model))
    roles = [message.role for message in model.calls[1].messages]
    assert roles == ["system", "user", "system", "assistant", "tool"]
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("warning", "expected"),
    [("Hurry up.", "Hurry up."), (lambda percent, used, limit: f"{percent}% {used}/{limit}", "85% 85/100")],
)
async def test_the_text_of_the_warning_may_be_given_or_made(warning: Any, expected: str) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), tokens=85), says("done", 1)])
    agent = Agent("a", tools=[echo], loop=Loop(token_budget=TokenBudget(100, warning_message=warning)))
    await run(agent, message="go", llm=model)
    assert [m.content for m in model.calls[1].messages[1:] if m.role == "system"] == [expected]


async def test_without_reported_usage_budgets_are_skipped_and_usage_is_none() -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), "done"])
    loop = Loop(token_budget=1, diminishing_returns=DiminishingReturns(1, 500))
    result = assert_complete(await run(Agent("a", tools=[echo], loop=loop), message="go", llm=model))
    assert (result.status, result.usage, result.budget_percent) == ("complete", None, None)


async def test_short_answers_in_a_row_are_diminishing_returns() -> None:
    model = ScriptedModel([asks_for(call("echo", f"c{n}", text="x"), text="bit", tokens=100) for n in range(9)])
    agent = Agent("a", tools=[echo], loop=Loop(diminishing_returns=DiminishingReturns(3, 500)))
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.iterations, result.response) == ("diminishing-returns", 3, "bit")


async def test_one_long_answer_starts_the_count_of_short_ones_again() -> None:
    sizes = [100, 100, 500, 100, 100]
    answers = [asks_for(call("echo", f"c{n}", text="x"), tokens=size) for n, size in enumerate(sizes)]
    agent = Agent("a", tools=[echo], loop=Loop(diminishing_returns=DiminishingReturns(3, 500)))
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([*answers, says("done", 1)])))
    assert (result.status, result.iterations) == ("complete", 6)


# --- context compression ---


def compressing(rule: ContextCompression, tools: Sequence[Tool[..., Any]] = (echo,)) -> Agent:
    return Agent("a", instructions="Be brief.", tools=tools, loop=Loop(context_compression=rule))


async def test_a_long_context_is_compressed_behind_the_system_prompt() -> None:
    given: list[list[str]] = []

    def shorten(messages: Sequence[Message]) -> list[Message]:
        given.append([message.role for message in messages])
        return [Message(role="user", content="what went before"), *messages[-2:]]

    answers = [asks_for(call("echo", f"c{n}", text="x")) for n in range(3)]
    model = ScriptedModel([*answers, "done"])
    result = assert_complete(
        await run(compressing(ContextCompression(shorten, max_messages=5)), message="go", llm=model)
    )
    assert given == [["user", *["assistant", "tool"] * 3]]
    assert [(m.role, m.content) for m in model.calls[3].messages[:2]] == [
        ("system", "Be brief."),
        ("user", "what went before"),
    ]
    assert (result.compression_count, len(result.messages)) == (1, 8)


async def test_a_compression_function_may_be_async() -> None:
    async def shorten(messages: Sequence[Message]) -> Sequence[Message]:
        return messages[-1:]

    model = ScriptedModel(["done"])
    earlier = [Message(role="user", content="one"), Message(role="assistant", content="two")]
    await run(compressing(ContextCompression(shorten, max_messages=1)), messages=earlier, message="three", llm=model)
    assert [message.content for message in model.calls[0].messages] == ["Be brief.", "three"]


async def test_compression_counts_none_when_not_configured_and_zero_when_unused() -> None:
    unused = compressing(ContextCompression(lambda messages: messages, max_messages=50))
    with_rule = assert_complete(await run(unused, message="go", llm=ScriptedModel(["ok"])))
    without = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel(["ok"])))
    assert (with_rule.compression_count, without.compression_count) == (0, None)


async def test_a_compression_to_nothing_ends_the_run_with_error() -> None:
    agent = compressing(ContextCompression(lambda messages: [], max_token_estimate=1))
    model = ScriptedModel(["never"])
    result = assert_complete(await run(agent, message="a long message", llm=model))
    assert (result.status, result.response) == ("error", "Context compression returned empty message array")
    assert model.calls == []


async def test_many_characters_are_compressed_too() -> None:
    agent = compressing(ContextCompression(lambda messages: messages[-1:], max_token_estimate=100))
    model = ScriptedModel(["done"])
    earlier = [Message(role="user", content="x" * 500), Message(role="assistant", content="y")]
    result = assert_complete(await run(agent, messages=earlier, message="go", llm=model))
    assert result.compression_count == 1
    assert [message.content for message in model.calls[0].messages] == ["Be brief.", "go"]


async def test_what_is_stored_of_a_compressed_run_is_whole_and_there_once(store: SQLiteStore) -> None:
    agent = compressing(ContextCompression(lambda messages: messages[-2:], max_messages=2))
    answers = [asks_for(call("echo", f"c{n}", text=f"x{n}")) for n in range(4)]
    model = ScriptedModel([*answers, "done"])
    result = assert_complete(await run(agent, message="go", session_id="s", store=store, llm=model))
    stored = await store.load_messages("s")
    assert result.compression_count == 4
    assert stored == list(result.messages)
    assert [message.role for message in stored] == ["user", *["assistant", "tool"] * 4, "assistant"]


# --- hooks, state, output ---


def watching(log: list[str], **options: Any) -> Agent:
    def note(name: str) -> Any:
        return lambda context: log.append(name)

    @tool
    async def work() -> str:
        log.append("work")
        return "ok"

    return Agent(
        "a", tools=[work, fail], on_start=note("start"), on_complete=note("complete"), on_stuck=note("stuck"), **options
    )


async def test_hooks_are_called_around_the_loop() -> None:
    log: list[str] = []
    await run(watching(log), message="go", llm=ScriptedModel([asks_for(call("work", "c1")), "done"]))
    assert log == ["start", "work", "complete"]


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (Loop(max_iterations=1), "work"),
        (Loop(stuck_threshold=1), "fail"),
        (Loop(token_budget=10), "work"),
        (Loop(diminishing_returns=DiminishingReturns(1, 500)), "work"),
    ],
    ids=["max-iterations", "stuck", "token-budget-exhausted", "diminishing-returns"],
)
async def test_on_stuck_is_called_when_the_run_stopped_early(loop: Loop, name: str) -> None:
    log: list[str] = []
    await run(watching(log, loop=loop), message="go", llm=ScriptedModel([asks_for(call(name, "c1"), tokens=100)]))
    assert [entry for entry in log if entry != "work"] == ["start", "stuck"]


async def test_neither_hook_is_called_on_error() -> None:
    log: list[str] = []
    await run(watching(log), message="go", llm=ScriptedModel([RuntimeError("down")]))
    assert log == ["start"]


async def test_hooks_may_be_async() -> None:
    log: list[str] = []

    async def started(context: AgentContext) -> None:
        log.append(context.agent.name)

    await run(Agent("a", on_start=started), message="go", llm=ScriptedModel(["ok"]))
    assert log == ["a"]


async def test_a_hook_learns_who_runs_and_may_change_the_state() -> None:
    seen: list[Any] = []

    def started(context: AgentContext) -> None:
        seen.append((context.agent.id, context.agent.name, context.user_id, context.tenant_id, context.authenticated()))
        context.state["count"] += 1

    agent = Agent("a", initial_state={"count": 0}, on_start=started, on_complete=lambda c: seen.append(dict(c.state)))
    options: dict[str, Any] = {"user_id": "ada", "tenant_id": "acme", "instance_id": "i-1"}
    await run(agent, message="go", llm=ScriptedModel(["ok"]), **options)
    assert seen == [("i-1", "a", "ada", "acme", True), {"count": 1}]


async def test_a_run_without_a_user_is_not_authenticated() -> None:
    seen: list[bool] = []
    agent = Agent("a", on_start=lambda context: seen.append(context.authenticated()))
    await run(agent, message="go", llm=ScriptedModel(["ok"]))
    assert seen == [False]


async def test_every_run_starts_with_its_own_copy_of_the_initial_state() -> None:
    seen: list[list[int]] = []

    def started(context: AgentContext) -> None:
        context.state["items"].append(1)
        seen.append(list(context.state["items"]))

    agent = Agent("a", initial_state={"items": []}, on_start=started)
    for _ in range(2):
        await run(agent, message="go", llm=ScriptedModel(["ok"]))
    assert (seen, agent.initial_state) == ([[1], [1]], {"items": []})


async def test_the_state_that_hooks_leave_is_stored_with_the_session(store: SQLiteStore) -> None:
    def count(context: AgentContext) -> None:
        context.state["runs"] = context.state.get("runs", 0) + 1

    agent = Agent("a", on_complete=count)
    for text in ("one", "two"):
        await run(agent, message=text, session_id="s", store=store, llm=ScriptedModel(["ok"]))
    session = await store.load_session("s")
    assert session is not None
    assert json.loads(session.state) == {"runs": 2}


async def test_an_answer_that_fits_the_output_type_is_read() -> None:
    agent = Agent("a", output=dict[str, int])
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel(['{"n": 1}'])))
    assert (result.status, result.response, result.output) == ("complete", '{"n": 1}', {"n": 1})


@pytest.mark.parametrize("answer", ["no json", '{"n": "x"}', ""])
async def test_an_answer_that_misses_the_output_type_is_an_error_that_keeps_the_text(answer: str) -> None:
    log: list[str] = []
    agent = watching(log, output=dict[str, int])
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([answer])))
    assert (result.status, result.response, result.output) == ("error", answer, None)
    assert log == ["start"]


async def test_the_output_type_is_not_asked_when_the_run_did_not_complete() -> None:
    agent = Agent("a", tools=[echo], output=int, loop=Loop(max_iterations=1))
    model = ScriptedModel([asks_for(call("echo", "c1", text="x"), text="working")])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, result.output) == ("max-iterations", "working", None)


# --- the result ---


async def test_the_summary_counts_every_requested_call() -> None:
    first = asks_for(call("echo", "c1", text="x"), call("fail", "c2"), call("nope", "c3"))
    model = ScriptedModel([first, asks_for(call("echo", "c4", text="y")), "done"])
    result = assert_complete(await run(Agent("a", tools=[echo, fail]), message="go", llm=model))
    assert result.tool_call_summary == {"echo": 2, "fail": 1, "nope": 1}


async def test_the_summary_is_none_when_no_tool_was_called() -> None:
    assert assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel(["ok"]))).tool_call_summary is None


async def test_the_messages_of_a_result_cannot_be_changed() -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel(["ok"])))
    assert isinstance(result.messages, tuple)
    with pytest.raises(ValueError, match="frozen"):
        result.messages[0].content = "changed"


async def test_a_caller_that_changes_the_arguments_in_a_result_does_not_reach_the_store() -> None:
    store = memory_store()
    agent = Agent("a", tools=[echo])
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), "done"])
    result = assert_complete(await run(agent, message="go", store=store, llm=model))
    requested = result.messages[1].tool_calls
    assert requested is not None
    assert isinstance(requested[0].arguments, dict)
    with suppress(TypeError):
        requested[0].arguments["text"] = "changed"
    stored = (await store.load_messages(result.session_id or ""))[1].tool_calls
    assert stored is not None
    assert stored[0].arguments == {"text": "x"}


async def test_an_adapter_that_changes_its_list_of_messages_does_not_reach_the_run() -> None:
    class Greedy(ScriptedModel):
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> LLMResponse:
            answer = await super().chat(messages, tools, **settings)
            messages.clear()
            return answer

    model = Greedy([asks_for(call("echo", "c1", text="x")), "done"])
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", llm=model))
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.role for message in model.calls[1].messages] == ["system", "user", "assistant", "tool"]


async def test_an_agent_without_a_model_says_what_to_pass() -> None:
    with pytest.raises(HoldfastError, match="pass llm="):
        await run(Agent("a"), message="go")


# --- what a model can get wrong ---

DEEP = '{"text": ' + "[" * 100 + "]" * 100 + "}"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


MALFORMED: dict[str, list[Any]] = {
    "unknown tool": [{"id": "c1", "name": "nope", "arguments": {}}],
    "empty name": [{"id": "c1", "name": "", "arguments": {"text": "x"}}],
    "no name": [{"id": "c1", "arguments": {"text": "x"}}],
    "name with spaces": [{"id": "c1", "name": "echo ", "arguments": {"text": "x"}}],
    "name with a newline": [{"id": "c1", "name": "echo\n", "arguments": {"text": "x"}}],
    "name with NUL and surrogate": [{"id": "c1", "name": "ec\0ho\ud800", "arguments": {"text": "x"}}],
    "name of a megabyte": [{"id": "c1", "name": "e" * 1_000_000, "arguments": {"text": "x"}}],
    "name that is a number": [{"id": "c1", "name": 7, "arguments": {"text": "x"}}],
    "no arguments": [{"id": "c1", "name": "echo"}],
    "arguments of null": [{"id": "c1", "name": "echo", "arguments": None}],
    "arguments that are no JSON": [{"id": "c1", "name": "echo", "arguments": '{"text": "x"'}],
    "arguments with single quotes": [{"id": "c1", "name": "echo", "arguments": "{'text': 'x'}"}],
    "arguments that are a list": [{"id": "c1", "name": "echo", "arguments": ["x"]}],
    "arguments that are a number": [{"id": "c1", "name": "echo", "arguments": 5}],
    "arguments that are text in JSON": [{"id": "c1", "name": "echo", "arguments": '"{\\"text\\": 1}"'}],
    "arguments that miss the schema": [{"id": "c1", "name": "echo", "arguments": {"text": ["x"]}}],
    "arguments nested deeply as text": [{"id": "c1", "name": "echo", "arguments": DEEP}],
    "arguments nested deeply": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "more": nested(100)}}],
    "arguments nested very deeply": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "more": nested(5_000)}}],
    "arguments nested very deeply as text": [{"id": "c1", "name": "echo", "arguments": "[" * 100_000}],
    "arguments with NaN": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "n": float("nan")}}],
    "arguments with NaN as text": [{"id": "c1", "name": "echo", "arguments": '{"text": "x", "n": NaN}'}],
    "arguments with infinity as text": [{"id": "c1", "name": "echo", "arguments": '{"text": "x", "n": 1e999}'}],
    "arguments with a lone surrogate": [{"id": "c1", "name": "echo", "arguments": {"text": "\ud800"}}],
    "arguments with an escaped surrogate": [{"id": "c1", "name": "echo", "arguments": '{"text": "\\ud800"}'}],
    "arguments with a raw surrogate": [{"id": "c1", "name": "echo", "arguments": '{"text": "\ud800"}'}],
    "arguments with a raw NUL": [{"id": "c1", "name": "echo", "arguments": '{"text": "a\0b"}'}],
    "arguments with a long integer": [{"id": "c1", "name": "echo", "arguments": '{"n": ' + "9" * 5_000 + "}"}],
    "arguments that cannot be JSON": [{"id": "c1", "name": "echo", "arguments": {"text": {1, 2}}}],
    "text instead of a call": ["echo(x)"],
    "null instead of a call": [None],
    "a megabyte that is no JSON": [{"id": "c1", "name": "echo", "arguments": "x" * 1_000_000}],
}


async def carried_through(store: SQLiteStore, answer: Mapping[str, Any]) -> tuple[list[str], list[Message]]:
    """Run one malformed answer on a store, check what must always hold, and return what ran and the results."""
    ran: list[str] = []

    @tool(name="echo")
    async def heard(text: str) -> str:
        ran.append(text)
        return text

    agent = Agent("a", tools=[heard])
    model = ScriptedModel([answer, "done"])
    result = assert_complete(await run(agent, message="go", session_id="s", store=store, llm=model))
    assert (result.status, result.response) == ("complete", "done")
    requested = [requested.id for message in result.messages for requested in message.tool_calls or ()]
    assert [message.tool_call_id for message in tool_results(result.messages)] == requested
    assert len(set(requested)) == len(requested)
    assert all(requested)
    assert await store.load_messages("s") == list(result.messages)
    text = json.dumps([message.model_dump(mode="json") for message in result.messages], allow_nan=False)
    assert [Message.model_validate(message) for message in json.loads(text)] == list(result.messages)
    assert Checkpoint.model_validate_json(result.checkpoint.model_dump_json()) == result.checkpoint
    again = assert_complete(await run(agent, session_id="s", store=store, llm=ScriptedModel([])))
    assert again.messages == result.messages
    return ran, tool_results(result.messages)


@pytest.mark.parametrize("calls", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_call_is_answered_with_an_error_and_never_run(store: SQLiteStore, calls: list[Any]) -> None:
    ran, results = await carried_through(store, {"tool_calls": calls})
    assert ran == []
    assert [message.status for message in results] == ["failed"]
    assert error_of(results[0]) != ""


@pytest.mark.parametrize(
    "ids", [["c", "c", "c"], ["", "", ""], [None, "c", "c"], ["a\0b", "\ud800", "x" * 5_000], [1, 1, 2]], ids=str
)
async def test_calls_with_duplicate_missing_or_unusable_ids_run_once_each(store: SQLiteStore, ids: list[Any]) -> None:
    calls = [{"id": given, "name": "echo", "arguments": {"text": f"x{n}"}} for n, given in enumerate(ids)]
    ran, results = await carried_through(store, {"tool_calls": calls})
    assert ran == ["x0", "x1", "x2"]
    assert [message.content for message in results] == ["x0", "x1", "x2"]


@pytest.mark.parametrize("name", ["", "echo "])
async def test_a_malformed_name_never_becomes_the_name_of_a_tool(name: str) -> None:
    ran: list[str] = []

    def named(tool_name: str) -> Tool[..., Any]:
        return Tool(tool_name, description="Never meant.", handler=lambda: ran.append(tool_name))

    agent = Agent("a", tools=[named(name) for name in ("invalid_", "invalid__", "invalid_echo_", "echo")])
    answer = {"tool_calls": [{"id": "c1", "name": name, "arguments": {}}]}
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([answer, "done"])))
    assert (ran, [message.status for message in tool_results(result.messages)]) == ([], ["failed"])


async def test_an_id_that_an_earlier_turn_used_is_replaced(store: SQLiteStore) -> None:
    model = ScriptedModel([asks_for(call("echo", "c", text="1")), asks_for(call("echo", "c", text="2")), "done"])
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", session_id="s", store=store, llm=model))
    requested = [requested.id for message in result.messages for requested in message.tool_calls or ()]
    assert len(set(requested)) == 2
    assert [message.tool_call_id for message in tool_results(result.messages)] == requested


async def test_two_hundred_calls_in_a_turn_are_run_up_to_the_limit_and_all_answered(store: SQLiteStore) -> None:
    calls = [{"id": f"c{n}", "name": "echo", "arguments": {"text": f"x{n}"}} for n in range(200)]
    ran, results = await carried_through(store, {"tool_calls": calls})
    assert ran == [f"x{n}" for n in range(64)]
    assert [message.status for message in results] == ["completed"] * 64 + ["failed"] * 136
    assert "max_tool_calls" in error_of(results[64])


@pytest.mark.parametrize("text", ["x" * 1_000_000, "a\0b", "\ud800 alone", "\ud83d\ude00", "\r\n\u2028"])
async def test_whatever_text_a_model_writes_can_be_stored(store: SQLiteStore, text: str) -> None:
    ran, _ = await carried_through(
        store, {"text": text, "tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}]}
    )
    assert ran == ["x"]
    stored = (await store.load_messages("s"))[1].content
    assert len(stored) >= len(text) - 1
    assert "\0" not in stored


async def test_an_answer_longer_than_a_message_may_be_is_cut_and_says_so() -> None:
    agent = Agent("a", loop=Loop(max_message_bytes=2_000))
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel(["é" * 5_000])))
    assert result.status == "complete"
    assert result.response.startswith("é" * 1_000)
    assert "2,000 of 10,000 bytes" in result.response
    assert result.messages[-1].content == result.response


async def test_arguments_longer_than_a_message_may_be_are_refused_and_not_run() -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> None:
        ran.append(text)

    agent = Agent("a", tools=[post], loop=Loop(max_message_bytes=2_000))
    model = ScriptedModel([asks_for(call("post", "c1", text="x" * 5_000)), "done"])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert ran == []
    assert "max_message_bytes" in error_of(tool_results(result.messages)[0])


async def test_a_nul_in_the_arguments_reaches_the_handler_as_the_model_wrote_it(store: SQLiteStore) -> None:
    answer = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": '{"text": "a\\u0000b"}'}]}
    ran, results = await carried_through(store, answer)
    assert ran == ["a\0b"]
    assert results[0].content == "a\ufffdb"


async def test_arguments_that_json_writes_differently_are_stored_as_they_are_run(store: SQLiteStore) -> None:
    answer = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "pair": (1, 2)}}]}
    await carried_through(store, answer)


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
async def test_a_cost_that_is_no_number_is_stored_as_none(store: SQLiteStore, cost: float) -> None:
    await carried_through(store, {"text": "x", "tool_calls": [{"id": "c1", "name": "nope"}], "cost": cost})
    assert [message.cost for message in await store.load_messages("s")] == [None] * 4


async def test_a_message_of_the_user_is_cleaned_of_what_no_database_takes(store: SQLiteStore) -> None:
    result = assert_complete(
        await run(Agent("a"), message="a\0b\ud800", session_id="s", store=store, llm=ScriptedModel(["ok"]))
    )
    assert result.messages[0].content == "a\ufffdb\ufffd"
    assert await store.load_messages("s") == list(result.messages)


class Synchronous:
    def chat(self, messages: Any, tools: Any) -> dict[str, str]:
        return {"text": "hi"}


class Silent:
    async def chat(self, messages: Any, tools: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("adapter", "error"),
    [
        (Synchronous(), "Synchronous.chat must be async"),
        (Silent(), "The adapter returned None: that is no LLMResponse"),
    ],
    ids=["not async", "nothing returned"],
)
async def test_an_adapter_that_is_none_is_named_in_the_result(adapter: Any, error: str) -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=adapter))
    assert result.status == "error"
    assert (result.error or "").startswith(error)


@pytest.mark.parametrize("llm", ["openai:gpt-5", Silent, Silent().chat, 5], ids=["text", "class", "function", "number"])
async def test_what_is_no_adapter_is_refused_with_what_to_pass(llm: Any) -> None:
    with pytest.raises(InputError, match="llm must be"):
        await run(Agent("a"), message="go", llm=llm)


async def test_an_answer_that_does_not_fit_the_output_says_why() -> None:
    result = assert_complete(await run(Agent("a", output=int), message="go", llm=ScriptedModel(["five"])))
    assert (result.status, result.response) == ("error", "five")
    assert (result.error or "").startswith("the answer does not fit the agent's output: value: Invalid JSON")


async def test_an_agent_with_an_output_tells_the_model_its_schema() -> None:
    model = ScriptedModel(["5"])
    await run(Agent("a", output=int, instructions="Count."), message="go", llm=model)
    assert model.calls[0].messages[0].content == (
        'Count.\n\nAnswer with JSON alone that matches this schema: {"type": "integer"}'
    )


async def test_a_misspelt_option_is_refused_with_the_right_one() -> None:
    with pytest.raises(TypeError, match=r"run\(\) has no option 'sesion_id'; do you mean 'session_id'\?"):
        await run(Agent("a"), message="go", llm=ScriptedModel([]), sesion_id="s")  # type: ignore[call-arg]


async def test_what_is_no_store_is_refused_with_what_to_pass() -> None:
    with pytest.raises(InputError, match="store must be a store"):
        await run(Agent("a"), message="go", llm=ScriptedModel([]), store="holdfast.db")  # type: ignore[arg-type]
