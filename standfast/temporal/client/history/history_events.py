"""Folds the entries of an execution's history into the events of its run.

The events and their ids depend on that history alone, so every reader finds the same events at any time. Any client may
have written these values: an invalid value is omitted, and never raises an error here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar, cast

from standfast.agent_loop import Decision, Gate, GateRule
from standfast.errors import StandfastError
from standfast.events import (
    CancelRequested,
    Event,
    GateDecided,
    GateEscalated,
    GateOpened,
    GateReminded,
    MessageReceived,
    ModelFailed,
    ModelRetried,
    QuestionAsked,
    RunEnded,
    RunReset,
    RunStarted,
    StatusChanged,
    StepCompleted,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolLost,
    ToolOutcome,
    ToolRetried,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    gate_escalations,
    gate_opened,
)
from standfast.messages import Citation, HostedCall, JSONObject, Record, ToolCall, Usage, read_usage
from standfast.pipelines.paths import place_of as place_in_plan
from standfast.temporal.client.history.histories import LOST_WORDS, Entry
from standfast.temporal.wire import names
from standfast.temporal.wire.outcomes import is_outcome, outcome_of_result, write_outcome
from standfast.temporal.wire.turn_records import edit_digest, edit_reference
from standfast.tools.calls import call_key

RecordT = TypeVar("RecordT", bound=Record)

_LONGEST = 1e6  # seconds of a turn
_OUTCOMES: tuple[ToolOutcome, ...] = ("returned", "failed", "asked", "terminated", "unknown", "cancelled")
SAID = {names.MESSAGE: "text", names.ANSWER: "text", names.RESUME: "action", names.RESOLVE: "decision"}
CLOSED = {
    "workflow_execution_completed": "completed",
    "workflow_execution_failed": "failed",
    "workflow_execution_canceled": "cancelled",
    "workflow_execution_terminated": "terminated",
    "workflow_execution_timed_out": "timed-out",
}


def is_ours(activity: str) -> bool:
    return activity.startswith("standfast.")


def fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def word(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)[:500]


def place_of(given: Mapping[str, Any]) -> tuple[int, int]:
    return number(given.get("turn")), number(given.get("position"))


def tool_call(call_id: str, name: str, shown: str) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=shown)


def tool_ended(call: ToolCall, written: Mapping[str, Any]) -> ToolEnded:
    outcome = next(one for one in _OUTCOMES if one in written)
    size, usage = written.get("size"), None
    with suppress(TypeError, ValueError, StandfastError):
        usage = read_usage(written.get("spent"))
        if isinstance(written.get("used"), Mapping):
            usage = Usage.model_validate(written["used"])
    return ToolEnded(call, None, outcome, written[outcome], size if isinstance(size, int) else None, usage=usage)


def gate_after(gate: Gate, given: Mapping[str, Any]) -> Gate:
    """Return a gate after a recorded decision that has counted."""
    at = datetime.fromisoformat(given["at"])
    decision = {name: given[name] for name in ("gate", "decision", "by", "digest", "edit") if name in given}
    if gate.is_call and "edit" in decision:
        decision["edit"] = edit_reference(decision["edit"])
    return gate.at(at).decided(Decision(**decision), at)


def step_gate(making: Mapping[str, Any], made: Mapping[str, Any], rules: Mapping[str, Any], at: datetime) -> Gate:
    """Return the gate that a pipeline opens, by the rules recorded at its start; a rule may be missing."""
    path, rule = text(making.get("path")), GateRule()
    with suppress(KeyError, TypeError, ValueError):
        rule = GateRule.read(rules[place_in_plan(path)])
    return Gate.of_step(path, rule, made, since=at, requesters=())


def stepped(given: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the outcome of a pipeline's step."""
    done, made, making = (
        one if isinstance(one, Mapping) else {} for one in (given.get("done"), found.get("made"), given.get("make"))
    )
    path = text(done.get("path")) or text(making.get("path"))
    match found.get("failed"):
        case [str(reason), str(error), *_]:
            yield StepFailed(path, reason, error)
        case _ if done:
            yield StepCompleted(path, number(done.get("iterations")), text(done.get("response")))
    match made.get("failed"):
        case [str(reason), str(error), *_]:
            yield StepFailed(text(making.get("path")), reason, error)


