"""Declares the options of an MCP toolset, and rejects unusable ones before a connection is made."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict
from urllib.parse import urlsplit

from standfast.agents import Agent
from standfast.errors import DefinitionError
from standfast.mcp.stored_logins import OAuth
from standfast.mcp.transports import is_transport
from standfast.mcp.user_connections import Headers
from standfast.messages import ToolCall, with_article
from standfast.tools import Approval, Duration

Gate = Approval | Callable[[ToolCall], Approval | None]
_PREFIX = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,19}")


class MCPOptions(TypedDict, total=False):
    """The arguments of an `MCPToolset` besides its server."""

    only: Iterable[str] | None
    prefix: str
    safe_to_retry: Mapping[str, bool]
    approval: Gate | Mapping[str, Gate | None] | None
    trust_hints: bool
    timeout: Duration | None
    max_answer_bytes: int
    headers: Headers
    auth: Any
    elicitation: bool
    sampling: Agent | bool | None
    resources: bool


def check_known(options: Mapping[str, object]) -> None:
    """Reject unknown options."""
    if unknown := sorted(options.keys() - MCPOptions.__annotations__.keys()):
        raise DefinitionError(
            f"mcp: unknown option {unknown[0]!r}; the options are {', '.join(MCPOptions.__annotations__)}"
        )


def check_server(server: Any) -> None:
    """Reject a server that cannot be connected to."""
    if isinstance(server, str):
        is_server = urlsplit(server).scheme in ("http", "https") and bool(urlsplit(server).hostname)
    else:
        of_sdk = any(kind.__module__.partition(".")[0] == "mcp" for kind in type(server).__mro__)
        is_server = of_sdk or callable(server) or is_transport(server)
    if not is_server:
        raise DefinitionError(
            "mcp: the server must be a URL that begins with http:// or https://, an mcp.StdioServerParameters, or a "
            f"function that makes a transport, got {server!r:.80}"
        )


def check_options(server: object, options: Mapping[str, Any]) -> None:
    """Reject unusable values.

    Raises:
        DefinitionError: naming the option.
    """
    if (prefix := options["prefix"]) and not (isinstance(prefix, str) and _PREFIX.fullmatch(prefix)):
        raise DefinitionError(f"prefix must match {_PREFIX.pattern}, got {prefix!r:.80}")
    only = options["only"]
    if only is not None and not (isinstance(only, tuple) and all(isinstance(name, str) for name in only)):
        raise DefinitionError(f"mcp: only must be a list of the names of tools, got {only!r:.80}")
    for name in ("trust_hints", "elicitation", "resources"):
        if not isinstance(options[name], bool):
            raise DefinitionError(f"mcp: {name} must be True or False, got {options[name]!r:.80}")
    safe = options["safe_to_retry"]
    if not isinstance(safe, Mapping) or not all(isinstance(one, bool) for one in safe.values()):
        raise DefinitionError(f"mcp: safe_to_retry maps names of tools to True or False, got {safe!r:.80}")
    if options["sampling"] is not None and not isinstance(options["sampling"], Agent | bool):
        raise DefinitionError(f"mcp: sampling must be an Agent, True or False, got {options['sampling']!r:.80}")
    headers, auth = options["headers"], options["auth"]
    if (headers or auth is not None) and not isinstance(server, str):
        raise DefinitionError("headers= and auth= are for servers with a URL")
    if not callable(headers) and not isinstance(headers, Mapping):
        raise DefinitionError(f"headers must be a mapping or a function, got {with_article(type(headers).__name__)}")
    is_auth = isinstance(auth, OAuth) or hasattr(auth, "async_auth_flow") or callable(auth)
    if auth is not None and not is_auth:
        raise DefinitionError(
            "mcp: auth must be an httpx2.Auth, a function that returns one, or OAuth(…), got "
            f"{with_article(type(auth).__name__)}"
        )
