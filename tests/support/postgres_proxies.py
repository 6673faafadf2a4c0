"""A proxy in front of a PostgreSQL server: it records statements, and drops connections as a network does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from standfast import postgres_store
from standfast.stores import PostgresStore
from support.postgres import PostgresServer, new_schema


class PostgresProxy:
    """Forwards connections to a server, until it is told not to."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.open: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._left: list[asyncio.StreamWriter] = []  # to the server, whose clients are gone
        self._is_cut = False
        self.statements: list[str] = []  # that were executed; each is a round trip
        self.port = 0
        self._held_back = ""
        self.holds_back, self._goes_on = asyncio.Event(), asyncio.Event()

    def hold_back(self, part: str) -> None:
        """Hold back the next statement with this part in it, and set `holds_back`, until `go_on`."""
        self._held_back = part

    def go_on(self) -> None:
        self._goes_on.set()

    def store(self, schema: str | None = None) -> PostgresStore:
        dsn = f"postgresql://standfast@127.0.0.1:{self.port}/postgres?sslmode=disable"
        return postgres_store(dsn, schema=schema or new_schema())

    def cut(self, *, half: bool = False) -> None:
        """End all connections; until `mend`, new ones are refused.

        Args:
            half: the server does not notice, and new ones are not refused.
        """
        self._is_cut = not half
        for client, server in self.open:
            client.transport.abort()
            if half:
                self._left.append(server)

    def mend(self) -> None:
        self._is_cut = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["PostgresProxy"]:
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listening.close()
            self.cut()
            for server in self._left:
                server.transport.abort()
            while self.open:
                await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server.port)
        both = (writer, to_server)
        self.open.append(both)
        tasks = {asyncio.create_task(self._ask(reader, to_server)), asyncio.create_task(_answer(from_server, writer))}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            task.cancelled() or task.exception()
        writer.transport.abort()
        if to_server not in self._left:
            to_server.transport.abort()
        self.open.remove(both)

    async def _ask(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        size = await reader.readexactly(4)
        to_server.write(size + await reader.readexactly(int.from_bytes(size) - 4))
        prepared: dict[bytes, str] = {}
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
            match head[:1]:
                case b"P":
                    name, statement, *_ = body.split(b"\0")
                    prepared[name] = statement.decode()
                case b"B":
                    self.statements.append(prepared[body.split(b"\0")[1]])
                    if self._held_back and self._held_back in self.statements[-1]:
                        self._held_back = ""
                        self.holds_back.set()
                        await self._goes_on.wait()
                case b"Q":
                    self.statements.append(body[:-1].decode())
            to_server.write(head + body)


async def _answer(from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await from_server.read(65_536):
        writer.write(data)
        await writer.drain()
