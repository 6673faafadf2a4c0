"""Connections to MCP servers, opened when needed and opened again when lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from standfast.errors import RetryableError, StandfastError, ToolDurabilityError
from standfast.mcp.held_clients import HeldClient, first_error
from standfast.mcp.schemas import fingerprint
from standfast.mcp.transports import SENDING, Access, Sending, bounded_client, is_transport
from standfast.messages import JSONObject, error_text
from standfast.time_limits import time_limit
from standfast.tools import ToolContext

T = TypeVar("T")
IDEMPOTENCY_KEY = "standfast/idempotency-key"  # in the `_meta` of each call
MAX_TOOLS, MAX_PAGES = 1_000, 100
_TURNS = 3  # turns of the event loop in which the end of a process is read before a call is sent to it
LISTING_SECONDS = 60.0  # how long a listing is valid; not all servers announce changes
CONNECT_TIMEOUT = 30.0  # seconds for a server to identify itself, and again to list its tools


class Asked(Protocol):
    """The server's requests during a call.

    Args:
        responses, state: sent with the call.
        is_under_way: the tool may be called now, so its server may ask a model.
    """

    responses: Any
    state: str | None
    is_under_way: bool

    async def answered(self, result: Any) -> bool:
        """Take in the server's requests. Return whether to call the server again."""
        ...

    def begin_anew(self) -> bool:
        """Forget the state. Return whether the call may be sent without it."""
        ...


class _Session:
    """One connection to a server.

    Args:
        calls: the number of calls that use it now. A session that was given up is closed with its last call.
    """

    def __init__(self, mcp: Any, server: Any, limit: int, access: Access) -> None:
        self._mcp, self._server, self._limit, self._access = mcp, server, limit, access
        self._opening = Sending()
        self.ended: str | None = None  # the reason why reading has ended
        self._held = HeldClient(self._connected, CONNECT_TIMEOUT)
        self._tools: list[Any] | None = None  # as described by the server on this connection
        self._listed_at = 0.0
        self.calls = 0
        self.is_given_up = False

    @property
    def client(self) -> Any:
        return self._held.client

    async def open(self) -> None:
        try:
            await self._held.open()
        except TimeoutError as error:
            raise StandfastError(f"The MCP server cannot be reached: no answer in {CONNECT_TIMEOUT:g} s") from error
        except Exception as error:
            raise StandfastError(f"The MCP server cannot be reached: {self.why(error)}") from error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        SENDING.set(self._opening)  # the task that holds the client, and the SDK tasks that it starts, use it
        access = replace(self._access, callbacks={**self._access.callbacks, "message_handler": self._heard})
        async with bounded_client(self._mcp, self._server, self._limit, self._note, access) as client:
            self._opening.refused = None
            yield client

    async def tools(self, *, anew: bool = False) -> list[Any]:
        """Return the tools as the server describes them; a recent listing is good enough."""
        loop = asyncio.get_running_loop()
        if self._tools is None or anew or loop.time() - self._listed_at > LISTING_SECONDS:
            try:
                async with time_limit(CONNECT_TIMEOUT):
                    self._tools, self._listed_at = await _listed(self.client), loop.time()
            except TimeoutError as error:
                raise StandfastError(f"they are not listed within {CONNECT_TIMEOUT:g} s") from error
        return self._tools

    async def _heard(self, message: Any) -> None:
        """Forget the listing if the server announces a change."""
        if isinstance(message, self._mcp.types.ToolListChangedNotification):
            self._tools = None

    def why(self, error: BaseException) -> str:
        """Return the reason for an SDK error. The SDK reports every end of a connection alike."""
        return self.ended or self._opening.refused or error_text(first_error(error))

    def _note(self, why: str) -> None:
        self.ended = why

    async def close(self) -> None:
        await self._held.close()


