"""Names the sessions of agents that calls run, and bounds how deep agents call each other."""

import hashlib

from standfast.agents import Agent
from standfast.agents.limits import MAX_DEPTH
from standfast.errors import StandfastError
from standfast.stores.protocol import SESSION_ID


def check_depth(agent: Agent, depth: int) -> None:
    """Refuse to invoke an agent below too many others."""
    if depth >= MAX_DEPTH:
        raise StandfastError(f"Agent '{agent.name}' is not invoked: agents invoke each other {MAX_DEPTH} deep already")


def child_session(session: str, name: str) -> str:
    """Return the session id of an agent that a call of this session runs."""
    whole = f"{session}.{name}"
    if SESSION_ID.fullmatch(whole):
        return whole
    # Too long, or a call id of characters that an id cannot have: what tells it from others is kept.
    return f"{session[:150]}.{hashlib.blake2b(whole.encode(errors='replace'), digest_size=12).hexdigest()}"


def call_digest(asked: str) -> str:
    """Return a digest that identifies a call, as its provider's id does not."""
    return hashlib.blake2b(asked.encode(), digest_size=6).hexdigest()


def session_of_call(session: str, call_id: str, asked: str) -> str:
    """Return the session id of the agent that a call of the model is, where it has one."""
    return child_session(session, f"{call_id}.{call_digest(asked)}")
