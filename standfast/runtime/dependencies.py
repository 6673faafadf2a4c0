"""Opens what a run of an agent needs, and closes it again: the dependencies of its callbacks, and its toolsets."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from standfast.agents import Agent, AgentContext
from standfast.errors import InputError
from standfast.messages import Message
from standfast.runtime.inputs import RunInput
from standfast.runtime.users_functions import call_users
from standfast.tools import Tool, Toolset

_LOG = logging.getLogger("standfast")


def context_of(agent: Agent, given: Any, messages: Sequence[Message]) -> str | None:
    """Return the context of a run as JSON: the given one, or the context of the session's last message that has one.

    Raises:
        InputError: it does not fit the agent's type, or it is missing and the agent needs one.
    """
    kept = None if agent.context is None else kept_context(messages)
    return agent.write_context(given) if given is not None or kept is None else kept


def kept_context(messages: Sequence[Message]) -> str | None:
    """Return a session's context, from its last message with a context, or None.

    An earlier run's remaining calls were requested in this context. They are run in it, whatever context a later
    message brings.
    """
    return next((message.context for message in reversed(messages) if message.context is not None), None)


def begin_context(
    agent: Agent, given: Any, stored: Sequence[Message], new: Sequence[Message], run: RunInput
) -> tuple[str | None, list[Message]]:
    """Return the context of a run as JSON, and its new messages; the last user message stores the context.

    Claims in messages that anyone may have written do not count.

    Args:
        given: the caller's context; None uses the session's.
        new: from the caller's transcript or checkpoint.
        run: may have another message, which begins the run and keeps the context.

    Raises:
        InputError: as in `context_of`, or there is no message to keep the context.
    """
    messages = [one if run.is_signed else one.model_copy(update={"context": None}) for one in new]
    context = context_of(agent, given, [*stored, *messages])
    if run.message is not None:
        return context, messages
    at = next((place for place in reversed(range(len(messages))) if messages[place].role == "user"), None)
    if at is None and given is None:
        return context, messages
    if at is None:
        raise InputError("context= goes with message=: without one, the session keeps its context")
    messages[at] = messages[at].model_copy(update={"context": context})
    return context, messages


def heard_in(context: str | None, messages: Iterable[Message]) -> list[Message]:
    """Return new messages; the user's messages store the context of the run that reads them.

    Each user message stores it: pruning may begin at any message, and later runs find the context there.
    """
    return [
        one if one.role != "user" or one.context is not None else one.model_copy(update={"context": context})
        for one in messages
    ]


@asynccontextmanager
async def in_context(agent: Agent, context: AgentContext, written: str | None) -> AsyncGenerator[None, None]:
    """Use another context, and the agent's `deps` for it, for as long as the block runs.

    Raises:
        Exception: as in `dependencies`; or the context no longer fits its type.
    """
    now = context.context, context.deps
    try:
        context.context = agent.read_context(written)
        async with dependencies(agent, context):
            yield
    finally:
        context.context, context.deps = now


@asynccontextmanager
async def dependencies(agent: Agent, context: AgentContext) -> AsyncGenerator[None, None]:
    """Provide `context.deps` while the block runs. What the agent's `deps` returns may be awaited or entered.

    The opened resource is closed with the error of the block, if any, and neither hides nor replaces the error.

    Raises:
        Exception: raised by `deps`, or when its resource is closed.
    """
    made = context.context if agent.deps is None else await call_users(agent.deps, context)
    if agent.deps is None or not isinstance(made, AbstractAsyncContextManager):
        context.deps = made
        yield
        return
    context.deps = await call_users(made.__aenter__)
    try:
        yield
    except BaseException as error:
        try:
            await call_users(made.__aexit__, type(error), error, error.__traceback__)
        except Exception as second:
            if second is not error:
                _LOG.warning("deps of %s could not be closed", agent.name, exc_info=second)
        raise
    await call_users(made.__aexit__, None, None, None)


@asynccontextmanager
async def with_toolsets(agent: Agent, store: Any) -> AsyncIterator[Agent]:
    """Yield an agent with the tools of its toolsets, which work for as long as the block lasts.

    Raises:
        StandfastError: the tools of one cannot be found.
    """
    if not agent.toolsets:
        yield agent
        return
    async with AsyncExitStack() as stack:
        yield with_found(agent, {one: await stack.enter_async_context(one.opened(store)) for one in agent.toolsets})


def with_found(
    agent: Agent, found: Mapping[Toolset, Sequence[Tool[..., Any]]], made: dict[Agent, Agent] | None = None
) -> Agent:
    """Return an agent, and the agents that it hands over to, with the tools of their toolsets.

    Tools with another tool's name are left out.

    Args:
        made: the agents made so far: two agents that hand over to a third hand over to the same one.

    Raises:
        DefinitionError: two tools of its conversation's agents have the same name.
    """
    if not agent.toolsets:
        return agent
    made = {} if made is None else made
    if agent not in made:
        whole = agent.with_tools(found)
        for toolset in (item for item in agent.tools if isinstance(item, Toolset)):
            for tool in found[toolset]:
                if whole.tool_map.get(tool.name) is not tool:
                    _LOG.warning(
                        "Agent %s: it already has a tool named %r, so the tool of %s is left out; prefix= "
                        "distinguishes them",
                        agent.name,
                        tool.name,
                        toolset.name,
                    )
        targets = [with_found(one, found, made) if isinstance(one, Agent) else one for one in agent.handoffs]
        made[agent] = replace(whole, handoffs=targets)
    return made[agent]
