"""MCP tools, which an agent uses like any other tools."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

from standfast.mcp.browser_logins import login
from standfast.mcp.options import MCPOptions
from standfast.mcp.servers import MCPToolset, mcp_prompt, mcp_server, toolset_of
from standfast.mcp.stored_logins import OAuth
from standfast.tools import Tool

__all__ = ["MCPToolset", "OAuth", "login", "mcp_prompt", "mcp_server", "mcp_tools"]


@asynccontextmanager
async def mcp_tools(
    server: Any, *, store: Any = None, **options: Unpack[MCPOptions]
) -> AsyncIterator[list[Tool[..., Any]]]:
    """Connect to a server and yield its tools for as long as the block lasts. A lost connection is opened again.

    Args:
        server: the URL of a server with streamable HTTP; an `mcp.StdioServerParameters`, whose process is started; or a
            function that makes an SDK transport.
        store: the durable store of the runs. The server's declarations are stored in it, as with `mcp_server`.
        only: the server's names of the tools to take; all if None. Models see changed names: characters other than
            letters, digits, `_` and `-` are replaced, and a number is added if another tool has the name.
        prefix: the prefix of the tools' names here, such as "docs_".
        safe_to_retry: by tool name; other tools have effects, unless `trust_hints` says otherwise.
        approval: one approval for all tools, including tools that the server adds later; or a mapping by tool name. In
            the mapping, "*" covers all tools that are not named, and None means that a tool does not need approval.
            Without "*", unnamed tools do not need approval.
        trust_hints: trust the server's hints: a tool is safe if its `readOnlyHint` or `idempotentHint` is set.
        timeout: the limit of one call; 55 seconds if None.
        max_answer_bytes: the largest message that the server may send. If a message is larger, the connection is
            closed.
        headers: a mapping, or a function of a call's `ToolContext` that returns one, for a token per user. The tools
            are listed with the headers of a context without a user.
        auth: an `httpx2.Auth`, such as the SDK's OAuth providers; a function of the `ToolContext` that returns one; or
            `OAuth(…)`, which uses the user logins in a durable store.
        elicitation: let the server ask people. The model reads the question. The additional tool `ask_person` asks a
            person, for as long as that takes. When the tool is called again, the server gets the answer. Needs `store`.
            Each call then has its own connection.
        sampling: answers when the server asks for a model: True is the model of the calling agent, without its
            instructions, tools and conversation; or another agent, which the Temporal worker must have. The usage of
            the answer counts as the call's.
        resources: also provide the tools `list_resources` and `read_resource`, which are safe to retry.

    Raises:
        DefinitionError: the server does not have a named tool, or an option is wrong.
        StandfastError: the server cannot be reached.
        ImportError: the SDK is not installed.
    """
    async with toolset_of(server, options).opened(store) as tools:
        yield list(tools)
