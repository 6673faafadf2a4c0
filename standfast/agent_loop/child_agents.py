"""Says what an agent that another one runs, or a pipeline, came to for its caller."""

from standfast.messages import cut
from standfast.tools import Asked, Failed, Returned

_WHY_BYTES = 8_192


def agent_outcome(agent: str, status: str, said: str, question: str | None = None) -> Returned | Asked | Failed:
    """Return the outcome of a call that has run an agent: its answer, its question, or why there is neither.

    Args:
        said: see `said_by_agent`.
    """
    if status == "complete":
        return Returned(said)
    if status == "interrupted":
        return Asked(question or "")
    return Failed(cut(f"Agent '{agent}' ended with {status}: {said}", _WHY_BYTES))


def said_by_agent(status: str, response: str | None, error: str | None) -> str:
    """Return the answer of an agent; if it has not completed, rather why."""
    return (response if status == "complete" else error or response) or ""


def agent_failure(agent: str, why: str) -> str:
    """Return the error of a call or step whose agent came to no end of its own."""
    return cut(f"Agent '{agent}' failed: {why}", _WHY_BYTES)
