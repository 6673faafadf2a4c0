"""The state of a run and of its loop that must survive a continue-as-new, as plain JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Self, cast

from standfast.agent_loop import CallModel, Finish, LoopState, Settled, handed_over_to
from standfast.agents import Loop
from standfast.checkpoints import Question
from standfast.messages import JSONObject, StopReason, Tripped, Usage, read_usage
from standfast.stores.protocol import session_id_of
from standfast.temporal.wire.activity_types import (
    Declared,
    LastReply,
    LetThrough,
    ModelReference,
    ModelReply,
    Opened,
    OpenedRun,
    Source,
)
from standfast.temporal.wire.inputs import Said
from standfast.temporal.wire.outcomes import source_of
from standfast.temporal.wire.snapshots import Facts, ToolFacts, tools_of
from standfast.tools import Unknown


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


def write_tripped(tripped: Tripped) -> JSONObject:
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


def write_state(state: RunLoop) -> JSONObject:
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


def _write_end(ended: Finish) -> JSONObject:
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


class Down(NamedTuple):
    """Why a model that may be back later could not be called, and until when its provider asked to wait."""

    why: str
    until: datetime


@dataclass(slots=True)
class Turn:
    """The calls of one answer of the model.

    Args:
        number: the answer's number in its run; 0 for calls that an earlier run left.
        seq: the answer's number in its session.
        calls: by id.
        part: how often results of the turn have been written.
        sources: by position, the place of a call's result, if not in the ledger under its first dispatch.
        dispatches: by position, how often a call was dispatched.
        spent: the usage of the called agents, in total and by call id.
        arguments: by id, the arguments, as shown, of calls that people are asked about.
        sizes: by id, the number of bytes of the full arguments, if the shown ones are cut.
        approved: by position, the approvers of a call, and the digest of the arguments to run it with, if those are not
            the model's.
        path: the path of a pipeline's step that calls a tool, instead of a number.
        declared: facts of the called tools that have changed since the start; see `tools_of`.
    """

    number: int = 0
    seq: int = 0
    calls: dict[str, Call] = field(default_factory=dict)
    part: int = 0
    sources: dict[int, Source] = field(default_factory=dict)
    dispatches: dict[int, int] = field(default_factory=dict)
    spent: Usage | None = None
    spent_by: dict[str, Usage] = field(default_factory=dict)
    arguments: JSONObject = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    approved: dict[int, LetThrough] = field(default_factory=dict)
    path: str = ""
    declared: Declared = field(default_factory=Declared)

    def spend(self, call_id: str, usage: Usage | None) -> None:
        if usage is not None:
            self.spent = usage + self.spent
            self.spent_by[call_id] = usage + self.spent_by.get(call_id)

    def written(self) -> None:
        """Note that the results so far are in the transcript."""
        self.part += 1
        self.sources = {}


@dataclass(slots=True)
class Progress:
    """The progress of a run.

    Args:
        run: the journal key.
        opened: the session and the facts that were found when the run began.
        seq: the number of the last message in the session that the run knows.
        say: the user's messages that are not in the transcript yet.
        notices: the texts that the model was shown beside the transcript: `[after message, kind, text]` each.
        view: the turn at which the context was last compressed.
        last: the model's last answer, as its activity returned it.
        model: the model that a person chose instead of the agent's.
        named: the agent's model, if a deploy has changed it since the start.
        down: a model that could not be called, and may be back when no other model can be called.
        since: the time when the open questions were asked.
        resolved: operators' decisions, for `status`.
        unknown: calls that wait for a person who knows their outcome.
        kept_by: the workflow's run id by which activities find the journal key, once one of them has kept it.
        session, session_id: the key of the session in the store, and its id as its users know it.
    """

    run: str = ""
    opened: OpenedRun = field(default_factory=OpenedRun)
    seq: int = 0
    turn: Turn = field(default_factory=Turn)
    say: list[Said] = field(default_factory=list)
    notices: list[list[Any]] = field(default_factory=list)
    view: int | None = None
    last: LastReply = field(default_factory=LastReply)
    model: str | None = None
    named: str | None = None
    down: Down | None = None
    since: datetime | None = None
    resolved: list[JSONObject] = field(default_factory=list)
    unknown: dict[str, Call] = field(default_factory=dict)
    kept_by: str | None = None
    session: str = field(init=False)
    session_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.session = str(self.opened.get("session", ""))
        self.session_id = session_id_of(self.session)

    @classmethod
    def begun(cls, run: str, opened: Opened) -> "Progress":
        """Return the progress of a new run, from the facts found when it was opened."""
        seq = opened["seq"]
        turn = Turn(
            seq=opened.get("number", seq),
            calls={call.id: call for call in read_calls(opened.get("calls", ()))},
            arguments=opened.get("arguments", {}),
            approved=dict(opened.get("approved", ())),
            sizes=opened.get("sizes", {}),
            declared=opened.get("declared", {}),
        )
        kept = {name: value for name, value in opened.items() if name in OpenedRun.__annotations__}
        unknown = {call_id: turn.calls[call_id] for call_id in opened.get("unknown", ()) if call_id in turn.calls}
        return cls(run=run, opened=cast(OpenedRun, kept), seq=seq, turn=turn, unknown=unknown)

    def noted(self, action: CallModel) -> None:
        """Note the texts that the model is shown beside the transcript."""
        if action.warning is not None:
            self.notices.append([self.turn.seq, "warning", action.warning])
        if action.nudge is not None:
            self.notices.append([self.turn.seq, "nudge", action.nudge])

    def asking(self, reference: ModelReference, action: CallModel, model: str | None) -> ModelReference:
        """Return the reference of a model call with what the run adds to it.

        Args:
            model: that is called instead of the agent's own.
        """
        if action.agent:
            reference["agent"] = action.agent
        if self.say:
            reference["say"] = self.say
        if self.notices:
            reference["notices"] = self.notices
        if self.view is not None:
            reference["view"] = self.view
        if model is not None:
            reference["model"] = model
        if self.named is not None:
            reference["named"] = self.named
        return reference

    def answered(self, reply: ModelReply, state: RunLoop, facts: Facts, at: datetime) -> RunLoop:
        """Take in a model's answer; return the loop's state after it."""
        self.opened.pop("agent_state", None)
        gates, refused = reply.pop("gates", ()), reply.pop("refused", {})
        calls = self.replied(reply)
        answer = Reply.of(reply, calls)
        questions = [Question(**item).with_gate(since=at.isoformat()) for item in gates]
        tools = tools_of(facts.tools, self.turn.declared)
        if tools is not state.tools:
            state = replace(state, tools=tools)
        is_held = bool(questions) and not calls
        state = state.held(questions[0]) if is_held else state.replied(answer).gated(questions, refused)
        return state.with_user_message() if self.say and not calls and not is_held else state

    def settled(self, outcomes: list[Settled[Call]], state: RunLoop) -> RunLoop:
        """Take in the outcomes of a turn's calls; return the loop's state after them."""
        self.note_sources(outcomes, state)
        state, spent = state.settled(outcomes, self.turn.spent_by), self.turn.spent
        self.turn.spent = None
        return state if spent is None else state.spent(spent)

    def replied(self, reply: ModelReply) -> tuple[Call, ...]:
        """Begin the turn of a model's answer; return its calls."""
        self.seq, self.last = reply["seq"], reply
        calls = tuple(read_calls(reply.get("calls", ())))
        self.turn = Turn(
            self.turn.number + 1,
            self.seq,
            {call.id: call for call in calls},
            arguments=reply.pop("arguments", {}),
            sizes=reply.pop("sizes", {}),
            declared=reply.pop("declared", {}),
        )
        self.view = reply.get("view", self.view)
        self.say = [self.say[index] for index in reply.get("untold", ())]
        return calls

    def note_sources(self, settled: list[Settled[Call]], state: RunLoop) -> None:
        """Note the results that a commit cannot read from the ledger: those that the loop makes of questions.

        If the turn hands over, the next agent gets neither the model that a person chose nor one that is down.
        """
        if handed_over_to(settled, state.tools):
            self.model = self.named = self.down = None
        recorded = {call.id: outcome for call, outcome in state.recorded(settled)}
        for call, outcome in settled:
            if call.id not in recorded:
                self.turn.sources.pop(call.position, None)
                if isinstance(outcome, Unknown):
                    self.unknown[call.id] = call
            elif recorded[call.id] is not outcome:
                self.turn.sources[call.position] = source_of(recorded[call.id])

    def wrote(self, seq: int) -> None:
        """Note that the results of the turn so far were written, up to this message."""
        self.seq = seq
        self.turn.written()

    def carried(self, state: RunLoop) -> JSONObject:
        """Return it as JSON, without absent values."""
        turn = self.turn
        data = {
            "run": self.run,
            "opened": self.opened,
            "state": write_state(state),
            "seq": self.seq,
            "turn": [turn.number, turn.seq, turn.part],
            "calls": [write_call(call) for call in turn.calls.values()],
            "sources": [list(item) for item in turn.sources.items()],
            "dispatches": [list(item) for item in turn.dispatches.items()],
            "arguments": turn.arguments,
            "sizes": turn.sizes,
            "approved": [list(item) for item in turn.approved.items()],
            "declared": turn.declared,
            "say": self.say,
            "notices": self.notices,
            "view": self.view,
            "last": self.last,
            "model": self.model,
            "named": self.named,
            "down": None if self.down is None else [self.down.why, self.down.until.isoformat()],
            "since": None if self.since is None else self.since.isoformat(),
            "resolved": self.resolved,
            "unknown": list(self.unknown),
        }
        return {name: value for name, value in data.items() if value not in (None, [], {})}

    @classmethod
    def read(cls, data: JSONObject) -> "Progress":
        """Read the value that `carried` returned, except the loop's state."""
        number, seq, part = data["turn"]
        calls = {call.id: call for call in read_calls(data.get("calls", ()))}
        turn = Turn(
            number,
            seq,
            calls,
            part,
            dict(data.get("sources", ())),
            dict(data.get("dispatches", ())),
            arguments=data.get("arguments", {}),
            sizes=data.get("sizes", {}),
            approved=dict(data.get("approved", ())),
            declared=data.get("declared", {}),
        )
        since, down = data.get("since"), data.get("down")
        return cls(
            turn=turn,
            down=None if down is None else Down(down[0], datetime.fromisoformat(down[1])),
            since=None if since is None else datetime.fromisoformat(since),
            unknown={call_id: calls[call_id] for call_id in data.get("unknown", ())},
            **{name: data[name] for name in _PLAIN_PROGRESS if name in data},
        )


_PLAIN_PROGRESS = ("run", "opened", "seq", "say", "notices", "view", "last", "model", "named", "resolved")


def read_calls(data: Any) -> list[Call]:
    return [Call(*call) for call in data]
