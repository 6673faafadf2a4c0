"""Finds the tools of an OpenAI agent's MCP servers when a run or a worker begins, and makes their calls; internal.

Each opening has a copy of the server and a separate connection, so the user's server need not be connected. The SDK's
retries are off in it: they would run a call with effects twice.
"""

import asyncio
import copy
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agents import Agent, FunctionTool, RunContextWrapper
from agents.mcp import MCPServer, MCPUtil, ToolFilterContext
from agents.tool import default_tool_error_function

from standfast.errors import RetryableError, StandfastError, ToolDurabilityError
from standfast.integrations._foreign_agents import Declared
from standfast.integrations._guards import said_safe
from standfast.integrations._openai_tools import FunctionCall, RunSettings, gate_of, stub
from standfast.integrations._server_connections import ServerConnection, has_changed
from standfast.mcp.schemas import checked_by, digest_of, schema_problem
from standfast.messages import JSONObject
from standfast.tools import Tool, ToolContext

_LOG = logging.getLogger("standfast")


class ServerTools(tuple[Tool[..., Any], ...]):
    """The tools of a server, and their versions for the models of each agent that has it, by agent name."""

    shown: Mapping[str, Sequence[FunctionTool]]


@dataclass(frozen=True, eq=False)
class OpenAIServer:
    """The toolset of one server, which several agents may share."""

    server: MCPServer
    owners: tuple[Agent[Any], ...]
    declared: Declared
    settings: RunSettings

    @property
    def name(self) -> str:
        """The server's name for people."""
        return f"MCP server {self.server.name}"

    @property
    def agents(self) -> Sequence[Any]:
        """The agents that its tools run: none."""
        return ()

    @property
    def asks_model(self) -> bool:
        """Whether they may ask the agent's model: not through standfast."""
        return False

    @asynccontextmanager
    async def opened(self, store: Any, renewed: Callable[..., None] | None = None) -> AsyncIterator[ServerTools]:
        """Yield the tools for as long as a block lasts."""
        connection = ServerConnection(self.name, partial(_connected, self.server), _Client.list)
        try:
            client = await connection.read(_itself)
            tools, shown = dict[str, Tool[..., Any]](), dict[str, list[FunctionTool]]()
            for agent in self.owners:
                found = await self._of_agent(agent, client, connection)
                shown[agent.name] = [one for one, _ in found]
                tools |= {tool.name: tool for _, tool in found if tool.name not in tools}
            result = ServerTools(tools.values())
            result.shown = shown
            yield result
        finally:
            await connection.close()

    async def _of_agent(
        self, agent: Agent[Any], client: "_Client", connection: "ServerConnection[_Client]"
    ) -> list[tuple[FunctionTool, Tool[..., Any]]]:
        options = agent.mcp_config
        theirs = await MCPUtil.get_function_tools(
            client.server,
            options.get("convert_schemas_to_strict", False),
            RunContextWrapper(context=None),
            agent,
            include_server_in_tool_names=options.get("include_server_in_tool_names", False),
            reserved_tool_names={tool.name for tool in agent.tools},
            server_index=agent.mcp_servers.index(self.server),
        )
        # They are in the order of the listing; the names in the listing may follow the server's.
        items = await client.server.list_tools(RunContextWrapper(context=None), agent)
        found = []
        for item, tool in zip(items, theirs, strict=True):
            assert isinstance(tool, FunctionTool)
            schema = tool.params_json_schema
            if problem := schema_problem(schema):
                _LOG.warning("%s: its tool %.80r is left out: %s", self.name, item.name, problem)
                continue
            said = self.declared.trust_hints and said_safe(item.annotations)
            call = _ServerCall(self, agent, connection, item, tool.name, self.declared.is_safe(tool.name, said))
            ours = self.declared.tool(
                tool.name,
                tool.description,
                schema,
                call.run,
                approval=gate_of(tool),
                safe=said,
                check=checked_by(schema),
                fingerprint=_fingerprint(item),
            )
            found.append((stub(tool, self._is_enabled(item)), ours))
        return found

    def _is_enabled(self, item: Any) -> Any:
        """Return a filter function's results in each turn, with its context."""
        accepts = self.server.tool_filter if callable(getattr(self.server, "tool_filter", None)) else None
        if accepts is None:
            return True

        async def is_enabled(context: Any, agent: Any) -> bool:
            said: Any = accepts(ToolFilterContext(run_context=context, agent=agent, server_name=self.server.name), item)
            return bool(await said if asyncio.iscoroutine(said) or asyncio.isfuture(said) else said)

        return is_enabled


