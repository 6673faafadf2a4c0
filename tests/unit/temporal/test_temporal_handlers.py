"""How a run treats incoming messages, where that works without a server."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from standfast import Loop, Question
from standfast.agent_loop import LoopState
from standfast.errors import InputError
from standfast.temporal.wire.inputs import PARKED_BYTES
from standfast.temporal.workflows.calls.tool_calls import Calls
from standfast.temporal.workflows.inbox.messages import Messages, Questions
from standfast.temporal.workflows.run.agent_run_state import RunState
from standfast.temporal.workflows.run.run_parts import RunParts


def full_of_messages() -> tuple[Messages, Questions]:
    """A run that asks, and has been sent so much meanwhile that nothing more fits."""
    parts = RunParts(cast(Any, SimpleNamespace(asks_groups=False, whose=dict)))  # nothing else is asked
    parts.mailbox.messages = ["x" * 1_000] * (PARKED_BYTES // 1_000)
    asks = LoopState(loop=Loop(), tools={}, questions=(Question(tool_call_id="c1", question="?"),))
    run = RunState(loop=asks, is_open=True)
    messages = Messages(run, parts, owner=(None, None), first=None)
    questions = Questions(run, parts, messages, Calls(run, parts), is_interrupted=lambda: False)
    return messages, questions


@pytest.mark.parametrize("answer", [{"text": "yes"}, {"text": "yes", "tool_call_id": "c1"}])
def test_what_a_run_waits_for_always_has_room(answer: dict[str, str]) -> None:
    _, questions = full_of_messages()
    assert questions.read_answer(answer, ()).tool_call_id == "c1"


def test_a_message_to_a_run_that_is_full_is_refused() -> None:
    messages, _ = full_of_messages()
    with pytest.raises(InputError, match="bytes are waiting"):
        messages.read({"text": "more"}, (), None)


@pytest.mark.parametrize("call_id", ["another", ["c1"], {}, 1])
def test_an_answer_that_nobody_waits_for_needs_room(call_id: object) -> None:
    _, questions = full_of_messages()
    with pytest.raises(InputError, match="bytes are waiting"):
        questions.read_answer({"text": "yes", "tool_call_id": call_id}, ())
