"""Questions beside other calls, at a limit, from a stuck agent, and in a stream."""

from collections.abc import Callable
from typing import Any

import pytest
from support.questions import agent, ask, interrupted
from support.transcripts import asks_for, call, tool_contents

from standfast import (
    Agent,
    InputError,
    InterruptError,
    Loop,
    Question,
    TerminalError,
    assert_complete,
    is_interrupted,
    resume,
    run,
    run_streaming,
    tool,
)
from standfast.events import MessageAdded, RunEnded, ToolEnded
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


@tool
async def fail() -> None:
    """Raise."""
    raise ValueError("no")


# --- several questions, results beside a question ---


async def test_all_questions_of_a_turn_are_asked_in_call_order_without_a_model_call(
    where: Callable[[], dict[str, Any]],
) -> None:
    asked: Any = await interrupted(
        *(call("ask", f"a{number}", question=f"Question {number}") for number in range(3)), **where()
    )
    assert asked.question == "Question 0"
    for number in range(1, 3):
        asked = await resume(agent, asked.checkpoint, f"answer {number - 1}", llm=ScriptedModel([]), **where())
        assert (asked.question, asked.checkpoint.iterations) == (f"Question {number}", 1)
        assert asked.checkpoint.pending_tool_use_id == f"a{number}"
    model = ScriptedModel(["done"])
    result = assert_complete(await resume(agent, asked.checkpoint, "answer 2", llm=model, **where()))
    assert len(model.calls) == 1
    assert tool_contents(result.messages) == [(f"a{number}", f"answer {number}") for number in range(3)]


async def test_the_checkpoint_lists_all_open_questions() -> None:
    asked = await interrupted(call("ask", "a1", question="One?"), call("ask", "a2", question="Two?"))
    assert asked.checkpoint.questions == (
        Question(question="One?", tool_call_id="a1"),
        Question(question="Two?", tool_call_id="a2"),
    )


async def test_calls_beside_a_question_run_and_are_not_run_again(where: Callable[[], dict[str, Any]]) -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> str:
        ran.append(text)
        return text

    by = Agent("clerk", tools=[ask, post])
    calls = [call("post", "p1", text="one"), call("ask", "a1", question="Who?"), call("post", "p2", text="two")]
    asked = await interrupted(*calls, by=by, **where())
    assert tool_contents(asked.checkpoint.messages) == [("p1", "one"), ("p2", "two")]
    result = assert_complete(await resume(by, asked.checkpoint, "Alice", llm=ScriptedModel(["ok"]), **where()))
    assert ran == ["one", "two"]
    assert sorted(tool_contents(result.messages)) == [("a1", "Alice"), ("p1", "one"), ("p2", "two")]


async def test_results_go_back_in_call_order_whatever_came_first(where: Callable[[], dict[str, Any]]) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), call("echo", "e1", text="x"), **where())
    model = ScriptedModel(["ok"])
    result = assert_complete(await resume(agent, asked.checkpoint, "Alice", llm=model, **where()))
    assert tool_contents(model.calls[0].messages) == [("a1", "Alice"), ("e1", "x")]
    assert tool_contents(result.messages) == [("a1", "Alice"), ("e1", "x")]


async def test_a_call_that_failed_beside_a_question_keeps_its_error() -> None:
    by = Agent("clerk", tools=[ask, fail])
    asked = await interrupted(call("fail", "f1"), call("ask", "a1", question="Who?"), by=by)
    result = assert_complete(await resume(by, asked.checkpoint, "Alice", llm=ScriptedModel(["ok"])))
    assert tool_contents(result.messages) == [("f1", '{"error": "no"}'), ("a1", "Alice")]


async def test_an_answered_question_counts_as_progress() -> None:
    by = Agent("clerk", tools=[ask, fail], loop=Loop(stuck_threshold=1))
    asked = await interrupted(call("fail", "f1"), call("ask", "a1", question="Who?"), by=by)
    result = assert_complete(await resume(by, asked.checkpoint, "Alice", llm=ScriptedModel(["ok"])))
    assert result.status == "complete"


