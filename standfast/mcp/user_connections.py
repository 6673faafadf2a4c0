"""Keeps one connection to a server for each identity: a call is never made with another user's token."""

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from standfast.errors import InputError, StandfastError
from standfast.mcp.connections import Connection
from standfast.mcp.transports import Access
from standfast.messages import with_article
from standfast.tools import ToolContext

T = TypeVar("T")
Headers = Mapping[str, str] | Callable[[ToolContext], Mapping[str, str] | Awaitable[Mapping[str, str]]]

MAX_CONNECTIONS = 32  # to one server; the least recently used one is closed


class Connections:
    """The connections to one server, on the loop that created this object. Calls may come from any loop, such as a
    worker's.

    Args:
        auth_of: returns the identity of a call and an `httpx2.Auth` for it. The same identity has the same `Auth`.
    """

    def __init__(
        self,
        mcp: Any,
        server: Any,
        limit: int,
        headers: Headers,
        auth_of: Callable[[ToolContext], tuple[Hashable, Any]],
    ) -> None:
        self._mcp, self._server, self._limit = mcp, server, limit
        self._headers, self._auth_of = headers, auth_of
        self._loop = asyncio.get_running_loop()
        self._open: OrderedDict[Hashable, Connection] = OrderedDict()
        self._is_closed = False

    async def tools(self) -> list[Any]:
        """Return the tools that the server lists without a user."""
        async with self._connection(*await self._access(ToolContext())) as connection:
            return await connection.tools()

    async def use(self, ctx: ToolContext, work: Callable[[Connection], Coroutine[Any, Any, T]], **callbacks: Any) -> T:
        """Use the connection of a call's identity.

        Args:
            callbacks: the `mcp.Client` callbacks. They need a connection of this call alone, so one is made for it.
        """
        who, access = await self._access(ctx)
        if callbacks:
            who, access = object(), replace(access, callbacks=callbacks)

        async def here() -> T:
            async with self._connection(who, access) as connection:
                try:
                    return await work(connection)
                finally:
                    if callbacks:
                        del self._open[who]
                        await connection.close()

        if asyncio.get_running_loop() is self._loop:
            return await here()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(here(), self._loop))

    async def _access(self, ctx: ToolContext) -> tuple[Hashable, Access]:
        headers: Any = self._headers(ctx) if callable(self._headers) else self._headers
        headers = await headers if inspect.isawaitable(headers) else headers
        if not isinstance(headers, Mapping) or not all(
            isinstance(one, str) for pair in headers.items() for one in pair
        ):
            raise InputError(
                f"headers= must give a mapping of texts to texts, got {with_article(type(headers).__name__)}"
            )
        identity, auth = self._auth_of(ctx)
        return (frozenset(headers.items()), identity), Access(dict(headers), auth)

    @asynccontextmanager
    async def _connection(self, who: Hashable, access: Access) -> AsyncIterator[Connection]:
        if self._is_closed:
            raise StandfastError("The tools of an MCP server are for the `async with` block that gives them")
        if who not in self._open:
            self._open[who] = Connection(self._mcp, self._server, self._limit, access)
        connection = self._open[who]
        self._open.move_to_end(who)
        connection.users += 1
        try:
            await self._close_idle()
            yield connection
        finally:
            connection.users -= 1

    async def _close_idle(self) -> None:
        idle = [who for who, connection in self._open.items() if not connection.users]
        for who in idle[: max(0, len(self._open) - MAX_CONNECTIONS)]:
            if who in self._open and not self._open[who].users:
                await self._open.pop(who).close()

    async def close(self) -> None:
        self._is_closed = True
        for connection in tuple(self._open.values()):
            await connection.close()
