"""Finds the state of an agent in the middle of a turn: the ledger has the calls' changes with their results.

The activity that writes the results to the session also writes the last of these states.
"""

from collections.abc import Iterable

from standfast.agents import Agent
from standfast.runtime.call_ledger import read_result
from standfast.temporal.activities.agent_host import AgentHost
from standfast.temporal.wire.activity_types import RunReference, SettleReference, WrittenOutcome
from standfast.temporal.wire.turn_records import TurnRecord, read_record
from standfast.tools import KeptState
from standfast.tools.attempts import call_key


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
