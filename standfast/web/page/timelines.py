"""Folds the events of a run into a timeline: each turn, call, gate, step and wait, with its outcome.

All of its contents come from the events.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from temporalio.service import RPCError

from standfast import events
from standfast.agent_loop.guardrails import WITHHELD
from standfast.errors import StandfastError
from standfast.messages import (
    Citation,
    HostedCall,
    JSONObject,
    Message,
    ToolCall,
    Usage,
    edit_in_words,
    edited_in_words,
    visible_json,
)
from standfast.stores.protocol import AgentStore, has_ledger, session_key_of
from standfast.temporal import StandfastClient
from standfast.temporal.client.runs.descriptions import listed, our_run
from standfast.time_limits import time_limit

_PATIENCE = 5.0  # seconds in which a history must be read
_CHILDREN = 30  # runs that are folded into it
_LONGEST_EDIT = 500  # characters of an edit in a note
_SHOWN_ELSEWHERE = {"approval", "question"}  # waiting items that have a separate entry
_ENDS = {"returned": "done", "failed": "failed", "terminated": "failed", "asked": "done"}
_FOUND = {
    "ledger": "Its outcome was found in the ledger; it was not run again.",
    "verify": "Its outcome was found by `verify`; it was not run again.",
    "person": "A person gave its outcome; it was not run again.",
    None: "Its outcome was found; it was not run again.",  # histories of earlier versions do not have it
}
_SAID = {"message": "said", "answer": "answered", "resume": "resumed", "resolve": "settled"}


@dataclass(slots=True)
class Entry:
    """One line of a timeline, and its folded contents.

    Args:
        kind: the kind of entry: "turn", "tool", "gate", "step", "wait", "person" or "run".
        state: the outcome: "done", "failed", "rejected", "unknown", "cancelled"; "runs" or "waits" if it is still open.
        text: prose, as Markdown; `data` is JSON, and `result` a tool's result.
        thoughts: the model's thoughts before its answer.
        notes: intermediate events, such as a retry; `troubles` are the bad news among them.
        run: the run of a called agent, and `inner` its timeline.
        step: the path of a step from which a pipeline can run again.
        call: the id of its call; `of` the name of the gate.
        is_edited: the call was edited, and `data` has the edited arguments.
    """

    kind: str
    title: str
    at: datetime | None
    state: str = ""
    seconds: float | None = None
    usage: Usage | None = None
    text: str = ""
    thoughts: str = ""
    data: Any = None
    result: Any = None
    size: int | None = None
    notes: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    run: str | None = None
    inner: "list[Entry]" = field(default_factory=list)
    step: str | None = None
    call: str | None = None
    of: str | None = None
    is_edited: bool = False

    def close(self, state: str, at: datetime | None, seconds: float | None = None) -> None:
        self.state = state
        self.seconds = seconds
        if seconds is None and at is not None and self.at is not None:
            self.seconds = (at - self.at).total_seconds()


class Timeline:
    """The entries of one run, in the order in which they began."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._open, self._asked = dict[tuple[str, str], Entry](), list[Entry]()  # gates asked since the status changed
        self._edited: set[str] = set()  # gates that ask about an edit now

    def _add(self, entry: Entry, key: str = "") -> Entry:
        self.entries.append(entry)
        if key:
            self._open[entry.kind, key] = entry
        return entry

    def _of(self, kind: str, key: str, title: str, at: datetime | None) -> Entry:
        """Return the open entry, or a new one if its beginning is unknown."""
        return self._open.get((kind, key)) or self._add(Entry(kind, title, at), key)

    def _of_call(self, call: ToolCall, at: datetime | None, step: str | None = None) -> Entry:
        return self._of("tool", call.id, call.name if step is None else f"{step}: {call.name}", at)

    def take(self, event: events.Event) -> None:
        """Take in the next event."""
        match event:
            case events.StatusChanged():
                self._status(event)
            case events.GateOpened() | events.GateDecided() | events.QuestionAsked() | events.MessageReceived():
                self._people(event)
            case events.GateReminded() | events.GateEscalated():
                entry = self._of("gate", event.gate, f"Approval {event.gate}", event.at)
                what = (
                    "reminded"
                    if isinstance(event, events.GateReminded)
                    else "the deadline passed; other people are asked"
                )
                entry.notes.append(what + ("" if event.at is None else f", {event.at:%Y-%m-%d %H:%M} UTC"))
            case events.StepStarted() | events.StepCompleted() | events.StepFailed():
                self._step(event)
            case events.TurnStarted() | events.TurnEnded() | events.ModelRetried() | events.ModelFailed():
                self._turn(event)
            case events.ToolStarted() | events.ToolRetried() | events.ToolLost() | events.ToolEnded():
                self._tool(event)
            case events.RunStarted() | events.RunReset() | events.CancelRequested() | events.RunEnded():
                self._run(event)

    def _run(self, event: "events.RunStarted | events.RunReset | events.CancelRequested | events.RunEnded") -> None:
        match event:
            case events.RunStarted():
                by = f"Started by {event.user_id}" if event.user_id else "Started"
                self._add(Entry("run", by, event.at, text=event.message or "", data=event.input))
            case events.RunReset():
                why = f"An operator has reset the run: {event.reason}"
                self._add(Entry("run", "Reset", event.at, troubles=[why]))
            case events.CancelRequested():
                self._add(Entry("run", "Cancel requested", event.at, notes=[event.reason] if event.reason else []))
            case events.RunEnded():
                self._ended(event)

    def _status(self, event: events.StatusChanged) -> None:
        waits = [kind for kind in event.waits_for if kind not in _SHOWN_ELSEWHERE]
        if (before := self._open.pop(("wait", "now"), None)) is not None:
            before.close("done", event.at)
        asked, self._asked = self._asked, []
        if not event.waits_for:  # for a moment, if a gate asks others now
            for (kind, _), entry in self._open.items():
                if kind == "gate" and entry.state == "waits" and not any(entry is one for one in asked):
                    entry.close("done", event.at)
        if waits:
            entry = Entry("wait", f"Waits: {', '.join(waits)}", event.at, state="waits")
            entry.troubles += [event.why] if event.why else []
            self._add(entry, "now")

    def _ended(self, event: events.RunEnded) -> None:
        state = "done" if event.status == "complete" else "cancelled" if event.status == "cancelled" else "failed"
        for entry in self._open.values():
            if entry.state in ("runs", "waits"):
                entry.close("cancelled", event.at)
        entry = self._add(Entry("run", f"Ended: {event.status}", event.at, state=state, usage=event.usage))
        entry.troubles += [event.error] if event.error else []

    def _people(
        self, event: "events.GateOpened | events.GateDecided | events.QuestionAsked | events.MessageReceived"
    ) -> None:
        match event:
            case events.MessageReceived():
                title = f"{event.by or 'Someone'} {_SAID[event.kind]}{f' {event.of}' if event.of else ''}"
                self._add(Entry("person", title, event.at, text=event.text))
            case events.QuestionAsked():
                asks = Entry("gate", f"{event.call.name} asks", event.at, state="waits", text=event.question)
                self._add(asks, event.call.id)
            case events.GateOpened():
                asked = f" of {', '.join(event.approvers)}" if event.approvers else ""
                if (before := self._open.get(("gate", event.gate))) is not None and before.state == "waits":
                    before.close("done", event.at)  # other people are asked now, or about an edit
                entry = Entry("gate", f"Approval{asked}", event.at, state="waits", text=event.message, of=event.gate)
                if event.call is not None:
                    entry.call, entry.data = event.call.id, event.call.arguments
                    entry.is_edited = event.gate in self._edited
                entry.notes += [f"{event.quorum} must approve"] if event.quorum > 1 else []
                if event.gate.startswith("message-") and event.call is None:
                    self._unasked(self._open.get(("turn", "now")))
                self._asked.append(self._add(entry, event.gate))
            case events.GateDecided():
                self._decided(event)

    def _decided(self, event: events.GateDecided) -> None:
        entry = self._of("gate", event.gate, f"Approval {event.gate}", event.at)
        said = "" if event.standing is None else f", by the standing approval {event.standing}"
        said += f", and later calls like it of the {event.remember.get('scope')}" if event.remember else ""
        said += f": {event.comment}" if event.comment else ""
        if event.refused is not None:
            entry.notes.append(f"{event.decision} of {event.by or 'someone'} did not count: {event.refused}")
            return
        entry.notes.append(f"{event.decision} by {event.by or 'someone'}{said}")
        if event.edit is not None and event.decision == "approve":
            changes = edit_in_words(entry.data, event.edit) if _are_whole(entry.data, event.edit) else None
            entry.notes.append(edited_in_words(event.by or "", changes or f"to {_short(event.edit)}"))
            self._edited.add(event.gate)
        if not event.waits:
            entry.close("rejected" if event.decision == "reject" else "done", event.at)

    def _step(self, event: events.PipelineEvent) -> None:
        match event:
            case events.StepStarted():
                self._add(Entry("step", event.step, event.at, state="runs", run=event.run, step=event.step), event.step)
            case events.StepCompleted():
                entry = self._of("step", event.step, event.step, event.at)
                entry.text, entry.step = event.response, event.step
                entry.close("done", event.at)
            case events.StepFailed():
                entry = self._of("step", event.step, event.step, event.at)
                entry.step = event.step
                entry.troubles.append(f"{event.reason}: {event.error}")
                entry.close("failed", event.at)

    def _turn(self, event: "events.TurnStarted | events.TurnEnded | events.ModelRetried | events.ModelFailed") -> None:
        match event:
            case events.TurnStarted():
                entry = self._of("turn", str(event.turn), f"Model, turn {event.turn}", event.at)
                entry.notes += [f"{event.agent} speaks"] if event.agent else []
                entry.notes += [f"model {event.model}"] if event.model else []
                entry.state, entry.seconds = "runs", None
                self._open["turn", "now"] = entry
            case events.ModelRetried():
                entry = self._of("turn", "now", "Model", event.at)
                again = f" after {event.delay:g} s" if event.delay else ""
                entry.troubles.append(f"{event.error}. It was called again{again}.".replace("..", "."))
            case events.ModelFailed():
                entry = self._of("turn", str(event.turn), f"Model, turn {event.turn}", event.at)
                entry.troubles.append(event.error)
                entry.close("failed", event.at)
            case events.TurnEnded():
                entry = self._of("turn", str(event.turn), f"Model, turn {event.turn}", event.at)
                entry.text, entry.usage = event.text, event.usage
                if event.calls:
                    entry.notes.append(f"asks for {', '.join(call.name for call in event.calls)}")
                entry.thoughts = event.thoughts or ""
                for call in event.hosted or ():
                    (entry.notes if call.outcome == "ran" else entry.troubles).append(_hosted(call))
                entry.notes += [_source(one) for one in event.citations or ()]
                entry.close("done", event.at, event.seconds)
                if event.text.startswith(WITHHELD):
                    self._unasked(entry)

    @staticmethod
    def _unasked(turn: Entry | None) -> None:
        """Take in that only guardrails made this turn: the model was not called, or its answer would have a price."""
        if turn is None or turn.usage is not None:
            return
        turn.title = turn.title.replace("Model", "Guardrails", 1)
        turn.notes = [note for note in turn.notes if not note.startswith("model ")]

    def _tool(self, event: "events.ToolStarted | events.ToolRetried | events.ToolLost | events.ToolEnded") -> None:
        step = event.step if isinstance(event, events.ToolStarted) else None
        entry = self._of_call(event.call, event.at, step)
        entry.call = event.call.id
        entry.data = event.call.arguments if entry.data is None else entry.data
        match event:
            case events.ToolStarted():
                entry.notes += ["It was started again."] if entry.state else []
                if event.edited_by is not None and not entry.is_edited:
                    entry.is_edited = True
                    changes = edit_in_words(event.before, entry.data) if _are_whole(event.before, entry.data) else None
                    entry.notes.append(edited_in_words(event.edited_by, changes))
                entry.state, entry.run = "runs", event.run or entry.run
            case events.ToolRetried():
                entry.troubles.append(f"{event.error}. It was retried: attempt {event.attempt}.".replace("..", "."))
            case events.ToolLost():
                entry.troubles.append(f"{event.reason[:1].upper()}{event.reason[1:]}.")
                entry.state = "lost"
            case events.ToolEnded():
                entry.usage, entry.size = event.usage, None if _is_whole(event) else event.size
                entry.result = None if event.outcome == "unknown" else _json_of(event.text)
                if event.recovered and event.outcome != "unknown":
                    entry.notes.append(_FOUND[event.found_by])
                if event.outcome == "unknown":
                    entry.troubles.append("It may have happened, which is unknown; it was not run again.")
                entry.close(_ENDS.get(event.outcome, event.outcome), event.at, event.seconds)
                self._open.pop(("tool", event.call.id), None)  # a later call may have the same id


