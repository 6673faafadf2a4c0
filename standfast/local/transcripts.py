"""Holds the messages of an in-process run, and writes them to its session."""

from collections.abc import Callable, Sequence, Set

from standfast.agent_loop import CallModel, LoopState, answer_message, in_call_order, unanswered
from standfast.agents import Agent, AgentContext
from standfast.checkpoints import Checkpoint, Question, signed
from standfast.events import Event, MessageAdded
from standfast.local.model_calls import ModelCalls
from standfast.local.sessions import Log
from standfast.messages import LLMResponse, Message, Usage
from standfast.runtime.dependencies import heard_in


class RunTranscript:
    """The messages of a run, shown to its model and written to its session.

    Args:
        log: the session's log.
        model: sees every message that is added.
        agent: the agent that runs; checkpoints are signed for it.
        context: has the agent's state, which is written with every message.
        key: signs checkpoints; None if they are not signed.
    """

    def __init__(
        self,
        log: Log,
        model: ModelCalls,
        agent: Agent,
        context: AgentContext,
        emit: Callable[[Event], None] | None,
        key: bytes | None,
    ) -> None:
        self.log = log
        self.messages: list[Message] = []
        self.unwritten: list[Message] = []
        self.call_ids: set[str] = set()
        self.said_in: str | None = None  # of the run, as JSON
        self._model = model
        self._agent, self._context = agent, context
        self._emit = emit
        self._key = key

    def state(self) -> str:
        """Return the agent's state as text."""
        return self._agent.write_state(self._context.state)

    def begin(self, messages: Sequence[Message], unwritten: Sequence[Message]) -> None:
        """Start with these messages. The last ones, `unwritten`, are not in the session yet."""
        self.messages, self.unwritten = list(messages), list(unwritten)
        self.call_ids = {call.id for message in messages for call in message.tool_calls or ()}

    def add(self, added: Sequence[Message]) -> None:
        messages = heard_in(self.said_in, added)
        self.messages.extend(messages)
        self.unwritten.extend(messages)
        self.call_ids.update(call.id for message in messages for call in message.tool_calls or ())
        self._model.add(messages)

    def answer(self, response: LLMResponse, action: CallModel, tools: Set[str]) -> Message:
        """Return the model's answer as the next message; `tools` are the names that exist."""
        return answer_message(
            response,
            turn=self.log.last_seq + len(self.unwritten),  # so that ids do not repeat after pruning
            taken=self.call_ids,
            tools=tools,
            limit=self._agent.loop.max_message_bytes,
            model=action.model,
            agent=action.agent or None,
        )

    async def take_answer(
        self, question: Question, answer: str, by: str | None, questions: tuple[Question, ...]
    ) -> None:
        """Write a person's answer, and the questions that are still open."""
        if question.tool_call_id is None:
            result = Message(role="user", content=answer, by=by)
        else:
            names = {call.id: call.name for call in unanswered(self.messages)}
            result = Message(
                role="tool",
                content=answer,
                tool_call_id=question.tool_call_id,
                tool_name=names.get(question.tool_call_id),
                status="completed",
                usage=question.usage,
                by=by,
            )
        self.add([result])
        await self.write(questions)
        # An answer is written when it arrives, which may be after the results of later calls.
        self.put_in_order()

    def put_in_order(self) -> None:
        """Move late results to their calls."""
        self.messages = in_call_order(self.messages)
        self._model.put_in_order()

    async def write(self, questions: tuple[Question, ...] = ()) -> None:
        """Write new messages, the agent's state and open questions, all or nothing."""
        messages, self.unwritten, before = self.unwritten, [], self.log.last_seq
        try:
            await self.log.write(messages, self.state(), questions)
        except BaseException:
            if self.log.last_seq == before:  # a cancelled write may still have landed
                self.unwritten = messages + self.unwritten
            raise
        if self._emit is not None:
            for index, message in enumerate(messages, len(self.messages) - len(messages)):
                self._emit(MessageAdded(index, message))

    async def hear(self, state: LoopState) -> LoopState:
        """Add the messages that were sent to the session's earlier Temporal runs and that no run has read."""
        unheard = self.log.unheard if state.is_at_rest else None
        if unheard is None or not (kept := await unheard.take(self.messages)):
            return state
        self.add([one.message for one in kept])
        await self.write()
        await unheard.hear([one.message for one in kept])
        return state.with_user_message()

    async def write_rest(self, state: LoopState) -> None:
        """Write new messages, if there are any."""
        if self.unwritten:
            await self.write(state.kept_questions)

    def checkpoint(self, state: LoopState) -> Checkpoint:
        """Return the run as plain JSON, without questions that have been answered since `state`."""
        waiting = {None, *(call.id for call in unanswered(self.messages))}
        questions = tuple(one for one in state.kept_questions if one.is_held or one.tool_call_id in waiting)
        asked = [one for one in questions if one.is_open]
        made = Checkpoint(
            messages=tuple(self.messages),
            iterations=state.iterations,
            usage=state.usage or Usage(),
            pending_tool_use_id=asked[0].tool_call_id if asked else None,
            questions=questions or None,
            session_id=self.log.session_id if self.log.is_stored else None,
        )
        return signed(made, self._agent.name, self._key)