async def test_a_run_that_ends_in_the_same_turn_asks_nothing(store: SQLiteStore) -> None:
    @tool
    async def charge() -> None:
        raise TerminalError("blocked")

    by = Agent("clerk", tools=[ask, charge], on_terminal_tool_error="stop")
    model = ScriptedModel([asks_for(call("ask", "a1", question="Who?"), call("charge", "c1"))])
    result = assert_complete(await run(by, message="go", llm=model, store=store, session_id="s"))
    assert (result.status, result.response) == ("error", "blocked")
    stored = [message for message in await store.load_messages("s") if message.role == "tool"]
    assert [(message.tool_call_id, message.status) for message in stored] == [("a1", "cancelled"), ("c1", "failed")]
    again = await run(by, message="again", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert not is_interrupted(again)


async def test_a_question_from_a_plain_function_is_asked_too() -> None:
    @tool
    def confirm() -> str:
        raise InterruptError("Sure?")

    asked = await interrupted(call("confirm", "c1"), by=Agent("clerk", tools=[confirm]))
    assert (asked.question, asked.checkpoint.pending_tool_use_id) == ("Sure?", "c1")


async def test_questions_from_parallel_calls_are_asked_in_call_order() -> None:
    @tool(parallel=True)
    async def confirm(text: str) -> str:
        raise InterruptError(text)

    by = Agent("clerk", tools=[confirm])
    asked = await interrupted(*(call("confirm", f"c{n}", text=f"{n}?") for n in range(3)), by=by)
    assert [question.question for question in asked.checkpoint.questions or ()] == ["0?", "1?", "2?"]


async def test_a_question_is_never_asked_by_trying_the_tool_again() -> None:
    asked_times: list[int] = []

    @tool(safe_to_retry=True)
    async def confirm() -> str:
        asked_times.append(1)
        raise InterruptError("Sure?")

    by = Agent("clerk", tools=[confirm])
    asked = await interrupted(call("confirm", "c1"), by=by)
    await resume(by, asked.checkpoint, "yes", llm=ScriptedModel(["ok"]))
    assert asked_times == [1]


# --- limits ---


async def test_a_run_at_its_last_iteration_keeps_the_answer_for_a_higher_limit(
    where: Callable[[], dict[str, Any]],
) -> None:
    once = Agent("clerk", tools=[ask], loop=Loop(max_iterations=1))
    asked = await interrupted(call("ask", "a1", question="Who?"), by=once, **where())
    model = ScriptedModel([])
    ended = assert_complete(await resume(once, asked.checkpoint, "Alice", llm=model, **where()))
    assert (ended.status, ended.iterations, model.calls) == ("max-iterations", 1, [])
    assert tool_contents(ended.checkpoint.messages) == [("a1", "Alice")]
    model = ScriptedModel(["Hi Alice"])
    result = assert_complete(await run(agent, checkpoint=ended.checkpoint, llm=model, **where()))
    assert (result.response, result.iterations) == ("Hi Alice", 2)


async def test_an_answer_without_a_question_is_a_message(where: Callable[[], dict[str, Any]]) -> None:
    done = assert_complete(await run(agent, message="go", llm=ScriptedModel(["ok"]), **where()))
    result = assert_complete(await resume(agent, done.checkpoint, "more", llm=ScriptedModel(["sure"]), **where()))
    assert [message.content for message in result.messages] == ["go", "ok", "more", "sure"]


async def test_an_empty_answer_without_a_question_changes_nothing(where: Callable[[], dict[str, Any]]) -> None:
    done = assert_complete(await run(agent, message="go", llm=ScriptedModel(["ok"]), **where()))
    again = assert_complete(await resume(agent, done.checkpoint, "", llm=ScriptedModel([]), **where()))
    assert (again.response, again.messages) == ("ok", done.messages)


# --- escalation ---


stuck = Agent("clerk", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))


async def test_the_answer_to_an_escalation_becomes_a_user_message(where: Callable[[], dict[str, Any]]) -> None:
    asked = await interrupted(call("fail", "f1"), by=stuck, **where())
    assert asked.checkpoint.questions == (Question(question=asked.question),)
    model = ScriptedModel(["ok"])
    result = assert_complete(await resume(stuck, asked.checkpoint.model_dump_json(), "skip it", llm=model, **where()))
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert result.messages[3].content == "skip it"


async def test_a_session_that_escalated_waits_for_its_answer(store: SQLiteStore) -> None:
    asked = await interrupted(call("fail", "f1"), by=stuck, store=store, session_id="s")
    again = await run(stuck, store=store, session_id="s", llm=ScriptedModel([]))
    assert is_interrupted(again)
    assert again.question == asked.question
    with pytest.raises(InputError, match="waits for the answer"):
        await run(stuck, message="hello", store=store, session_id="s", llm=ScriptedModel([]))


async def test_answering_an_escalation_twice_is_refused(store: SQLiteStore) -> None:
    asked = await interrupted(call("fail", "f1"), by=stuck, store=store, session_id="s")
    await resume(stuck, asked.checkpoint, "skip it", store=store, llm=ScriptedModel(["ok"]))
    with pytest.raises(InputError):
        await resume(stuck, asked.checkpoint, "skip it", store=store, llm=ScriptedModel(["never"]))


async def test_the_answer_to_one_escalation_is_not_taken_for_the_answer_to_the_next(store: SQLiteStore) -> None:
    first = await interrupted(call("fail", "f1"), by=stuck, store=store, session_id="s")
    model = ScriptedModel([asks_for(call("fail", "f2"))])
    second = await resume(stuck, first.checkpoint, "try again", store=store, llm=model)
    assert is_interrupted(second)
    with pytest.raises(InputError):
        await resume(stuck, first.checkpoint, "try again", store=store, llm=ScriptedModel(["never"]))


# --- streaming ---


async def test_a_question_in_a_stream_is_its_last_event_and_no_error(where: Callable[[], dict[str, Any]]) -> None:
    model = ScriptedModel([asks_for(call("ask", "a1", question="Who?"))])
    events = [event async for event in run_streaming(agent, message="go", llm=model, **where())]
    last = events[-1]
    assert isinstance(last, RunEnded)
    assert is_interrupted(last.result)
    assert last.result.question == "Who?"
    assert [event.result for event in events if isinstance(event, ToolEnded)] == [None]


async def test_a_question_is_answered_in_a_stream(where: Callable[[], dict[str, Any]]) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), **where())
    stream = run_streaming(
        agent, checkpoint=asked.checkpoint, answer="Alice", llm=ScriptedModel(["Hi Alice"]), **where()
    )
    events = [event async for event in stream]
    last = events[-1]
    assert isinstance(last, RunEnded)
    assert assert_complete(last.result).response == "Hi Alice"
    added = [event.message.content for event in events if isinstance(event, MessageAdded)]
    assert added[-2:] == ["Alice", "Hi Alice"]
