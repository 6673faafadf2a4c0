"""Reads what calls, questions and answers have left in the store: outcomes that a run has not received, and states.

It also records with a turn the facts that its calls need, from this worker's version of the agent. After a deploy the
model may see, and call, tools that the run did not begin with. Facts that are unchanged since the start are not
repeated: histories are long.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from pydantic_core import to_json

from standfast.agent_loop import last_answer, not_started
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.messages import JSONObject, Message, ToolCall
from standfast.runtime.call_ledger import last_entry, read_result
from standfast.stores.protocol import DurableStore, LedgerEntry, Session
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire.activity_types import (
    Declared,
    FinishReference,
    RunReference,
    SettleReference,
    WrittenOutcome,
)
from standfast.temporal.wire.inputs import Said, user_message
from standfast.temporal.wire.outcomes import read_outcome, write_outcome
from standfast.temporal.wire.snapshots import ToolFacts, read_tool_facts
from standfast.temporal.wire.turn_records import CalledTool, TurnRecord, read_record
from standfast.tools import Asked, KeptState, Unknown
from standfast.tools.calls import call_key

NO_ANSWER = "It is reported to have ended, but its answer is not in the store"


def final_answer(messages: Sequence[Message]) -> str | None:
    """Return the final answer in an agent's session; None if it has none, whatever the result of its run is."""
    if not messages or messages[-1].role != "assistant" or messages[-1].tool_calls:
        return None
    return messages[-1].content


def was_written_by(session: Session, run: str) -> bool:
    """Whether a run, by its key, was the last to write to a session."""
    return str(session.journal_key).rpartition("/")[0] == run


def recorded(entry: LedgerEntry | None) -> WrittenOutcome:
    """Return the ledger's written outcome of a call."""
    if entry is None or entry.result is None:
        return write_outcome(Unknown("the record of its result is missing"))
    return read_result(entry)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


async def with_last_answer(host: AgentHost, reference: FinishReference, why: str | None) -> FinishReference:
    """Return the reference of a run that ends with an answer it has not received. The answer's calls are not run.

    The model's activity has written the answer and was cut off, or its result arrived together with the cancel:
    Temporal does not pass such a result to the run. Or the answer arrived when people had given up on the model.

    Args:
        why: the reason why the run ended; None means that it was cancelled.
    """
    run, turn = reference["run"], reference["turn"] + 1
    session = await host.store.load_session(reference["session"])
    if session is None or session.journal_key != f"{run}/{turn}":
        return reference
    record = await host.records.load_record(run, turn)
    outcome = write_outcome(not_started(None, why=why))
    sources = [(position, outcome) for position in range(len(record.calls))]
    said, unheard = reference.get("say", ()), split_heard(reference, record)[1]
    known = {name: value for name, value in reference.items() if name not in ("questions", "agent_state")}
    now = {"turn": turn, "seq": session.last_seq, "sources": sources, "say": [said[place] for place in unheard]}
    return cast(FinishReference, known | now)


def split_heard(reference: RunReference, record: TurnRecord) -> tuple[list[Message], list[int]]:
    """Return the user's new messages that the answer has taken in, and the places of those that it has not.

    They differ when an answer is requested again after a reset, and the messages arrive at another turn than before.
    """
    told, untold, heard = [], [], list(record.said)
    for index, said in enumerate(reference.get("say", ())):
        if (known := digest(said)) in heard:
            heard.remove(known)
            told.append(user_message(said))
        else:
            untold.append(index)
    return told, untold


def digest(said: Said) -> str:
    """Return a digest by which a message is recognised."""
    if isinstance(said, str):
        written = said.encode()
    else:
        written = (
            to_json({name: said[name] for name in ("text", "images")}) if "images" in said else said["text"].encode()
        )
    return hashlib.blake2b(written, digest_size=8).hexdigest()


async def still_asked(
    store: DurableStore, session: Session, messages: Sequence[Message], questions: Sequence[Question]
) -> tuple[Question, ...]:
    """Leave out calls of unknown outcome: the ledger may have their outcome by now, and the run settles them.

    A person may have reported that a call has not happened, and it may have been run since. Calls that are still
    unknown are asked about again, as calls of unknown outcome, not as their tools' questions. The gate of a call that
    has begun, or was answered without being run, is not opened again.
    """
    last = last_answer(messages)
    if last is None:
        return tuple(questions)
    in_process = session.journal_key is None  # an in-process run, which words its questions differently, wrote last
    scope = f"{session.key}/{session.last_seq - (len(messages) - 1 - last)}"
    positions = {call.id: position for position, call in enumerate(messages[last].tool_calls or ())}
    asked = []
    for question in questions:
        position = positions.get(question.tool_call_id or "")
        if position is None:
            is_asked = True
        elif question.gate is not None:
            is_asked = not question.is_open or not await _has_entry(store, scope, position, question)
        else:
            is_asked = in_process or await _asks(store, scope, position, question)
        if is_asked:
            asked.append(question)
    return tuple(asked)


async def _has_entry(store: DurableStore, scope: str, position: int, question: Question) -> bool:
    """Whether the call at a gate has begun, or was answered without being run."""
    entry = await last_entry(store, scope, position, str(question.tool_call_id))
    return entry is not None and entry.state != "abandoned"


