"""A browser, and the page at a port of its own, beside a real server and worker."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import uvicorn
from integration.conftest import folder, temporal, temporal_server
from integration.temporal_runs import Temporal
from playwright.async_api import Browser, Page, async_playwright
from starlette.applications import Starlette

from holdfast.web import Access, create_app

__all__ = ["folder", "temporal", "temporal_server"]  # fixtures

CHROMIUM = "/usr/bin/chromium"  # Debian's
ARGUMENTS = ["--no-sandbox", "--disable-quic", "--disable-background-networking"]

Serve = Callable[[Access], "contextlib.AbstractAsyncContextManager[str]"]


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


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


@pytest.fixture
def serve(temporal: Temporal) -> Serve:
    """Serve the page by these rules; yields its address."""
    return lambda access: served(create_app(temporal.client, access=access, store=temporal.store))


async def faults_of(page: Page) -> list[str]:
    """Collect what a page complains of: scripts that fail, and what its content security policy keeps from running."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    return faults
