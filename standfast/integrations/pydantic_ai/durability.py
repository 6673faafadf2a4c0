"""Makes a conversation with an agent of pydantic-ai durable in this process: `StandfastDurability`."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from pydantic_ai import AbstractToolset, RunContext
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.capabilities import WrapModelRequestHandler, WrapOutputProcessHandler, WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    durable_unit_scope,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.output import OutputContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from standfast.agents import Agent
from standfast.effects.keys import EffectKey
from standfast.errors import DefinitionError
from standfast.integrations._guards import ToolGuard, key_of
from standfast.integrations.pydantic_ai.conversations import Given, Turn, open_conversation
from standfast.integrations.pydantic_ai.ledgers import key_of_call
from standfast.integrations.pydantic_ai.models import JournaledModel
from standfast.integrations.pydantic_ai.outputs import run_output_function, type_of_output
from standfast.integrations.pydantic_ai.toolsets import call_guarded, guard_of, is_safe
from standfast.runtime.child_agents import AskedAgents, child_session
from standfast.stores.protocol import DurableStore

Owner = Callable[[RunContext[Any]], str | None]


@dataclass(slots=True)
class _Running:
    """A run that carries out a turn.

    Args:
        user_id, tenant_id: for whom.
        ctx: that of the model request that is made now.
        operations: how many of a name were made at a step.
    """

    turn: Turn
    user_id: str | None
    tenant_id: str | None
    ctx: RunContext[Any] | None = None
    operations: dict[tuple[int, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool's call that runs, in which agents may run."""

    run: _Running
    place: str
    agents: AskedAgents


