"""Tools of MCP servers, which an agent uses like any others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

from standfast.mcp.login_pages import login
from standfast.mcp.logins import OAuth
from standfast.mcp.options import MCPOptions
from standfast.mcp.servers import MCPToolset, mcp_prompt, mcp_server, toolset_of
from standfast.tools import Tool

__all__ = ["MCPToolset", "OAuth", "login", "mcp_prompt", "mcp_server", "mcp_tools"]


@asynccontextmanager
async def mcp_tools(
    server: Any, *, store: Any = None, **options: Unpack[MCPOptions]
) -> AsyncIterator[list[Tool[..., Any]]]:
    """Connect to a server and yield its tools for as long as the block lasts; a lost connection is opened again.

    Args:
        server: the URL of a server with streamable HTTP; an `mcp.StdioServerParameters`, whose process is started; or
            a function that makes a transport of the SDK's kind.
        store: the durable store of the runs; what the server declares is kept in it, as with `mcp_server`.
        only: names of the tools to take, as the server has them; all if None. For models, other characters of a name
            than letters, digits, `_` and `-` are replaced, and a number is added if another tool has the name.
        prefix: what the names of the tools begin with here, such as "docs_".
        safe_to_retry: by the name of a tool; others have effects, unless `trust_hints` says otherwise.
        approval: one for all tools, including those that the server adds later; or a mapping by the name of a tool, in
            which "*" stands for all tools that are not named, and None says that a tool needs no approval. Without
            "*", tools that are not named need none.
        trust_hints: believe the server, whose tools are then safe if their `readOnlyHint` or `idempotentHint` is set.
        timeout: the limit of one call; 55 seconds if None.
        max_answer_bytes: the most that the server may send at once; if it sends more, the connection is closed.
        headers: a mapping, or a function of a call's `ToolContext` that returns one, for a token per user. The tools
            are listed with the headers of a context that has no user.
        auth: an `httpx2.Auth`, such as the SDK's OAuth providers; a function of the `ToolContext` that returns one; or
            `OAuth(…)`, with the logins of users that a durable store keeps.
        elicitation: let the server ask people. The model reads what it asks; the further tool `ask_person` asks a
            person, for as long as that takes; and when the tool is called again, the server gets the answer. Needs
            `store`. Each call then has a connection of its own.
        sampling: who answers when the server asks for a model: True is the model of the agent that makes the call,
            without its instructions, tools and conversation; or another agent, which the worker on Temporal has to
            have. What the answer uses counts as used by the call.
        resources: also give the tools `list_resources` and `read_resource`, which are safe to retry.

    Raises:
        DefinitionError: the server has no tool of a name; an option is wrong.
        StandfastError: it cannot be reached.
        ImportError: the SDK is not installed.
    """
    async with toolset_of(server, options).opened(store) as tools:
        yield list(tools)
