"""Inputs of the loop in its tests: tools, messages, outcomes, and the resulting states."""

from dataclasses import dataclass
from typing import Any

from standfast import Loop, Message, ToolCall, Usage
from standfast.agent_loop import Action, CallTools, LoopState
from standfast.tools import Failed, Outcome, Returned


@dataclass(frozen=True)
class Facts:
    parallel: bool = False
    safe_to_retry: bool = False
    verify: object | None = None
    approval: object | None = None
    handoff: str = ""


TOOLS = {
    "post": Facts(),
    "read": Facts(safe_to_retry=True),
    "fetch": Facts(safe_to_retry=True, parallel=True),
    "pay": Facts(verify=print),
}
OK = Returned("ok")
BAD = Failed("no")


def call(call_id: str, name: str = "post") -> ToolCall:
    return ToolCall(id=call_id, name=name)


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def text(content: str = "done", tokens: int | None = None) -> Message:
    usage = None if tokens is None else Usage(input_tokens=tokens)
    return Message(role="assistant", content=content, usage=usage)


def calls(*asked: ToolCall, content: str = "", tokens: int | None = None) -> Message:
    return text(content, tokens).model_copy(update={"tool_calls": asked})


def started(on_terminal_tool_error: Any = "message", **limits: Any) -> LoopState:
    state = LoopState(loop=Loop(**limits), tools=TOOLS, on_terminal_tool_error=on_terminal_tool_error)
    return state.fold([user()], recovering=False)


def after_turn(state: LoopState, *outcomes: Outcome, content: str = "", tokens: int | None = None) -> LoopState:
    """Return the state after a model call that asked for one tool call per outcome, and after these outcomes."""
    asked = [call(f"c{state.iterations}_{number}") for number in range(len(outcomes))]
    replied = state.replied(calls(*asked, content=content, tokens=tokens))
    return replied.settled(tuple(zip(asked, outcomes, strict=True)))


def batches(action: Action) -> list[str]:
    assert isinstance(action, CallTools)
    return ["".join(asked.id for asked in batch) for batch in action.batches]