def received(name: str, given: Mapping[str, Any]) -> MessageReceived:
    of = given.get("tool_call_id") or given.get("name")
    return MessageReceived(cast(Any, name), text(given.get(SAID[name])), word(of), word(given.get("by")))


def ending(kind: str, entry: Entry, result: Mapping[str, Any]) -> RunEnded:
    usage, status = None, CLOSED[kind]
    if kind != "workflow_execution_completed":
        return RunEnded(None, status, "", entry.error or None)
    with suppress(TypeError, ValueError):
        usage = None if result.get("usage") is None else Usage.model_validate(result["usage"])
    said = text(result.get("status")) or status
    return RunEnded(dict(result), said, text(result.get("response")), word(result.get("error")), usage)


@dataclass(slots=True)
class _Work:
    """An activity or a child workflow that was started.

    Args:
        begun: when its last attempt began.
        model: that it calls, as people see it.
    """

    name: str
    given: Mapping[str, Any]
    call: ToolCall | None
    is_safe: bool
    begun: datetime | None = None
    model: str | None = None

    def seconds(self, end: datetime) -> float | None:
        return None if self.begun is None else round((end - self.begun).total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An open gate.

    Args:
        stage: the number of escalations so far.
        is_timed: its start is known from a timer, or from the previous execution.
    """

    gate: Gate
    message: str
    stage: int = 0
    is_timed: bool = False


@dataclass(slots=True)
class History:
    """The entries of one execution read so far.

    Args:
        run_id: the execution.
        journal_key: the key of the run's stored data; known when the first entry was read.
        turn: the last turn that has begun; `said` if it has ended.
        next: the execution that continues this one, if it has continued as new.
        ended: of calls that have ended, by id: the turn, and the key in the ledger.
        is_copy: these entries happened before a reset, in another execution.
        lacking: the values of the previous execution that only the store has in full: whether its calls, and which
            edits.
    """

    run_id: str
    journal_key: str = ""
    turn: int = 0
    said: bool = True
    next: str | None = None
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)
    is_copy: bool = False
    lacking: tuple[bool, tuple[str, ...]] = (False, ())
    _turns: int = 0  # the last one that was answered
    _calls: dict[tuple[int, int], ToolCall] = field(default_factory=dict)
    _work: dict[int, _Work] = field(default_factory=dict)
    _ended: set[tuple[int, int]] = field(default_factory=set)
    _rules: Mapping[str, Any] = field(default_factory=dict)  # of a pipeline's gates
    _gates: dict[str, _Asked] = field(default_factory=dict)
    _edits: dict[str, tuple[Any, str | None]] = field(default_factory=dict)  # of calls, with editors, by digest
    _edited: dict[tuple[int, int], tuple[str, Any]] = field(default_factory=dict)  # the editor, and earlier arguments
    _timers: dict[int, tuple[GateReminded | GateEscalated, int]] = field(default_factory=dict)  # and the gate's stage
    _shown: tuple[str, tuple[str, ...]] = ("running", ())
    _trouble: str | None = None

    def read(self, entry: Entry) -> list[Event]:
        """Return the events of an entry, with their ids and times."""
        self.is_copy = self.is_copy and not entry.by_reset
        events = list(self._meaning(entry))
        return (
            []
            if self.is_copy
            else [
                replace(event, id=f"{self.run_id}/{entry.number}.{place}", at=entry.at)
                for place, event in enumerate(events)
            ]
        )

    def know(self, turn: int, calls: Iterable[ToolCall]) -> None:
        """Take in the calls of a turn with their full arguments; a history has only the beginning of long ones."""
        whole = {call.id: call for call in calls}
        for place, call in self._calls.items():
            if place[0] == turn and call.id in whole:
                self._calls[place] = whole[call.id]

    def know_edit(self, digest: str, arguments: Any) -> None:
        """Take in the full arguments with which people have replaced the model's."""
        _, by = self._edits.get(digest, (None, None))
        self._edits[digest] = arguments, by

    def _meaning(self, entry: Entry) -> Iterator[Event]:
        given = fields(entry.value)
        match entry.kind:
            case "workflow_execution_started":
                yield from self._started(entry, given)
            case "workflow_execution_continued_as_new":
                self.next = entry.run_id
            case "workflow_task_failed" if entry.by_reset:
                yield RunReset(entry.error)
            case "marker_recorded":  # of the local activity that opens the run
                yield from self._open(given)
            case "upsert_workflow_search_attributes":
                yield from self._status(given, entry.at)
            case "timer_started" | "timer_fired":
                yield from self._timed(entry)
            case "workflow_execution_cancel_requested":
                yield CancelRequested(entry.error)
            case "workflow_execution_signaled" | "workflow_execution_update_accepted" if entry.name in SAID:
                yield received(entry.name, given)
            case kind if kind in CLOSED and not entry.by_reset:
                yield ending(kind, entry, given)
            case _:
                yield from self._worked(entry, given)

    def _open(self, found: Mapping[str, Any]) -> Iterator[Event]:
        """Take in the facts with which the run opens, and yield the gates that an earlier run has left open."""
        self._learn_calls(0, found.get("calls"))
        if isinstance(found.get("gates"), Mapping):
            self._rules = found["gates"]
        if isinstance(state := found.get("state"), Mapping):
            self._take_over(state)
            yield from map(self._opened, self._gates.values())

    def _take_over(self, state: Mapping[str, Any], gates: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Take in the previous execution's gates of calls and of steps, and the edits that have counted."""
        asked = [one for name in ("questions", "verdicts") if isinstance(some := state.get(name), list) for one in some]
        found = [(fields(one).get("gate"), fields(one).get("question")) for one in asked]
        cut = []
        for plain, message in [*found, *((one, fields(one).get("message")) for one in gates.values())]:
            with suppress(AttributeError, KeyError, TypeError, ValueError, StandfastError):
                gate = Gate.read(plain)
                if gate.is_call and isinstance(edit := gate.proposed, dict):
                    self._edits[edit["digest"]] = edit["shown"], gate.editor
                    cut += [edit["digest"]] if "size" in edit else []
                if gate.status == "open":
                    self._gates[gate.name] = _Asked(gate, text(message), is_timed=True)
        self.lacking = bool(self._calls), tuple(cut)

    def _opened(self, asked: _Asked) -> GateOpened:
        gate, call = asked.gate, None
        if gate.is_call:
            here = (one for (turn, _), one in self._calls.items() if turn == self._turns and one.id == gate.name)
            call = next(here, None)
        if call is not None and isinstance(gate.changed, dict):
            edit, _ = self._edits.get(gate.changed["digest"], (gate.changed["shown"], None))
            call = ToolCall(id=call.id, name=call.name, arguments=edit)
        return gate_opened(gate, asked.message, call)

    def _timed(self, entry: Entry) -> Iterator[Event]:
        if entry.of in self._timers:
            event, stage = self._timers[entry.of]
            asked = self._gates.get(event.gate)
            if isinstance(event, GateReminded) or asked is None:
                yield event
            elif asked.stage == stage and asked.gate.status == "open":
                gate = asked.gate.expired()
                self._gates[gate.name] = replace(asked, gate=gate, stage=asked.stage + 1)
                yield event
            return
        for words in (names.REMINDER, names.ESCALATION, names.DECISION):
            if entry.summary.startswith(words):
                yield from self._timer_of(entry, words, entry.summary.removeprefix(words))

    def _timer_of(self, entry: Entry, words: str, gate: str) -> Iterator[Event]:
        """Take in a gate's timer: the gate's time runs since the first, and a later one may be for other people."""
        yield from self._overdue(gate, entry.at)
        asked = self._gates.get(gate)
        if asked is not None and not asked.is_timed:
            timed = replace(asked.gate, since=entry.at)
            self._gates[gate] = asked = replace(asked, gate=timed, is_timed=True)
        if words != names.DECISION:
            event = GateReminded(gate) if words == names.REMINDER else GateEscalated(gate)
            self._timers[entry.number] = event, 0 if asked is None else asked.stage

    def _overdue(self, name: str, at: datetime) -> Iterator[Event]:
        """Yield the escalations of a gate that still waits at this time; without a worker, no timer records them."""
        if (asked := self._gates.get(name)) is None or not asked.is_timed:
            return
        for gate, event in gate_escalations(asked.gate, at):
            self._gates[name] = asked = replace(asked, gate=gate, stage=asked.stage + 1)
            yield event

    def _worked(self, entry: Entry, given: Mapping[str, Any]) -> Iterator[Event]:
        if entry.kind in ("activity_task_scheduled", "start_child_workflow_execution_initiated"):
            yield from self._begun(entry, given)
        elif (work := self._work.get(entry.of)) is not None:
            yield from self._of_work(work, entry, given)

    def _of_work(self, work: _Work, entry: Entry, given: Mapping[str, Any]) -> Iterator[Event]:
        match entry.kind:
            case "activity_task_started":
                work.begun = entry.at
                if entry.attempts > 1:
                    yield from self._retried(work, entry)
            case "activity_task_completed":
                yield from self._completed(work, entry)
            case "child_workflow_execution_completed" if work.call is not None:
                with suppress(StandfastError, KeyError, TypeError, ValueError):
                    written = cast(JSONObject, write_outcome(outcome_of_result(work.name, given)))
                    yield from self._came(work, {**written, "used": given.get("usage")}, entry.at)
            case "child_workflow_execution_failed" if work.call is not None:
                yield from self._came(work, {"failed": entry.error}, entry.at)
            case kind if kind != "child_workflow_execution_completed":
                yield from self._lost(work, entry)

    def _started(self, entry: Entry, given: Mapping[str, Any]) -> Iterator[Event]:
        carried = fields(given.get("carried"))
        self.is_copy = entry.run_id != self.run_id
        self.journal_key = str(carried.get("run") or entry.run_id)
        if entry.is_continued:
            turn = carried.get("turn")
            self._turns = self.turn = turn[0] if isinstance(turn, list) and turn and isinstance(turn[0], int) else 0
            self._learn_calls(self._turns, carried.get("calls"))
            self._take_over(fields(carried.get("state")), fields(carried.get("gates")))
        else:
            message, user = given.get("message"), given.get("user_id")
            yield RunStarted(entry.name, word(message), given.get("input"), word(user))

    def _status(self, fields: Mapping[str, Any], at: datetime) -> Iterator[Event]:
        if not fields.keys() & {names.STATUS_ATTRIBUTE, names.WAITING_ATTRIBUTE}:
            return
        status, waits_for = fields.get(names.STATUS_ATTRIBUTE, self._shown[0]), fields.get(names.WAITING_ATTRIBUTE)
        kinds = tuple(map(str, waits_for)) if isinstance(waits_for, list) else ()
        if "approval" in kinds and len(self._gates) == 1:
            yield from self._overdue(next(iter(self._gates)), at)
        shown = (text(status[0] if isinstance(status, list) and status else status), kinds)
        if shown == self._shown:
            return
        self._shown = shown
        deadline, why = fields.get(names.DEADLINE_ATTRIBUTE), self._trouble
        is_paused = bool({"pause", "worker", "store"} & {*kinds})
        yield StatusChanged(*shown, deadline if isinstance(deadline, datetime) else None, why if is_paused else None)

    # --- activities and agents that are called ---

    def _begun(self, entry: Entry, given: Mapping[str, Any]) -> Iterator[Event]:
        is_child = entry.kind.startswith("start_child")
        if entry.name == names.STRETCH:
            given = fields(given.get("ask"))
        where = given.get("call") if is_child else given
        call = None if entry.name == names.CALL_MODEL or is_ours(entry.name) else self._call(entry, where)
        if call is not None:
            call = self._as_edited(call, fields(where))
        model = entry.summary.rpartition(" · ")[0] or None
        self._work[entry.number] = _Work(entry.name, given, call, entry.is_safe, entry.at if is_child else None, model)
        yield from self._settled_inline(given)
        if entry.name in (names.CALL_MODEL, names.STRETCH):
            yield self._turn_begun(given, model)
        elif is_child and isinstance(given.get("step"), Mapping):
            self._work[entry.number].call = None
            yield StepStarted(text(given["step"].get("path")), entry.workflow_id)
        elif call is not None:
            by, before = self._edited.get(place_of(fields(where)), (None, None))
            yield ToolStarted(call, entry.workflow_id or None, by, before, word(fields(where).get("path")))

    def _turn_begun(self, given: Mapping[str, Any], model: str | None) -> TurnStarted:
        self.turn, self.said = number(given.get("turn")), False
        return TurnStarted(self.turn, model, word(given.get("agent")))

    def _stretched(self, first: _Work, found: Mapping[str, Any], entry: Entry) -> Iterator[Event]:
        """Yield the events of the turns of a stretch, which have come together."""
        for place, turn in enumerate(_items(found.get("turns"))):
            taken, given = fields(turn), {**first.given, "turn": number(first.given.get("turn")) + place}
            if place:
                yield self._turn_begun(given, first.model)
            work = replace(first, given=given, begun=_before(entry.at, taken.get("took")))
            yield from self._replied(work, fields(taken.get("reply")), entry)
            yield from self._settled_inline({"sources": taken.get("sources")})
            retried = {item[0]: item[1:] for item in _items(taken.get("retried")) if isinstance(item, list) and item}
            for item in (*_items(taken.get("outcomes")), *_items(taken.get("lost"))):
                yield from self._ran(item, entry.at, retried)

    def _ran(self, item: object, at: datetime, retried: Mapping[Any, Sequence[Any]]) -> Iterator[Event]:
        """Yield the beginning and the end of a call that was run in a stretch."""
        match item:
            case [int(position), what, more] if (self.turn, position) in self._calls:
                call, where = self._calls[self.turn, position], {"turn": self.turn, "position": position}
                yield ToolStarted(call)
                match retried.get(position):
                    case [str(error), int(attempts)]:
                        yield ToolRetried(call, error, attempts)
                if isinstance(what, str):
                    self._work[-len(self._work)] = _Work(call.name, where, call, more is True)
                    yield ToolLost(call, LOST_WORDS.get(what, what))
                elif isinstance(what, Mapping) and "claimed" in what:
                    yield ToolLost(call, LOST_WORDS[names.WORKER_DIED])
                    yield from self._settled(_Work(call.name, where, call, more is True), what, at)
                elif isinstance(what, Mapping) and is_outcome(what):
                    yield from self._came(_Work(call.name, where, call, False, _before(at, more)), what, at)

    def _as_edited(self, call: ToolCall, given: Mapping[str, Any]) -> ToolCall:
        """Return a call with the arguments that it runs with, which people may have edited."""
        approved, place = fields(given.get("approved")), place_of(given)
        if not isinstance(digest := approved.get("edit"), str):
            return call
        whose = word(approved.get("editor"))
        edit, by = self._edits.get(digest, (word(approved.get("shown")) or "", whose))  # the beginning of an edit
        if not isinstance(edit, dict | str):
            return call
        self._edited.setdefault(place, (whose if by is None and whose is not None else by or "", call.arguments))
        self._calls[place] = ToolCall(id=call.id, name=call.name, arguments=edit)
        return self._calls[place]

    def _call(self, entry: Entry, where: Any) -> ToolCall:
        """Return the call that an activity or an agent's run carries out."""
        at = fields(where)
        if (known := self._calls.get(place_of(at))) is not None and "path" not in at:
            return known
        shown, _, _ = entry.summary.partition(" · ")
        return tool_call(at.get("path") or "", entry.name, shown)

    def _settled_inline(self, given: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the ends of calls without a separate activity, such as refused calls."""
        sources = given.get("sources")
        for item in sources if isinstance(sources, list) else ():
            match item:
                case [int(position), dict(source)]:
                    key = (self._turns, position)
                    if key in self._calls and key not in self._ended and is_outcome(source):
                        self._ended.add(key)
                        yield tool_ended(self._calls[key], source)

    def _retried(self, work: _Work, entry: Entry) -> Iterator[Event]:
        if work.name in (names.CALL_MODEL, names.STRETCH):
            yield ModelRetried(entry.error, attempt=entry.attempts)
        elif work.call is not None:
            yield ToolRetried(work.call, entry.error, entry.attempts)

    def _completed(self, work: _Work, entry: Entry) -> Iterator[Event]:
        found = fields(entry.value)
        match work.name:
            case names.CALL_MODEL:
                yield from self._replied(work, found, entry)
            case names.STRETCH:
                yield from self._stretched(work, found, entry)
            case names.OPEN | names.OPEN_PIPELINE:
                yield from self._open(found)
            case names.DECIDE:
                yield from self._decided(work.given, found.get("of") if "receipt" in found else entry.value)
            case names.SETTLE:
                yield from self._settled(work, found, entry.at)
            case names.STEP:
                yield from stepped(work.given, found)
                making, made = fields(work.given.get("make")), fields(found.get("made"))
                if making.get("what") == "gate" and isinstance(made.get("digest"), str):
                    with suppress(KeyError, TypeError, ValueError, StandfastError):
                        gate = step_gate(making, made, self._rules, entry.at)
                        self._gates[gate.name] = asked = _Asked(gate, text(made.get("message")))
                        yield self._opened(asked)
            case _ if work.call is not None:
                outcome = found if is_outcome(found) else {"returned": shown(entry.value)}
                yield from self._came(work, outcome, entry.at)

    def _replied(self, work: _Work, found: Mapping[str, Any], entry: Entry) -> Iterator[Event]:
        turn = number(work.given.get("turn"))
        if "error" in found or not found:
            self._trouble = text(found.get("error"))
            yield ModelFailed(turn, self._trouble)
            return
        self._turns, self.said = turn, True
        calls = self._learn_calls(turn, found.get("calls"))
        usage = None
        with suppress(TypeError, ValueError):
            usage = read_usage(found.get("usage"))
        yield TurnEnded(
            turn,
            text(found.get("text")),
            tuple(calls),
            usage,
            work.seconds(entry.at),
            thoughts=word(found.get("thoughts")),
            hosted=_records(HostedCall, found.get("hosted")),
            citations=_records(Citation, found.get("citations")),
        )
        gates = found.get("gates")
        for gate in gates if isinstance(gates, list) else ():
            with suppress(AttributeError, KeyError, TypeError, ValueError, StandfastError):
                opened = Gate.read({**gate["gate"], "since": entry.at.isoformat()})
                self._gates[opened.name] = asked = _Asked(opened, text(gate.get("question")))
                yield self._opened(asked)

    def _decided(self, given: Mapping[str, Any], refused: Any) -> Iterator[Event]:
        """Yield a decision, and then that the gate asks other people, or about an edit."""
        name, edit = text(given.get("gate")), given.get("edit")
        before, after = self._gates.get(name), None
        with suppress(KeyError, TypeError, ValueError, StandfastError):
            if before is not None:
                yield from self._overdue(name, datetime.fromisoformat(given["at"]))
                before = self._gates[name]
        if edit is not None and refused is None:
            self._edits[edit_digest(edit)] = edit, word(given.get("by"))
        if before is not None and refused is None:
            with suppress(KeyError, TypeError, ValueError, StandfastError):
                after = gate_after(before.gate, given)
        waits = after is not None and after.status == "open"
        yield GateDecided(
            name,
            text(given.get("decision")),
            word(given.get("by")),
            word(given.get("comment")),
            word(refused),
            word(given.get("standing")),
            dict(fields(given.get("remember"))) or None,
            edit,
            waits,
        )
        if before is None or after is None:
            return
        self._gates[name] = asked = replace(before, gate=after)
        if not waits:
            del self._gates[name]
        elif after.shown_digest != before.gate.shown_digest:
            yield self._opened(asked)

    def _learn_calls(self, turn: int, calls: Any) -> list[ToolCall]:
        learned = []
        for call in calls if isinstance(calls, list) else ():
            match call:
                case [str(call_id), str(name), int(position), *shown]:
                    known = tool_call(call_id, name, text(shown[0] if shown else ""))
                    self._calls[(turn, position)] = known
                    learned.append(known)
        return learned

    def _settled(self, work: _Work, found: Mapping[str, Any], at: datetime) -> Iterator[Event]:
        call = self._calls.get(place_of(work.given))
        if call is None:
            path = text(work.given.get("path"))
            call = next((one.call for one in self._work.values() if one.call and one.call.id == path), None)
        if call is None or found.keys() <= {"dispatch"}:
            return  # it never started, and is dispatched again
        is_safe = any(one.call == call and one.is_safe for one in self._work.values()) and "at_most_once" not in found
        reason = text(found.get("reason")) or self._trouble or ""
        nobody_knows = {"failed" if is_safe else "unknown": reason}
        outcome = nobody_knows if "claimed" in found else found
        settled = _Work(work.name, work.given, call, False, None)
        if is_outcome(outcome):
            found_by = word(found.get("found_by")) if "claimed" not in found else None
            yield from self._came(settled, outcome, at, recovered="claimed" not in found, found_by=found_by)

    def _came(
        self,
        work: _Work,
        outcome: Mapping[str, Any],
        at: datetime,
        *,
        recovered: bool = False,
        found_by: str | None = None,
    ) -> Iterator[Event]:
        assert work.call is not None
        where = fields(work.given.get("call")) or work.given
        self._ended.add(place_of(where))
        ended, (turn, position) = tool_ended(work.call, outcome), place_of(where)
        dispatch = outcome.get("dispatch") or where.get("dispatch") or 1
        self.ended[work.call.id] = (turn, call_key(position, work.call.id, number(dispatch)))
        by = cast(Any, found_by if found_by in ("ledger", "verify", "person") else None)
        yield replace(ended, seconds=work.seconds(at), recovered=recovered, found_by=by)
        if ended.outcome == "asked":
            yield QuestionAsked(ended.text, work.call)

    def _lost(self, work: _Work, entry: Entry) -> Iterator[Event]:
        self._trouble = entry.error or "it was cancelled"
        if work.name in (names.CALL_MODEL, names.STRETCH):
            yield ModelFailed(number(work.given.get("turn")), self._trouble)
        elif work.call is not None:
            yield ToolLost(work.call, self._trouble)


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _before(end: datetime, seconds: object) -> datetime | None:
    """Return when something began that took so long; None if that is unknown."""
    is_known = isinstance(seconds, int | float) and 0 <= seconds <= _LONGEST
    return end - timedelta(seconds=cast(float, seconds)) if is_known else None


def _records(kind: type[RecordT], found: object) -> tuple[RecordT, ...] | None:
    """Return the records in a history's value; None if none are readable."""
    try:
        return tuple(kind.model_validate(one) for one in found) if isinstance(found, list) and found else None
    except ValueError:
        return None
