"""A browser, and the page on a separate port, with a real server and worker."""

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from integration.conftest import folder, temporal, temporal_server
from playwright.async_api import Browser, Page, async_playwright
from support.pages import served
from support.temporal_runs import Temporal

from standfast.web import create_app

__all__ = ["folder", "temporal", "temporal_server"]  # fixtures

CHROMIUM = "/usr/bin/chromium"  # Debian's
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-quic", "--disable-background-networking"]

# Pages of a browser without a screen are all shown; this is what it says of those that are not.
LOOK_AWAY = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

Serve = Callable[..., "contextlib.AbstractAsyncContextManager[str]"]


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture
def serve(temporal: Temporal) -> Serve:
    """Serve the page by these rules; yields its address."""
    return lambda access, **options: served(
        create_app(temporal.client, access=access, store=temporal.store, task_queue=temporal.name, **options)
    )


async def faults_of(page: Page) -> list[str]:
    """Collect what a page complains of: scripts that fail, and what its content security policy keeps from running."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    return faults
