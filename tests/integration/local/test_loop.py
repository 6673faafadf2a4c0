"""The loop from a caller's view: the end of a run, the outcome of a call, and the value of `run`."""

import json
from contextlib import suppress
from typing import Any

import pytest
from support.doubles import echo, fail
from support.transcripts import asks_for, call, error_of, tool_results

from standfast import (
    Agent,
    LLMResponse,
    Loop,
    Message,
    Tool,
    ToolCall,
    assert_complete,
    is_interrupted,
    memory_store,
    resume,
    run,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- how a run ends ---


async def test_a_text_answer_completes_the_run_after_one_iteration() -> None:
    result = assert_complete(await run(Agent("greeter"), message="hi", llm=ScriptedModel(["Hello"])))
    assert (result.status, result.response, result.iterations) == ("complete", "Hello", 1)


async def test_two_empty_answers_end_the_run_after_one_iteration() -> None:
    result = assert_complete(await run(Agent("greeter"), message="hi", llm=ScriptedModel([{}, {}])))
    assert (result.status, result.response, result.iterations) == ("empty", "", 1)


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
