"""MCP servers as separate processes, reached by HTTP: killed and restarted on the same port."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from support.temporal_runs import until

SERVER = Path(__file__).with_name("mcp_server.py")


@contextlib.contextmanager
def served_over_http(script: Path, effects: Path) -> Iterator[str]:
    """Run a server as a process that outlives the event loops of tests, and return its address."""
    port = _free_port()
    command = [sys.executable, str(script), str(effects), str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.02)
            assert process.poll() is None
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class ServerProcess:
    """`async with ServerProcess(file)`: the server of `mcp_server.py`, or of another script."""

    def __init__(self, effects: Path, script: Path = SERVER) -> None:
        self._effects, self._script = effects, script
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._process: Any = None

    async def __aenter__(self) -> "ServerProcess":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(self._script), str(self._effects), str(self.port), stderr=asyncio.subprocess.DEVNULL
        )
        await until(self._answers)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _answers(self) -> bool:
        try:
            async with httpx.AsyncClient() as client:
                await client.get(self.url)
        except httpx.TransportError:
            return False
        return True
