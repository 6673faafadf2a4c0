"""The state of an agent's loop as a run carries it: numbers, names and open calls, as plain JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from standfast.agent_loop import Finish, LoopState
from standfast.agents import Loop
from standfast.checkpoints import Question
from standfast.messages import StopReason, Tripped, Usage, read_usage
from standfast.temporal.wire.snapshots import Facts, ToolFacts


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the workflow sees it; its arguments are in the store."""

    id: str
    name: str
    position: int
    shown: str = ""


RunLoop = LoopState[Call, ToolFacts]
"""The loop's state as a workflow has it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer as the workflow sees it."""

    content: str
    tool_calls: tuple[Call, ...] | None = None
    usage: Usage | None = None
    stop_reason: StopReason | None = None
    tripped: tuple[Tripped, ...] | None = None

    @classmethod
    def of(cls, reply: Mapping[str, Any], calls: tuple[Call, ...]) -> Self:
        """Read the reply of the model's activity; its calls have already been read."""
        tripped = (Tripped(**reply["tripped"]),) if "tripped" in reply else None
        usage = read_usage(reply.get("usage"))
        return cls(reply.get("text", ""), calls or None, usage, reply.get("stop_reason"), tripped)


def write_tripped(tripped: Tripped) -> dict[str, Any]:
    """Return the guardrail that has ended a run as JSON."""
    return {"guardrail": tripped.guardrail, "reason": tripped.reason, "metadata": dict(tripped.metadata)}


_PLAIN = (
    "iterations",
    "response",
    "finished",
    "recovering",
    "progressed",
    "idle_turns",
    "warning",
    "warned",
    "nudge",
    "nudges",
    "short_calls",
    "fallback",
    "corrections",
    "cut",
    "agent",
    "barred",
    "stopped",
)
FRESH: RunLoop = LoopState(loop=Loop(), tools={})


def write_state(state: RunLoop) -> dict[str, Any]:
    """Return a state as JSON, without the facts and the fields that equal a new state's."""
    data = {name: value for name in _PLAIN if (value := getattr(state, name)) != getattr(FRESH, name)}
    if state.open_calls:
        data["open_calls"] = [write_call(call) for call in state.open_calls]
    if state.refused:
        data["refused"] = dict(state.refused)
    for name in ("questions", "verdicts"):
        if asked := getattr(state, name):
            data[name] = [question.model_dump() for question in asked]
    for name in ("usage", "session_usage"):
        if (usage := getattr(state, name)) is not None:
            data[name] = usage.plain()
    if any(state.grants):
        data["grants"] = list(state.grants)
    if state.ended is not None:
        data["ended"] = _write_end(state.ended)
    return data


def _write_end(ended: Finish) -> dict[str, Any]:
    plain = {"status": ended.status, "response": ended.response, "raises": ended.raises}
    return plain if ended.tripped is None else {**plain, "tripped": write_tripped(ended.tripped)}


def _end_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**data, "tripped": Tripped(**data["tripped"])} if "tripped" in data else data


def read_state(data: Mapping[str, Any], facts: Facts) -> RunLoop:
    """Read the value that `write_state` wrote."""
    plain = {name: data[name] for name in _PLAIN if name in data}
    speakers = {name: fallbacks for name, (_, fallbacks) in facts.speakers.items()}
    plain.setdefault("agent", next(iter(speakers), ""))  # the first begins
    return LoopState(
        loop=facts.loop,
        tools=facts.tools,
        on_terminal_tool_error=facts.on_terminal_tool_error,
        fallbacks=speakers.get(plain["agent"], facts.fallbacks),
        speakers=speakers,
        open_calls=tuple(Call(*call) for call in data.get("open_calls", ())),
        refused=data.get("refused", {}),
        questions=tuple(Question(**question) for question in data.get("questions", ())),
        verdicts=tuple(Question(**question) for question in data.get("verdicts", ())),
        usage=read_usage(data.get("usage")),
        session_usage=read_usage(data.get("session_usage")),
        grants=tuple(data.get("grants", (0, 0))),
        ended=None if "ended" not in data else Finish(**_end_of(data["ended"])),
        **plain,
    )


def write_call(call: Call) -> list[Any]:
    return [call.id, call.name, call.position, call.shown]
