"""Waits for an answer at the terminal, or on the page or elsewhere if that one is faster."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from examples.demo.screen import Screen


async def read_answer(screen: Screen, is_answered: Callable[[], Awaitable[bool]]) -> str | None:
    """Return the line typed at the terminal, or None as soon as the question is answered elsewhere."""
    while True:
        screen.ask("here", "your answer, then Enter:")
        typing = asyncio.ensure_future(_line())
        try:
            while not typing.done():
                if await is_answered():
                    screen.say()
                    return None
                await asyncio.wait({typing}, timeout=0.3)
        finally:
            typing.cancel()
        if answer := typing.result().strip():
            return answer


async def _line() -> str:
    """Return a line of the terminal; wait for ever if its input has ended."""
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(file)
        try:
            text = os.read(file, 65536)
        except OSError:  # the terminal is gone
            text = b""
        if text and not line.done():  # no bytes mean the end of the input: the question can still be answered elsewhere
            line.set_result(text)

    loop.add_reader(file, read)
    try:
        return (await line).decode(errors="replace")
    finally:
        loop.remove_reader(file)
