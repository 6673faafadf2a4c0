"""Asks people about the calls of a conversation that need approval, by the rules of gates, and keeps what they decide.

A gate is in the session when its run ends, and its decisions are in the audit trail, so that a later run finds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from standfast.agent_loop import CallPlace, Decision, LoopState
from standfast.agent_loop.tool_gates import refusal
from standfast.agents import Agent
from standfast.checkpoints import PendingApproval
from standfast.errors import DefinitionError, InputError
from standfast.integrations.pydantic_ai.conversations import Conversation, KeptGates, KeptTool
from standfast.local.gates import Standing, asked_at, at_gates, pending_approvals
from standfast.mcp.schemas import checked_by
from standfast.messages import Message, ToolCall
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.session_states import begin_state
from standfast.runtime.standing_approvals import decided_in_advance
from standfast.runtime.stored_gates import Whose, show_gates
from standfast.runtime.users_functions import ask_at_gates
from standfast.stores.protocol import DurableStore
from standfast.tools import Approval, Tool
from standfast.tools.checks import check_function

ApprovalRule = Approval | Callable[[ToolCall], Approval | None]
_ANYBODY = Approval()


def check_rule(rule: object) -> None:
    """Check what a user has given as `approval=`, before an agent runs.

    Raises:
        DefinitionError: it is neither an approval of a call nor a function.
    """
    if isinstance(rule, Approval):
        if given := rule.of_gate:
            raise DefinitionError(f"StandfastDurability: approval.{given[0]} is for a pipeline's gate, not for a call")
    elif rule is not None:
        if isinstance(rule, type):
            raise DefinitionError(f"StandfastDurability: approval must be an Approval, not the class {rule.__name__}")
        check_function("StandfastDurability: approval", rule, "the ToolCall, or an Approval")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What people have decided on a call.

    Args:
        refused: what the model reads of a call that is not run; None if it is approved.
        edit: the arguments with which it runs instead, and by whom they were given.
    """

    refused: str | None = None
    edit: dict[str, Any] | None = None
    by: tuple[str, ...] = ()


@dataclass(slots=True)
class Gates:
    """The gates of the calls that wait in a conversation."""

    conversation: Conversation
    approval: ApprovalRule | None

    async def reach(
        self, step: int, calls: Sequence[ToolCall], tools: Sequence[KeptTool], requesters: Sequence[str | None]
    ) -> dict[str, Verdict] | None:
        """Open the gates of calls, or find them as they are now, and return the verdicts once all are decided."""
        asked = KeptGates(step=step, calls=tuple(calls), tools=tuple({tool.name: tool for tool in tools}.values()))
        if self.conversation.gates is not None and self.conversation.gates.is_of(asked):
            state = await self.decide(())
        else:
            state = await self._open(asked, requesters)
        if state.gates:
            return None
        return {call.id: _verdict(state, call) for call in calls}

    async def _open(self, asked: KeptGates, requesters: Sequence[str | None]) -> LoopState:
        agent, kept = self._agent(asked), self._kept
        people = [self.conversation.session.user_id, *requesters, *await kept.editors()]
        questions, refused = await ask_at_gates(agent, asked.calls, at=datetime.now(UTC), requesters=people)
        questions = await decided_in_advance(self._store, questions, asked.calls, self._place)
        state = begin_state(agent, [_asking(asked)], (), recovering=False, used=None).gated(questions, refused)
        await self._show(state)
        await self.conversation.keep_gates(asked.model_copy(update={"refused": refused}), state.kept_questions)
        return await self.decide(())

    async def decide(self, decisions: Sequence[Decision]) -> LoopState:
        """Return the gates after decisions, those that were made before, and deadlines that have passed.

        Raises:
            InputError: a decision does not count; then none of them does.
        """
        gates = self.conversation.gates
        if gates is None:
            raise InputError(f"Conversation {self.conversation.name} does not wait for anybody")
        questions = self.conversation.session.questions or ()
        agent = self._agent(gates)
        before = begin_state(agent, [_asking(gates)], questions, recovering=False, used=None)
        before = before.gated(before.questions, gates.refused)
        after = await at_gates(before, decisions, agent, self._kept, (), Standing(self._store, self._place))
        await self._show(after)
        if after.kept_questions != before.kept_questions:
            await self.conversation.keep_gates(gates, after.kept_questions)
        return after

    async def _show(self, state: LoopState) -> None:
        """Show what waits on the board, before the session has it: what waits is never hidden."""
        await show_gates(self._store, Whose.of_session(self.conversation.session), asked_at(state))

    async def pending(self) -> tuple[PendingApproval, ...]:
        """Return what waits for people."""
        return () if self.conversation.gates is None else pending_approvals(await self.decide(()))

    @property
    def _store(self) -> DurableStore:
        return self.conversation.store

    @property
    def _kept(self) -> Kept:
        session = self.conversation.session
        return Kept(f"{session.agent_name}/{session.id}", self._store)

    @property
    def _place(self) -> CallPlace:
        session, turn = self.conversation.session, self.conversation.turns[-1]
        return CallPlace(
            agent=session.agent_name,
            run=f"{session.key}/{turn.number}",
            session=session.id,
            session_key=session.key,
            tenant_id=session.tenant_id,
            user_id=session.user_id,
        )

    def _agent(self, gates: KeptGates) -> Agent:
        """Return an agent that has the tools of the calls."""
        return Agent(self.conversation.session.agent_name, tools=[self._tool(tool) for tool in gates.tools])

    def _tool(self, tool: KeptTool) -> Tool[..., Any]:
        schema = {"type": "object", "properties": {}, **tool.parameters}
        return Tool(
            tool.name,
            description=tool.description or tool.name,
            input=Annotated[dict[str, Any], AfterValidator(checked_by(schema)), WithJsonSchema(schema)],
            approval=lambda call: self._approval(call),
        )

    def _approval(self, call: ToolCall) -> Approval:
        rule = self.approval
        found = rule(call) if callable(rule) else rule
        return _ANYBODY if found is None else found


def _asking(gates: KeptGates) -> Message:
    return Message(role="assistant", tool_calls=gates.calls)


def _verdict(state: LoopState, call: ToolCall) -> Verdict:
    gate = state.verdict(call)
    if gate is None:
        return Verdict(refused=state.refused.get(call.id, "Not run: nobody was asked"))
    if gate.status != "approved":
        return Verdict(refused=refusal(gate))
    return Verdict(edit=gate.edit, by=gate.approved_by)