async def _asks(store: DurableStore, scope: str, position: int, question: Question) -> bool:
    """Whether the call itself asks, or is missing from the ledger."""
    entry = await last_entry(store, scope, position, str(question.tool_call_id))
    return entry is None or (entry.result is not None and isinstance(read_outcome(read_result(entry)), Asked))


def last_state(outcomes: Iterable[WrittenOutcome]) -> KeptState | None:
    """Return the state that calls of a turn left with their results; None if none of them changed it."""
    return max((KeptState(*written["state"]) for written in outcomes if "state" in written), default=None)


def begun_state(reference: RunReference | SettleReference) -> KeptState | None:
    """Return the state that `on_start` has left, if it is not written yet.

    This state comes after the changes by an earlier run's calls: its number is the number of the last change.
    """
    begun = reference.get("agent_state")
    if begun is None:
        return None
    return KeptState(0, begun) if isinstance(begun, str) else KeptState(*begun)


async def state_left(host: AgentHost, reference: RunReference) -> KeptState | None:
    """Return the ledger's state after the calls that an earlier run has left; None if no call changed it."""
    kept = await host.store.load_reply(reference["run"], 0)
    return None if kept is None else last_state(await _recorded(host, read_record(reference["run"], 0, kept)))


async def state_before(host: AgentHost, agent: Agent, reference: SettleReference, record: TurnRecord) -> KeptState:
    """Return the state that a call finds: the state left by other calls of the turn, or the state at its beginning."""
    if agent.state is None:
        return KeptState(0, "{}")
    left = last_state(await _recorded(host, record)) if len(record.calls) > 1 else None
    begun = KeptState(0, record.state) if reference.get("turn") != 0 else begun_state(reference)
    if left is not None and (begun is None or left.number > begun.number):
        return left
    if begun is not None:
        return begun
    # An earlier run asked for these calls; hooks may have changed the state since.
    session = await host.store.load_session(record.session)
    return KeptState(0, agent.write_state(agent.new_state()) if session is None else session.state)


async def _recorded(host: AgentHost, record: TurnRecord) -> list[WrittenOutcome]:
    """Return the outcomes of a turn's calls that are in the ledger, each under its last dispatch."""
    found, dispatch, calls = [], 1, dict(enumerate(record.calls))
    while calls:
        keys = {call_key(position, call.id, dispatch): position for position, call in calls.items()}
        entries = await host.store.load_entries(record.key, list(keys))
        found += [read_result(entry) for entry in entries.values() if entry.result is not None]
        calls = {keys[key]: calls[keys[key]] for key, entry in entries.items() if entry.state == "abandoned"}
        dispatch += 1
    return found


async def started_facts(host: AgentHost, run: str) -> Mapping[str, Any]:
    """Return the facts that steer a run, as recorded at its start."""
    known = host.records.cache.facts.get(run)
    if known is None:
        known = host.records.cache.facts[run] = json.loads(await host.records.load_kept(f"{run}/open", 0))["facts"]
    return known


def called_tools(
    host: AgentHost, agent: Agent, calls: Iterable[ToolCall]
) -> tuple[dict[str, CalledTool], tuple[str, ...] | None]:
    """Return the records of the tools that calls name.

    The records include the names of all the agent's tools, if a call names an unknown tool.
    """
    known, named = host.catalogue.called[agent], {call.name for call in calls}
    tools = {name: tool for name, tool in known.items() if name in named}
    return tools, None if len(tools) == len(named) else tuple(known)


async def called_before(
    host: AgentHost, agent: Agent, before: str | None, calls: Sequence[ToolCall], known: JSONObject
) -> dict[str, CalledTool]:
    """Return the records of tools that an earlier run has called: its own records, or stricter ones."""
    called, _ = called_tools(host, agent, calls)
    run, _, turn = (before or "").rpartition("/")
    kept = await host.store.load_reply(run, int(turn)) if run else None
    then = {} if kept is None else read_record(run, int(turn), kept).tools
    for name in called.keys() & then.keys():
        if "safe_to_retry" not in then[name].facts:
            called[name] = at_most_once(called[name])
            known[name] = dict(called[name].facts)
    return called


async def news(host: AgentHost, run: str, record: TurnRecord) -> Declared:
    """Return the changes in a turn's tools since the start of its workflow, which only knows the tools of that time."""
    known, names = (await started_facts(host, run))["tools"], record.available
    changed = {name: dict(tool.facts) for name, tool in record.tools.items() if known.get(name) != tool.facts}
    told: Declared = {} if names is None or list(names) == list(known) else {"available": list(names)}
    return {**told, "tools": changed} if changed else told


def strictest(recorded: CalledTool | None, today: ToolFacts) -> ToolFacts:
    """Return the facts that decide how a call runs: the recorded ones, unless its tool is stricter today."""
    if recorded is None:
        return today
    then = read_tool_facts(recorded.facts)
    return replace(
        then,
        parallel=then.parallel or today.parallel,
        safe_to_retry=then.safe_to_retry and today.safe_to_retry,
        timeout=min(then.timeout, today.timeout),
    )


def at_most_once(called: CalledTool) -> CalledTool:
    """Return the record of a tool as if running it twice were harmful."""
    facts = {name: value for name, value in called.facts.items() if name not in ("safe_to_retry", "attempts")}
    return called.model_copy(update={"facts": facts})
