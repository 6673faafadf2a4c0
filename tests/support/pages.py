"""The page in tests: its users, and requests to it, in a browser and on a separate port."""

import asyncio
import html
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import httpx
from starlette.applications import Starlette

from standfast import Approval, tool
from standfast.web import Access, Person, create_app
from standfast.web.serving.servers import server_of
from support.temporal_runs import Temporal
from support.transcripts import asks_for, call


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    """Serve the page at a free port; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = server_of(app)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


HOST = "127.0.0.1"
XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
TOKENS = {name: f"{name}-token-that-is-long-enough" for name in ("vera", "ada", "olga")}
PEOPLE = [
    Person(name="vera", role="viewer", token=TOKENS["vera"]),
    Person(name="ada", role="approver", token=TOKENS["ada"]),
    Person(name="olga", role="operator", token=TOKENS["olga"]),
]
BOB = Person(name="bob", role="operator", token="bob-token-that-is-long-enough")
LOCAL = Access(local=Person(name="ada", role="operator"))


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"]))
async def charge(amount: int) -> str:
    return f"charged {amount}"


CHARGES = asks_for(call("charge", "c1", amount=5), tokens=1_200)


@asynccontextmanager
async def browser(temporal: Temporal, access: Access = LOCAL, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(temporal.client, access=access, **{"store": temporal.store, **options})
    transport = httpx.ASGITransport(app=app, client=(HOST, 4711))
    headers = {"Accept": "text/html"}  # as a browser asks for pages
    ours = patch(
        "standfast.web.identity.connection_owners._user_of", return_value=os.getuid()
    )  # without a connection to look at
    with ours:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as client:
            yield client


def fields(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of a form, as a browser sends them."""
    form = page.split(f'action="{action}"')[1].split("</form>")[0]
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found}


async def send(client: httpx.AsyncClient, page: str, run: str, act: str, **typed: str) -> httpx.Response:
    """Fill in the form of a page, and send it."""
    action = f"/runs/{run}/{act}"
    shown = (await client.get(page)).text
    return await client.post(action, data={**fields(shown, action), **typed}, follow_redirects=True)


async def shows(client: httpx.AsyncClient, page: str, text: str) -> bool:
    return text in (await client.get(page)).text


async def csrf_of(client: httpx.AsyncClient) -> str:
    return re.findall(r'name="csrf" value="(\w+)"', (await client.get("/login")).text)[0]
