"""Carries out one run in this process. No rule about agents is made here; `agent_loop` decides, this does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, cast
from uuid import uuid4

from holdfast.agent_loop import (
    AskHuman,
    CallModel,
    CallTools,
    Finish,
    LoopState,
    answer_message,
    next_action,
    read_transcript,
    with_notices,
)
from holdfast.agents import Agent, AgentContext, AgentIdentity
from holdfast.checkpoints import Checkpoint, InterruptedResponse, Question, RunResult
from holdfast.errors import HoldfastError, InputError, InterruptError
from holdfast.llm import LLM, LLMAdapter, StreamingLLMAdapter, adapter_for, tools_to_descriptions
from holdfast.local.events import CheckpointReached, Event, MessageAdded, TextDelta
from holdfast.local.sessions import Log, open_log
from holdfast.local.tool_calls import ToolCalls
from holdfast.messages import LLMResponse, Message, ToolCall, Usage, clean_text
from holdfast.stores.protocol import AgentStore
from holdfast.tools import ToolContext

Transcript = Sequence[Message | Mapping[str, Any]]


class RunOptions(TypedDict, total=False):
    """What `run`, `resume` and `run_streaming` take besides what the run is about; see `run`."""

    llm: LLM | None
    store: AgentStore | None
    session_id: str | None
    create_session: bool
    max_stored_messages: int
    user_id: str | None
    tenant_id: str | None
    tools: Mapping[str, Callable[..., Any]] | None
    instance_id: str | None


class Run:
    """One run, from opening its session to its result."""

    def __init__(
        self,
        agent: Agent,
        *,
        llm: LLM | None = None,
        store: AgentStore | None = None,
        session_id: str | None = None,
        create_session: bool = True,
        max_stored_messages: int = 200,
        user_id: str | None = None,
        tenant_id: str | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        instance_id: str | None = None,
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        if not isinstance(agent, Agent):
            raise InputError(f"run() needs an Agent, got {agent!r}")
        self._agent = agent
        self._llm = llm
        self._adapter: LLMAdapter = adapter_for(llm, agent)
        self._store = store
        self._session_id = session_id
        self._create_session = create_session
        self._keep = max_stored_messages
        self._injected = dict(tools or {})
        self._tools = {
            name: tool.with_handler(self._injected[name]) if name in self._injected else tool
            for name, tool in agent.tool_map.items()
        }
        self._descriptions = tools_to_descriptions(self._tools)
        self._is_heard = emit is not None
        self._emit = emit or (lambda event: None)
        self._context = AgentContext(
            AgentIdentity(instance_id or uuid4().hex, agent.name), agent.new_state(), user_id, tenant_id
        )
        self._transcript: list[Message] = []
        self._unwritten: list[Message] = []
        self._view: list[Message] = []
        self._call_ids: set[str] = set()
        self._counts: dict[str, int] = {}
        self._compressions = 0
        self._nested_usage: Usage | None = None
        self._log: Log

    async def go(
        self,
        *,
        message: str | None = None,
        messages: Transcript | None = None,
        checkpoint: Checkpoint | Mapping[str, Any] | str | None = None,
        answer: str | None = None,
    ) -> RunResult | InterruptedResponse:
        """Run to the end, or to a question."""
        if checkpoint is not None:
            checkpoint = _read_checkpoint(checkpoint)
            if messages is not None:
                raise InputError("give messages= or checkpoint=, not both")
            if self._store is not None and self._session_id is None:
                self._session_id = checkpoint.session_id
        for what, text in (("message", message), ("answer", answer)):
            self._check_text(what, text)
        async with open_log(
            self._store,
            self._agent,
            self._session_id,
            create=self._create_session,
            user_id=self._context.user_id,
            tenant_id=self._context.tenant_id,
        ) as self._log:
            state = self._begin(messages, checkpoint, message)
            await _call_hook(self._agent.on_start, self._context)
            system = Message(role="system", content=await self._agent.system_prompt(self._context))
            self._view = [system, *self._transcript]
            if answer is not None:
                state, message = await self._take_answer(state, answer)
            if message is not None and state.open_calls:
                # Orphans are answered before the user's new message, so that results follow their calls.
                state = await self._call_tools(state, cast(CallTools, next_action(state)))
            if message is not None:
                if state.questions:
                    raise self._waits_for_answer(state.questions)
                state = state.told()
                self._add(Message(role="user", content=clean_text(message)))
            return await self._loop(state)

    # --- where the run begins ---

    def _begin(self, messages: Transcript | None, checkpoint: Checkpoint | None, message: str | None) -> LoopState:
        log, agent = self._log, self._agent
        state = LoopState(loop=agent.loop, tools=self._tools, on_terminal_tool_error=agent.on_terminal_tool_error)
        questions = log.session.questions or ()
        imported = checkpoint.messages if checkpoint is not None else messages
        if checkpoint is not None:
            state = replace(
                state,
                iterations=checkpoint.iterations,
                usage=checkpoint.usage if checkpoint.usage.total_tokens else None,
            )
        if not log.is_new:
            self._context.state = agent.read_state(log.session.state)
            self._transcript = list(log.messages)
            if messages is not None:
                raise InputError(
                    f"Session {log.session.id} has messages of its own: leave messages= out, or session_id="
                )
            if checkpoint is not None:
                _check_same_question(log.session.id, questions, checkpoint)
        elif imported is not None:
            self._transcript = read_transcript(imported)
            self._unwritten = list(self._transcript)
            questions = _questions_of(checkpoint) if checkpoint is not None else ()
        elif message is None:
            raise InputError("nothing to run: give message=, messages=, checkpoint=, or the session_id of a session")
        self._call_ids = {call.id for earlier in self._transcript for call in earlier.tool_calls or ()}
        state = state.fold(self._transcript, recovering=not log.is_new, questions=questions)
        if message is not None and questions:
            raise self._waits_for_answer(questions)
        if message is not None and state.open_calls and log.is_new:
            raise InputError(
                f"the transcript ends with unanswered tool calls ({', '.join(call.id for call in state.open_calls)}): "
                "run it without message= first"
            )
        return state

    def _check_text(self, what: str, text: str | None) -> None:
        if text is None:
            return
        if not isinstance(text, str):
            raise InputError(f"{what} must be text, got {type(text).__name__}")
        limit = self._agent.loop.max_message_bytes
        if len(text) > limit // 4 and len(text.encode(errors="replace")) > limit:
            raise InputError(
                f"{what} is longer than max_message_bytes={limit:,}: shorten it, or raise Loop(max_message_bytes)"
            )

    def _waits_for_answer(self, questions: Sequence[Question]) -> InputError:
        where = f"Session {self._log.session_id}" if self._log.session_id else "The run"
        return InputError(
            f"{where} waits for the answer to {questions[0].question!r} (call {questions[0].tool_call_id}): "
            "give it with resume(agent, checkpoint, answer) before a new message. "
            "run() without message= returns the checkpoint."
        )

    async def _take_answer(self, state: LoopState, answer: str) -> tuple[LoopState, str | None]:
        """Put an answer where it belongs; without a question it is a message, and an empty one nothing."""
        if not state.questions:
            return state, answer or None
        question = state.questions[0]
        state = state.answered()
        text = clean_text(answer)
        if question.tool_call_id is None:
            result = Message(role="user", content=text)
        else:
            name = next(
                (call.name for earlier in reversed(self._transcript) for call in earlier.tool_calls or ()
                 if call.id == question.tool_call_id), None)  # fmt: skip
            result = Message(
                role="tool", content=text, tool_call_id=question.tool_call_id, tool_name=name, status="completed"
            )
        self._add(result)
        await self._write(state.questions)
        return state, None

    # --- the loop ---

    async def _loop(self, state: LoopState) -> RunResult | InterruptedResponse:
        while True:
            match next_action(state):
                case CallModel() as action:
                    state = await self._call_model(state, action)
                case CallTools() as action:
                    state = await self._call_tools(state, action)
                    if self._is_heard and state.iterations % self._agent.loop.checkpoint_interval == 0:
                        self._emit(CheckpointReached(self._checkpoint(state)))
                case AskHuman(question):
                    if self._unwritten:
                        await self._write(state.questions)
                    await self._log.close(self._keep, len(self._transcript))
                    return InterruptedResponse(question.question, self._checkpoint(state), self._log.session_id)
                case Finish() as finish:
                    return await self._finish(state, finish)

    async def _call_model(self, state: LoopState, action: CallModel) -> LoopState:
        self._view = with_notices(self._view, action.warning, action.nudge)
        try:
            await self._compress()
            response = LLMResponse.read(await self._chat())
        except Exception as error:
            return state.failed(clean_text(str(error)) or type(error).__name__)
        message = answer_message(
            response,
            turn=len(self._transcript),
            taken=self._call_ids,
            tools=self._tools.keys(),
            limit=self._agent.loop.max_message_bytes,
        )
        self._add(message)
        for call in message.tool_calls or ():
            self._call_ids.add(call.id)
            self._counts[call.name] = self._counts.get(call.name, 0) + 1
        if message.tool_calls:  # a final text is written with the state that on_complete leaves
            await self._write()
        return state.replied(message)

    async def _chat(self) -> LLMResponse | Mapping[str, Any]:
        settings = self._agent.settings
        view = list(self._view)  # the adapter's own: it may keep or change it
        if not self._is_heard:
            return await self._adapter.chat(view, self._descriptions, **settings)
        if not isinstance(self._adapter, StreamingLLMAdapter):
            response = LLMResponse.read(await self._adapter.chat(view, self._descriptions, **settings))
            if response.text:
                self._emit(TextDelta(clean_text(response.text)))
            return response
        answer: LLMResponse | Mapping[str, Any] | None = None
        async for part in self._adapter.stream(view, self._descriptions, **settings):
            if isinstance(part, str):
                self._emit(TextDelta(clean_text(part)))
            else:
                answer = part
        if answer is None:
            raise HoldfastError("The adapter's stream ended without the whole answer as its last value")
        return answer

    async def _compress(self) -> None:
        rule = self._agent.loop.context_compression
        if rule is None:
            return
        system, rest = self._view[0], self._view[1:]
        too_many = rule.max_messages is not None and len(rest) > rule.max_messages
        if not too_many:
            limit = rule.max_token_estimate
            if limit is None or sum(len(message.content) for message in rest) / 4 <= limit:
                return
        result = rule.compress(tuple(rest))
        shorter = await result if isinstance(result, Awaitable) else result
        if not shorter:
            raise HoldfastError("Context compression returned empty message array")
        self._view = [system, *shorter]
        self._compressions += 1

    async def _call_tools(self, state: LoopState, action: CallTools) -> LoopState:
        seq = self._log.last_seq + len(self._unwritten)
        answered = 0
        while self._transcript[-1 - answered].role == "tool":
            answered += 1
        answer = self._transcript[-1 - answered]
        positions = {call.id: position for position, call in enumerate(answer.tool_calls or ())}

        def context(call: ToolCall, attempt: int) -> ToolContext:
            identity = self._context
            run_key = self._log.session_id or identity.agent.id
            return ToolContext(
                agent_name=identity.agent.name,
                agent_id=identity.agent.id,
                session_id=self._log.session_id,
                tool_call_id=call.id,
                idempotency_key=f"{run_key}/{seq - answered}.{positions[call.id]}/{call.id}",
                user_id=identity.user_id,
                tenant_id=identity.tenant_id,
                attempt=attempt,
                agents=self,
            )

        calls = ToolCalls(self._tools, state, context, self._emit if self._is_heard else None)
        try:
            await calls.run(action)
        except asyncio.CancelledError:
            # What is known is kept, so that the session can be resumed; a second cancel does not undo this write.
            outcomes = calls.outcomes()
            self._add(*state.results(outcomes))
            await asyncio.shield(self._write(state.settled(outcomes).questions))
            raise
        outcomes = calls.outcomes()
        self._add(*state.results(outcomes))
        state = state.settled(outcomes)
        await self._write(state.questions)
        if self._nested_usage is not None:
            state, self._nested_usage = state.spent(self._nested_usage), None
        return state

    async def invoke(
        self,
        agent: Agent,
        *,
        message: str,
        instance_id: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
    ) -> dict[str, str]:
        """Run another agent for a tool of this one: `ctx.agents.invoke`. It keeps no session of its own."""
        child = Run(
            agent,
            llm=self._llm,
            tools=self._injected,
            instance_id=instance_id,
            user_id=self._context.user_id if user_id is None else user_id,
            tenant_id=self._context.tenant_id if tenant_id is None else tenant_id,
        )
        result = await child.go(message=message)
        if isinstance(result, InterruptedResponse):
            self._count_usage(result.checkpoint.usage)
            raise InterruptError(result.question)
        self._count_usage(result.usage)
        if result.status != "complete":
            raise HoldfastError(f"Agent '{agent.name}' ended with {result.status}: {result.response}")
        return {"response": result.response}

    def _count_usage(self, usage: Usage | None) -> None:
        if usage is not None:
            self._nested_usage = usage + self._nested_usage

    # --- what is recorded ---

    def _add(self, *messages: Message) -> None:
        self._transcript.extend(messages)
        self._view.extend(messages)
        self._unwritten.extend(messages)

    async def _write(self, questions: tuple[Question, ...] = ()) -> None:
        messages, self._unwritten = self._unwritten, []
        await self._log.write(messages, self._agent.write_state(self._context.state), questions)
        if self._is_heard:
            for index, message in enumerate(messages, len(self._transcript) - len(messages)):
                self._emit(MessageAdded(index, message))

    def _checkpoint(self, state: LoopState) -> Checkpoint:
        return Checkpoint(
            messages=tuple(self._transcript),
            iterations=state.iterations,
            usage=state.usage or Usage(),
            pending_tool_use_id=state.questions[0].tool_call_id if state.questions else None,
            questions=state.questions or None,
            session_id=self._log.session_id,
        )

    # --- how the run ends ---

    async def _finish(self, state: LoopState, finish: Finish) -> RunResult:
        output, status = None, finish.status
        try:
            if status == "complete":
                try:
                    output = self._agent.read_output(finish.response)
                except ValueError:
                    status = "error"
                else:
                    await _call_hook(self._agent.on_complete, self._context)
            elif status != "error":
                await _call_hook(self._agent.on_stuck, self._context)
        finally:
            changed = self._agent.write_state(self._context.state) != self._log.session.state
            if finish.status != "error" and (self._unwritten or changed):
                await self._write()
        await self._log.close(self._keep, len(self._transcript))
        if finish.error is not None:
            raise finish.error
        budget = self._agent.loop.budget
        return RunResult(
            status=status,
            response=finish.response,
            messages=tuple(self._transcript),
            iterations=state.iterations,
            checkpoint=self._checkpoint(state),
            session_id=self._log.session_id,
            usage=state.usage,
            budget_percent=state.usage.total_tokens / budget.max * 100 if budget and state.usage else None,
            output=output,
            tool_call_summary=dict(self._counts) or None,
            compression_count=self._compressions if self._agent.loop.context_compression else None,
        )


async def _call_hook(hook: Callable[[AgentContext], object] | None, context: AgentContext) -> None:
    result = None if hook is None else hook(context)
    if isinstance(result, Awaitable):
        await result


def _read_checkpoint(checkpoint: Checkpoint | Mapping[str, Any] | str) -> Checkpoint:
    try:
        if isinstance(checkpoint, str):
            return Checkpoint.model_validate_json(checkpoint)
        return Checkpoint.model_validate(checkpoint)
    except ValueError as error:
        raise InputError(f"checkpoint is no Checkpoint: {error}") from error


def _questions_of(checkpoint: Checkpoint) -> tuple[Question, ...]:
    if checkpoint.questions:
        return checkpoint.questions
    if checkpoint.pending_tool_use_id is None:
        return ()
    return (Question(question="", tool_call_id=checkpoint.pending_tool_use_id),)


def _check_same_question(session_id: str, open_now: Sequence[Question], checkpoint: Checkpoint) -> None:
    asked = [question.tool_call_id for question in _questions_of(checkpoint)]
    if asked and (not open_now or open_now[0].tool_call_id != asked[0]):
        raise InputError(
            f"Session {session_id} does not wait for an answer to call {asked[0]} any more: it was answered, or the "
            "session went on. run() without message= returns where it is."
        )
