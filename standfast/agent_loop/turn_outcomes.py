"""Decides which outcomes of a turn's calls are results, and which are questions to people."""

from collections.abc import Sequence

from standfast.agent_loop.actions import Settled
from standfast.agent_loop.tool_facts import CallT
from standfast.agents import Loop
from standfast.tools import Asked, Cancelled, Outcome, Unknown


def asks(outcome: Outcome, loop: Loop) -> bool:
    """Whether a person is asked about an outcome."""
    return isinstance(outcome, Asked) or (isinstance(outcome, Unknown) and loop.on_unknown == "ask")


def results_now(outcomes: Sequence[Settled[CallT]], loop: Loop, *, ends: bool) -> list[Settled[CallT]]:
    """Return the outcomes that are results now, in call order; a question has none yet, unless the run `ends`."""
    found: list[Settled[CallT]] = []
    for call, outcome in outcomes:
        if not asks(outcome, loop):
            found.append((call, outcome))
        elif ends:
            found.append((call, Cancelled("Not asked: the run ended") if isinstance(outcome, Asked) else outcome))
    return found
