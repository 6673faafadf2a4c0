"""The page, served at a port of its own."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette


@contextlib.asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """Serve the page at a free port; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
