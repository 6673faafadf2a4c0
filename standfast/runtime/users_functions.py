"""Calls functions that users declare: hooks, instructions, and those of pipelines."""

from collections.abc import Awaitable, Callable
from typing import Any


async def call_users(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the user's, and await its result if it is async.

    Raises:
        RuntimeError: it raised SystemExit, which would end an event loop and the thread of all handlers.
    """
    try:
        result = function(*arguments)
        return await result if isinstance(result, Awaitable) else result
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error
