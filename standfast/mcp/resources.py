"""MCP resources and prompts: tools that list and read resources, and prompts as text."""

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field, create_model

from standfast.errors import StandfastError
from standfast.mcp.connections import MAX_PAGES, MAX_TOOLS, Connection
from standfast.mcp.identities import Connections
from standfast.messages import cut
from standfast.tools import Tool, ToolContext

NAMES = ("list_resources", "read_resource")
_LONGEST_DESCRIPTION = 500  # bytes, for each entry of a list


def resource_tools(connections: Connections, prefix: str) -> list[Tool[..., Any]]:
    """Return the tools with which a model lists and reads a server's resources. Both are read-only."""

    async def list_resources(ctx: ToolContext) -> str:
        async def listed(connection: Connection) -> list[str]:
            return await connection.read(_listed)

        return "\n".join(await connections.use(ctx, listed)) or "There are none."

    async def read_resource(given: Any, ctx: ToolContext) -> str:
        async def read(connection: Connection) -> str:
            return await connection.read(lambda client: _read(client, given.uri))

        return await connections.use(ctx, read)

    fields: Any = {"uri": (Annotated[str, Field(max_length=4096)], ...)}
    listing, reading = (f"{prefix}{name}" for name in NAMES)
    return [
        Tool(
            listing,
            description="List the resources that can be read.",
            handler=list_resources,
            safe_to_retry=True,
        ),
        Tool(
            reading,
            description=f"Read a resource that {listing} has listed.",
            input=create_model("Resource", **fields),
            handler=read_resource,
            safe_to_retry=True,
        ),
    ]


async def _listed(client: Any) -> list[str]:
    found = [_line(str(one.uri), one) for one in await _pages(client.list_resources, "resources")]
    return found + [_line(one.uri_template, one) for one in await _pages(client.list_resource_templates, "templates")]


async def _pages(ask: Callable[..., Awaitable[Any]], what: str) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await ask(cursor=cursor)
        found += page.resources if what == "resources" else page.resource_templates
        cursor = page.next_cursor
        if len(found) > MAX_TOOLS:
            break
        if cursor is None:
            return found
    raise StandfastError(f"there are more than {MAX_TOOLS:,} {what}, or {MAX_PAGES} pages")


def _line(uri: str, one: Any) -> str:
    return json.dumps([uri, cut(one.description or one.title or one.name, _LONGEST_DESCRIPTION)], ensure_ascii=False)


async def _read(client: Any, uri: str) -> str:
    found = await client.read_resource(uri, cache_mode="bypass")
    return "\n".join(
        one.text if hasattr(one, "text") else f"[{one.mime_type or 'data'}, which cannot be shown]"
        for one in found.contents
    )


async def prompt_text(client: Any, name: str, arguments: dict[str, str]) -> str:
    """Return the texts of a prompt. A text that is not the user's begins with its role."""
    found = await client.get_prompt(name, arguments)
    parts = []
    for message in found.messages:
        text = message.content.text if message.content.type == "text" else f"[{message.content.type}]"
        parts.append(text if message.role == "user" else f"{message.role}: {text}")
    return "\n\n".join(parts)
