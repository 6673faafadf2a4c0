"""Questions to people: a tool asks, the run stops, and anyone answers later, in this process or another."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.questions import agent, ask, interrupted
from support.transcripts import asks_for, call, says, tool_contents

from standfast import (
    Agent,
    Checkpoint,
    InputError,
    Loop,
    Message,
    StandfastError,
    Usage,
    assert_complete,
    is_interrupted,
    resume,
    run,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- checkpoints ---


async def test_a_finished_run_leaves_a_checkpoint_with_nothing_pending() -> None:
    result = assert_complete(await run(agent, message="hi", llm=ScriptedModel([says("hello", 5, output_tokens=1)])))
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
async def test_a_value_that_is_not_a_checkpoint_is_refused(broken: Any) -> None:
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


async def test_usage_and_iterations_continue_from_the_checkpoint(where: Callable[[], dict[str, Any]]) -> None:
    first = ScriptedModel([asks_for(call("ask", "a1", question="One?"), tokens=10, output_tokens=1)])
    asked = await interrupted(llm=first, **where())
    second = ScriptedModel([asks_for(call("ask", "a2", question="Two?"), tokens=100, output_tokens=1)])
    again = await resume(agent, asked.checkpoint, "1", llm=second, **where())
    assert is_interrupted(again)
    assert again.checkpoint.usage == Usage(input_tokens=110, output_tokens=2)
    result = assert_complete(
        await resume(agent, again.checkpoint, "2", llm=ScriptedModel([says("done", 1_000, output_tokens=1)]), **where())
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
    with pytest.raises(StandfastError, match=r"^Agent interrupted: Who\?$"):
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
