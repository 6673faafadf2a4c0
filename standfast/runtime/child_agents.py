"""Names the agents that calls run and their sessions, and limits the depth of nested calls."""

import hashlib
from dataclasses import dataclass, field

from standfast.agents import Agent
from standfast.agents.limits import MAX_DEPTH
from standfast.errors import InterruptError, StandfastError
from standfast.stores.protocol import SESSION_ID
from standfast.tools import Asked, Failed, Returned


def depth_problem(agent: str, depth: int) -> str | None:
    """Return the reason why an agent may not be invoked below so many others; None if it may."""
    if depth < MAX_DEPTH:
        return None
    return f"Agent '{agent}' is not invoked: agents invoke each other {MAX_DEPTH} deep already"


def check_depth(agent: Agent, depth: int) -> None:
    """Refuse to invoke an agent below too many others."""
    if problem := depth_problem(agent.name, depth):
        raise StandfastError(problem)


def check_sampler(agent: Agent | None, left: int | None) -> Agent:
    """Return the agent that answers for the model of a call's agent.

    Args:
        left: the tokens that the run may use; None without a limit.

    Raises:
        StandfastError: there is none, or the budget is spent.
    """
    if agent is None:
        raise StandfastError("only tools of an agent have a model to ask")
    if left is not None and left <= 0:
        raise StandfastError("the token budget of the run is spent")
    return agent


def child_session(session: str, name: str) -> str:
    """Return the session id of an agent that a call of this session runs."""
    whole = f"{session}.{name}"
    if SESSION_ID.fullmatch(whole):
        return whole
    # Too long, or a call id with characters that are invalid in an id: a digest distinguishes it from others.
    return f"{session[:150]}.{hashlib.blake2b(whole.encode(errors='replace'), digest_size=12).hexdigest()}"


def call_digest(asked: str) -> str:
    """Return a digest that identifies a call, unlike its provider's id."""
    return hashlib.blake2b(asked.encode(errors="replace"), digest_size=6).hexdigest()


def session_of_call(session: str, call_id: str, asked: str) -> str:
    """Return the session id of an agent that the model calls as a tool."""
    return child_session(session, f"{call_id}.{call_digest(asked)}")


@dataclass(slots=True)
class AskedAgents:
    """The agents that one call runs, distinguished by their questions.

    Not by their order: agents that run at once must have the same names after a crash.
    """

    _counts: dict[str, int] = field(default_factory=dict)

    def name(self, *asked: object) -> tuple[str, int, bool]:
        """Return a digest of the request, how often it was made so far, and whether it is the first of all."""
        digest = call_digest(repr(asked))
        self._counts[digest] = self._counts.get(digest, 0) + 1
        return digest, self._counts[digest], self._counts == {digest: 1}


def answer_of(outcome: Returned | Asked | Failed) -> dict[str, str]:
    """Return the result of `ctx.agents.invoke` for the outcome of its agent.

    Raises:
        InterruptError: the agent asks a question, which becomes the caller's.
        StandfastError: the agent did not complete.
    """
    match outcome:
        case Returned(content):
            return {"response": content}
        case Asked(question, unknown):
            raise InterruptError(question, unknown=unknown)
        case Failed(error):
            raise StandfastError(error)
