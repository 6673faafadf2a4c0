"""Decides what becomes of a run whose turns have had no successful tool call for too long."""

from typing import Any

from standfast.agent_loop.actions import Finish
from standfast.agents import Loop
from standfast.checkpoints import Question


def when_stuck(loop: Loop, idle: int, nudges: int) -> dict[str, Any]:
    """Return the changes of the state of a run that is stuck.

    Args:
        idle: turns in a row without a successful call.
        nudges: how often the model was nudged before.
    """
    match loop.on_stuck:
        case "retry" if nudges < loop.stuck_retries:
            nudge = f"No tool call of your last {idle} turns succeeded. Try another way, or say what hinders you."
            return {"idle_turns": 0, "nudges": nudges + 1, "nudge": nudge}
        case "escalate":
            text = f"No tool call of the last {idle} turns succeeded. How should the agent go on?"
            return {"idle_turns": idle, "questions": (Question(question=text),)}
        case _:
            return {"idle_turns": idle, "ended": Finish("stuck", "")}
