"""Finds the tools of pydantic-ai's toolsets when a run or a worker begins; internal.

An MCP server is connected for that long, and only read then: a model request shows its tools as they were read.
Everything else in a toolset, such as a filter, a prefix, or a function that makes it, is evaluated in every request and
call, with the dependencies of its user.
"""

import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio
from pydantic_ai import Agent, FunctionToolset, RunContext
from pydantic_ai.models import infer_model
from pydantic_ai.toolsets import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    ExternalToolset,
    FilteredToolset,
    PrefixedToolset,
    PreparedToolset,
    RenamedToolset,
    ToolsetTool,
    WrapperToolset,
)
from pydantic_ai.usage import RunUsage

from standfast.errors import DefinitionError, StandfastError
from standfast.integrations._foreign_agents import Declared, Runner, nobody, valued
from standfast.integrations._guards import has_guard
from standfast.integrations._server_connections import ServerConnection, has_changed, is_answer, unknown
from standfast.integrations.pydantic_ai.toolsets import function_of, is_safe
from standfast.mcp.schemas import digest_of
from standfast.messages import JSONObject, ToolCall
from standfast.tools import Approval, Tool

Tools = Mapping[str, ToolsetTool[Any]]
Handler = Callable[..., Any]


def unfiltered(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return a toolset without wrappers that hide tools from some users."""
    match toolset:
        case FilteredToolset():
            return unfiltered(toolset.wrapped)
        case PreparedToolset() if type(toolset) is PreparedToolset:  # subclasses only add to definitions
            return unfiltered(toolset.wrapped)
        case WrapperToolset():
            return replace(toolset, wrapped=unfiltered(toolset.wrapped))
        case CombinedToolset():
            return replace(toolset, toolsets=[unfiltered(one) for one in toolset.toolsets])
    return toolset


Check = tuple[Callable[..., bool], Any]  # decides whether a call needs approval, and the definition that it gets


async def gates_of(toolset: AbstractToolset[Any], ctx: RunContext[Any]) -> dict[str, list[Check]]:
    """Return by tool name the functions of `ApprovalRequiredToolset`s that decide on their calls."""
    match toolset:
        case ApprovalRequiredToolset():
            found = await gates_of(toolset.wrapped, ctx)
            for name, tool in (await toolset.wrapped.get_tools(ctx)).items():
                found.setdefault(name, []).append((toolset.approval_required_func, tool.tool_def))
            return found
        case PrefixedToolset():
            inner = await gates_of(toolset.wrapped, ctx)
            return {f"{toolset.prefix}_{name}": checks for name, checks in inner.items()}
        case RenamedToolset():
            new = {old: name for name, old in toolset.name_map.items()}
            return {new.get(name, name): checks for name, checks in (await gates_of(toolset.wrapped, ctx)).items()}
        case WrapperToolset():
            return await gates_of(toolset.wrapped, ctx)
        case CombinedToolset():
            several = [await gates_of(one, ctx) for one in toolset.toolsets]
            return {name: checks for found in several for name, checks in found.items()}
    inside = getattr(toolset, "_toolset", None)  # of a toolset made by a function
    return await gates_of(inside, ctx) if isinstance(inside, AbstractToolset) else {}


@dataclass(frozen=True)
class Gates:
    """Decides whether a call needs approval; people are asked if that depends on the user, or is unknown."""

    checks: tuple[Check, ...]
    ctx: RunContext[Any]
    is_personal: bool

    def gate(self, call: ToolCall) -> Approval | None:
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        if not self.is_personal:
            try:
                ctx = replace(self.ctx, tool_name=call.name, tool_call_id=call.id)
                if not any(check(ctx, described, arguments) for check, described in self.checks):
                    return None
            except Exception:  # it needs the messages, for example
                pass
        return Approval(message=f"Run {call.name}?")


class FoundTools(tuple[Tool[..., Any], ...]):
    """The tools of a toolset, and the toolset with connected servers."""

    within: AbstractToolset[Any]


def context_of(agent: Agent[Any, Any], deps: Any, runner: Runner, **options: Any) -> RunContext[Any]:
    """Return the context that pydantic-ai passes to tools and toolsets."""
    model = agent.model
    return RunContext[Any](
        deps=valued(deps, runner),
        agent=agent,
        model=infer_model(model) if isinstance(model, str) else model,
        usage=RunUsage(),
        conversation_id=runner.session_id,
        **options,
    )


@dataclass(frozen=True, eq=False)
class PydanticAIToolset:
    """A standfast toolset for a pydantic-ai one.

    Args:
        handler: makes the handler of a tool, from its toolset, its name, whether it is safe, and whether it has a gate.
    """

    toolset: AbstractToolset[Any]
    agent: Agent[Any, Any]
    declared: Declared
    deps: Any
    handler: Handler

    @property
    def name(self) -> str:
        """Its name for people."""
        return str(self.toolset.label)

    @property
    def agents(self) -> Sequence[Any]:
        """The agents that its tools run: none."""
        return ()

    @property
    def asks_model(self) -> bool:
        """Whether they may ask the agent's model: not through standfast."""
        return False

    @asynccontextmanager
    async def opened(self, store: Any, renewed: Callable[..., None] | None = None) -> AsyncIterator[FoundTools]:
        """Yield the tools for as long as a block lasts."""
        servers = dict[int, _Server]()

        def connected(leaf: AbstractToolset[Any]) -> AbstractToolset[Any]:
            if not is_server(leaf) or leaf._resolves_per_run:  # each user connects
                return leaf
            return servers.setdefault(id(leaf), _Server(leaf))

        within = self.toolset.visit_and_replace(connected)
        async with AsyncExitStack() as stack:
            ctx = context_of(self.agent, self.deps, nobody())
            for server in servers.values():
                await stack.enter_async_context(server.opened(ctx))
            found = FoundTools([self._tool(within, tool, gates) for tool, gates in await self._tools(within, ctx)])
            found.within = within
            yield found

    async def _tools(
        self, within: AbstractToolset[Any], ctx: RunContext[Any]
    ) -> list[tuple[ToolsetTool[Any], "Gates | None"]]:
        """Return all tools that a request might have, and the functions that decide whether a call needs approval."""
        toolset = await unfiltered(within).for_run(ctx)
        async with toolset:
            toolset = await toolset.for_run_step(ctx)
            tools, gates = await toolset.get_tools(ctx), await gates_of(toolset, ctx)
        if not gates.keys() <= tools.keys():  # a user's wrapper has renamed them
            checks = [check for several in gates.values() for check in several]
            gates = dict.fromkeys(tools, checks)
        asked = {name: Gates(tuple(gates[name]), ctx, callable(self.deps)) if name in gates else None for name in tools}
        return [(tool, asked[name]) for name, tool in tools.items()]

    def _tool(self, within: AbstractToolset[Any], tool: ToolsetTool[Any], gates: "Gates | None") -> Tool[..., Any]:
        described = tool.tool_def
        if described.kind == "external":
            raise StandfastError(f"{self.name}: its tool '{described.name}' runs elsewhere, where it cannot be guarded")
        always = Approval(message=f"Run {described.name}?") if described.kind == "unapproved" else None
        gate = always or (None if gates is None else gates.gate)
        said = is_safe(tool, self.declared.trust_hints)
        safe, is_gated = self.declared.is_safe(described.name, said), self.declared.is_gated(described.name, gate)
        return self.declared.tool(
            described.name,
            described.description,
            described.parameters_json_schema,
            self.handler(within, described.name, safe, is_gated),
            approval=gate,
            safe=said,
            fingerprint=_fingerprint(tool),
            has_guard=has_guard(function_of(tool)),
        )


class _Server(AbstractToolset[Any]):
    """Represents an MCP server: its tools are as they were read, and its calls use one connection.

    The connected copy of the server does not cache a list of its tools.
    """

    def __init__(self, server: AbstractToolset[Any]) -> None:
        self._server = server
        self._connection: ServerConnection[_Client]
        self._read: dict[str, ToolsetTool[Any]] = {}
        self._instructions: Any = None

    @property
    def id(self) -> str | None:
        found: str | None = self._server.id
        return found

    @property
    def label(self) -> str:
        return str(self._server.label)

    @asynccontextmanager
    async def opened(self, ctx: RunContext[Any]) -> AsyncIterator[None]:
        self._connection = ServerConnection(self.label, partial(_connected, self._server, ctx), _Client.list)
        try:

            async def read(client: "_Client") -> None:
                await client.list()
                self._read = {name: replace(tool, toolset=self) for name, tool in client.tools.items()}
                self._instructions = await client.server.get_instructions(ctx)

            await self._connection.read(read)
            yield
        finally:
            await self._connection.close()

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return dict(self._read)

    async def get_instructions(self, ctx: RunContext[Any]) -> Any:
        return self._instructions

    async def call_tool(self, name: str, tool_args: JSONObject, ctx: RunContext[Any], tool: Any) -> Any:
        async def ask(client: "_Client") -> Any:
            if name not in client.tools or _fingerprint(client.tools[name]) != _fingerprint(self._read[name]):
                raise has_changed(name)
            return await client.server.call_tool(name, tool_args, ctx, tool)

        return await self._connection.call(ctx.tool_name or name, ctx.tool_call_id or "", ask, is_answered)


class _Client:
    """A connected server, and its tools as last described."""

    def __init__(self, server: Any, ctx: RunContext[Any]) -> None:
        self.server, self._ctx = server, ctx
        self.tools: Tools = {}

    async def list(self) -> None:
        self.tools = await self.server.get_tools(self._ctx)


@asynccontextmanager
async def _connected(server: Any, ctx: RunContext[Any]) -> AsyncIterator[_Client]:
    """Connect a copy of a server: pydantic-ai connects each once, on one event loop."""
    twin = copy.copy(server)
    vars(twin).pop("_enter_lock", None)
    twin._running_count, twin._exit_stack, twin._cached_tools, twin.cache_tools = 0, None, None, False
    twin.client = server.client.new()
    transport = twin.client.transport = copy.copy(server.client.transport)
    if hasattr(transport, "keep_alive"):  # its process would outlive the connection, and be shared by all copies
        fresh = {"keep_alive": False, "_session": None, "_connect_task": None}
        vars(transport).update(fresh, _ready_event=anyio.Event(), _stop_event=anyio.Event())
    async with twin:
        yield _Client(twin, ctx)


def is_server(leaf: object) -> bool:
    """Whether a toolset belongs to an MCP server, which pydantic-ai supports only with its extra "mcp"."""
    return any((kind.__module__, kind.__name__) == ("pydantic_ai.mcp", "MCPToolset") for kind in type(leaf).__mro__)


def is_answered(error: BaseException) -> bool:
    """Whether an error of a server's call is the server's answer, as pydantic-ai passes it on."""
    kind, cause = type(error).__name__, error.__cause__
    if kind in ("ModelRetry", "ToolFailed"):
        return cause is None or type(cause).__name__ == "ToolError" or is_answer(cause)
    return kind == "ToolError" or is_answer(error)


def with_unknown(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return a toolset in which a call without an MCP server's answer has an unknown outcome."""
    return toolset.visit_and_replace(lambda leaf: _Answered(leaf) if is_server(leaf) else leaf)


class _Answered(WrapperToolset[Any]):
    async def call_tool(self, name: str, tool_args: JSONObject, ctx: RunContext[Any], tool: Any) -> Any:
        try:
            return await super().call_tool(name, tool_args, ctx, tool)
        except Exception as error:
            if is_answered(error):
                raise
            raise unknown(ctx.tool_name or name, ctx.tool_call_id or "", error) from error


def _fingerprint(tool: ToolsetTool[Any]) -> str:
    """Return a digest of everything that is declared about a tool."""
    described = tool.tool_def
    hints = (described.metadata or {}).get("annotations")
    declared = {"name": described.name, "schema": described.parameters_json_schema, "hints": hints}
    return digest_of({**declared, "description": described.description, "returns": described.return_schema})


def split_toolsets(agent: Agent[Any, Any], name: str) -> tuple[list[FunctionToolset[Any]], list[AbstractToolset[Any]]]:
    """Return an agent's toolsets whose tools are known now, and those whose tools are found later.

    Raises:
        DefinitionError: the tools of one run elsewhere.
    """
    known, later = list[FunctionToolset[Any]](), list[AbstractToolset[Any]]()
    for toolset in agent.toolsets:
        leaves = list[Any]()
        toolset.apply(leaves.append)
        if any(isinstance(leaf, ExternalToolset) for leaf in leaves):
            raise DefinitionError(f"Agent '{name}': the tools of {toolset.label} run elsewhere; give it function tools")
        if leaves == [toolset] and isinstance(toolset, FunctionToolset):
            known.append(toolset)
        else:
            later.append(toolset)
    return known, later
