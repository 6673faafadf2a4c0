"""Carries out one run in this process. The rules for agents are in `agent_loop`, not here."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from uuid import uuid4

from standfast.agent_loop import (
    AskApproval,
    AskHuman,
    CallModel,
    CallTools,
    Correct,
    Finish,
    Gate,
    Held,
    LoopState,
    OpenGates,
    Settled,
    ToolState,
    last_answer,
    last_speaker,
    next_action,
    not_carried_out,
    result_message,
)
from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import InterruptedResponse, Question, RunResult, check_key, show_checkpoint
from standfast.errors import InputError, StoreError, TerminalError
from standfast.events import CheckpointReached, RunStarted
from standfast.llm import tools_to_descriptions
from standfast.local.answers import Answers, Speakers
from standfast.local.gates import GivenDecision, RunGates, pending_approvals, read_decisions
from standfast.local.model_calls import ModelCalls
from standfast.local.sessions import Log, RunTranscript, open_log
from standfast.local.tool_calls import Invocations, NestedRuns, RunRequest, ToolCalls
from standfast.messages import Message, ToolCall, Usage, check_same, content_digest, error_text, read_usage
from standfast.runtime import inputs
from standfast.runtime.call_ledger import Fence, answer_all, results_of
from standfast.runtime.dependencies import begin_context, dependencies, in_context, kept_context, with_toolsets
from standfast.runtime.inputs import RunInput
from standfast.runtime.message_ids import Heard, MessageAnswer, check_can_hear_once, find_heard, keep_ending
from standfast.runtime.model_answers import UsageNotes, called_agents, noted_usage
from standfast.runtime.session_states import at_home, begin_state
from standfast.runtime.tasks import Cancellation, retry_write, to_the_end
from standfast.runtime.users_functions import call_users, output_problem
from standfast.stores.protocol import has_ledger
from standfast.tools import AgentInvoker, Cancelled, Failed, KeptState, Terminated, ToolContext, Unknown
from standfast.tools.calls import idempotency_key, read_outcome, turn_scope

_LOG = logging.getLogger("standfast")


class Run:
    """One run, from opening its session to its result."""

    def __init__(self, request: RunRequest) -> None:
        inputs.check_given(request.agent, request.user_id, request.max_stored_messages, request.tools)
        agent = request.agent
        identity = AgentIdentity(request.instance_id or uuid4().hex, agent.name)
        self._request, self._key = request, check_key(request.checkpoint_key)
        self._context = AgentContext(identity, agent.new_state(), request.user_id, request.tenant_id)
        self._speaks = _speaking(request)
        self._open: OpenRun | None = None

    @property
    def usage(self) -> Usage | None:
        """The usage so far, including that of a failed run; None if it called no model."""
        return None if self._open is None else self._open.usage

    async def go(
        self,
        *,
        message: str | None = None,
        message_id: str | None = None,
        images: inputs.Images = (),
        messages: inputs.Transcript | None = None,
        checkpoint: inputs.GivenCheckpoint | None = None,
        answer: str | None = None,
        decisions: Sequence[GivenDecision] = (),
    ) -> RunResult:
        """Run to the end, or to a question."""
        request = self._request
        given = inputs.RunInput.read(
            message,
            messages,
            checkpoint,
            answer,
            read_decisions(decisions),
            images=images,
            message_id=message_id,
            limit=request.agent.loop.max_message_bytes,
            agent=request.agent.name,
            key=self._key,
        )
        given, session_id = await at_home(given, request.store, request.session_id, self._context.tenant_id)
        if given.message_id is not None:
            check_can_hear_once(request.store, session_id)
        async with (
            with_toolsets(request.agent, request.store if request.home is None else request.home) as agent,
            open_log(request.store, agent, session_id, create=request.create_session, who=self._context) as log,
        ):
            self._context.session_id = log.session_id
            if agent is not request.agent:  # with the tools of its toolsets
                request = replace(request, agent=agent)
                self._speaks = _speaking(request)
            self._open = OpenRun(request, log, self._context, self._key, *self._speaks)
            return await self._open.go(given)


def _speaking(request: RunRequest) -> tuple[Speakers, ModelCalls]:
    """Return the agents of a run's conversation and their model.

    Raises:
        DefinitionError: a tool has no handler, or the agent no model.
    """
    speakers = Speakers(request.agent, request.handlers)
    tools = tools_to_descriptions(speakers.tools(""))
    return speakers, ModelCalls(request.agent.speaking(), request.llm, tools, request.emit, request.max_answer_tokens)


class OpenRun:
    """A run whose session is open.

    Attributes:
        usage: so far; None if it called no model.
    """

    def __init__(
        self,
        request: RunRequest,
        log: Log,
        context: AgentContext,
        key: bytes | None,
        speakers: Speakers,
        model: ModelCalls,
    ) -> None:
        agent, emit = request.agent, request.emit
        self._request, self._agent, self._log, self._context = request, agent, log, context
        self._speakers, self._model = speakers, model
        self._transcript = RunTranscript(log, self._model, agent, context, emit, key)
        self._answers = Answers(agent, self._speakers, self._model, self._transcript, context)
        is_invoked = request.invoked_by is not None
        self._gates = RunGates(agent, context, request.store, self._transcript, is_invoked=is_invoked, emit=emit)
        self._counts = Counter[str]()  # how often each tool was requested
        self._nested_usage: dict[str, Usage] = {}  # usage of the agents that the turn's calls ran, by the call's id
        self._terminal: TerminalError | None = None
        self._state: LoopState  # the state before the current action
        self.usage: Usage | None = None

    async def go(self, given: inputs.RunInput) -> RunResult:
        """Run to the end, or to a question."""
        context = self._request.context
        if (heard := await self._heard(given)) is not None:
            given, context = given.without_message(), None
        self._state = self._begin(given, context)
        if heard is not None and heard.answer is not None:
            if given.is_signed or self._state.is_at_rest:  # other calls may need checks that a run makes
                await self._transcript.write_rest(self._state)
                await self._log.flush()
            return self._answered_before(heard.answer)
        try:
            async with dependencies(self._agent, self._context):
                await call_hook(self._agent.on_start, self._context)
                result = await self._run(given)
        except Exception as error:  # tools may have run: the error carries their results
            show_checkpoint(error, self._transcript.checkpoint(self._state))
            raise
        if self._log.has_written:
            await self._log.prune(self._agent, self._transcript.messages, self._request.max_stored_messages)
        return result

    async def _run(self, given: inputs.RunInput) -> RunResult:
        prompt = await self._speakers.let_speak(self._state.agent, self._model, self._context)
        if self._request.emit is not None:
            self._request.emit(RunStarted(self._agent.name, given.message, user_id=self._context.user_id))
        try:
            system = Message(role="system", content=prompt)
            self._model.show([system, *self._transcript.messages])  # an unfinished turn may end before a new message
            state = await self._take_in(given, await self._take_results(self._state))
            self._model.show([system, *self._transcript.messages])
            return await self._loop(state)
        finally:
            await self._log.flush()

    # --- the start of the run ---

    async def _heard(self, given: inputs.RunInput) -> Heard | None:
        """Return the outcome of the message, if the session already has it."""
        if given.message_id is None:
            return None
        log, said = self._log, given.user_message(self._context.user_id)
        transcript = given.messages or [] if log.is_new else [*log.messages, *given.not_in(log.messages)]
        store, is_pruned = self._request.store, log.is_pruned
        return await find_heard(said, transcript, self._agent, log.session, store, is_pruned=is_pruned)

    def _answered_before(self, answer: MessageAnswer) -> RunResult:
        """Return the result of the message, and the session in its current state."""
        result = run_result(
            self._agent, answer.state, answer.finish, answer.ending, answer.problem, self._transcript, {}, None
        )
        return replace(result, checkpoint=self._transcript.checkpoint(self._state))

    def _begin(self, given: inputs.RunInput, context: object) -> LoopState:
        """Return the state from which the run starts, and show its transcript. This neither acts nor writes."""
        log, questions = self._log, given.credible_questions
        if not log.is_new:
            self._context.state = self._agent.read_state(log.session.state)
            questions = log.session.questions or ()
            given.check_goes_on(str(log.session_id), questions)
            new = given.not_in(log.messages)
            given.check_session(str(log.session_id), questions, log.messages)
        elif given.checkpoint is not None and given.checkpoint.session_id is not None:
            raise InputError(f"the checkpoint belongs to session {log.session_id}, which is not in this store")
        else:
            new = given.messages or []
            given.check_questions()
        self._transcript.said_in, new = begin_context(self._agent, context, log.messages, new, given)
        self._transcript.begin([*log.messages, *new], new)
        self._context.context = self._agent.read_context(self._transcript.said_in)
        if not self._transcript.messages and given.message is None:
            is_named = self._request.session_id is not None
            where = f"session {log.session_id} has no messages yet" if is_named else "no session was named"
            raise InputError(f"nothing to run, {where}: give message=, messages= or checkpoint= to begin")
        state = begin_state(
            self._agent,
            self._transcript.messages,
            questions,
            recovering=not log.is_new,
            used=log.session.used_by(self._transcript.unwritten),
            tools=self._speakers.tools(last_speaker(self._transcript.messages)),
            checkpoint=given.checkpoint,
        )
        if given.message is not None and not state.gates:  # people may have decided elsewhere
            inputs.check_may_speak(state, self._log.session_id)
        return state

    async def _take_in(self, given: inputs.RunInput, state: LoopState) -> LoopState:
        """Add the answer or the message. An answer without a question is a message; an empty one adds nothing."""
        message = given.message
        if not given.is_signed:
            state = await take_claims(given, state, self._transcript, self._answers, self._gates)
        if state.gates or given.decisions:
            state = await self._gates.decide(given.decisions_as_shown, state)
        if given.answer is not None and state.gates:
            what = "" if state.gates[0].is_held else "call "
            raise InputError(
                f"{what}{state.gates[0].tool_call_id} waits to be approved, not for an answer: give decisions=[…]"
            )
        if given.answer is not None and state.questions:
            question, state = state.questions[0], state.answered()
            await self._transcript.take_answer(question, given.answer, self._context.user_id, state.kept_questions)
        elif given.answer:
            message = given.answer
        if message is None:
            return await self._transcript.hear(state)
        if not state.is_at_rest:
            # Orphans are answered before the user's new message, so that results follow their calls.
            state = await self._end_turn(state)
        state = await self._transcript.hear(state)
        said = replace(given, message=message).user_message(self._context.user_id)
        if said.message_id is not None:  # a Temporal run may have received it without passing it to the model
            for heard in [one for one in self._transcript.messages if one.message_id == said.message_id]:
                check_same(said, content_digest(heard), heard.by)
                return state
        self._transcript.add([said])
        return state.with_user_message()

    async def _take_results(self, state: LoopState) -> LoopState:
        """Write the ledger's results of open calls. An earlier run was lost before it could write them."""
        if not state.open_calls or self._log.is_new or not has_ledger(self._request.store):
            return state
        found = await results_of(self._request.store, *self._coordinates(), state.open_calls)
        if not found:
            return state
        limit, states = self._agent.loop.max_message_bytes, list[KeptState]()
        for call in (call for call in state.open_calls if call.id in found):
            written = found[call.id]
            states += [KeptState(*written["state"])] if "state" in written else []
            result = result_message(call, read_outcome(written), limit, read_usage(written.get("spent")))
            self._transcript.add([] if result is None else [result])
        if states:
            self._context.state = self._agent.read_state(max(states).text)
        state = state.found(found)
        await self._transcript.write(state.kept_questions)
        self._transcript.put_in_order()
        return state

    # --- the loop ---

    async def _loop(self, state: LoopState) -> RunResult:
        while True:
            self._state = state
            match next_action(state):
                case CallModel() as action:
                    state = await self._call_model(state, action)
                case OpenGates(calls):
                    state = await self._gates.open(state, calls)
                case AskApproval(gates):
                    return await self._interrupted(state, gates[0])
                case CallTools() as action:
                    state = await self._call_tools(state, action)
                    done = state.iterations
                    if self._request.emit is not None and done and done % self._agent.loop.checkpoint_interval == 0:
                        self._request.emit(CheckpointReached(self._transcript.checkpoint(state)))
                case AskHuman(question):
                    return await self._interrupted(state, question)
                case Finish() as finish:
                    refused = None if finish.answer is None else self._transcript.messages[-1].unfit
                    problem = None if refused else await output_problem(self._agent, finish.answer)
                    ending = state.judged(finish, problem, refused)
                    if isinstance(ending, Finish):
                        return await self._finish(state, finish, ending, refused or problem)
                    state = await self._correct(state, ending)

    async def _interrupted(self, state: LoopState, question: Question) -> InterruptedResponse:
        await self._transcript.write_rest(state)
        shown, waits = self._transcript.checkpoint(state), pending_approvals(state)
        return InterruptedResponse(question.question, shown, self._log.session_id, waits)

    async def _call_model(self, state: LoopState, action: CallModel) -> LoopState:
        try:
            message = await self._answers.next(action, state.iterations + 1)
        except BaseException:
            await to_the_end(partial(self._count_cut_off, state))
            raise
        if isinstance(message, Exception):
            state = state.failed(error_text(message))
            return state if state.ended is None else await self._count_cut_off(state)
        if isinstance(message, Held):
            return await self._gates.hold(state, message)
        self._transcript.add([message])
        self._counts.update(call.name for call in message.tool_calls or ())
        state = state.replied(message, self._speakers.tools(action.agent))
        self.usage = state.usage
        if self._request.note is not None and message.usage is not None:
            await self._request.note(message.usage)
        if message.tool_calls and not state.unasked:  # a final text is written with the state that on_complete leaves
            try:
                await self._transcript.write()
            except asyncio.CancelledError:
                await self._give_up(state, self._tool_calls(state, CallTools(())))
                raise
        return state

    async def _count_cut_off(self, state: LoopState) -> LoopState:
        """Count what was used by answers that were cut off, if no other answer has followed them."""
        if (used := self._model.take_cut_off()) is None:
            return state
        self._state = state = state.spent(used)
        self.usage = state.usage
        if self._request.note is not None:
            await self._request.note(used)
        try:
            await self._log.count(used)
        except Exception as error:  # it must not replace the reason why there is no answer
            _LOG.warning(
                "Agent %s: the usage of its session lacks an answer that was cut off: %s", self._agent.name, error
            )
        return state

    async def _count_noted(self, state: LoopState) -> None:
        """Count what agents used that were run by calls of a process that died."""
        scope, _ = self._coordinates()
        for call in state.open_calls:
            if (used := await noted_usage(self._request.store, called_agents(scope, call.id))) is not None:
                self._count_nested(call.id, used)

    async def _correct(self, state: LoopState, action: Correct) -> LoopState:
        self._transcript.add([Message(role="user", content=action.message)])
        await self._transcript.write()  # the answer was paid for, so it is kept even if the next one fails
        return state.corrected()

    async def _call_tools(self, state: LoopState, action: CallTools) -> LoopState:
        calls = self._tool_calls(state, action)
        if action.recovering:
            await self._count_noted(state)
        try:
            await self._transcript.write_rest(state)  # no handler runs before its call is stored
            await calls.run()
        except asyncio.CancelledError:
            await self._give_up(state, calls)
            raise
        cancellation = Cancellation()
        try:
            outcomes = await self._answered(calls, state)
        except StoreError:  # the error's checkpoint carries the results of calls that ran
            self._transcript.add(state.results(calls.outcomes(), self._nested_usage))
            raise
        self._take_state(calls)
        self._terminal = next((outcome.error for _, outcome in outcomes if isinstance(outcome, Terminated)), None)
        used, self._nested_usage = self._nested_usage, {}
        self._transcript.add(results := state.results(outcomes, used))
        state = state.settled(outcomes, used)
        await self._transcript.write(state.kept_questions)
        if self._transcript.messages[-len(results) - 1].role == "tool":  # some calls of the turn already had results
            self._transcript.put_in_order()
        if cancellation.requested():  # the results are written first
            raise asyncio.CancelledError
        for usage in used.values():
            state = state.spent(usage)
        self.usage = state.usage
        return state

    async def _end_turn(self, state: LoopState) -> LoopState:
        """Settle the rest of an earlier run's turn: its calls, or an answer that people have decided on.

        Raises:
            InputError: people must decide first, before or after it.
        """
        match next_action(state):
            case CallModel() as action:
                state = await self._call_model(state, action)
            case CallTools() as action:
                state = await self._call_left(state, action)
        inputs.check_may_speak(state, self._log.session_id)
        return state

    async def _call_left(self, state: LoopState, action: CallTools) -> LoopState:
        """Settle the calls that an earlier run has left, in the context in which it requested them."""
        before = kept_context(self._log.messages)
        if before in (None, self._transcript.said_in):
            return await self._call_tools(state, action)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(in_context(self._agent, self._context, before))
            except Exception as error:  # the session can continue without them
                action = not_carried_out(action, state.tools, self._agent.name, error_text(error))
            return await self._call_tools(state, action)

    def _tool_calls(self, state: LoopState, action: CallTools) -> ToolCalls:
        write = partial(self._transcript.write, state.kept_questions)
        fence = Fence(write, self._request.store, *self._coordinates())
        tools = self._speakers.tools(last_speaker(self._transcript.messages))
        kept = ToolState(self._agent, KeptState(0, self._transcript.state()))
        return ToolCalls(tools, state, action, self._contexts(), fence, self._request.emit, self._request.store, kept)

    def _take_state(self, calls: ToolCalls) -> None:
        if calls.agent_state.kept.number:
            self._context.state = calls.agent_state.read()

    async def _give_up(self, state: LoopState, calls: ToolCalls) -> None:
        """Store the known results when the run is cancelled, so that the session can be resumed."""
        outcomes = calls.outcomes()
        self._take_state(calls)
        try:
            outcomes = await self._answered(calls, state)
        except Exception as error:  # it must not replace the cancel
            _LOG.warning("Agent %s: calls that were not run are not in the ledger: %s", self._agent.name, error)
        self._transcript.add(state.results(outcomes, self._nested_usage))
        try:
            await self._transcript.write(state.asked(outcomes, self._nested_usage))
        except Exception as error:  # it must not replace the cancel
            _LOG.warning("Agent %s: results were lost when its run was cancelled: %s", self._agent.name, error)

    async def _answered(self, calls: ToolCalls, state: LoopState) -> list[Settled]:
        """Return the outcomes of a turn, after the outcomes of calls that did not run are in the ledger.

        A cancel does not interrupt this; the caller raises it afterwards.
        """
        outcomes = calls.outcomes()
        told = (one for one in state.recorded(outcomes) if one[0].id not in calls.begun)
        not_run = [one for one in told if isinstance(one[1], Failed | Cancelled | Unknown)]
        if not not_run or not self._log.is_stored or not has_ledger(self._request.store):
            return outcomes
        enter = partial(answer_all, self._request.store, *self._coordinates(), not_run, state.tools)
        counts = await to_the_end(partial(retry_write, enter, tries=3))
        return [(call, counts.get(call.id, outcome)) for call, outcome in outcomes]

    def _coordinates(self) -> tuple[str, dict[str, int]]:
        return coordinates(self._transcript.messages, self._last_seq, self._log.key)

    @property
    def _last_seq(self) -> int:
        return self._log.last_seq + len(self._transcript.unwritten)

    def _contexts(self) -> Callable[[ToolCall, int], ToolContext]:
        sampler = self._agent.samplers.get(last_speaker(self._transcript.messages) or self._agent.name)
        invoked_by = self._request.invoked_by if self._request.store is None else None
        return tool_contexts(
            self._transcript.messages,
            self._last_seq,
            journal_key=self._log.key if invoked_by is None else invoked_by,
            session_id=self._log.session_id,
            who=self._context,
            invoker=lambda key, call_id: self._invocations(key, call_id, sampler),
        )

    def _invocations(self, key: str, call_id: str, sampler: Agent | None) -> Invocations:
        request, notes, store = self._request, None, self._request.store
        if store is not None and store.durable and has_ledger(store):
            notes = UsageNotes(store, called_agents(self._coordinates()[0], call_id))
            request = replace(request, note=notes.usage)
        nested = NestedRuns(Run, request, self._context)
        return Invocations(
            nested, key, call_id, self._log.session_id, sampler, self._tokens_left, self._count_nested, notes
        )

    def _tokens_left(self) -> int | None:
        return self._state.tokens_left(*self._nested_usage.values())

    def _count_nested(self, call_id: str, usage: Usage) -> None:
        self._nested_usage[call_id] = usage + self._nested_usage.get(call_id)

    # --- the end of the run ---

    async def _finish(self, state: LoopState, finish: Finish, ending: Finish, problem: str | None) -> RunResult:
        try:
            if ending.hook is not None:
                self._context.agent = replace(self._context.agent, name=self._agent.name)
                await call_hook(getattr(self._agent, ending.hook), self._context)
        finally:
            changed = self._transcript.state() != self._log.session.state
            if finish.hook is not None and (self._transcript.unwritten or changed):
                await self._transcript.write()
        if self._log.is_stored:
            await keep_ending(self._request.store, self._log.session, self._transcript.messages, ending.status)
        if finish.raises and self._terminal is not None:
            raise self._terminal
        compressions = self._model.compressions if self._agent.loop.context_compression else None
        return run_result(self._agent, state, finish, ending, problem, self._transcript, self._counts, compressions)


