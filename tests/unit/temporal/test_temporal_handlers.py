"""What is taken of what is sent to a run, where that does not need a server."""

import pytest

from standfast import Loop, Question
from standfast.agent_loop import LoopState
from standfast.errors import InputError
from standfast.temporal.wire.limits import PARKED_BYTES
from standfast.temporal.workflows.handlers import Handlers


def full_of_messages() -> Handlers:
    """A run that asks, and has been sent so much meanwhile that nothing more fits."""
    handlers = Handlers()
    handlers._loop_state = LoopState(loop=Loop(), tools={}, questions=(Question(tool_call_id="c1", question="?"),))
    handlers._mailbox.messages = ["x" * 1_000] * (PARKED_BYTES // 1_000)
    return handlers


@pytest.mark.parametrize("answer", [{"text": "yes"}, {"text": "yes", "tool_call_id": "c1"}])
def test_what_a_run_waits_for_always_has_room(answer: dict[str, str]) -> None:
    assert full_of_messages()._read_answer(answer, ()).tool_call_id == "c1"


def test_a_message_to_a_run_that_is_full_is_refused() -> None:
    with pytest.raises(InputError, match="bytes wait to be taken in"):
        full_of_messages()._read_message({"text": "more"}, ())


@pytest.mark.parametrize("call_id", ["another", ["c1"], {}, 1])
def test_an_answer_that_nobody_waits_for_needs_room(call_id: object) -> None:
    with pytest.raises(InputError, match="bytes wait to be taken in"):
        full_of_messages()._read_answer({"text": "yes", "tool_call_id": call_id}, ())
