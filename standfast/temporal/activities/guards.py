"""Guards what users' code does in an activity: heartbeats while it runs, and errors of hooks in words."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from temporalio import activity
from temporalio.exceptions import ApplicationError

from standfast.messages import error_text
from standfast.runtime.users_functions import call_users
from standfast.temporal.activities.hosts import AgentHost
from standfast.temporal.wire import names

T = TypeVar("T")

_LOG = logging.getLogger("standfast")
HEARTBEAT_EVERY = 3.0  # seconds; the server gives a worker up after 10 (tools) or 15 (models)


class Heartbeats:
    """Tell the server from the worker's loop that this activity is alive, whatever its handler does.

    A local activity tells nobody: the server does not know of it.
    """

    __slots__ = ("_timer",)

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_EVERY, self._beat)

    def _beat(self) -> None:
        if not activity.info().is_local:
            activity.heartbeat()
        self.__enter__()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


async def run_hook(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook, or whatever else of the user's a run cannot do without; on the handlers' loop.

    Raises:
        ApplicationError: of type `HookError`; the run pauses until somebody has mended it.
    """
    try:
        return await call_users(hook, *arguments)
    except Exception as error:
        what = getattr(hook, "__name__", "hook")
        _LOG.warning("%s raised", what, exc_info=error)  # the server keeps 4 KB of a failure, no tracebacks
        raise ApplicationError(
            f"{what} raised {type(error).__name__}: {error_text(error)}", type=names.HOOK_ERROR, non_retryable=True
        ) from None


async def called(host: AgentHost, function: Callable[[], T]) -> T:
    """Call what a user declared, where users' code runs."""
    return cast(T, await host.thread.run(call_users(function)))
