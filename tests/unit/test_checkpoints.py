"""A checkpoint is plain JSON, and a result shows whether it waits for a person."""

from dataclasses import FrozenInstanceError

import pytest
from pydantic import ValidationError

from standfast import (
    Checkpoint,
    InterruptedResponse,
    Message,
    Question,
    RunResult,
    StandfastError,
    ToolCall,
    Usage,
    assert_complete,
    is_interrupted,
)

ASKING = Checkpoint(
    messages=(
        Message(role="user", content="hi"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="ask", arguments={"a": None}),)),
    ),
    iterations=1,
    usage=Usage(input_tokens=3, output_tokens=4),
    pending_tool_use_id="c1",
    questions=(Question(question="Who?", tool_call_id="c1"), Question(question="How?")),
    session_id="s1",
)
DONE = RunResult(status="complete", response="hi", messages=(), iterations=1, checkpoint=Checkpoint())


@pytest.mark.parametrize("checkpoint", [ASKING, Checkpoint()], ids=["asking", "empty"])
def test_a_checkpoint_survives_json_unchanged(checkpoint: Checkpoint) -> None:
    assert Checkpoint.model_validate_json(checkpoint.model_dump_json()) == checkpoint


def test_a_checkpoint_survives_json_a_second_time_letter_by_letter() -> None:
    text = ASKING.model_dump_json()

    assert Checkpoint.model_validate_json(text).model_dump_json() == text


def test_a_checkpoint_has_the_keys_of_the_documents() -> None:
    assert ASKING.model_dump(mode="json") == {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "name": "ask", "arguments": {"a": None}}],
            },
        ],
        "iterations": 1,
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "pending_tool_use_id": "c1",
        "questions": [{"question": "Who?", "tool_call_id": "c1"}, {"question": "How?"}],
        "session_id": "s1",
    }


def test_a_finished_checkpoint_has_no_pending_tool_use_id() -> None:
    assert set(Checkpoint(iterations=1).model_dump()) == {"messages", "iterations", "usage"}


def test_a_checkpoint_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ASKING.iterations = 0


def test_a_checkpoint_does_not_change_with_the_list_it_was_made_from() -> None:
    messages = [Message(role="user", content="hi")]
    checkpoint = Checkpoint.model_validate({"messages": messages})
    messages.append(Message(role="user", content="more"))

    assert checkpoint.messages == (Message(role="user", content="hi"),)


def test_an_interrupted_run_is_interrupted() -> None:
    asked = InterruptedResponse("Who?", ASKING, "s")
    assert is_interrupted(asked) is True
    assert (asked.status, asked.question, asked.session_id, asked.approvals) == ("interrupted", "Who?", "s", ())
    assert (asked.messages, asked.iterations, asked.usage) == (ASKING.messages, ASKING.iterations, ASKING.usage)


def test_every_run_returns_one_type_of_result_whose_status_says_what_it_is() -> None:
    asked = InterruptedResponse("Who?", ASKING)
    assert isinstance(asked, RunResult)
    assert [one.interrupted for one in (DONE, asked)] == [False, True]
    assert (DONE.question, DONE.approvals, asked.output, asked.response) == ("", (), None, "")


def test_a_finished_run_is_not_interrupted() -> None:
    assert is_interrupted(DONE) is False


def test_a_finished_run_is_returned_unchanged() -> None:
    assert assert_complete(DONE) is DONE


def test_a_run_that_asks_is_not_complete() -> None:
    with pytest.raises(StandfastError, match=r"^Agent interrupted: Who\?$"):
        assert_complete(InterruptedResponse("Who?", ASKING))


def test_interrupted_is_not_an_argument() -> None:
    with pytest.raises(TypeError, match="interrupted"):
        InterruptedResponse("Who?", ASKING, interrupted=False)  # type: ignore[call-arg]


def test_results_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DONE.status = "error"  # type: ignore[misc]
