"""Questions to people: a tool asks, the run stops, anybody answers later, in this process or another."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Checkpoint,
    HoldfastError,
    InputError,
    InterruptedResponse,
    InterruptError,
    LLMResponse,
    Loop,
    Message,
    Question,
    TerminalError,
    ToolCall,
    Usage,
    assert_complete,
    is_interrupted,
    resume,
    run,
    run_streaming,
    sqlite_store,
    tool,
)
from holdfast.local import MessageAdded, RunEnded, ToolEnded
from holdfast.stores import SQLiteStore
from holdfast.testing import ScriptedModel


@tool
async def ask(question: str) -> str:
    """Ask the user."""
    raise InterruptError(question)


@tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@tool
async def fail() -> None:
    """Raise."""
    raise ValueError("no")


agent = Agent("clerk", tools=[ask, echo])


def call(name: str, call_id: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def asks_for(*calls: ToolCall, tokens: int | None = None) -> LLMResponse:
    return LLMResponse(tool_calls=calls, usage=None if tokens is None else Usage(input_tokens=tokens, output_tokens=1))


def says(text: str, tokens: int) -> LLMResponse:
    return LLMResponse(text=text, usage=Usage(input_tokens=tokens, output_tokens=1))


async def interrupted(*calls: ToolCall, by: Agent = agent, **options: Any) -> InterruptedResponse:
    """Run an agent whose model asks for these calls, at least one of which asks a person."""
    options.setdefault("llm", ScriptedModel([asks_for(*calls)]))
    result = await run(by, message="go", **options)
    assert is_interrupted(result)
    return result


def tool_contents(messages: Any) -> list[tuple[str | None, str]]:
    return [(message.tool_call_id, message.content) for message in messages if message.role == "tool"]


@pytest.fixture(params=["stateless", "stored"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    """Return what makes the options of a run in a new process: no store, or a new store on the same file."""
    if request.param == "stateless":
        return dict
    return lambda: {"store": sqlite_store(tmp_path / "shared.db"), "session_id": "s"}


# --- checkpoints ---


async def test_a_finished_run_leaves_a_checkpoint_with_nothing_pending() -> None:
    result = assert_complete(await run(agent, message="hi", llm=ScriptedModel([says("hello", 5)])))
    assert result.checkpoint == Checkpoint(
        messages=(
            Message(role="user", content="hi"),
            Message(role="assistant", content="hello", usage=Usage(input_tokens=5, output_tokens=1)),
        ),
        iterations=1,
        usage=Usage(input_tokens=5, output_tokens=1),
    )
    assert "pending_tool_use_id" not in result.checkpoint.model_dump()


async def test_a_checkpoint_survives_json_unchanged() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), call("echo", "e1", text="x"))
    text = asked.checkpoint.model_dump_json()
    assert Checkpoint.model_validate_json(text) == asked.checkpoint
    assert Checkpoint.model_validate(json.loads(text)).model_dump_json() == text


async def test_a_question_stops_the_run_without_a_result_for_its_call(where: Callable[[], dict[str, Any]]) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), **where())
    assert (asked.interrupted, asked.question) == (True, "Who?")
    assert (asked.checkpoint.pending_tool_use_id, asked.checkpoint.iterations) == ("a1", 1)
    assert [message.role for message in asked.checkpoint.messages] == ["user", "assistant"]


async def test_an_interrupted_session_holds_the_messages_of_its_checkpoint(store: SQLiteStore) -> None:
    asked = await interrupted(
        call("echo", "e1", text="x"), call("ask", "a1", question="Who?"), store=store, session_id="s"
    )
    assert (asked.session_id, asked.checkpoint.session_id) == ("s", "s")
    assert await store.load_messages("s") == list(asked.checkpoint.messages)


@pytest.mark.parametrize(
    "form",
    [lambda checkpoint: checkpoint, lambda checkpoint: checkpoint.model_dump(), lambda c: c.model_dump_json()],
    ids=["checkpoint", "dict", "text"],
)
async def test_a_checkpoint_may_be_given_as_itself_a_dict_or_text(
    where: Callable[[], dict[str, Any]], form: Callable[[Checkpoint], Any]
) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), **where())
    model = ScriptedModel(["Hi Alice"])
    result = assert_complete(await resume(agent, form(asked.checkpoint), "Alice", llm=model, **where()))
    assert (result.status, result.response, result.iterations) == ("complete", "Hi Alice", 2)
    assert model.calls[0].messages[-1] == Message(
        role="tool", content="Alice", tool_call_id="a1", tool_name="ask", status="completed"
    )


@pytest.mark.parametrize("broken", ["", "{", "[]", 5, {"messages": [{"role": "wizard"}]}, {"iterations": "x"}], ids=str)
async def test_what_is_no_checkpoint_is_refused(broken: Any) -> None:
    with pytest.raises(InputError):
        await resume(agent, broken, "x", llm=ScriptedModel([]))


async def test_a_checkpoint_of_the_four_documented_fields_is_enough(where: Callable[[], dict[str, Any]]) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), **where())
    plain = asked.checkpoint.model_dump()
    four = {name: plain[name] for name in ("messages", "iterations", "usage", "pending_tool_use_id")}
    result = assert_complete(await resume(agent, four, "Alice", llm=ScriptedModel(["ok"]), **where()))
    assert tool_contents(result.messages) == [("a1", "Alice")]


@pytest.mark.parametrize("field", [{"iterations": -1}, {"usage": {"input_tokens": -1}}], ids=str)
async def test_a_checkpoint_that_counts_below_zero_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        await run(
            agent, checkpoint={"messages": [{"role": "user", "content": "go"}], **field}, llm=ScriptedModel(["x"])
        )


async def test_resuming_changes_nothing_in_the_checkpoint_that_was_given() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    given = asked.checkpoint.model_dump()
    before = json.dumps(given)
    await resume(agent, given, "Alice", llm=ScriptedModel(["ok"]))
    assert json.dumps(given) == before


async def test_a_checkpoint_whose_pending_call_is_not_in_its_messages_is_refused() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    wrong = asked.checkpoint.model_dump() | {"pending_tool_use_id": "other", "questions": None}
    with pytest.raises(InputError, match="other"):
        await resume(agent, wrong, "Alice", llm=ScriptedModel(["ok", "ok"]))


async def test_a_checkpoint_whose_pending_call_has_a_result_is_refused() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    answered = assert_complete(await resume(agent, asked.checkpoint, "Alice", llm=ScriptedModel(["ok"])))
    wrong = asked.checkpoint.model_dump() | {"messages": answered.checkpoint.model_dump()["messages"][:3]}
    with pytest.raises(InputError, match="a1"):
        await resume(agent, wrong, "Bob", llm=ScriptedModel(["ok"]))


# --- answering ---


async def test_usage_and_iterations_go_on_from_the_checkpoint(where: Callable[[], dict[str, Any]]) -> None:
    first = ScriptedModel([asks_for(call("ask", "a1", question="One?"), tokens=10)])
    asked = await interrupted(llm=first, **where())
    second = ScriptedModel([asks_for(call("ask", "a2", question="Two?"), tokens=100)])
    again = await resume(agent, asked.checkpoint, "1", llm=second, **where())
    assert is_interrupted(again)
    assert again.checkpoint.usage == Usage(input_tokens=110, output_tokens=2)
    result = assert_complete(
        await resume(agent, again.checkpoint, "2", llm=ScriptedModel([says("done", 1_000)]), **where())
    )
    assert (result.usage, result.iterations) == (Usage(input_tokens=1_110, output_tokens=3), 3)


async def test_an_agent_may_ask_again_and_again(where: Callable[[], dict[str, Any]]) -> None:
    asked: Any = await interrupted(call("ask", "a0", question="Question 0"), **where())
    for number in range(1, 4):
        model = ScriptedModel([asks_for(call("ask", f"a{number}", question=f"Question {number}"))])
        asked = await resume(agent, asked.checkpoint, f"answer {number - 1}", llm=model, **where())
        assert asked.question == f"Question {number}"
    result = assert_complete(await resume(agent, asked.checkpoint, "answer 3", llm=ScriptedModel(["done"]), **where()))
    assert tool_contents(result.messages) == [(f"a{number}", f"answer {number}") for number in range(4)]


async def test_is_interrupted_and_assert_complete_tell_the_two_results_apart() -> None:
    asked = await run(agent, message="go", llm=ScriptedModel([asks_for(call("ask", "a1", question="Who?"))]))
    assert is_interrupted(asked)
    with pytest.raises(HoldfastError, match=r"^Agent interrupted: Who\?$"):
        assert_complete(asked)
    done = await run(agent, message="go", llm=ScriptedModel(["ok"]))
    assert not is_interrupted(done)
    assert assert_complete(done) is done


async def test_an_empty_answer_is_an_answer(where: Callable[[], dict[str, Any]]) -> None:
    asked = await interrupted(call("ask", "a1", question="Anything else?"), **where())
    result = assert_complete(await resume(agent, asked.checkpoint, "", llm=ScriptedModel(["ok"]), **where()))
    assert tool_contents(result.messages) == [("a1", "")]


async def test_an_answer_is_cleaned_of_what_no_database_takes(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    await resume(agent, asked.checkpoint, "a\0b\ud800", llm=ScriptedModel(["ok"]), store=store)
    assert tool_contents(await store.load_messages("s")) == [("a1", "a\ufffdb\ufffd")]


async def test_an_answer_over_the_limit_is_refused_and_can_be_given_again(store: SQLiteStore) -> None:
    small = Agent("clerk", tools=[ask], loop=Loop(max_message_bytes=1_024))
    asked = await interrupted(call("ask", "a1", question="Who?"), by=small, store=store, session_id="s")
    with pytest.raises(InputError, match="max_message_bytes"):
        await resume(small, asked.checkpoint, "x" * 2_000, llm=ScriptedModel([]), store=store)
    result = assert_complete(await resume(small, asked.checkpoint, "x", llm=ScriptedModel(["ok"]), store=store))
    assert tool_contents(result.messages) == [("a1", "x")]


async def test_a_failing_model_call_after_the_answer_does_not_lose_the_answer(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    result = assert_complete(
        await resume(agent, asked.checkpoint, "Alice", llm=ScriptedModel([RuntimeError("down")]), store=store)
    )
    assert result.status == "error"
    assert tool_contents(await store.load_messages("s")) == [("a1", "Alice")]
    again = assert_complete(await run(agent, session_id="s", store=store, llm=ScriptedModel(["Hi Alice"])))
    assert again.response == "Hi Alice"


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


# --- sessions that wait ---


async def test_a_question_is_answered_in_another_process_by_the_session_alone(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "h.db") as first:
        asked = await interrupted(call("ask", "a1", question="Who?"), store=first, session_id="s")
        text = asked.checkpoint.model_dump_json()
    async with sqlite_store(tmp_path / "h.db") as second:
        result = assert_complete(await resume(agent, text, "Alice", store=second, llm=ScriptedModel(["Hi Alice"])))
        assert (result.response, result.session_id) == ("Hi Alice", "s")
        assert await second.load_messages("s") == list(result.messages)


async def test_a_session_that_waits_gives_its_question_again_without_calling_the_model(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "h.db") as first:
        asked = await interrupted(call("ask", "a1", question="Who?"), store=first, session_id="s")
    async with sqlite_store(tmp_path / "h.db") as second:
        model = ScriptedModel([])
        again = await run(agent, store=second, session_id="s", llm=model)
        assert is_interrupted(again)
        assert (again.question, model.calls) == ("Who?", [])
        assert again.checkpoint.pending_tool_use_id == asked.checkpoint.pending_tool_use_id
        result = assert_complete(await resume(agent, again.checkpoint, "A", store=second, llm=ScriptedModel(["ok"])))
        assert result.status == "complete"


async def test_a_new_message_while_a_question_is_open_is_refused_and_changes_nothing(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    before = await store.load_messages("s")
    with pytest.raises(InputError, match=r"waits for the answer to 'Who\?'"):
        await run(agent, message="hello?", store=store, session_id="s", llm=ScriptedModel([]))
    assert await store.load_messages("s") == before
    result = assert_complete(await resume(agent, asked.checkpoint, "Alice", store=store, llm=ScriptedModel(["ok"])))
    assert result.status == "complete"


async def test_a_new_message_with_a_checkpoint_that_asks_is_refused() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    with pytest.raises(InputError, match=r"waits for the answer to 'Who\?'"):
        await run(agent, checkpoint=asked.checkpoint, message="hello?", llm=ScriptedModel([]))


async def test_a_checkpoint_that_asks_gives_its_question_again() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    again = await run(agent, checkpoint=asked.checkpoint, llm=ScriptedModel([]))
    assert is_interrupted(again)
    assert again == asked


async def test_answering_a_stored_question_twice_is_refused(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    first = assert_complete(await resume(agent, asked.checkpoint, "Alice", store=store, llm=ScriptedModel(["ok"])))
    with pytest.raises(InputError, match="a1"):
        await resume(agent, asked.checkpoint, "Bob", store=store, llm=ScriptedModel(["never"]))
    assert await store.load_messages("s") == list(first.messages)


async def test_answering_the_first_of_two_stored_questions_twice_is_refused(store: SQLiteStore) -> None:
    asked = await interrupted(
        call("ask", "a1", question="One?"), call("ask", "a2", question="Two?"), store=store, session_id="s"
    )
    await resume(agent, asked.checkpoint, "1", store=store, llm=ScriptedModel([]))
    with pytest.raises(InputError, match="a1"):
        await resume(agent, asked.checkpoint, "1", store=store, llm=ScriptedModel([]))
    assert tool_contents(await store.load_messages("s")) == [("a1", "1")]


async def test_a_checkpoint_without_a_session_may_be_answered_twice_in_two_ways() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    for name in ("Alice", "Bob"):
        result = assert_complete(await resume(agent, asked.checkpoint, name, llm=ScriptedModel(["ok"])))
        assert tool_contents(result.messages) == [("a1", name)]


async def test_an_interrupted_run_can_move_into_a_store(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), call("echo", "e1", text="x"))
    result = assert_complete(
        await resume(agent, asked.checkpoint, "Alice", store=store, session_id="new", llm=ScriptedModel(["ok"]))
    )
    assert result.session_id == "new"
    again = assert_complete(await run(agent, store=store, session_id="new", llm=ScriptedModel([])))
    assert again.messages == result.messages


async def test_an_interrupted_run_can_be_parked_in_a_store_without_an_answer(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    parked = await run(agent, checkpoint=asked.checkpoint, store=store, session_id="new", llm=ScriptedModel([]))
    assert is_interrupted(parked)
    later = await run(agent, store=store, session_id="new", llm=ScriptedModel([]))
    assert is_interrupted(later)
    assert (later.question, await store.load_messages("new")) == ("Who?", list(asked.checkpoint.messages))


async def test_after_the_answer_the_session_takes_messages_again(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    await resume(agent, asked.checkpoint, "Alice", store=store, llm=ScriptedModel(["ok"]))
    result = assert_complete(await run(agent, message="more", store=store, session_id="s", llm=ScriptedModel(["sure"])))
    assert result.response == "sure"


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
