"""Asks an agent's guardrails around a call of its model. Both drivers keep the verdicts with the answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial, update_wrapper
from typing import Any, TypeVar

from standfast.agent_loop import correction, needs_check, refusal_of, unheard_by_model, with_refused_calls, withheld
from standfast.agents import Agent, AgentContext, Guardrail
from standfast.agents.guardrails import declared
from standfast.errors import InputError
from standfast.messages import Message, ToolCall, Tripped
from standfast.runtime.threads import begin_in_thread
from standfast.runtime.users_functions import normal_arguments, output_problem
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
        self.tripped = await self._first((one for one in inputs if not one.beside), said)
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
        if self._agent.output is None or not said or before is None or before.role != "assistant":
            return said
        problem = await output_problem(self._agent, before.content)
        is_ours = problem is not None and said[0].content == correction(problem)
        return said[1:] if is_ours else said

    async def checked(self, answer: Message) -> Message:
        """Return an answer as it is to be kept: what the guardrails refuse is withheld, or does not run."""
        if self.tripped is not None:
            return withheld(answer, self.tripped)
        if answer.tool_calls:
            return await self._checked_calls(answer) if self._agent.tool_guardrails else answer
        tripped = await self._first(declared(self._agent.output_guardrails), [answer])
        return answer if tripped is None else withheld(answer, tripped)

    async def _checked_calls(self, answer: Message) -> Message:
        refused: list[tuple[str, Tripped]] = []
        for call in needs_check(self._agent, answer):
            tool = self._agent.tool_map[call.name]
            try:  # a handoff takes no arguments, so none of them are wrong
                arguments = {} if tool.handoff else await normal_arguments(tool, call.arguments)
            except InputError:  # it does not run, and its result says why
                continue
            read = ToolCall(id=call.id, name=call.name, arguments=arguments)
            tripped = await self._first(declared(self._agent.tool_guardrails), [read])
            if tripped is not None:
                refused.append((call.id, tripped))
        return with_refused_calls(answer, refused)

    async def _first(self, guardrails: Iterable[Guardrail], values: Iterable[Message | ToolCall]) -> Tripped | None:
        """Return the first refusal of any of the values; None if all of them pass."""
        given = list(values)
        for guardrail in guardrails:
            for value in given:
                check = update_wrapper(partial(_verdict, guardrail, value), guardrail.check)  # errors name it
                try:
                    tripped: Tripped | None = await self._call(check)
                except Exception as error:
                    self.raised = error
                    raise
                if tripped is not None:
                    return tripped
        return None


async def _verdict(guardrail: Guardrail, value: Message | ToolCall, context: AgentContext) -> Tripped | None:
    mine = value.model_copy(deep=True)  # what it changes is its own
    check = partial(guardrail.check, context, mine)
    # A plain one may block: in a thread it keeps neither the model beside it waiting, nor other runs.
    return refusal_of(guardrail, await call_handler(guardrail.check, check, begin_in_thread))
