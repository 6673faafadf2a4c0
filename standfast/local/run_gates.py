"""Opens the gates of an in-process run before its calls run, and closes them by people's decisions."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from standfast.agent_loop import (
    NOBODY_TO_ASK,
    CallPlace,
    Decision,
    Gate,
    Held,
    LoopState,
    last_answer,
    last_speaker,
    question_about,
)
from standfast.agents import Agent, AgentContext
from standfast.events import Event
from standfast.local.answers import guardrails_in
from standfast.local.gates import Standing, asked_at, at_gates, requesters_of
from standfast.local.transcripts import RunTranscript
from standfast.messages import ToolCall
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.standing_approvals import decided_in_advance
from standfast.runtime.stored_gates import Whose, show_gates
from standfast.runtime.users_functions import ask_at_gates
from standfast.stores.protocol import AgentStore, DurableStore


class RunGates:
    """The gates of a run. Every question and decision is written to the transcript before a call runs.

    Args:
        is_invoked: a tool has started the run, so no person can be asked.
        emit: receives decisions and escalations.
    """

    def __init__(
        self,
        agent: Agent,
        context: AgentContext,
        store: AgentStore | None,
        transcript: RunTranscript,
        *,
        is_invoked: bool,
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        self._agent = agent
        self._context = context
        self._store = store
        self._transcript = transcript
        self._is_invoked = is_invoked
        self._emit: Callable[[Event], None] = (lambda event: None) if emit is None else emit
        self._earlier: list[str | None] = []  # requesters of earlier calls; without a store, only the gates name them

    def _asking(self, state: LoopState) -> Agent:
        """Return the agent of the conversation whose calls, or whose answer, are at the gates."""
        is_next = any(question.is_held for question in state.gates)
        return self._agent.speaking(state.agent if is_next else last_speaker(self._transcript.messages))

    @property
    def _kept(self) -> Kept:
        """The audit trail of the session."""
        ledger = self._store if self._store is not None and self._store.durable else None
        return Kept(f"{self._agent.name}/{self._transcript.log.session.id}", cast("DurableStore | None", ledger))

    async def decide(self, decisions: Sequence[Decision], state: LoopState) -> LoopState:
        """Apply decisions. Each approval is written before its call runs; only one run of a session can write it."""
        have_run = {message.tool_call_id for message in self._transcript.messages if message.status == "completed"}
        standing = Standing(self._store, self._place)
        agent = self._asking(state)
        check = guardrails_in(agent, self._context).verdicts_on
        decided = await at_gates(state, decisions, agent, self._kept, have_run, standing, check, self._emit)
        self._earlier += requesters_of(decided)
        await self._show(decided)
        if decided.kept_questions != state.kept_questions:
            await self._transcript.write(decided.kept_questions)
        return decided

    async def _show(self, state: LoopState) -> None:
        """Show waiting gates on the board before the transcript has them, so a waiting gate is never hidden."""
        await show_gates(self._store, Whose.of_session(self._transcript.log.session), asked_at(state))

    async def open(self, state: LoopState, calls: tuple[ToolCall, ...], claimed: Sequence[Gate] = ()) -> LoopState:
        """Find out who must approve the calls, and write the gates with the calls.

        Args:
            claimed: the gates of an unsigned checkpoint; with a store, their time starts again.
        """
        requesters = await self._requesters(claimed)
        since = {gate.name: gate.opened or gate.since for gate in claimed} if self._store is None else {}
        options: dict[str, Any] = {"at": datetime.now(UTC), "requesters": requesters, "asked_at": since}
        last = last_answer(messages := self._transcript.messages)
        tripped = () if last is None else messages[last].tripped or ()
        questions, refused = await ask_at_gates(self._asking(state), calls, tripped=tripped, **options)
        if self._is_invoked:
            state = state.gated(questions, refused).unattended(NOBODY_TO_ASK)
        else:
            asked = await decided_in_advance(self._store, questions, calls, self._place)
            state = state.gated(asked, refused)
        await self._show(state)
        await self._transcript.write(state.kept_questions)
        is_decided = any(question.gate and "advance" in question.gate for question in state.gates)
        return await self.decide((), state) if is_decided else state

    async def hold(self, state: LoopState, held: Held, claimed: Gate | None = None) -> LoopState:
        """Ask people about what guardrails have stopped, and write the question with the user's messages.

        Args:
            claimed: the gate of an unsigned checkpoint.
        """
        agent, number = self._agent.speaking(state.agent), self._last_seq + 1
        claims = [] if claimed is None else [claimed]
        asked_at = claimed.opened or claimed.since if claimed is not None and self._store is None else None
        requesters = await self._requesters(claims)
        question = question_about(agent, held, number, at=datetime.now(UTC), requesters=requesters, asked_at=asked_at)
        state = state.held(question)
        if self._is_invoked:
            return state.unattended(NOBODY_TO_ASK)
        await self._show(state)
        await self._transcript.write(state.kept_questions)
        return state

    async def _requesters(self, claimed: Sequence[Gate]) -> list[str | None]:
        """Return everyone who has sent the run a message, and the requesters that the gates of an unsigned checkpoint
        name.
        """
        spoke = [message.by for message in self._transcript.messages]
        users = [self._context.user_id, self._transcript.log.session.user_id]
        named = [person for gate in claimed for person in gate.requesters]
        return [*users, *spoke, *await self._kept.editors(), *self._earlier, *named]

    @property
    def _last_seq(self) -> int:
        return self._transcript.log.last_seq + len(self._transcript.unwritten)

    @property
    def _place(self) -> CallPlace:
        """The place of the calls. A run starts with the user's last message."""
        log, messages = self._transcript.log, self._transcript.messages
        after = next((place for place, one in enumerate(reversed(messages)) if one.role == "user"), len(messages))
        begun = self._last_seq - after
        session = log.session
        return CallPlace(
            agent=self._agent.name,
            run=f"{log.key}/{begun}",
            session=session.id,
            session_key=log.key,
            tenant_id=session.tenant_id,
            user_id=session.user_id,
        )
