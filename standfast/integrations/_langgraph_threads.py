"""Finds the thread of a session in a graph's checkpoints, and the state for which a call was made; internal."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from standfast.agents import AgentContext, AgentIdentity
from standfast.errors import StandfastError
from standfast.integrations._langgraph_savers import SaverAnywhere
from standfast.tools import ToolContext

OURS = "standfast_call"  # the key of a tool's call in its interrupt
_PLACE = "graph"  # the prefix of the id of a call whose state is in a checkpoint
_STATE = "state"  # in such a call, if its tool needs the graph: the state that the tool gets


@dataclass(frozen=True)
class AskedCall:
    """A call in the graph's form.

    Args:
        call: LangChain's call, with its id there.
        state: the graph's state, as the tool's node had it.
        config: the thread's configuration.
    """

    call: dict[str, Any]
    state: Any
    config: dict[str, Any]


class Threads:
    """The threads of a graph. Their ids begin with the agent's name and the session's id.

    Args:
        saver: None for a graph without a checkpointer.
    """

    def __init__(self, name: str, saver: SaverAnywhere | None) -> None:
        self._name, self.saver = name, saver

    async def numbered(self, runner: AgentContext) -> AsyncIterator[tuple[str, Any]]:
        """Yield the threads that a run may have had, and their last checkpoints; the last thread does not exist yet."""
        assert self.saver is not None
        base, number = f"{self._base(runner)}/{digest(runner.agent.id)[:12]}", 1
        while found := await self.saver.aget_tuple(at(thread := f"{base}/{number}")):
            yield thread, found
            number += 1
        yield thread, None

    def _base(self, runner: AgentContext) -> str:
        return f"{self._name}/{runner.session_id or '-'}/{session_of(runner)}"

    async def asked(self, ctx: ToolContext) -> AskedCall:
        """Return the call of a tool's context, which belongs to its session.

        Raises:
            StandfastError: its checkpoint no longer exists.
        """
        assert self.saver is not None
        match ctx.tool_call_id.split("|"):
            case [_, run, number, checkpoint, interrupt]:
                thread = f"{self._base(runner_of(ctx))}/{run}/{number}"
                found = await self.saver.aget_tuple(at(thread, checkpoint))
                for _, channel, waiting in (found.pending_writes or ()) if found else ():
                    for one in waiting if channel == "__interrupt__" else ():
                        if one.id.startswith(interrupt) and OURS in one.value:
                            call = dict(one.value[OURS])
                            return AskedCall(call, call.pop(_STATE, None), at(thread))
        raise StandfastError("Not called: the graph's state for this call is no longer in its checkpointer")


def call_with(call: Any, state: Any) -> dict[str, Any]:
    """Return the value of a call's interrupt, with the state that its tool needs."""
    return {OURS: {"id": call["id"], "name": call["name"], "args": call["args"], _STATE: state}}


def call_id(call: dict[str, Any], thread: str, checkpoint: str, interrupt: str) -> str:
    """Return the id of a call here, which locates its state even if people change its arguments."""
    if _STATE not in call:
        return call["id"] or ""
    *_, run, number = thread.split("/")
    return f"{_PLACE}|{run}|{number}|{checkpoint}|{interrupt[:12]}"


def provider_id(call: str) -> str:
    """Return the id of a call in a form for any provider, for a graph that starts over with a transcript."""
    return f"call_{digest(call)[:24]}" if call.startswith(f"{_PLACE}|") else call


def runner_of(ctx: ToolContext) -> AgentContext:
    """Return the user and run of the agent that makes a call."""
    return AgentContext(AgentIdentity(ctx.agent_id, ctx.agent_name), None, ctx.user_id, ctx.tenant_id, ctx.session_id)


def session_of(runner: AgentContext) -> str:
    """Return a name that distinguishes a session from other tenants' sessions, which may have any name."""
    return digest([runner.tenant_id, runner.session_id])


def at(thread: str, checkpoint: str | None = None) -> dict[str, Any]:
    """Return the configuration for a thread, or one of its checkpoints."""
    place = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": place if checkpoint is None else {**place, "checkpoint_id": checkpoint}}


def digest(value: Any) -> str:
    """Return a digest of plain data."""
    return hashlib.blake2b(to_json(value), digest_size=16).hexdigest()
