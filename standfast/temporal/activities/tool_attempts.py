"""Describes a tool call on Temporal: its place in the ledger, and an attempt at it."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from standfast.agent_loop import ToolState, with_edit
from standfast.agents import Agent, AgentContext
from standfast.messages import ToolCall
from standfast.runtime.users_functions import refused_in_time, run_bounded
from standfast.temporal.activities.agent_invoker import Invocations
from standfast.temporal.activities.dependencies import call_with_deps
from standfast.temporal.wire.activity_types import LetThrough, SettleReference
from standfast.temporal.wire.snapshots import GRACE, ToolFacts
from standfast.temporal.wire.turn_records import TurnRecord, gate_of
from standfast.tools import Failed, Outcome, Tool, ToolContext
from standfast.tools.attempts import call_key


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a call in the ledger, and its part of the turn's record."""

    reference: SettleReference
    record: TurnRecord
    call: ToolCall

    @property
    def scope(self) -> str:
        return self.record.key

    @property
    def position(self) -> int:
        return int(self.reference.get("position", 0))

    @property
    def dispatch(self) -> int:
        """The last dispatch that the run knows of."""
        return int(self.reference.get("dispatch", 1))

    def key(self, dispatch: int) -> str:
        return call_key(self.position, self.call.id, dispatch)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a call.

    Args:
        who, written: the inputs of the agent's `deps`: its context without the run's, which is still JSON.
        state: the agent's state, as the call finds it.
        approved: who has approved it, as in `Turn.approved`; None if no one was asked.
        facts: the tool's facts, which decide how it runs; see `strictest`.
        is_swapped: whether the tool's input type has changed since it was called.
    """

    agent: Agent
    tool: Tool[..., Any]
    call: ToolCall
    context: ToolContext
    who: AgentContext
    written: str | None
    place: Place
    invocations: Invocations
    approved: LetThrough | None
    facts: ToolFacts
    is_swapped: bool
    state: ToolState

    async def refused(self) -> Failed | None:
        """Return the outcome of a call whose arguments, for an earlier version of the tool, do not fit this one."""
        approved, seconds = self.approved is not None, self.facts.timeout - GRACE
        return await refused_in_time(self.tool, self.call.arguments, approved=approved, seconds=seconds)

    @property
    def approved_as(self) -> str | None:
        """The fingerprint of the tool that people have approved, as `Tool.attempt` expects it."""
        if self.approved is None:
            return None
        gate = gate_of(self.place.record, self.call.id) or {}
        return str(gate.get("fingerprint", ""))

    def run_in_time(
        self, ask: Callable[..., Awaitable[Outcome | None]], *, has_begun: bool = False
    ) -> Coroutine[Any, Any, Outcome | None]:
        """Return a coroutine that runs the tool's `attempt`, or its `verify`, within its time limit."""

        seconds = self.facts.timeout - GRACE

        async def call(context: ToolContext, left: float) -> Outcome | None:
            return await run_bounded(
                ask,
                self.tool,
                self.facts,
                self.call.arguments,
                context,
                state=self.state,
                limit=self.agent.loop.max_message_bytes,
                seconds=seconds,
                left=left,
            )

        who, written, facts = self.who, self.written, self.facts
        return call_with_deps(self.agent, who, written, call, self.context, facts, seconds=seconds, has_begun=has_begun)

    def with_note_of_edit(self, outcome: Outcome) -> Outcome:
        """Return an outcome with a note to the model if people have edited the call's arguments."""
        if self.approved is None or "edit" not in self.approved or isinstance(self.call.arguments, str):
            return outcome
        editor = self.approved.get("editor", " and ".join(self.approved["by"]))  # an earlier version kept only these
        return with_edit(outcome, editor, self.call.arguments, self.agent.loop.max_message_bytes)
