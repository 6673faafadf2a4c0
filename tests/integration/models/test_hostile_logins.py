"""Authorization servers that send junk or hang, and processes that renew one token concurrently."""

import asyncio
import importlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.drivers import Driver
from support.mcp_http import GatewayedServer
from support.transcripts import asks_for, call, error_of, result_of, tool_results

from standfast import Agent, sqlite_store
from standfast.mcp import OAuth, mcp_server, stored_logins
from standfast.mcp.stored_logins import Login, Logins, auth_of
from standfast.testing import ScriptedModel

GOOD = b'{"access_token": "fresh", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r2"}'


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_MCP_KEY", "a secret of the tests")


@asynccontextmanager
async def token_endpoint(answer: bytes | None, *, seconds: float = 0, asked: list[str]) -> AsyncIterator[str]:
    """Serve one answer to everyone; without one, close the connection instead."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        asked.append((await reader.readexactly(size)).decode())
        await asyncio.sleep(seconds)
        if answer is not None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(answer) + answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"


def login(endpoint: str, *, is_old: bool) -> Login:
    client = {"client_id": "c", "redirect_uris": ["http://127.0.0.1/callback"]}
    return Login("stale", "r1", 0.0 if is_old else time.time() + 3600, endpoint, client)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>It works!</html>",
        b'{"access_token": {"secret-of-ada": 1}}',
        b'{"access_token": "secret-of-ada\\r\\nX-Admin: yes", "token_type": "Bearer"}',
        b'{"access_token": "secret-of-ada", "token_type": "Bearer", "expires_in": 1' + b"0" * 400 + b"}",
        None,
    ],
    ids=["a page", "another type", "a header", "a long life", "nothing"],
)
async def test_a_token_that_cannot_be_renewed_makes_no_effect_unknown_and_is_not_shown(
    driver: Driver, answer: bytes | None
) -> None:
    asked: list[str] = []
    async with GatewayedServer() as server, token_endpoint(answer, asked=asked) as endpoint:
        kept = Logins(driver.temporal.store, server.url, None)
        await kept.save((None, None), login(endpoint, is_old=False))
        await kept.save((None, "ada"), login(endpoint, is_old=True))
        agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth(), only=["post"])])
        model = ScriptedModel([asks_for(call("post", "c1")), "done"])
        ended = await driver.run(agent, model, user_id="ada")
        said = error_of(tool_results(ended.messages)[0])
        assert f"the token for {server.url} cannot be renewed: " in said
        assert "secret-of-ada" not in said
        assert server.effects == []
        assert asked


async def test_one_of_two_processes_renews_a_token_and_the_other_waits_for_it() -> None:
    asked: list[str] = []
    async with (
        sqlite_store(":memory:") as store,
        GatewayedServer() as server,
        token_endpoint(GOOD, seconds=0.5, asked=asked) as endpoint,
    ):
        await Logins(store, server.url, None).save((None, "ada"), login(endpoint, is_old=True))

        async def post() -> Any:
            auth = auth_of(Logins(store, server.url, None), (None, "ada"))
            async with importlib.import_module("httpx2").AsyncClient(auth=auth) as client:
                return (await client.get(server.url)).request.headers["Authorization"]

        assert await asyncio.gather(*(post() for _ in range(4))) == ["Bearer fresh"] * 4
    assert len(asked) == 1


async def test_a_process_that_has_died_while_it_renewed_a_token_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, driver: Driver
) -> None:
    monkeypatch.setattr(stored_logins, "_RENEWAL_SECONDS", 0.2)
    asked: list[str] = []
    async with GatewayedServer() as server, token_endpoint(GOOD, asked=asked) as endpoint:
        kept = Logins(driver.temporal.store, server.url, None)
        await kept.save((None, None), login(endpoint, is_old=True))
        assert await kept.renewed_elsewhere((None, None), login(endpoint, is_old=True), "the dead") is None
        agent = Agent("a", tools=[mcp_server(server.url, auth=OAuth(), only=["post"])])
        ended = await driver.run(agent, ScriptedModel([asks_for(call("post", "c1")), "done"]))
        assert result_of(ended.messages, "c1") == "post is done"
