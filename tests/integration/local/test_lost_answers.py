"""Requests with a lost answer: the reported outcome, with real clients and servers that hang, disconnect and refuse."""

import asyncio
import http.client
import json
import math
import socket
import struct
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3
from support.drivers import Driver
from support.tools import attempt
from support.transcripts import tool_results

from standfast import Agent, Happened, NotHappened, RetryPolicy, Tool, tool
from standfast.testing import ScriptedModel
from standfast.tools import Failed, Unknown

PATIENCE = 0.4  # seconds that a client waits for an answer

_ANSWERS = {
    "no request": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "/half": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthe first half",
    "/close": b"",
    "/junk": b"%%%%\r\n\r\n",
    "/gateway": b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n",
    "/refuse": b"HTTP/1.1 422 Unprocessable Content\r\nContent-Length: 0\r\n\r\n",
}
OPEN = ["/hang", "/reset", "/half", "/close", "/junk", "/gateway"]
NOT_SENT = ["no port", "no name", "no TLS", "full"]


class Server:
    """Reads each request, and then does what its path says."""

    def __init__(self) -> None:
        self.seen = Counter[str]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._waiting = [socket.socket() for _ in range(4)]
        for one in self._waiting:  # nothing more is accepted once the backlog is full
            one.setblocking(False)
            one.connect_ex(self._full.getsockname())
        with socket.create_server(("127.0.0.1", 0)) as closed:
            self._closed = closed.getsockname()[1]
        self._open = list[socket.socket]()
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, case: str) -> str:
        port = self._listening.getsockname()[1]
        return {
            "no port": f"http://127.0.0.1:{self._closed}/no-port",
            "no name": "http://shop.invalid/no-name",
            "no TLS": f"https://127.0.0.1:{port}/no-tls",
            "full": f"http://127.0.0.1:{self._full.getsockname()[1]}/full",
        }.get(case, f"http://127.0.0.1:{port}{case}")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            given = client.recv(64 * 1024)
            path = given.split()[1].decode() if given.startswith(b"POST ") else "no request"
            self.seen[path] += 1
            if path == "/hang":
                return
            if path == "/reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                client.sendall(_ANSWERS[path])
            client.close()

    def close(self) -> None:
        for one in (self._listening, self._full, *self._waiting, *self._open):
            one.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


async def by_httpx(url: str) -> str:
    async with httpx.AsyncClient(timeout=PATIENCE, verify=False) as client:
        return (await client.post(url)).raise_for_status().text


async def by_httpx2(url: str) -> str:
    async with httpx2.AsyncClient(timeout=PATIENCE, verify=False) as client:
        return (await client.post(url)).raise_for_status().text


