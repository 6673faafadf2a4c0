"""Makes a conversation with a pydantic-ai agent durable in this process: `StandfastDurability`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self, get_type_hints
from uuid import uuid4

from pydantic import PydanticUserError, TypeAdapter
from pydantic_ai import AbstractToolset, ModelRetry, NativeOutput, PromptedOutput, RunContext, TextOutput, ToolOutput
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import (
    AbstractCapability,
    WrapModelRequestHandler,
    WrapOutputProcessHandler,
    WrapRunHandler,
)
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.output import OutputContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.usage import RequestUsage

from standfast.agents import NAME, Agent, check_name
from standfast.checkpoints import PendingApproval
from standfast.effects import EffectFailedError, effect
from standfast.errors import DefinitionError, SessionNotFoundError
from standfast.integrations.pydantic_ai.calls import (
    GuardedTools,
    Operations,
    Running,
    RunningCall,
    calling,
    place_of,
    running_call,
)
from standfast.integrations.pydantic_ai.conversations import Given, Turn, open_conversation
from standfast.integrations.pydantic_ai.deferrals import Deferrals, shown
from standfast.integrations.pydantic_ai.gates import ApprovalRule, Gates, check_rule
from standfast.integrations.pydantic_ai.toolsets import check_no_effects, check_unguarded, guard_of
from standfast.local.gates import GivenDecision, read_decisions
from standfast.runtime.child_agents import AskedAgents, child_session
from standfast.stores.protocol import DurableStore, check_tenant_id, session_key_of
from standfast.tools.checks import check_function

Owner = Callable[[RunContext[Any]], str | None]

Keep = Callable[[ModelResponse], Awaitable[None]]

_RETRIES = ("ModelRetry", "ToolRetryError", "ValidationError")


async def run_output_function(
    store: DurableStore, name: str, output: Any, function: Callable[[], Awaitable[Any]], *, key: Any, returns: Any
) -> Any:
    """Run an output function unless it has run, or may have, and return its result.

    Raises:
        ToolDurabilityError: it is unknown whether it has run.
        EffectFailedError: it failed at an earlier attempt, or its result was lost.
        ModelRetry: the model must produce another output.
    """
    made = list[Any]()

    async def call(given: Any) -> Any:
        made.append(await function())
        return made[0]

    call.__annotations__["return"] = returns

    def key_of(given: Any) -> Any:
        return key

    try:
        kept = await effect(store, name[:100], key=key_of)(call)(output)
    except EffectFailedError as error:
        if made:  # it has run here, and only its result cannot be stored
            return made[0]
        if error.kind in _RETRIES:
            raise ModelRetry(error.reason) from None
        raise
    return made[0] if made else kept


def type_of_output(output_type: Any, context: OutputContext) -> Any:
    """Return the result type of an agent's output function, for reading stored results; Any if it is not declared."""
    named = [one for one in _functions(output_type) if getattr(one, "__name__", None) == context.function_name]
    try:
        found = get_type_hints(named[0]).get("return", Any) if len(named) == 1 else Any
    except (NameError, TypeError):
        return Any
    if found is Self:
        owner = getattr(named[0], "__self__", None)
        found = owner if isinstance(owner, type) else type(owner)
    try:
        TypeAdapter(found)
    except PydanticUserError:  # it has no schema: stored results are read as JSON
        return Any
    return found


def _functions(spec: Any) -> Iterator[Any]:
    match spec:
        case ToolOutput():
            yield from _functions(spec.output)
        case TextOutput():
            yield spec.output_function
        case NativeOutput() | PromptedOutput():
            yield from _functions(spec.outputs)
        case Sequence() if not isinstance(spec, str):
            for one in spec:
                yield from _functions(one)
        case _ if callable(spec) and not isinstance(spec, type):
            yield spec


