"""Asks people about a conversation's calls that need approval, by the rules of gates, and stores their decisions.

A gate is in the session once its run ends, and its decisions are in the audit trail, so a later run finds them. A turn
is replayed from its start, so the verdict on each call stays in the turn's journal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_ai.messages import ToolReturnPart

from standfast.agent_loop import CallPlace, Decision, LoopState
from standfast.agent_loop.tool_gates import refusal
from standfast.agents import Agent
from standfast.checkpoints import PendingApproval, Question
from standfast.errors import DefinitionError, InputError
from standfast.integrations.pydantic_ai.conversations import Conversation, KeptGates, KeptTool, Turn
from standfast.local.gates import Standing, asked_at, at_gates, pending_approvals
from standfast.mcp.schemas import checked_by
from standfast.messages import JSONObject, Message, Record, ToolCall
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
    """Check a user's `approval=` setting before an agent runs.

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


class Verdict(Record):
    """People's decision on a call.

    Args:
        refused: the text for the model about a call that is not run; None if it is approved.
        edit: the arguments with which it runs instead, and their editor.
    """

    refused: str | None = None
    edit: JSONObject | None = None
    by: tuple[str, ...] = ()


@dataclass(slots=True)
class Gates:
    """The gates of the waiting calls in a conversation."""

    conversation: Conversation
    approval: ApprovalRule | None

    async def reach(
        self,
        turn: Turn,
        step: int,
        calls: Sequence[ToolCall],
        tools: Sequence[KeptTool],
        requesters: Sequence[str | None],
    ) -> dict[str, Verdict] | None:
        """Open the gates of a step's calls, or find them, and return the verdicts once all are decided."""
        known = {call.id: await self._kept_verdict(turn, step, call) for call in calls}
        verdicts = {call_id: verdict for call_id, verdict in known.items() if verdict is not None}
        if waiting := [call for call in calls if call.id not in verdicts]:
            state = await self._at_gates(step, waiting, tools, requesters)
            if {one.tool_call_id for one in state.gates} & {call.id for call in waiting}:
                return None
            for call in waiting:
                kept = await turn.keep_verdict(step, call.id, _verdict(state, call).model_dump_json())
                verdicts[call.id] = Verdict.model_validate_json(kept)
        return verdicts

    async def _kept_verdict(self, turn: Turn, step: int, call: ToolCall) -> Verdict | None:
        if (kept := await turn.load_verdict(step, call.id)) is not None:
            return Verdict.model_validate_json(kept)
        told = await turn.told(step)  # earlier versions did not store verdicts, but the model has read them
        return None if told is None else _verdict_told(told.get(call.id))

    async def _at_gates(
        self, step: int, calls: Sequence[ToolCall], tools: Sequence[KeptTool], requesters: Sequence[str | None]
    ) -> LoopState:
        """Open the gates that are missing, and return all gates of the step."""
        kept = self.conversation.gates
        if kept is None or kept.step != step:
            kept = KeptGates(step=step, calls=(), tools=())
        if new := [call for call in calls if call not in kept.calls]:
            await self._open(kept.with_calls(new, tools), new, requesters)
        return await self.decide(())

    async def _open(self, gates: KeptGates, new: Sequence[ToolCall], requesters: Sequence[str | None]) -> None:
        """Open the gates of new calls beside the existing gates of a step."""
        agent, earlier = self._agent(gates), self.conversation.session.questions or ()
        people = [self.conversation.session.user_id, *requesters, *await self._kept.editors()]
        questions, refused = await ask_at_gates(agent, new, at=datetime.now(UTC), requesters=people)
        questions = await decided_in_advance(self._store, questions, new, self._place)
        gates = gates.model_copy(update={"refused": {**gates.refused, **refused}})
        others = {call.id for call in gates.calls} - {call.id for call in new}
        state = _state(agent, gates, tuple(one for one in earlier if one.tool_call_id in others), questions)
        await self._show(state)
        await self.conversation.keep_gates(gates, state.kept_questions)

    async def decide(self, decisions: Sequence[Decision]) -> LoopState:
        """Return the gates after decisions, earlier ones, and deadlines that have passed.

        Raises:
            InputError: a decision does not count; then none of them does.
        """
        gates = self.conversation.gates
        if gates is None:
            raise InputError(f"Conversation {self.conversation.name} does not wait for anyone")
        agent = self._agent(gates)
        before = _state(agent, gates, self.conversation.session.questions or ())
        after = await at_gates(before, decisions, agent, self._kept, (), Standing(self._store, self._place))
        await self._show(after)
        if after.kept_questions != before.kept_questions:
            await self.conversation.keep_gates(gates, after.kept_questions)
        return after

    async def _show(self, state: LoopState) -> None:
        """Show waiting items on the board before the session has them: waiting items are never hidden."""
        await show_gates(self._store, Whose.of_session(self.conversation.session), asked_at(state))

    async def pending(self) -> tuple[PendingApproval, ...]:
        """Return the items that wait for people."""
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
        """Return an agent with the tools of the calls."""
        return Agent(self.conversation.session.agent_name, tools=[self._tool(tool) for tool in gates.tools])

    def _tool(self, tool: KeptTool) -> Tool[..., Any]:
        schema = {"type": "object", "properties": {}, **tool.parameters}
        return Tool(
            tool.name,
            description=tool.description or tool.name,
            input=Annotated[JSONObject, AfterValidator(checked_by(schema)), WithJsonSchema(schema)],
            approval=lambda call: self._approval(call),
        )

    def _approval(self, call: ToolCall) -> Approval:
        rule = self.approval
        found = rule(call) if callable(rule) else rule
        return _ANYBODY if found is None else found


def _state(agent: Agent, gates: KeptGates, kept: tuple[Question, ...], new: Sequence[Question] = ()) -> LoopState:
    """Return the state of a step's gates: stored and new ones."""
    asking = Message(role="assistant", tool_calls=gates.calls)
    state = begin_state(agent, [asking], kept, recovering=False, used=None)
    return state.gated((*state.questions, *new), gates.refused)


def _verdict(state: LoopState, call: ToolCall) -> Verdict:
    gate = state.verdict(call)
    if gate is None:
        return Verdict(refused=state.refused.get(call.id, "Not run: no one was asked"))
    if gate.status != "approved":
        return Verdict(refused=refusal(gate))
    by = gate.approved_by if gate.edit is None or gate.editor is None else (gate.editor,)
    return Verdict(edit=gate.edit, by=by)


def _verdict_told(told: ToolReturnPart | None) -> Verdict:
    """Return the verdict on a call, from its result as the model has read it."""
    if told is not None and told.outcome == "denied":
        return Verdict(refused=told.model_response_str())
    content = None if told is None else told.content
    if isinstance(content, dict) and set(content) == {"note", "arguments", "result"}:
        return Verdict(edit=content["arguments"])
    return Verdict()
