"""Finds the state of an agent in the middle of a turn: the ledger has the changes that calls made with their results.

Whoever writes the results to the session writes the last of these states with them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from standfast.agents import Agent
from standfast.temporal.activities.written_answers import read_entry
from standfast.temporal.wire.activity_types import SettleReference, WrittenOutcome
from standfast.temporal.wire.turn_records import TurnRecord
from standfast.tools import KeptState
from standfast.tools.attempts import call_key

if TYPE_CHECKING:
    from standfast.temporal.activities.hosts import AgentHost


def last_state(outcomes: Iterable[WrittenOutcome]) -> KeptState | None:
    """Return the state that calls of a turn left with their results; None if none of them changed it."""
    return max((KeptState(*written["state"]) for written in outcomes if "state" in written), default=None)


async def state_before(host: "AgentHost", agent: Agent, reference: SettleReference, record: TurnRecord) -> KeptState:
    """Return the state that a call finds: the one that other calls of the turn have left, or that of its beginning."""
    if agent.state is None:
        return KeptState(0, "{}")
    left = last_state(await _recorded(host, record)) if len(record.calls) > 1 else None
    if left is not None:
        return left
    if reference.get("turn") != 0:
        return KeptState(0, record.state)
    # An earlier run asked for these calls; `on_start` of this one may have changed the state since.
    state = reference.get("agent_state")
    if state is None:
        session = await host.store.load_session(record.session)
        state = agent.write_state(agent.new_state()) if session is None else session.state
    return KeptState(0, state)


async def _recorded(host: "AgentHost", record: TurnRecord) -> list[WrittenOutcome]:
    """Return the outcomes of a turn's calls that are in the ledger, each under its last dispatch."""
    found, dispatch, calls = [], 1, dict(enumerate(record.calls))
    while calls:
        keys = {call_key(position, call.id, dispatch): position for position, call in calls.items()}
        entries = await host.store.load_entries(record.key, list(keys))
        found += [read_entry(entry) for entry in entries.values() if entry.result is not None]
        calls = {keys[key]: calls[keys[key]] for key, entry in entries.items() if entry.state == "abandoned"}
        dispatch += 1
    return found
