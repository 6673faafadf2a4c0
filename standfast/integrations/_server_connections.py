"""Connects to MCP servers through a framework's clients, again when a connection is lost; internal.

A call that a server has not answered may have run, so nothing here repeats it. Before each call the tools are listed:
this detects a lost connection or a changed tool before the call is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from standfast.errors import RetryableError, StandfastError, ToolDurabilityError
from standfast.mcp.held_clients import HeldClient, first_error
from standfast.messages import error_text
from standfast.time_limits import time_limit

C = TypeVar("C")
T = TypeVar("T")
_CONNECT_TIMEOUT, _LISTING_TIMEOUT = 30.0, 10.0  # seconds
# Error codes that the MCP SDK, or a gateway, may have generated: they do not prove that the server did not run it.
_UNCERTAIN = (-32000, -32001, -32600, -32603, -32700, 408)


def is_answer(error: BaseException) -> bool:
    """Whether an error of the MCP SDK, in any version, is the server's own answer to a request."""
    code = getattr(getattr(error, "error", None), "code", getattr(error, "code", None))
    return isinstance(code, int) and code not in _UNCERTAIN


def unknown(name: str, call_id: str, error: BaseException) -> ToolDurabilityError:
    """Return the outcome of a call that was sent but not answered."""
    return ToolDurabilityError(
        name,
        call_id,
        reason=f"its MCP server gave no answer to it: {error_text(first_error(error)) or type(error).__name__}",
    )


def has_changed(tool: str) -> StandfastError:
    """Return the error of a call whose tool has changed since it was read and perhaps approved."""
    return StandfastError(
        f"Not called: the MCP server has changed its tool {tool!r} since it was read. Restart this process to use "
        "the new version"
    )


class ServerConnection(Generic[C]):
    """A connection to one server, on the loop that created it; calls may come from any other, such as a worker's.

    Args:
        server: its name for people.
        connect: opens a new connection.
        listed: takes the server's current list of tools, which also shows that it is alive.
    """

    def __init__(
        self,
        server: str,
        connect: Callable[[], AbstractAsyncContextManager[C]],
        listed: Callable[[C], Awaitable[object]],
    ) -> None:
        self._server, self._connect, self._listed = server, connect, listed
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._current: _Session[C] | None = None
        self._open = set[_Session[C]]()
        self._is_closed = False

    async def read(self, work: Callable[[C], Awaitable[T]]) -> T:
        """Return the result of a function that reads from the server.

        Raises:
            StandfastError: the server cannot be reached.
        """
        session = await self._connected()
        try:
            return await work(session.client)
        except StandfastError:
            raise
        except Exception as error:
            await self._give_up(session)
            raise StandfastError(
                f"{self._server}: its tools cannot be read: {error_text(first_error(error))}"
            ) from error

    async def call(
        self,
        name: str,
        call_id: str,
        work: Callable[[C], Awaitable[T]],
        answers: Callable[[BaseException], bool] = is_answer,
    ) -> T:
        """Return the result of a function that makes one tool call.

        Args:
            answers: whether an error is the server's answer.

        Raises:
            RetryableError: the call was not sent.
            ToolDurabilityError: it is unknown whether it ran.
        """

        async def here() -> T:
            session = await self._alive()
            session.calls += 1
            try:
                return await work(session.client)
            except StandfastError:
                raise
            except Exception as error:
                if answers(error):
                    raise
                await self._give_up(session)
                raise unknown(name, call_id, error) from error
            finally:
                session.calls -= 1
                if self._current is not session and not session.calls:
                    await self._close(session)

        return await self._at_home(here())

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _alive(self) -> "_Session[C]":
        """Return a connection whose server has just listed its tools.

        Raises:
            RetryableError: the server cannot be reached.
        """
        for attempt in range(2):
            try:
                session = await self._connected()
            except StandfastError as error:
                raise RetryableError(error_text(error)) from error
            try:
                async with time_limit(_LISTING_TIMEOUT):
                    await self._listed(session.client)
            except Exception as error:
                await self._give_up(session)
                if attempt:
                    why = error_text(first_error(error)) or type(error).__name__
                    raise RetryableError(f"{self._server}: its tools cannot be read: {why}") from error
            else:
                return session
        raise AssertionError("unreachable")

    async def _connected(self) -> "_Session[C]":
        async with self._opening:
            if self._is_closed:
                raise StandfastError(f"{self._server}: its connection was closed with the run or the worker")
            if self._current is not None and self._current.held.has_ended:
                await self._give_up(self._current)
            if self._current is None:
                session = _Session(self._connect)
                self._open.add(session)
                try:
                    await session.held.open()
                except BaseException as error:
                    await self._close(session)
                    if not isinstance(error, Exception):
                        raise
                    why = error_text(first_error(error)) or type(error).__name__
                    raise StandfastError(f"{self._server} cannot be reached: {why}") from error
                self._current = session
            return self._current

    async def _give_up(self, session: "_Session[C]") -> None:
        """Give new calls a new connection. Calls on this one may be healthy, and end in their own time."""
        if self._current is session:
            self._current = None
        if not session.calls:
            await self._close(session)

    async def _close(self, session: "_Session[C]") -> None:
        self._open.discard(session)
        await session.held.close()

    async def close(self) -> None:
        """Close it for good."""
        self._is_closed, self._current = True, None
        for session in tuple(self._open):
            await self._close(session)


class _Session(Generic[C]):
    """One connection, and the number of calls that use it now."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[C]]) -> None:
        self.held, self.calls = HeldClient(connect, _CONNECT_TIMEOUT), 0

    @property
    def client(self) -> C:
        return self.held.client
