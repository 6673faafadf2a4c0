"""Makes what an agent's callbacks depend on, from the context of a run, and closes it again."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from standfast.agents import Agent, AgentContext
from standfast.errors import InputError
from standfast.messages import Message
from standfast.runtime.inputs import RunInput
from standfast.runtime.users_functions import call_users

_LOG = logging.getLogger("standfast")


def context_of(agent: Agent, given: Any, messages: Sequence[Message]) -> str | None:
    """Return the context of a run as JSON: the given one, or else that of the session's last message that has one.

    Raises:
        InputError: it does not fit the agent's type, or there is none and the agent needs one.
    """
    if given is not None or agent.context is None:
        return agent.write_context(given)
    kept = next((message.context for message in reversed(messages) if message.context is not None), None)
    return agent.write_context(None) if kept is None else kept


def begin_context(
    agent: Agent, given: Any, stored: Sequence[Message], new: Sequence[Message], run: RunInput
) -> tuple[str | None, list[Message]]:
    """Return the context of a run as JSON, and its new messages, of which the last one of a user keeps what is given.

    What messages claim that anybody may have written does not count.

    Args:
        given: the caller's; None if the session's is to be used.
        new: from the caller's transcript or checkpoint.
        run: may have another message, which begins the run and keeps the context.

    Raises:
        InputError: as of `context_of`; or there is no message to keep it.
    """
    messages = [one if run.is_signed else one.model_copy(update={"context": None}) for one in new]
    context = context_of(agent, given, [*stored, *messages])
    if given is None or run.message is not None:
        return context, messages
    at = next((place for place in reversed(range(len(messages))) if messages[place].role == "user"), None)
    if at is None:
        raise InputError("context= goes with message=: without one, the session goes on with the context that it has")
    messages[at] = messages[at].model_copy(update={"context": context})
    return context, messages


@asynccontextmanager
async def dependencies(agent: Agent, context: AgentContext) -> AsyncGenerator[None, None]:
    """Have `context.deps` for as long as the block runs. What the agent's `deps` returns may be awaited or entered.

    What it opens is closed with the error of the block, if there is one, and neither hides nor replaces that.

    Raises:
        Exception: whatever `deps` raises, or what it has opened when it is closed.
    """
    made = context.context if agent.deps is None else await call_users(agent.deps, context)
    if agent.deps is None or not isinstance(made, AbstractAsyncContextManager):
        context.deps = made
        yield
        return
    context.deps = await made.__aenter__()
    try:
        yield
    except BaseException as error:
        try:
            await made.__aexit__(type(error), error, error.__traceback__)
        except Exception as second:
            if second is not error:
                _LOG.warning("deps of %s could not be closed", agent.name, exc_info=second)
        raise
    await made.__aexit__(None, None, None)