def _short(value: Any) -> str:
    text = visible_json(value, indent=None)
    return text if len(text) <= _LONGEST_EDIT else f"{text[:_LONGEST_EDIT]}…"


def _is_whole(event: events.ToolEnded) -> bool:
    return event.size is None or len(event.text.encode()) >= event.size


def _are_whole(*arguments: Any) -> bool:
    return all(isinstance(one, dict) for one in arguments)


_CAME_TO = {
    "ran": "ran at the model's provider",
    "failed": "failed at the model's provider",
    "unknown": "may have run at the model's provider: the answer does not have its result",
}


def _hosted(call: HostedCall) -> str:
    """Describe the outcome of a call that a model's provider made itself."""
    given = f" {call.input}" if call.input else ""
    return f"{call.name}{given} {_CAME_TO[call.outcome]}{f' ({call.error})' if call.error else ''}"


def _source(citation: Citation) -> str:
    return f"source: {' '.join(filter(None, (citation.title, citation.url))) or citation.text}"


def _json_of(text: str) -> Any:
    """Return a tool's result as data, if it is JSON, otherwise as text."""
    with suppress(ValueError):
        if isinstance(data := json.loads(text), dict | list):
            return data
    return text


def complete(entries: Iterable[Entry], messages: Iterable[Message]) -> None:
    """Add the full values of which events have only the beginning, as far as the transcript has them."""
    results: dict[str, str] = {}
    arguments: JSONObject = {}
    for message in messages:
        arguments |= {call.id: call.arguments for call in message.tool_calls or ()}
        if message.tool_call_id is not None:
            results[message.tool_call_id] = message.content
    for entry in entries:
        if entry.size is not None and entry.call in results:
            entry.result, entry.size = _json_of(results[entry.call]), None
        if isinstance(entry.data, str) and entry.call in arguments and not entry.is_edited:
            entry.data = arguments[entry.call]