class Connection:
    """Makes the calls of one identity, on the loop that created the connection."""

    def __init__(self, mcp: Any, server: Any, limit: int, access: Access) -> None:
        self._mcp, self._server, self._limit, self._access = mcp, server, limit, access
        self._has_opened = False
        self.users = 0  # calls that use it now
        self._opening = asyncio.Lock()
        self._session: _Session | None = None
        self._open: set[_Session] = set()
        self._is_closed = False

    async def tools(self) -> list[Any]:
        async with self._using() as session:
            try:
                return await session.tools(anew=True)
            except Exception as error:
                raise StandfastError(f"The MCP server's tools cannot be read: {session.why(error)}") from error

    async def read(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return the result of a function that reads with the SDK's client. It may be called twice.

        Raises:
            RetryableError: the server cannot be reached, or did not answer.
            StandfastError: the server reported an error.
        """
        sending = Sending()
        token = SENDING.set(sending)
        try:
            async with self._using() as session:
                try:
                    return await work(session.client)
                except Exception as error:
                    meaning = self._meaning(error, session) if isinstance(error, self._mcp.MCPError) else error
                    if isinstance(meaning, StandfastError) and sending.refused is None:
                        raise meaning from error
                    self._give_up(session)
                    raise RetryableError(sending.refused or session.why(error)) from error
        except UnreachableError as error:
            raise RetryableError(error_text(error)) from error
        finally:
            SENDING.reset(token)

    async def call(self, item: Any, arguments: JSONObject, ctx: ToolContext, *, is_safe: bool, asked: Asked) -> Any:
        """Return the result of a tool; None if the server needs an answer that does not exist yet.

        Args:
            item: the tool, as the server described it. If its description has changed, the tool is not called.

        Raises:
            ChangedError: the tool was not called, because the server describes it differently now.
            StandfastError: the tool reported an error.
            RetryableError: it was not called, or may be called again.
            ToolDurabilityError: it is unknown whether the tool ran.
        """
        name, meta = item.name, {IDEMPOTENCY_KEY: ctx.idempotency_key} if ctx.idempotency_key else None
        try:
            result = await self._ask(item, arguments, meta, asked)
        except _NotTakenError:
            try:
                result = await self._ask(item, arguments, meta, asked)  # on a new connection
            except _NotTakenError as error:
                raise RetryableError(f"its MCP server does not accept it: {error_text(error)}") from error
            except _LostError as error:
                raise _lost(name, ctx, is_safe, error) from error
        except _LostError as error:
            raise _lost(name, ctx, is_safe, error) from error
        if result is None:
            return None
        value = _value(result)
        if result.is_error:
            raise StandfastError(value if isinstance(value, str) else str(value))
        return value

    async def _ask(self, item: Any, arguments: JSONObject, meta: Any, asked: Asked) -> Any:
        """Ask the server once, with the answers it needs. The type of an error gives its meaning."""
        sending = Sending()
        token = SENDING.set(sending)
        try:
            async with self._using() as session:
                await self._check_unchanged(session, item)
                asked.is_under_way = True
                while True:
                    result = await self._send(session, item, arguments, meta, asked, sending)
                    if result is not None and not isinstance(result, self._mcp.types.InputRequiredResult):
                        return result
                    if result is not None and not await asked.answered(result):
                        return None
        except UnreachableError as error:
            raise RetryableError(error_text(error)) from error
        finally:
            SENDING.reset(token)

    async def _send(
        self, session: _Session, item: Any, arguments: JSONObject, meta: Any, asked: Asked, sending: Sending
    ) -> Any:
        """Send a call. None if it must be sent again without the state, which the server no longer accepts."""
        try:
            return await session.client.session.call_tool(
                item.name,
                arguments,
                input_responses=asked.responses,
                request_state=asked.state,
                meta=meta,
                allow_input_required=True,
            )
        except Exception as error:
            if sending.refused is not None:
                self._give_up(session)
                raise _NotTakenError(sending.refused) from error
            if isinstance(error, self._mcp.MCPError):
                if _refuses_state(error) and asked.begin_anew():
                    return None
                raise self._meaning(error, session) from error
            self._give_up(session)
            raise _LostError(session.why(error)) from error

    async def _check_unchanged(self, session: _Session, item: Any) -> None:
        """Refuse a tool that has changed since it was read and perhaps approved: it may do something else.

        Raises:
            ChangedError: the tool has changed.
        """
        try:
            tools = await session.tools()
        except Exception as error:
            self._give_up(session)
            sending = SENDING.get()
            why = sending.refused if sending is not None and sending.refused else session.why(error)
            raise UnreachableError(f"Not called: the tools of its MCP server cannot be read: {why}") from error
        now = next((one for one in tools if one.name == item.name), None)
        if now is not item and (now is None or fingerprint(now) != fingerprint(item)):
            raise ChangedError(item.name, tools)

    def _meaning(self, error: Any, session: _Session) -> Exception:
        """Return an error's meaning for a call. Only the server's own errors are certain.

        The SDK uses the same codes for a gateway's answer and for an unreadable answer.
        """
        types, text = self._mcp.types, session.why(error)
        is_forgotten = error.code == types.INVALID_REQUEST and "Session terminated" in text  # 404: it was restarted
        if is_forgotten or error.code == types.jsonrpc.HEADER_MISMATCH:  # the other: its tools have changed
            self._give_up(session)
            return _NotTakenError(text)
        if error.code == types.CONNECTION_CLOSED or session.ended is not None:
            self._give_up(session)
        if session.ended is not None or error.code in (
            types.CONNECTION_CLOSED,
            types.REQUEST_TIMEOUT,
            types.INTERNAL_ERROR,
            types.PARSE_ERROR,
            types.INVALID_REQUEST,
        ):
            return _LostError(text)
        return StandfastError(text)

    # --- connections ---

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[_Session]:
        session = await self._connected()
        session.calls += 1
        try:
            yield session
        finally:
            session.calls -= 1
            if session.is_given_up and not session.calls:
                await self._close(session)

    async def _connected(self) -> _Session:
        async with self._opening:
            if self._is_closed:
                raise StandfastError("The tools of an MCP server are for the `async with` block that gives them")
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if (session := self._session) is not None and session.ended is not None:
                self._give_up(session)
                if not session.calls:
                    await self._close(session)
            if self._session is None:
                if self._has_opened and is_transport(self._server):
                    raise UnreachableError(
                        "The connection to the MCP server is lost, and its transport cannot be opened again: give a "
                        "function that makes the transport"
                    )
                self._has_opened = True
                session = _Session(self._mcp, self._server, self._limit, self._access)
                self._open.add(session)
                try:
                    await session.open()
                except BaseException as error:
                    self._open.discard(session)
                    if isinstance(error, StandfastError):
                        raise UnreachableError(error_text(error)) from error
                    raise
                self._session = session
            return self._session

    def _give_up(self, session: _Session) -> None:
        """Give new calls a new connection. Calls on this one may be healthy, and end in their own time."""
        session.is_given_up = True
        if self._session is session:
            self._session = None

    async def _close(self, session: _Session) -> None:
        self._open.discard(session)
        await session.close()

    async def close(self) -> None:
        self._is_closed, self._session = True, None
        for session in tuple(self._open):
            await self._close(session)


async def _listed(client: Any) -> list[Any]:
    """Return all tools of a server, up to a limit."""
    found: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found += page.tools
        cursor = page.next_cursor
        if len(found) > MAX_TOOLS:
            break
        if cursor is None:
            return found
    raise StandfastError(f"there are more than {MAX_TOOLS:,} of them, or {MAX_PAGES} pages")


class ChangedError(StandfastError):
    """A tool was not called, because the server's description of it has changed since it was read.

    Args:
        listed: the tools as the server describes them now.
    """

    def __init__(self, name: str, listed: list[Any]) -> None:
        super().__init__(f"Not called: the MCP server has changed its tool {name!r} since it was read")
        self.listed = listed


class UnreachableError(StandfastError):
    """The server cannot be reached."""


class _NotTakenError(Exception):
    """The server did not accept the call, but may on a new connection."""


class _LostError(Exception):
    """It is unknown whether the server ran the call."""


def _lost(name: str, ctx: ToolContext, is_safe: bool, error: _LostError) -> Exception:
    reason = f"its MCP server gave no answer to it: {error}"
    return RetryableError(reason) if is_safe else ToolDurabilityError(name, ctx.tool_call_id, reason=reason)


def _refuses_state(error: Any) -> bool:
    """Whether a server refuses to continue from a state: the state is too old, or another process made it."""
    data = error.error.data
    return isinstance(data, dict) and data.get("reason") == "invalid_request_state"


def _value(result: Any) -> Any:
    """Return the part of a result that a model reads: its data or its texts."""
    if result.structured_content is not None:
        data = result.structured_content
        return data["result"] if data.keys() == {"result"} else data  # the SDK wraps a plain value this way
    return "\n".join(
        block.text if block.type == "text" else f"[{block.type}, which cannot be shown]" for block in result.content
    )
