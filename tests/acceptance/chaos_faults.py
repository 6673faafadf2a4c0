"""Finds broken promises in a chaos: compares each call's report, wherever it is, with the facts.

The facts are in the tools' files, outside of standfast. The reports are in transcripts, the ledger, events,
timelines, summaries of activities, the command `show`, what models have read, and in the books of the people.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.commands import standfast
from temporalio.api.history.v1 import HistoryEvent

from acceptance.chaos_of_sessions import Chaos
from acceptance.replays import failed_replays
from acceptance.temporal_world import World
from standfast import Message, ToolCall
from standfast.events import Event, ToolEnded, ToolStarted
from standfast.runtime.call_ledger import last_entry
from standfast.stores import SQLiteStore
from standfast.temporal import StandfastClient
from standfast.tools.calls import turn_scope
from standfast.web.page.timelines import fold

EDITED = "changed the arguments before it ran"


@dataclass(frozen=True, slots=True)
class Told:
    """What a place says of a call.

    Args:
        call: with the arguments that the place shows.
        text: the call's outcome in words.
        is_edited: it says that someone has changed the arguments.
    """

    where: str
    call: ToolCall
    text: str
    is_edited: bool = False

    def says(self, what: str) -> bool:
        return what in self.text and "tool-durability-error" not in self.text


@dataclass(frozen=True, slots=True)
class Outside:
    """What happened: the number of effects of each call, and the amounts that its tool was given."""

    effects: Counter[str]
    amounts: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, world: World) -> "Outside":
        amounts = defaultdict[str, list[int]](list)
        for line in _lines(world, "amounts"):
            call, _, amount = line.partition(" ")
            amounts[call].append(int(amount))
        return cls(Counter(_lines(world, "effects")), amounts)


def _lines(world: World, what: str) -> list[str]:
    path = world.folder / f"{what}.txt"
    return path.read_text().splitlines() if path.exists() else []


def contradictions(told: Told, outside: Outside) -> Iterator[str]:
    """Say in words where a place says what has not happened, or hides what has."""
    call, effects, amounts = told.call, outside.effects[told.call.id], outside.amounts.get(told.call.id, ())
    if told.says("did ") and not effects:
        yield f"{told.where}: {call.id} is said to have run, and did not: {told.text}"
    if told.says("Not run") and effects and not call.name.startswith("look"):
        yield f"{told.where}: {call.id} ran, and is said not to have run: {told.text}"
    shown = call.arguments.get("amount") if isinstance(call.arguments, dict) else None
    if told.says("did ") and amounts and shown is not None:
        if shown != amounts[0]:
            yield f"{told.where}: {call.id} ran with {amounts[0]}, and {shown} is shown"
        if told.is_edited != (amounts[0] < 10**6):
            yield f"{told.where}: {call.id} ran with {amounts[0]}, and it is {told.is_edited} that it was edited"


async def faults(chaos: Chaos, cases: Sequence[str], pipelines: Sequence[str] = ()) -> list[str]:
    """Return in words whatever is not as it was promised."""
    world, books, outside, calls = chaos.world, chaos.books, Outside.of(chaos.world), dict[str, ToolCall]()
    found = list(books.unanswered)
    found += [f"{line} had {times} effects" for line, times in outside.effects.items()
              if times > 1 and line.partition(".")[0] in pipelines]  # fmt: skip
    for case, session in [*((case, case) for case in cases), *chaos.desks.items()]:
        messages = await world.store.load_messages(session)
        asked = {call.id: call for message in messages for call in message.tool_calls or ()}
        for call in asked.values():
            found += _faults_of_call(chaos, call, messages, outside)
        found += [f"{call} ran, and no transcript asks for it"
                  for call in outside.effects.keys() - asked.keys() if call.startswith(f"{case}.")]  # fmt: skip
        found += _faults_of_messages(chaos, case, messages)
        calls |= asked
        told = await told_by_session(world, session, messages)
        found += [fault for one in told for fault in contradictions(one, outside)]
        entered = {one.call.id for one in told if one.where == "the ledger"}
        found += [f"{one.call.id} is said not to have run, and the ledger lets it run: {one.text}"
                  for one in told if one.says("Not run") and one.call.id not in entered]  # fmt: skip
    found += [fault for one in await told_by_runs(world, calls) for fault in contradictions(one, outside)]
    found += [
        f"{call}: refused, {why}, but it was approved by nobody else and ran"
        for call, why in books.refused
        if outside.effects[call] and not books.approved[call] and call not in books.unsure
    ]
    begun = [session.id for session in await world.store.list_sessions()]
    found += [f"{session} was begun from an export, beside its own" for session in begun if session.startswith("sess_")]
    return found + await failed_replays(world, chaos.seed)


def _faults_of_call(chaos: Chaos, call: ToolCall, messages: Sequence[Message], outside: Outside) -> Iterator[str]:
    results = [message.content for message in messages if message.tool_call_id == call.id]
    if len(results) != 1:
        yield f"{call.id} has {len(results)} results"
    if (effects := outside.effects[call.id]) > 1 and not call.name.startswith("look"):
        yield f"{call.id} of {call.name} had {effects} effects"
    yield from _faults_of_answers(chaos, call, messages)
    if call.name == "pay":
        yield from _faults_of_approvals(chaos, call, "".join(results), effects)
    for amount in outside.amounts.get(call.id, ()):
        if len(by := chaos.books.amounts[call.id, amount]) < 2 and call.id not in chaos.books.unsure:
            yield f"{call.id} ran with {amount}, which {sorted(by)} approved"


def _faults_of_approvals(chaos: Chaos, call: ToolCall, read: str, effects: int) -> Iterator[str]:
    books = chaos.books
    approved, rejected = books.approved[call.id], books.rejected[call.id]
    if effects and not approved and call.id not in books.unsure:
        yield f"{call.id} ran, and nobody has approved it"
    if approved > 1 or (approved and rejected):
        yield f"{call.id} was approved {approved} times, and rejected {rejected} times"
    if approved and "reject" in read:
        yield f"{call.id} was approved, and the model reads: {read}"


def _faults_of_answers(chaos: Chaos, call: ToolCall, messages: Sequence[Message]) -> Iterator[str]:
    for text in [text for text, of in chaos.books.answered.items() if of == call.id]:
        read = [message.tool_call_id for message in messages if text in message.content]
        if read != [call.id]:
            yield f"{text!r} counts for {call.id}, and stands in the transcript as the results of {read}"
    for text in [text for text, of in chaos.books.not_answers.items() if of == call.id]:
        if any(text in message.content for message in messages):
            yield f"{text!r} was refused for {call.id}, and stands in the transcript"


def _faults_of_messages(chaos: Chaos, case: str, messages: Sequence[Message]) -> Iterator[str]:
    heard = Counter(message.content for message in messages if message.role == "user")
    for text, times in heard.items():
        if times > 1:
            yield f"{text!r} stands {times} times in the transcript"
    for text in chaos.books.said - heard.keys():
        if text.startswith(f"{case}: "):
            yield f"{text!r} was accepted, and does not stand in the transcript"


# --- what was told ---


async def told_by_session(world: World, session_id: str, messages: Sequence[Message]) -> list[Told]:
    """Return what a transcript says, the ledger, and what models have read."""
    found = list(_told_in(messages, "the transcript"))
    asked = {call.id: call for message in messages for call in message.tool_calls or ()}
    for said in map(json.loads, _lines(world, "model")):
        read = zip(said["calls"], said["reads"], strict=True)
        found += [_told("a model", asked[call], content) for call, content in read if call in asked]
    if (session := await world.store.load_session(session_id)) is None:
        return found
    for number, message in enumerate(messages, session.last_seq - len(messages) + 1):
        for position, call in enumerate(message.tool_calls or ()):
            entry = await last_entry(world.store, turn_scope(session.key, number), position, call.id)
            if entry is not None and entry.result is not None:  # it does not show the arguments
                found.append(Told("the ledger", call.model_copy(update={"arguments": {}}), entry.result))
    return found


def _told_in(messages: Sequence[Message], where: str) -> Iterator[Told]:
    asked = {call.id: call for message in messages for call in message.tool_calls or ()}
    for message in messages:
        if message.tool_call_id in asked:
            yield _told(where, asked[message.tool_call_id], message.content)


def _told(where: str, call: ToolCall, content: str) -> Told:
    """Return what a result says to a model: the arguments too, if they were edited."""
    if EDITED not in content:
        return Told(where, call, content)
    edited = json.loads(content) if content.startswith("{") else {}
    return Told(where, call.model_copy(update={"arguments": edited.get("arguments", {})}), content, is_edited=True)


async def told_by_runs(world: World, calls: Mapping[str, ToolCall]) -> list[Told]:
    """Return what the runs of agents say: by events, timelines, `show`, and the summaries of activities."""
    ids, found, client = set[str](), list[Told](), StandfastClient(world.client, store=world.store)
    async for run in world.client.list_workflows(f'TaskQueue = "{world.queue}" AND WorkflowType = "teller"'):
        history = await world.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        found += _told_by_summaries(history.events, calls)
        ids.add(run.id)
    for id_ in ids:
        found += [*_told_by_events(await client.events(id_), id_, calls), *await _told_by_show(world, id_)]
    return found


def _told_by_summaries(history: Sequence[HistoryEvent], calls: Mapping[str, ToolCall]) -> Iterator[Told]:
    """Yield what Temporal Web shows of refunds that ran: the summary has the arguments."""
    summaries = {event.event_id: event.user_metadata.summary.data.decode() for event in history}
    for event in history:
        completed = event.activity_task_completed_event_attributes
        for payload in completed.result.payloads:
            outcome = json.loads(payload.data or b"null")
            key = outcome.get("call", "") if isinstance(outcome, dict) and "returned" in outcome else ""
            if (call := calls.get(key.partition("/")[2])) is not None and call.name == "refund":
                shown, *conditions = json.loads(summaries[completed.scheduled_event_id]).split(" · ")
                call = call.model_copy(update={"arguments": json.loads(shown)})
                is_edited = any(one.startswith("edited by ") for one in conditions)
                yield Told("the summary of an activity", call, f"did {call.id}", is_edited)


def _told_by_events(events: Sequence[Event], run: str, calls: Mapping[str, ToolCall]) -> Iterator[Told]:
    edited = {event.call.id for event in events if isinstance(event, ToolStarted) and event.edited_by is not None}
    for event in events:
        if isinstance(event, ToolEnded) and event.call.id in calls:
            yield Told(f"events of {run}", event.call, event.text, event.call.id in edited)
    for entry in fold(events):
        if entry.kind == "tool" and entry.call in calls:
            arguments = entry.data if isinstance(entry.data, dict) else {}
            call = calls[entry.call].model_copy(update={"arguments": arguments})
            yield Told(f"the timeline of {run}", call, str(entry.result), entry.is_edited)


async def _told_by_show(world: World, run: str) -> list[Told]:
    if not isinstance(world.store, SQLiteStore):
        return []
    shown = await standfast(world, "show", run, "--messages", "0", "--store", str(world.store.path), "-o", "json")
    if "does not have a session" in shown.stderr:  # it was ended before it had one
        return []
    assert shown.exit_code == 0, (run, shown.output)
    messages = [Message.model_validate(one) for one in json.loads(shown.stdout)["messages"]]
    return list(_told_in(messages, f"show {run}"))