@dataclass(frozen=True)
class _ServerCall:
    """The handler of a server's tool: the SDK calls it, and the call uses our connection."""

    toolset: OpenAIServer
    agent: Agent[Any]
    connection: "ServerConnection[_Client]"
    item: Any
    name: str
    is_safe: bool

    async def run(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        outcome: list[Exception] = []
        options = self.agent.mcp_config
        proxy: Any = copy.copy(self.toolset.server)

        async def call_tool(tool_name: str, arguments: Any, meta: Any = None) -> Any:
            async def ask(client: _Client) -> Any:
                client.check_unchanged(self.item)
                also = {} if meta is None else {"meta": meta}
                return await client.server.call_tool(tool_name, arguments, **also)

            try:
                return await self.connection.call(self.name, ctx.tool_call_id, ask)
            except ToolDurabilityError as error:
                outcome.append(RetryableError(error.reason) if self.is_safe else error)
                raise
            except StandfastError as error:
                outcome.append(error)
                raise

        proxy.call_tool = call_tool
        tool = MCPUtil.to_function_tool(
            self.item,
            proxy,
            options.get("convert_schemas_to_strict", False),
            self.agent,
            failure_error_function=options.get("failure_error_function", default_tool_error_function),
            tool_name_override=self.name,
        )
        try:
            result = await FunctionCall(self.agent, tool, self.toolset.settings, is_safe=self.is_safe).run(
                arguments, ctx
            )
        except Exception:
            if outcome:
                raise outcome[0] from None
            raise
        if outcome:  # the SDK has turned it into text
            raise outcome[0]
        return result


class _Client:
    """A connected server, and digests of its tools as last described."""

    def __init__(self, server: Any) -> None:
        self.server, self._unfiltered = server, copy.copy(server)
        if hasattr(server, "tool_filter"):
            self._unfiltered.tool_filter = None
        self._digests: Mapping[str, str] = {}

    async def list(self) -> None:
        items = await self._unfiltered.list_tools(RunContextWrapper(context=None), Agent("-"))
        self._digests = {item.name: _fingerprint(item) for item in items}

    def check_unchanged(self, item: Any) -> None:
        """Refuse a tool that has changed since it was read and perhaps approved: it may do something else.

        Raises:
            StandfastError: the tool has changed.
        """
        if self._digests.get(item.name) != _fingerprint(item):
            raise has_changed(item.name)


@asynccontextmanager
async def _connected(server: MCPServer) -> AsyncIterator[_Client]:
    """Connect a copy of a server, whose filter is kept only if it is a list."""
    twin: Any = copy.copy(server)
    fresh: dict[str, Any] = {
        "session": None,
        "exit_stack": AsyncExitStack(),
        "max_retry_attempts": 0,
        "cache_tools_list": False,
    }
    fresh |= {"_cleanup_lock": asyncio.Lock(), "_request_lock": asyncio.Lock(), "_tools_list": None}
    for name, value in fresh.items():
        if hasattr(twin, name):
            setattr(twin, name, value)
    if callable(getattr(twin, "tool_filter", None)):
        twin.tool_filter = None
    await twin.connect()
    try:
        yield _Client(twin)
    finally:
        await twin.cleanup()


async def _itself(client: _Client) -> _Client:
    return client


def _fingerprint(item: Any) -> str:
    """Return a digest of everything that a server declares about a tool."""
    return digest_of(json.loads(item.model_dump_json(by_alias=True, exclude_none=True)))


def servers_of(agents: Mapping[str, Agent[Any]], declared: Declared, settings: RunSettings) -> list[OpenAIServer]:
    """Return the toolsets of the servers that agents have."""
    found = dict[int, OpenAIServer]()
    for agent in agents.values():
        for server in agent.mcp_servers:
            known = found.get(id(server), OpenAIServer(server, (), declared, settings))
            found[id(server)] = replace(known, owners=(*known.owners, agent))
    return list(found.values())