class JournaledModel(WrapperModel):
    """A model whose answers are stored in the journal of a turn, and come from there when the turn is repeated."""

    def __init__(self, wrapped: Model, turn: Turn, ctx: RunContext[Any]) -> None:
        super().__init__(wrapped)
        self._turn, self._ctx = turn, ctx

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        keep, response = await self._begin()
        if response is None:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            await keep(response)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        keep, response = await self._begin()
        if response is not None:
            yield CompletedStreamedResponse(
                response, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        async with self.wrapped.request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            yield KeptStream(model_request_parameters, stream, keep)

    async def _begin(self) -> tuple[Keep, ModelResponse | None]:
        """Return the function that stores the turn's next answer, and the answer, if it is already stored."""
        place, said = self._turn.next_request(self._ctx.run_step), self._ctx.messages
        response = await self._turn.load_answer(place, said)
        record_durable_unit(executed=response is None)
        return partial(self._turn.keep_answer, place, messages=said), response


class KeptStream(StreamedResponse):
    """A stream that ends only when its response is stored: calls in it must not run earlier."""

    def __init__(self, parameters: ModelRequestParameters, stream: StreamedResponse, keep: Keep) -> None:
        super().__init__(parameters)
        self._stream, self._keep = stream, keep
        self._events: AsyncIterator[ModelResponseStreamEvent] | None = None

    def __aiter__(self) -> AsyncIterator[ModelResponseStreamEvent]:
        if self._events is None:
            self._events = self._get_event_iterator()
        return self._events

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in self._stream:
            self.final_result_event = self._stream.final_result_event
            yield event
        response = self._stream.get()
        if response.state in ("complete", "suspended"):
            await self._keep(response)

    def get(self) -> ModelResponse:
        return self._stream.get()

    async def cancel(self) -> None:
        await self._stream.cancel()

    async def close_stream(self) -> None:
        await self._stream.close_stream()

    def get_stream_cancel_errors(self) -> tuple[type[BaseException], ...]:
        found: tuple[type[BaseException], ...] = self._stream.get_stream_cancel_errors()
        return found

    @property
    def cancelled(self) -> bool:
        found: bool = self._stream.cancelled
        return found

    @property
    def usage(self) -> RequestUsage:
        return self._stream.usage

    @property
    def model_name(self) -> str:
        found: str = self._stream.model_name
        return found

    @property
    def provider_name(self) -> str | None:
        found: str | None = self._stream.provider_name
        return found

    @property
    def provider_url(self) -> str | None:
        found: str | None = self._stream.provider_url
        return found

    @property
    def timestamp(self) -> datetime:
        found: datetime = self._stream.timestamp
        return found


class StandfastDurability(BaseDurabilityCapability[Any]):
    """A capability with which a conversation continues where it was, whenever its process dies.

    `Agent(…, capabilities=[StandfastDurability(store)])`, then `agent.run("…", conversation_id="issue-42")`. The
    model's answers are stored and not paid for again. A tool with effects runs at most once;
    `metadata={"safe_to_retry": True}` declares one that may run again. After a crash, the same `run` finishes the turn
    that was begun. A run without a conversation_id is not durable, unless a tool of a durable run makes it.

    Args:
        store: a durable one, which may be shared.
        user_id, tenant_id: return the owner of the conversation, from the context of a run; without an owner by
            default.
        approval: the `Approval` of calls that pydantic-ai defers for approval; or a function of standfast's `ToolCall`
            that returns it. By default anyone may decide, within 30 days.
        name: the agent's name, under which its conversations are stored, `[a-z][a-z0-9_-]*`; by default its own.
        trust_hints: trust MCP servers' hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.

    Raises:
        DefinitionError: the name, or the name of an agent made with it, does not match; or `approval`, `user_id` or
            `tenant_id` is invalid.
        MemoryStoreNotDurableError: the store is not durable.

    A run of a conversation raises:
        SessionConflictError: another run is working on it.
        SessionAccessDeniedError: it belongs to another user or tenant.
        InputError: it belongs to another agent, or is not a pydantic-ai conversation; or its turn with the `run_id`
            began with another message.
        StoreError: the store does not answer.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="standfast",
        durable_unit_noun="step",
        durable_container_noun="conversation",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset(),  # all tools pass one guard, whichever toolset they come from
        journal_discovery=False,
        accepts_cancellation_token=True,
    )

    def __init__(
        self,
        store: DurableStore,
        *,
        user_id: Owner | None = None,
        tenant_id: Owner | None = None,
        approval: ApprovalRule | None = None,
        name: str | None = None,
        trust_hints: bool = False,
    ) -> None:
        if name is not None:
            check_name(name, "StandfastDurability(name=…): an agent's")
        check_rule(approval)
        for option, owner in (("user_id", user_id), ("tenant_id", tenant_id)):
            if owner is not None:
                check_function(f"StandfastDurability: {option}", owner, "the run's context")
        super().__init__(name=name)
        self._trust_hints = trust_hints
        self._approval = approval
        self._store, self._guard = store, guard_of(store)
        self._user_id, self._tenant_id = user_id, tenant_id
        self._running = ContextVar[Running | None]("standfast_running", default=None)
        self._own_ids = ContextVar[tuple[str, str]]("standfast_own_ids", default=("", ""))

    def for_agent(self, agent: AbstractAgent[Any, Any]) -> AbstractCapability[Any]:
        """Return the capability of an agent.

        Raises:
            DefinitionError: its name is not valid for an agent. It is not converted: another agent might have that
                name.
        """
        name = self.name or agent.name
        if name and not NAME.fullmatch(name):
            raise DefinitionError(
                f"Agent {name!r:.80} needs a name that matches ^{NAME.pattern}$, under which its conversations are "
                "stored: give StandfastDurability(…, name=…)"
            )
        return super().for_agent(agent)

    @property
    def in_durable_context(self) -> bool:
        return self._running.get() is not None

    def get_durable_operation_backend(self) -> "Operations":
        return Operations(self._guard, self._running, self.name)

    def _bind_models(self, agent: Any) -> None:
        """Bind no models: requests are made in this process, by the run's model."""

    def _register_toolsets(self, agent: Any) -> None:
        """Register no toolsets: calls are identified by their place in a turn, so a toolset does not need an `id`."""

    # --- a run ---

    def get_default_run_id(self) -> str | None:
        """Return an id that shows that the caller gave none."""
        self._own_ids.set((str(uuid4()), ""))
        return self._own_ids.get()[0]

    def get_default_conversation_id(self, run_id: str) -> str | None:
        self._own_ids.set((self._own_ids.get()[0], str(uuid4())))
        return self._own_ids.get()[1]

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        own_run, own_conversation = self._own_ids.get()
        outer, session_id = running_call.get(), ctx.conversation_id
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
        agent = Agent(self.name)
        async with open_conversation(
            self._store, agent, session_id, user_id=user_id, tenant_id=tenant_id
        ) as conversation:
            given = Given(
                prompt=ctx.prompt,
                history=tuple(ctx.messages),
                run_id=None if ctx.run_id == own_run else ctx.run_id,
            )
            turn = await conversation.take_up(given)
            ctx.messages[:] = turn.history
            with self._carrying_out(Running(turn, user_id, tenant_id)), replay_scope():
                result = await handler()
            if isinstance(result.output, DeferredToolRequests):
                shown(result.output, await Gates(conversation, self._approval).pending())
            else:
                await turn.end(result.new_messages())
            return result

    @contextmanager
    def _carrying_out(self, run: Running | None) -> Iterator[None]:
        token, inner = self._running.set(run), running_call.set(None)
        try:
            yield
        finally:
            self._running.reset(token)
            running_call.reset(inner)

    async def _begin_deferred(self, run: Running, node: Any) -> Any:
        """Return the node that begins a turn, with its first message; the caller's results are stored."""
        if node.deferred_tool_results is None or not run.turn.is_resumed:
            return replace(node, user_prompt=run.turn.user_prompt())
        await self._deferrals(run).bring(node.deferred_tool_results)
        return replace(node, user_prompt=run.turn.user_prompt(), deferred_tool_results=None)

    def _deferrals(self, run: Running) -> Deferrals:
        return Deferrals(run.turn, Gates(run.turn.conversation, self._approval))

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        run = self._running.get()
        if run is None:
            return None
        answered = await self._deferrals(run).answer(ctx, requests, [run.user_id])
        if answered is None:
            return None
        run.verdicts.update(answered[1])
        return answered[0]

    async def pending(
        self, conversation_id: str, *, user_id: str | None = None, tenant_id: str | None = None
    ) -> tuple[PendingApproval, ...]:
        """Return the calls of a conversation that wait for people to approve them; see `decide`."""
        async with self._gates(conversation_id, user_id, tenant_id) as gates:
            return await gates.pending()

    async def decide(
        self,
        conversation_id: str,
        decisions: Sequence[GivenDecision],
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
    ) -> tuple[PendingApproval, ...]:
        """Record people's decisions on waiting calls, and return the calls that still wait.

        `agent.run(conversation_id=…)` then continues. Repeating the same decision changes nothing.

        Args:
            decisions: such as `{"gate": "c1", "decision": "approve", "by": "ada", "digest": "…"}`, with `edit` for
                other arguments, or a `comment`; all count, or none does.
            user_id, tenant_id: the owner of the conversation.

        Raises:
            InputError: a decision does not count.
            SessionNotFoundError: the conversation does not exist.
            SessionAccessDeniedError: it belongs to another user or tenant.
            SessionConflictError: a run is working on it.
        """
        read = read_decisions(decisions)
        async with self._gates(conversation_id, user_id, tenant_id) as gates:
            await gates.decide(read)
            return await gates.pending()

    @asynccontextmanager
    async def _gates(self, conversation_id: str, user_id: str | None, tenant_id: str | None) -> AsyncIterator[Gates]:
        session = await self._store.load_session(session_key_of(check_tenant_id(tenant_id), conversation_id))
        if session is None:
            raise SessionNotFoundError(conversation_id)
        async with open_conversation(
            self._store, Agent(session.agent_name), conversation_id, user_id=user_id, tenant_id=tenant_id
        ) as conversation:
            yield Gates(conversation, self._approval)

    def _session_of_call(self, call: RunningCall, ctx: RunContext[Any]) -> str:
        digest, count, _ = call.agents.name(self.name, ctx.prompt)
        return child_session(call.run.turn.conversation.name, f"{call.place}.{digest}.{count}")

    async def before_node_run(self, ctx: RunContext[Any], *, node: Any) -> Any:
        run = self._running.get()
        if run is not None and PydanticAgent.is_user_prompt_node(node):
            return await self._begin_deferred(run, node)
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
        check_unguarded(self.name, "StandfastDurability", toolset)
        check_no_effects(self.name, toolset, self._trust_hints)
        return GuardedTools(toolset, self._guard, self._running, self._trust_hints)

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: WrapOutputProcessHandler
    ) -> Any:
        """Run an output function like a tool: it may have effects."""
        run, call = self._running.get(), output_context.tool_call
        if run is None or ctx.partial_output or not output_context.has_function:
            return await handler(output)
        name = "output" if call is None else call.tool_name
        place, key = place_of(run.turn, name, "" if call is None else call.tool_call_id, ctx)

        async def function() -> Any:
            with calling(RunningCall(run, place, AskedAgents())):
                return await handler(output)

        returns = type_of_output(getattr(ctx.agent, "output_type", None), output_context)
        return await run_output_function(self._store, name, output, function, key=key, returns=returns)