class StandfastDurability(BaseDurabilityCapability[Any]):
    """A capability by which a conversation goes on where it was, whenever its process dies.

    `Agent(…, capabilities=[StandfastDurability(store)])`, then `agent.run("…", conversation_id="issue-42")`. What the
    model answers is kept and not paid for again. A tool with effects runs at most once; `metadata={"safe_to_retry":
    True}` declares one that may run again. The same `run` again, after a crash, ends the turn that was begun. A run
    without a conversation_id is not durable, but for one that a tool of a durable run makes.

    Args:
        store: a durable one, which may be shared.
        user_id, tenant_id: return whose conversation it is, from the context of a run; nobody's by default.
        name: of the agent, by which its conversations are known; its own by default.

    Raises:
        MemoryStoreNotDurableError: the store forgets.

    A run of a conversation raises:
        SessionConflictError: another run is at work on it.
        SessionAccessDeniedError: it belongs to another user or tenant.
        InputError: it belongs to another agent, or its last turn has not ended and began with another message.
        StoreError: the store does not answer.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="standfast",
        durable_unit_noun="step",
        durable_container_noun="conversation",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset(),  # all tools go through one guard, whichever toolset they come from
        journal_discovery=False,
        accepts_cancellation_token=True,
    )

    def __init__(
        self,
        store: DurableStore,
        *,
        user_id: Owner | None = None,
        tenant_id: Owner | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self._store, self._guard = store, guard_of(store)
        self._user_id, self._tenant_id = user_id, tenant_id
        self._running = ContextVar[_Running | None]("standfast_running", default=None)
        self._own_ids = ContextVar[tuple[str, str]]("standfast_own_ids", default=("", ""))

    @property
    def in_durable_context(self) -> bool:
        return self._running.get() is not None

    def get_durable_operation_backend(self) -> "_Backend":
        return _Backend(self._guard, self._running, self.name)

    def _bind_models(self, agent: Any) -> None:
        """Bind no models: requests are made in this process, by whatever model the run has."""

    # --- a run ---

    def get_default_run_id(self) -> str | None:
        """Return an id by which it is known that the caller gave none."""
        self._own_ids.set((str(uuid4()), ""))
        return self._own_ids.get()[0]

    def get_default_conversation_id(self, run_id: str) -> str | None:
        self._own_ids.set((self._own_ids.get()[0], str(uuid4())))
        return self._own_ids.get()[1]

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        own_run, own_conversation = self._own_ids.get()
        outer, session_id = _call.get(), ctx.conversation_id
        if session_id == own_conversation:
            session_id = None if outer is None else self._session_of_call(outer, ctx)
        if session_id is None:
            with self._carrying_out(None):
                return await handler()
        if outer is not None and self._user_id is None and self._tenant_id is None:
            user_id, tenant_id = outer.run.user_id, outer.run.tenant_id
        else:
            user_id = None if self._user_id is None else self._user_id(ctx)
            tenant_id = None if self._tenant_id is None else self._tenant_id(ctx)
        agent = Agent(_agent_name(self.name))
        async with open_conversation(
            self._store, agent, session_id, user_id=user_id, tenant_id=tenant_id
        ) as conversation:
            given = Given(
                prompt=ctx.prompt,
                history=tuple(ctx.messages),
                run_id=None if ctx.run_id == own_run else ctx.run_id,
                has_results=False,
            )
            turn = await conversation.take_up(given)
            ctx.messages[:] = turn.history
            with self._carrying_out(_Running(turn, user_id, tenant_id)), replay_scope():
                result = await handler()
            if not isinstance(result.output, DeferredToolRequests):
                await turn.end(result.new_messages())
            return result

    @contextmanager
    def _carrying_out(self, run: _Running | None) -> Iterator[None]:
        token, inner = self._running.set(run), _call.set(None)
        try:
            yield
        finally:
            self._running.reset(token)
            _call.reset(inner)

    def _session_of_call(self, call: _Call, ctx: RunContext[Any]) -> str:
        digest, count, _ = call.agents.name(self.name, ctx.prompt)
        return child_session(call.run.turn.conversation.name, f"{call.place}.{digest}.{count}")

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        run = self._running.get()
        if run is not None and PydanticAgent.is_user_prompt_node(node):
            return replace(node, user_prompt=run.turn.user_prompt())
        return node

    # --- the model ---

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        if (run := self._running.get()) is not None:
            run.ctx = ctx
        return await handler(request_context)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        return request_context

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        return request_context

    def get_wrapper_model(self, model: Model) -> Model | None:
        run = self._running.get()
        return None if run is None or run.ctx is None else JournaledModel(model, run.turn, run.ctx)

    # --- tools ---

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        return _GuardedTools(toolset, self._guard, self._running)

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: WrapOutputProcessHandler
    ) -> Any:
        """Run a function that makes the output as a tool is run: it may have effects."""
        run, call = self._running.get(), output_context.tool_call
        if run is None or ctx.partial_output or not output_context.has_function:
            return await handler(output)
        name = "output" if call is None else call.tool_name
        place, key = _place_of(run.turn, name, "" if call is None else call.tool_call_id, ctx)

        async def function() -> Any:
            with _calling(_Call(run, place, AskedAgents())):
                return await handler(output)

        returns = type_of_output(getattr(ctx.agent, "output_type", None), output_context)
        return await run_output_function(self._store, name, output, function, key=key, returns=returns)


@dataclass
class _GuardedTools(WrapperToolset[Any]):
    """All tools of a run, each call of which is claimed in the ledger before it runs."""

    guard: ToolGuard
    running: ContextVar[_Running | None]

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        run = self.running.get()
        if run is None:
            return await super().call_tool(name, tool_args, ctx, tool)
        call_id = ctx.tool_call_id or ""
        place, key = _place_of(run.turn, name, call_id, ctx)

        async def function() -> Any:
            with _calling(_Call(run, place, AskedAgents())):
                return await super(_GuardedTools, self).call_tool(name, tool_args, ctx, tool)

        return await call_guarded(self.guard, name, call_id, tool_args, function, key=key, safe_to_retry=is_safe(tool))


_call: ContextVar[_Call | None] = ContextVar("standfast_call", default=None)


@contextmanager
def _calling(call: _Call) -> Iterator[None]:
    """Make it known that a call runs: agents that it runs are its own, and durable operations in it are part of it."""
    token = _call.set(call)
    try:
        with durable_unit_scope():
            yield
    finally:
        _call.reset(token)


def _place_of(turn: Turn, name: str, call_id: str, ctx: RunContext[Any]) -> tuple[str, EffectKey | str]:
    """Return the place of a call in its turn, and its key in the ledger."""
    response = next((one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None)
    ids = [] if response is None else [call.tool_call_id for call in response.tool_calls]
    if call_id in ids:
        place = ids.index(call_id)
        return f"{turn.kept.number}.{ctx.run_step}.{place}", key_of_call(turn.scope, ctx.run_step, place, name)
    # A call that another tool has made, such as code that the model has written, or a text that becomes the output.
    return f"{turn.kept.number}.{ctx.run_step}.{call_id}", key_of(turn.scope, str(ctx.run_step), call_id or "-")


class _Backend(JournalCallableOperationBackend[None]):
    """Carries out what other capabilities have declared as durable operations."""

    def __init__(self, guard: ToolGuard, running: ContextVar[_Running | None], agent_name: str) -> None:
        config = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        super().__init__(agent_name=agent_name, config=config)
        self._guard, self._running = guard, running

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        """Return what an operation has made, at its place in the turn; one whose outcome is unknown runs again."""
        run = self._running.get()
        if run is None:
            return await body()
        step = 0 if run.ctx is None else run.ctx.run_step
        count = run.operations.get((step, name), 0)
        run.operations[step, name] = count + 1
        key = EffectKey(run.turn.scope, f"{name}.{count}", name, step * 1000)
        executed = False

        async def function() -> object:
            nonlocal executed
            executed = True
            return await body()

        made = await self._guard.run(name, "", {}, function, key=key, safe_to_retry=True)
        record_durable_unit(executed=executed)
        return made


def _agent_name(name: str) -> str:
    """Return the name of an agent as sessions have it."""
    found = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if not re.match(r"[a-z]", found):
        raise DefinitionError(f"StandfastDurability: name must have letters a to z, got {name!r:.80}")
    return found
