"""Asks an agent's guardrails and output validators around a call of its model.

Both drivers keep the verdicts with the answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeVar

from standfast.agent_loop import (
    correction,
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
from standfast.errors import InputError
from standfast.messages import Message, ToolCall, Tripped
from standfast.runtime.threads import begin_in_thread
from standfast.runtime.users_functions import call_users, normal_arguments, output_problem, read_answer
from standfast.tools.attempts import call_handler

T = TypeVar("T")
CallUsers = Callable[[Callable[[AgentContext], Any]], Awaitable[Any]]


class Guardrails:
    """The guardrails of an agent.

    Args:
        call: calls a function of the user's with the agent's context, and raises its errors as the driver does.
    """

    def __init__(self, agent: Agent, call: CallUsers) -> None:
        self._agent = agent
        self._call = call
        self.tripped: Tripped | None = None  # by what the user said
        self.raised: Exception | None = None  # by a guardrail: not the model's fault

    async def around(self, messages: Sequence[Message], ask: Callable[[], Awaitable[T]]) -> T | None:
        """Ask the model, if no guardrail trips at what the user has said to it; those beside it are asked meanwhile.

        Args:
            messages: the transcript, which ends with what the user said.
        """
        said = await self._said(messages) if self._agent.input_guardrails else []
        if not said:
            return await ask()
        inputs = declared(self._agent.input_guardrails)
        self.tripped = await self._first([one for one in inputs if not one.beside], said)
        if self.tripped is not None:
            return None
        beside = [one for one in inputs if one.beside]
        if not beside:
            return await ask()
        checking = asyncio.ensure_future(self._first(beside, said))
        try:
            answer = await ask()
            self.tripped = await checking
        finally:
            checking.cancel()
            await asyncio.wait([checking])
            if not checking.cancelled():
                checking.exception()  # raised above, or the model's error matters more
        return answer

    async def _said(self, messages: Sequence[Message]) -> list[Message]:
        """Return what the user has said since the last answer, without our own words about that answer."""
        said = unheard_by_model(messages)
        before = messages[-len(said) - 1] if len(messages) > len(said) else None
        if not said or before is None or before.role != "assistant" or not _may_be_ours(said[0]):
            return said
        problem = await output_problem(self._agent, before.content) if before.unfit is None else None
        is_ours = (problem or before.unfit) is not None and said[0].content == correction(problem, before.unfit)
        return said[1:] if is_ours else said

    async def checked(self, answer: Message) -> Message:
        """Return an answer as it is to be kept: what the guardrails refuse is withheld, or does not run.

        A final answer that an output validator refuses says so.
        """
        if self.tripped is not None:
            return withheld(answer, self.tripped)
        if answer.tool_calls:
            return await self._checked_calls(answer) if self._agent.tool_guardrails else answer
        tripped = await self._first(declared(self._agent.output_guardrails), [answer])
        return await self._validated(answer) if tripped is None else withheld(answer, tripped)

    async def _validated(self, answer: Message) -> Message:
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
        """Return a transcript that anybody may have written, with the verdicts on the calls that are open in it."""
        last = last_answer(messages)
        if last is None or not self._agent.tool_guardrails or not unanswered(messages):
            return list(messages)
        return [*messages[:last], await self._checked_calls(messages[last]), *messages[last + 1 :]]

    async def _checked_calls(self, answer: Message) -> Message:
        refused: list[tuple[str, Tripped]] = []
        for call in needs_check(self._agent, answer):
            tool = self._agent.tool_map[call.name]
            try:  # a handoff takes no arguments, so none of them are wrong
                arguments = {} if tool.handoff else await normal_arguments(tool, call.arguments)
            except InputError:  # it does not run, and its result says why
                continue
            read = ToolCall(id=call.id, name=call.name, arguments=arguments)
            refused += [(call.id, tripped) for tripped in await self.verdicts_on(read)]
        return with_refused_calls(answer, refused)

    async def verdicts_on(self, call: ToolCall) -> list[Tripped]:
        """Return the verdicts on a call: the first refusal alone, or all by which people decide; none if it may run.

        Args:
            call: with its arguments as the handler gets them.
        """
        found: list[Tripped] = []
        for guardrail in declared(self._agent.tool_guardrails):
            tripped = await self._first([guardrail], [call])
            if tripped is not None and not tripped.asks:
                return [tripped]
            found += [] if tripped is None else [tripped]
        return found

    async def _first(self, guardrails: Sequence[Guardrail], values: Sequence[Message | ToolCall]) -> Tripped | None:
        """Return the first refusal of any of the values; None if all of them pass."""
        for guardrail in guardrails:
            for value in values:
                check = update_wrapper(partial(_verdict, guardrail, value), guardrail.check)  # errors name it
                try:
                    tripped: Tripped | None = await self._call(check)
                except Exception as error:
                    self.raised = error
                    raise
                if tripped is not None:
                    return tripped
        return None


def _may_be_ours(message: Message) -> bool:
    """Whether we may have said a message: what we say has no author, no images and no context."""
    return message.by is None and not message.images and message.context is None


async def _reason(validator: OutputValidator, output: Any, context: AgentContext) -> str | None:
    return reason_of(validator, await call_users(validator, context, output))


async def _verdict(guardrail: Guardrail, value: Message | ToolCall, context: AgentContext) -> Tripped | None:
    mine = value.model_copy(deep=True)  # what it changes is its own
    check = partial(guardrail.check, context, mine)
    # A plain one may block: in a thread it keeps neither the model beside it waiting, nor other runs.
    return refusal_of(guardrail, await call_handler(guardrail.check, check, begin_in_thread))