def fold(happened: Iterable[events.Event]) -> list[Entry]:
    """Return the timeline of a run."""
    timeline = Timeline()
    for event in happened:
        timeline.take(event)
    return timeline.entries


class Timelines:
    """The timelines of runs; empty for a run whose session was deleted, although Temporal still has its history."""

    def __init__(self, people: StandfastClient, store: AgentStore | None) -> None:
        self._people, self._store = people, store

    async def load(self, run: str, messages: Iterable[Message]) -> list[Entry] | None:
        """Return the timeline of a run, with the timelines of called agents; None if it cannot be read now.

        Args:
            messages: of the run's session.
        """
        if (entries := await self._load(run)) is None:
            return None
        complete(entries, messages)
        called = [entry for entry in entries if entry.run is not None][-_CHILDREN:]
        inner = await asyncio.gather(*(self._load(str(entry.run)) for entry in called))
        for entry, found in zip(called, inner, strict=True):
            entry.inner = found or []
            if found == []:  # its session was deleted, including its messages here
                entry.text, entry.data, entry.result = "", None, None
        return entries

    async def _load(self, run: str) -> list[Entry] | None:
        with suppress(StandfastError, RPCError, TimeoutError):
            async with time_limit(_PATIENCE):
                seen = listed(await our_run(self._people.client, run))
                return [] if await self._was_deleted(seen) else fold(await self._people.events(run))
        return None

    async def _was_deleted(self, seen: Mapping[str, Any]) -> bool:
        if not has_ledger(self._store) or "closed" not in seen or "session_id" not in seen:
            return False
        key = session_key_of(seen.get("tenant_id"), seen["session_id"])
        return await self._store.load_session(key) is None
