"""Runs MCP servers as processes, and limits how much of their output it reads.

The SDK's own transport reads a line of any length, and copies the whole line again with each new piece.
"""

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from standfast.messages import cut

MAX_ERRLOG_BYTES = 64 * 1024  # of a server's stderr, per minute
_GRACE = 2.0  # seconds for a process to end after its input is closed, and again after the request to end
_POLL = 0.01
_MINUTE = 60.0


@asynccontextmanager
async def bounded_process(server: Any, limit: int, note: Callable[[str], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield its message streams in the SDK's form.

    Args:
        server: an `mcp.StdioServerParameters`.
        limit: the size of the longest message in bytes.
        note: called with the reason if a longer message or the end of the process closes the connection.
    """
    anyio, stdio = importlib.import_module("anyio"), importlib.import_module("mcp.client.stdio")
    process = await asyncio.create_subprocess_exec(
        server.command,
        *server.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=limit,
        env=stdio.get_default_environment() | (server.env or {}),
        cwd=server.cwd,
        start_new_session=True,
    )
    received, incoming = anyio.create_memory_object_stream(0)
    outgoing, sent = anyio.create_memory_object_stream(0)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

    async def read() -> bool:
        """Read all messages. Return whether one was too long."""
        assert process.stdout is not None
        async with received:
            try:
                while True:
                    await received.send(_message(server, await process.stdout.readuntil()))
            except asyncio.LimitOverrunError:
                note(past_limit(_shown(server), limit))
                return True  # no more output is read, and the process cannot write
            except asyncio.IncompleteReadError:
                note(f"the MCP server {_shown(server)!r} has ended")
                return False
            except gone:
                return False  # the session has ended

    async def write() -> None:
        assert process.stdin is not None
        try:
            async for one in sent:
                text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{text}\n".encode(server.encoding, server.encoding_error_handler))
                await process.stdin.drain()
        except gone:
            await received.aclose()  # nothing waits for an answer any more

    reading, writing = asyncio.create_task(read()), asyncio.create_task(write())
    passing = asyncio.create_task(_pass_on(process.stderr, _shown(server)))
    try:
        yield incoming, outgoing
    finally:
        incoming.close()
        outgoing.close()
        stopping = asyncio.create_task(_stop(process, reading, writing, passing))
        try:
            with anyio.CancelScope(shield=True):
                await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await asyncio.wait({stopping})
            raise
        finally:
            received.close()
            sent.close()


def _message(server: Any, line: bytes) -> Any:
    """Return a message. For any other line, return the error, which the SDK ignores."""
    types, message = importlib.import_module("mcp.types"), importlib.import_module("mcp.shared.message")
    try:
        text = line.decode(server.encoding, server.encoding_error_handler)
        return message.SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError as error:
        return error


async def _pass_on(errors: asyncio.StreamReader | None, name: str) -> None:
    """Pass on a server's stderr. All of it is read, so that the server never blocks on it."""
    assert errors is not None
    clock, begun, left = asyncio.get_running_loop().time, float("-inf"), 0
    while piece := await errors.read(8 * 1024):
        if clock() - begun > _MINUTE:
            begun, left = clock(), MAX_ERRLOG_BYTES
        if left > 0:
            sys.stderr.write(piece[:left].decode(errors="replace"))
            if left <= len(piece):
                sys.stderr.write(
                    f"\n[the MCP server {name} writes more than {MAX_ERRLOG_BYTES:,} bytes a minute here]\n"
                )
        left -= len(piece)


async def _stop(
    process: asyncio.subprocess.Process,
    reading: "asyncio.Task[bool]",
    writing: "asyncio.Task[None]",
    passing: "asyncio.Task[None]",
) -> None:
    """End a process as the protocol says: close its input, then ask it to end, then kill it and its children."""
    assert process.stdin is not None
    await asyncio.wait({writing}, timeout=_GRACE / 4)  # pending messages are sent
    process.stdin.close()
    draining = asyncio.create_task(_drain(process, reading))
    is_drowning = reading.done() and not reading.cancelled() and reading.exception() is None and reading.result()
    for number in (signal.SIGTERM, signal.SIGKILL) if is_drowning else (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        if await _has_ended(process):
            break
    tasks: set[asyncio.Task[Any]] = {reading, writing, passing, draining}
    await asyncio.wait(tasks, timeout=_GRACE / 4)  # its last output; a child process may continue
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    with suppress(AttributeError, PermissionError):
        process._transport.close()  # type: ignore[attr-defined]  # nothing public closes them


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Whether a process ends soon. `wait` would also wait for children that hold its pipes."""
    deadline = asyncio.get_running_loop().time() + _GRACE
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110  # see above
        await asyncio.sleep(_POLL)
    return process.returncode is not None


async def _drain(process: asyncio.subprocess.Process, reading: "asyncio.Task[bool]") -> None:
    """Read the rest of a process's output, so that it can end."""
    await asyncio.wait({reading})
    while process.stdout is not None and await process.stdout.read(64 * 1024):
        pass


def past_limit(server: str, limit: int) -> str:
    """Return the reason why reading from a server has ended."""
    return (
        f"the MCP server {server!r} sent more than {limit:,} bytes at once; mcp_tools(max_answer_bytes=…) allows more"
    )


def _shown(server: Any) -> str:
    """Return a server's command without its options, which may contain secrets."""
    script = next((one for one in server.args if not one.startswith("-")), "")
    return cut(f"{server.command} {script}".strip(), 200)
