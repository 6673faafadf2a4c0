"""The application's environment for its tests: the issue feed, the sinks, and their settings."""

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities import load_feed
from examples.sinks import Sinks, sinks

ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def application(
    folder: Path, environment: pytest.MonkeyPatch, *, webhook_delay: float = 0
) -> AsyncIterator[Sinks]:
    """Load the feed, start the sinks and set what the tools read from the environment."""
    load_feed(folder / "issues.db")
    environment.setenv("STANDFAST_ISSUES", str(folder / "issues.db"))
    async with sinks(folder, webhook_delay=webhook_delay) as listening:
        use(listening.settings, environment)
        yield listening


@contextlib.asynccontextmanager
async def sinks_in_a_process(folder: Path) -> AsyncIterator[tuple[dict[str, str], Sinks]]:
    """Run `python -m examples.sinks`; yield the settings that it prints, and the sinks."""
    command = ("-W", "error", "-m", "examples.sinks", "--dir", folder)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
        settings = dict(line.split("=", 1) for line in lines)
        yield settings, Sinks(settings["STANDFAST_WEBHOOK_URL"], settings["STANDFAST_SMTP"], folder)
    finally:
        process.terminate()
        await process.wait()


def use(settings: dict[str, str], environment: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        environment.setenv(name, value)


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Answer every HTTP request with these bytes and hang up; yield the address."""

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/services/secret"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def saying(*answers: str) -> AsyncIterator[str]:
    """Serve SMTP by a script, one answer for each thing that is said, and hang up at its end; yield host:port."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the other side may hang up first
            for answer in answers:
                writer.write(f"{answer}\r\n".encode())
                await reader.readuntil(b"\r\n.\r\n" if answer.startswith("354") else b"\r\n")
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def dump(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())
