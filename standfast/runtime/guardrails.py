"""Runs an agent's guardrails and output validators around a call of its model.

Both drivers keep the verdicts with the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeVar

from standfast.agent_loop import (
    Held,
    Holds,
    correction,
    hold,
    last_answer,
    needs_check,
    reason_of,
    refusal_of,
    unanswered,
    unheard_by_model,
    with_refused_calls,
    withheld,
)
from standfast.agents import Agent, AgentContext, Guardrail, OutputValidator
from standfast.agents.guardrails import declared
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import Message, ToolCall, Tripped
from standfast.runtime.users_functions import begin_in_thread, call_users, normal_arguments, output_problem, read_answer
from standfast.tools.calls import call_handler

T = TypeVar("T")
CallUsers = Callable[[Callable[[AgentContext], Any]], Awaitable[Any]]


class Guardrails:
    """The guardrails of an agent.

    Args:
        call: calls a user's function with the agent's context, and raises its errors in the driver's way.
        passed: the user's messages that people have approved: guardrails that stopped them do not run again.
    """

    def __init__(self, agent: Agent, call: CallUsers, passed: Question | None = None) -> None:
        self._agent = agent
        self._call = call
        self._passed = () if passed is None or passed.held is None else passed.held.tripped or ()
        self._said: Sequence[Message] = ()  # by the user
        self._stopped: list[tuple[Tripped, Any]] = []  # of it
        self.raised: Exception | None = None  # raised by a guardrail: not the model's fault
        self.have_let_pass = False  # the guardrails before the model call, which now begins

    async def around(self, messages: Sequence[Message], ask: Callable[[], Awaitable[T]]) -> T | None:
        """Call the model, if no guardrail trips on the user's messages; guardrails with `beside` run at the same time.

        Args:
            messages: the transcript, which ends with the user's messages.
        """
        inputs = self._inputs
        self._said = said = await self._unheard(messages) if inputs else []
        if not said:
            return await ask()
        self._stopped = await self._verdicts([one for one in inputs if not one.beside], said)
        if self._stopped:
            return None
        self.have_let_pass = True
        beside = [one for one in inputs if one.beside]
        if not beside:
            return await ask()
        checking = asyncio.ensure_future(self._verdicts(beside, said))
        try:
            answer = await ask()
            self._stopped = await checking
        finally:
            checking.cancel()
            await asyncio.wait([checking])
            if not checking.cancelled():
                checking.exception()  # raised above, or the model's error matters more
        return answer

    @property
    def _inputs(self) -> list[Guardrail]:
        if not self._agent.input_guardrails:
            return []
        passed = {one.guardrail for one in self._passed}
        return [one for one in declared(self._agent.input_guardrails) if one.name not in passed]

    async def stopped_again(self, messages: Sequence[Message], held: Question) -> Message | Held | None:
        """Stop again what an untrusted transcript claims to hold, by the guardrails' verdicts of today.

        None if the user's messages pass: the model is called.
        """
        answer = held.held or Message(role="assistant")
        if (held.gate or {})["rule"]["holds"] == "answer":
            return await self.checked(answer.model_copy(update={"tripped": None}))
        self._said = await self._unheard(messages)
        self._stopped = await self._verdicts(self._inputs, self._said)
        return await self.checked(answer) if self._stopped else None

    async def _unheard(self, messages: Sequence[Message]) -> list[Message]:
        """Return the user's messages since the last answer, without our own notices about that answer."""
        said = unheard_by_model(messages)
        before = messages[-len(said) - 1] if len(messages) > len(said) else None
        if not said or before is None or before.role != "assistant" or not _may_be_ours(said[0]):
            return said
        problem = await output_problem(self._agent, before.content) if before.unfit is None else None
        is_ours = (problem or before.unfit) is not None and said[0].content == correction(problem, before.unfit)
        return said[1:] if is_ours else said

    def checks(self, answer: Message) -> bool:
        """Whether a guardrail or a validator has to do with an answer, or has stopped the user's messages."""
        agent = self._agent
        if self._stopped:
            return True
        return bool(agent.tool_guardrails if answer.tool_calls else agent.output_guardrails or agent.output_validators)

    async def checked(self, answer: Message) -> Message | Held:
        """Return an answer in the form to store: refused parts are withheld, and refused calls do not run.

        Parts that people must decide on are held. A final answer that an output validator refuses is marked.
        """
        if self._stopped:
            return await self._stop(self._stopped, answer, "message", self._said)
        if not self.checks(answer):
            return answer
        if answer.tool_calls:
            return await self._checked_calls(answer)
        stopped = await self._verdicts(declared(self._agent.output_guardrails), [answer])
        return await self._stop(stopped, answer, "answer", [answer]) if stopped else await self.validated(answer)

    async def _stop(
        self, stopped: list[tuple[Tripped, Any]], answer: Message, what: Holds, seen: Sequence[Message]
    ) -> Message | Held:
        refusal = stopped[0][0]
        if not refusal.asks:
            return withheld(answer, refusal)
        held: Message | Held = await self._call(lambda _: hold(self._agent, stopped, answer, what, seen))
        return held

    async def validated(self, answer: Message) -> Message:
        """Return a final answer, marked if an output validator rejects it."""
        if not self._agent.output_validators or answer.stop_reason is not None:
            return answer
        problem, output = await read_answer(self._agent, answer.content)
        if problem is not None:  # it is found again at the end of the run
            return answer
        for validator in self._agent.output_validators:
            reason = await self._call(update_wrapper(partial(_reason, validator, output), validator))
            if reason is not None:
                return answer.model_copy(update={"unfit": reason})
        return answer

    async def checked_again(self, messages: Sequence[Message]) -> list[Message]:
        """Return an untrusted transcript, with the verdicts on the calls that are open in it."""
        last = last_answer(messages)
        if last is None or not self._agent.tool_guardrails or not unanswered(messages):
            return list(messages)
        return [*messages[:last], await self._checked_calls(messages[last]), *messages[last + 1 :]]

    async def _checked_calls(self, answer: Message) -> Message:
        refused: list[tuple[str, Tripped]] = []
        for call in needs_check(self._agent, answer):
            tool = self._agent.tool_map[call.name]
            try:  # a handoff has no arguments, so none of them are wrong
                arguments = {} if tool.handoff else await normal_arguments(tool, call.arguments)
            except InputError:  # it does not run, and its result has the reason
                continue
            read = ToolCall(id=call.id, name=call.name, arguments=arguments)
            refused += [(call.id, tripped) for tripped in await self.verdicts_on(read)]
        return with_refused_calls(answer, refused)

    async def verdicts_on(self, call: ToolCall) -> list[Tripped]:
        """Return the verdicts on a call: only the first refusal, or all on which people decide; none if it may run.

        Args:
            call: with its arguments as the handler gets them.
        """
        return [verdict for verdict, _ in await self._verdicts(declared(self._agent.tool_guardrails), [call])]

    async def _verdicts(
        self, guardrails: Sequence[Guardrail], values: Sequence[Message | ToolCall]
    ) -> list[tuple[Tripped, Any]]:
        """Return only the first refusal, or one verdict of each guardrail that asks people; each with its value."""
        found: list[tuple[Tripped, Any]] = []
        for guardrail in guardrails:
            for value in values:
                check = update_wrapper(partial(_verdict, guardrail, value), guardrail.check)  # errors name it
                try:
                    tripped: Tripped | None = await self._call(check)
                except Exception as error:
                    self.raised = error
                    raise
                if tripped is not None and not tripped.asks:
                    return [(tripped, value)]
                if tripped is not None:
                    found.append((tripped, value))
                    break
        return found


def _may_be_ours(message: Message) -> bool:
    """Whether a message may be one of our own notices: they have no author, no images and no context."""
    return message.by is None and not message.images and message.context is None


async def _reason(validator: OutputValidator, output: Any, context: AgentContext) -> str | None:
    return reason_of(validator, await call_users(validator, context, output))


async def _verdict(guardrail: Guardrail, value: Message | ToolCall, context: AgentContext) -> Tripped | None:
    mine = value.model_copy(deep=True)  # it may change its copy
    check = partial(guardrail.check, context, mine)
    # A plain one may block: in a thread it delays neither the model beside it nor other runs.
    return refusal_of(guardrail, await call_handler(guardrail.check, check, begin_in_thread))
