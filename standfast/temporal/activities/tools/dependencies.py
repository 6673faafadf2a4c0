"""Makes the dependencies of callbacks, once for each activity that calls them, on the handlers' loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from standfast.agent_loop import ToolFacts, not_closed, without_dependencies
from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import Question
from standfast.errors import StandfastError
from standfast.messages import error_text
from standfast.pipeline_loop import Evaluations, PipelineState
from standfast.pipelines.paths import owner_of
from standfast.runtime.dependencies import dependencies
from standfast.runtime.guardrails import Guardrails
from standfast.runtime.pipeline_results import Kept
from standfast.stores.protocol import session_id_of
from standfast.temporal.activities.worker.activity_guards import run_hook
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.wire.activity_types import CallReference
from standfast.temporal.wire.turn_records import TurnRecord
from standfast.time_limits import time_limit
from standfast.tools import Outcome, ToolContext

_LOG = logging.getLogger("standfast")
_WAITS = (0.2, 1.0)  # seconds, before another attempt


def context_of_turn(agent: Agent, record: TurnRecord) -> AgentContext:
    """Return the agent's context from when it asked for the calls of a turn, without the run's context."""
    return AgentContext(
        AgentIdentity(record.agent_id, agent.name),
        agent.read_state(record.state),
        record.user_id,
        record.tenant_id,
        session_id=session_id_of(record.session),
    )


def guardrails_in(agent: Agent, context: AgentContext, passed: Question | None = None) -> Guardrails:
    """Return the guardrails of an agent; each call gets freshly made `deps` of the agent; see `Guardrails`."""
    return Guardrails(agent, lambda check: run_with_deps(agent, check, replace(context)), passed)


def guardrails_at(agent: Agent, context: AgentContext, written: str | None) -> Guardrails:
    """Return the same for a context without the run's context, which is `written`."""
    context.context = agent.read_context(written)
    return guardrails_in(agent, context)


async def run_with_deps(agent: Agent, function: Callable[[AgentContext], Any], context: AgentContext) -> Any:
    """Call a hook, or the instructions, with the agent's `deps`, which are closed afterwards.

    Raises:
        ApplicationError: as of `run_hook`, even if the `deps` could not be made.
    """
    if agent.deps is None:
        context.deps = context.context
        return await run_hook(function, context)
    stack = AsyncExitStack()

    async def deps() -> None:
        await _enter(stack, agent, context)

    async def deps_closed() -> None:
        await stack.aclose()

    await run_hook(deps)
    async with AsyncExitStack() as closing:  # with the function's error, if there is one
        closing.push_async_exit(stack)
        result = await run_hook(function, context)
        closing.pop_all()
    await run_hook(deps_closed)
    return result


async def call_with_deps(
    agent: Agent,
    who: AgentContext,
    written: str | None,
    call: Callable[[ToolContext, float], Awaitable[Outcome | None]],
    context: ToolContext,
    facts: ToolFacts,
    *,
    seconds: float,
    has_begun: bool,
) -> Outcome | None:
    """Run an attempt at a tool's call, or its `verify`, with the agent's `deps`.

    Args:
        written: the run's context.
        call: gets the remaining seconds.
        seconds: the time limit of the attempt. After this time the call counts as lost, may be verified and run again,
            and must not begin.
        has_begun: the call may have run; its outcome is then unknown if the `deps` cannot be made. Otherwise it has not
            run.
    """
    if agent.deps is None and agent.context is None:
        return await call(context, seconds)
    stack = AsyncExitStack()
    try:
        async with AsyncExitStack() as closing:
            closing.push_async_exit(stack)
            left = await _enter_in_time(stack, agent, who, written, seconds)
            closing.pop_all()
    except Exception as error:
        return without_dependencies(agent.name, error_text(error), has_begun=has_begun)
    async with AsyncExitStack() as closing:  # with the call's cancel, if it is cut off
        closing.push_async_exit(stack)
        outcome = await call(replace(context, deps=who.deps), left)
        closing.pop_all()
    try:
        await stack.aclose()
    except Exception as error:
        return not_closed(facts, agent.name, error_text(error))
    return outcome


async def with_step_deps(host: AgentHost, caller: Agent, reference: CallReference, record: TurnRecord) -> Agent:
    """Return the caller of a tool; if it is a pipeline with `deps`, make them for the step."""
    path = reference.get("path")
    if path is None:
        return caller
    pipeline, kept = host.catalogue.pipeline(), Kept(reference["run"], host.store)
    owner = owner_of(pipeline, path)
    if owner.pipeline.deps is None:
        return caller
    await kept.find(owner.input_key)
    known = {"run_key": (await host.records.load_opened(kept.name)).get("run_key")}
    who = {"user_id": record.user_id, "tenant_id": record.tenant_id}
    evaluations = Evaluations(pipeline, PipelineState(()), kept.__getitem__, **who, **known)
    return replace(caller, deps=evaluations.dependencies(path))


async def _enter_in_time(
    stack: AsyncExitStack, agent: Agent, context: AgentContext, written: str | None, seconds: float
) -> float:
    """Make and enter the agent's `deps` for a run's context; return the remaining seconds.

    Raises:
        StandfastError: no time is left, even if `deps` ignores cancellation or blocks the loop.
    """
    too_late, now = StandfastError(f"that took more than {seconds:g} s"), asyncio.get_running_loop().time
    until = now() + seconds
    context.context = agent.read_context(written)
    try:
        async with time_limit(seconds) as limit:
            await _enter(stack, agent, context)
    except TimeoutError:
        if not limit.expired():
            raise
        raise too_late from None
    if (left := until - now()) <= 0:
        raise too_late
    return left


async def _enter(stack: AsyncExitStack, agent: Agent, context: AgentContext) -> None:
    for wait in _WAITS:
        try:
            return await stack.enter_async_context(dependencies(agent, context))
        except Exception as error:
            _LOG.warning("deps of %s raised; calling it again", agent.name, exc_info=error)
            await asyncio.sleep(wait)
    return await stack.enter_async_context(dependencies(agent, context))