async def take_claims(
    given: RunInput, state: LoopState, transcript: RunTranscript, answers: Answers, gates: RunGates
) -> LoopState:
    """Return the state of a run after its input was checked. Its session is new, unless it has gates.

    Anyone may have written a checkpoint, so guardrails and people are asked again about its claims.
    """
    is_new, guardrails = transcript.log.is_new, answers.guardrails(state.agent)
    if state.open_calls and is_new:
        checked = await guardrails.checked_again(given.messages or [])
        transcript.begin(checked, checked)
        state = state.fold(checked, recovering=False, questions=state.kept_questions)
    if state.unasked and given.claimed_gates:
        return await gates.open(state, state.unasked, given.claimed_gates)
    if not is_new or given.claimed_answer is None or not state.is_at_rest or state.finished:
        return state
    stopped = await guardrails.stopped_again(transcript.messages, given.claimed_answer)
    if isinstance(stopped, Held):
        return await gates.hold(state, stopped, Gate.read(given.claimed_answer.gate or {}))
    if stopped is None:
        return state
    transcript.add([stopped])
    return state.replied(stopped)


async def call_hook(hook: Callable[[AgentContext], object] | None, context: AgentContext) -> None:
    """Call a hook, if the agent has it."""
    if hook is not None:
        await call_users(hook, context)