async def by_aiohttp(url: str) -> str:
    timeout = aiohttp.ClientTimeout(sock_connect=PATIENCE, sock_read=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session, session.post(url) as answer:
        return await answer.text()


def by_requests(url: str) -> str:
    answer = requests.post(url, timeout=PATIENCE)
    answer.raise_for_status()
    return answer.text


def by_urllib3(url: str) -> str:
    with urllib3.PoolManager(timeout=PATIENCE, retries=False) as pool:
        answer = pool.request("POST", url)
        if answer.status >= 400:
            raise httpx.HTTPStatusError("", request=httpx.Request("POST", url), response=httpx.Response(answer.status))
        return answer.data.decode()


def by_urllib(url: str) -> str:
    with urllib.request.urlopen(url, data=b"", timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def by_http_client(url: str) -> str:
    parts = urllib3.util.parse_url(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(str(parts.host), parts.port, timeout=PATIENCE)
    try:
        connection.request("POST", str(parts.path))
        answer = connection.getresponse()
        if answer.status >= 400:
            raise httpx.HTTPStatusError("", request=httpx.Request("POST", url), response=httpx.Response(answer.status))
        return answer.read().decode()
    finally:
        connection.close()


CLIENTS = [by_httpx, by_httpx2, by_aiohttp, by_requests, by_urllib3, by_urllib, by_http_client]


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("post", CLIENTS, ids=lambda post: post.__name__[3:])
async def test_a_call_whose_answer_is_lost_is_of_unknown_outcome_and_one_that_was_not_sent_is_a_failure(
    server: Server, post: Callable[[str], Any]
) -> None:
    told, seen = dict[str, Any](), dict[str, int]()
    for case in [*OPEN, *NOT_SENT, "/refuse"]:
        if case == "full" and post in (by_urllib, by_http_client):
            continue  # they raise the same TimeoutError whether a connection or an answer did not come
        pay = Tool("pay", description="Pay.", handler=partial(post, server.address(case)))
        outcome = await attempt(pay, in_thread=in_thread)
        told[case], seen[case] = type(outcome), server.seen[case]
    assert {case: told[case] for case in OPEN} == dict.fromkeys(OPEN, Unknown)
    assert {case for case, kind in told.items() if kind is Failed} == told.keys() - {*OPEN}
    assert all(seen[case] for case in OPEN)
    assert not any(seen[case] for case in NOT_SENT if case in seen)


# --- both drivers ---


async def test_both_drivers_tell_an_open_outcome_and_ask_verify(driver: Driver, server: Server) -> None:
    asked, looks = list[str](), list[str]()

    async def found(how: str) -> Happened | NotHappened | None:
        asked.append(how)
        return {"happened": Happened("receipt 7"), "not-happened": NotHappened()}.get(how)

    @tool
    async def pay() -> str:
        """Pay."""
        return await by_httpx(server.address("/hang"))

    @tool(verify=found)
    async def pay_verified(how: str) -> str:
        """Pay, by a shop that can be asked."""
        return await by_httpx(server.address("/reset"))

    @tool
    async def pay_nobody() -> str:
        """Pay, by a shop that is not there."""
        return await by_httpx(server.address("no port"))

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01, maximum_attempts=2))
    async def look() -> str:
        """Look, which is harmless."""
        looks.append("look")
        return await by_httpx(server.address("/close")) if len(looks) == 1 else "seen"

    @tool
    async def pay_both() -> None:
        """Pay two shops at once."""
        addresses = server.address("/half"), server.address("no port")
        found = await asyncio.gather(*map(by_httpx, addresses), return_exceptions=True)
        raise ExceptionGroup("both failed", [one for one in found if isinstance(one, Exception)])

    @tool
    def measure() -> Any:
        """Measure."""
        return {"mean": math.nan}

    tools = [pay, pay_verified, pay_nobody, look, pay_both, measure]
    turn = [
        {"id": "c1", "name": "pay", "arguments": {}},
        *(
            {"id": how, "name": "pay_verified", "arguments": {"how": how}}
            for how in ("happened", "not-happened", "neither")
        ),
        *({"id": one.name, "name": one.name, "arguments": {}} for one in tools[2:]),
    ]
    ended = await driver.run(Agent("payer", tools=tools), ScriptedModel([{"tool_calls": turn}, "Told."]))
    told = {one.tool_call_id: one.content for one in tool_results(ended.messages)}
    errors = {name: json.loads(text) for name, text in told.items() if text.startswith("{")}
    unknown = {name for name, error in errors.items() if error.get("kind") == "tool-durability-error"}
    assert unknown == {"c1", "neither", "pay_both"}
    assert "ReadTimeout" in errors["c1"]["error"]
    assert (told["happened"], told["look"], looks) == ("receipt 7", "seen", ["look", "look"])
    assert errors["not-happened"].keys() == errors["pay_nobody"].keys() == {"error"}
    assert "RemoteProtocolError: " in errors["pay_both"]["error"]
    assert "ran, but its result could not be kept whole" in errors["measure"]["error"]
    assert asked == ["happened", "not-happened", "neither"]
    assert server.seen == {"/hang": 1, "/reset": 3, "/close": 1, "/half": 1}
