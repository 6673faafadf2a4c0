"""A proxy in front of D1: it records requests, and loses them or their answers, as a network does."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from standfast.stores import D1Store
from support.d1 import D1Server


class D1Proxy:
    """Forwards requests to a server, one answer each.

    Attributes:
        requests: the statements of each request that came, with their values.
        faults: what is done with the next requests, in order: "drop" loses one, "lose" loses its answer, "stop" keeps
            one until `go`, and a status, headers and a body are answered without asking the server. Those after them
            are forwarded, and so is "".
    """

    def __init__(self, server: D1Server) -> None:
        self.server = server
        self.requests: list[list[tuple[str, list[Any]]]] = []
        self.faults: list[str | tuple[int, Mapping[str, str], bytes]] = []
        self.go = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._client = httpx.AsyncClient(timeout=60, verify=False)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/client/v4"

    def store(self, database: str | None = None, **options: Any) -> D1Store:
        return self.server.store(database, base_url=self.url, **options)

    def cut(self) -> None:
        """End all connections; what was asked is done, or is not."""
        for writer in self._open:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["D1Proxy"]:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listening.close()
            self.cut()
            while self._open:
                await asyncio.sleep(0)
            await self._client.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answer(reader, writer):
                    pass
        finally:
            writer.transport.abort()
            self._open.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; False to end the connection."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append([(one["sql"], one["params"]) for one in json.loads(body)["batch"]])
        fault = self.faults.pop(0) if self.faults else None
        if fault == "drop":
            return False
        if fault == "stop":
            await self.go.wait()
        if isinstance(fault, tuple):
            status, more, content = fault
        else:
            path = first.split(" ")[1].removeprefix("/client/v4")
            kept = {name: headers[name] for name in ("authorization", "content-type") if name in headers}
            done = await self._client.post(f"{self.server.url}{path}", content=body, headers=kept)
            status, more, content = done.status_code, {}, done.content
        if fault == "lose":
            return False
        head = [f"HTTP/1.1 {status} X", f"content-length: {len(content)}", *(f"{key}: {more[key]}" for key in more)]
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        return True