def tool_contexts(
    transcript: Sequence[Message],
    last_seq: int,
    *,
    journal_key: str,
    session_id: str | None,
    who: AgentContext,
    invoker: Callable[[str, str], AgentInvoker],
) -> Callable[[ToolCall, int], ToolContext]:
    """Return a function that makes the context of an attempt at a call of the last turn.

    Args:
        last_seq: the number of the transcript's last message in its session.
        journal_key: the prefix of all call keys.
        invoker: takes the key and the id of a call, and returns the object that runs agents for it.
    """
    scope, positions = coordinates(transcript, last_seq, journal_key)

    def context(call: ToolCall, attempt: int) -> ToolContext:
        key = idempotency_key(scope, positions[call.id], call.id)
        return ToolContext(
            agent_name=who.agent.name,
            agent_id=who.agent.id,
            session_id=session_id,
            tool_call_id=call.id,
            idempotency_key=key,
            user_id=who.user_id,
            tenant_id=who.tenant_id,
            attempt=attempt,
            agents=invoker(key, call.id),
            deps=who.deps,
        )

    return context


def coordinates(transcript: Sequence[Message], last_seq: int, journal_key: str) -> tuple[str, dict[str, int]]:
    """Return the prefix of the keys of the last turn's calls, and the places of the calls by id."""
    at = last_answer(transcript) or 0
    positions = {call.id: position for position, call in enumerate(transcript[at].tool_calls or ())}
    return turn_scope(journal_key, last_seq - (len(transcript) - 1 - at)), positions


def run_result(
    agent: Agent,
    state: LoopState,
    finish: Finish,
    ending: Finish,
    problem: str | None,
    transcript: RunTranscript,
    counts: Mapping[str, int],
    compressions: int | None,
) -> RunResult:
    """Return the result of a run.

    Args:
        ending: `finish`, after the agent's output type has validated it; `problem` says why the output does not fit.
        counts: the number of requests by tool.
    """
    budget = agent.loop.budget
    return RunResult(
        status=ending.status,
        response=finish.response,
        messages=tuple(transcript.messages),
        iterations=state.iterations,
        checkpoint=transcript.checkpoint(state),
        session_id=transcript.log.session_id,
        usage=state.usage,
        budget_percent=state.usage.total_tokens / budget.max * 100 if budget and state.usage else None,
        output=agent.read_output(finish.response) if ending.status == "complete" else None,
        error=finish.response if finish.status == "error" else problem,
        tool_call_summary=dict(counts) or None,
        compression_count=compressions,
        tripped=ending.tripped,
    )
