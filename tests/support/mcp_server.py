"""An MCP server as a separate process: `python mcp_server.py FILE [PORT]`; FILE records every effect."""

import os
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("test")
effects = Path(sys.argv[1])


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(name: str) -> str:
    """Read something."""
    return f"{name} is here"


@server.tool()
def post(text: str, times: int = 1) -> dict[str, int]:
    """Post a text."""
    with effects.open("a") as file:
        file.write(f"{text}\n" * times)
    return {"posted": times}


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(text: str) -> str:
    """Put a text, and die the first time."""
    first = not effects.exists()
    with effects.open("a") as file:
        file.write(f"put {text}\n")
    if first:
        os._exit(1)
    return "put"


@server.tool()
def die(text: str) -> str:
    """Post a text, and die."""
    with effects.open("a") as file:
        file.write(f"{text}\n")
    os._exit(1)


@server.tool()
def linger(text: str) -> str:
    """Post a text, and answer once there is a file that says so."""
    with effects.open("a") as file:
        file.write(f"{text} {os.getpid()}\n")
    while not effects.with_suffix(".release").exists():
        time.sleep(0.02)
    return "lingered"


@server.tool()
def fail() -> str:
    """Raise."""
    raise ToolError("no such channel")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
