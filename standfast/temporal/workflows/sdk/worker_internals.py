"""Reaches into the SDK's worker: adds activities while it runs, ends one that never began, reads its build id.

A version of the SDK with other internals costs a warning at most: the worker runs without what it cannot reach.
"""

import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from temporalio import activity
from temporalio.worker import Worker

_LOG = logging.getLogger("standfast")


def warn_without(what: str) -> None:
    """Log what a worker does not do because the SDK's internals are not those known here."""
    _LOG.warning("temporalio %s has other internals than standfast knows: %s", version("temporalio"), what)


def add_activity(worker: Worker, run: Callable[..., Any]) -> None:
    """Add an activity that is missing to a running worker. A dynamic activity would replace a user's."""
    try:
        defined = activity._Definition.must_from_callable(run)
        activities: dict[str, Any] = worker._activity_worker._activities  # type: ignore[union-attr]
        activities[str(defined.name)] = defined
    except (AttributeError, TypeError):
        warn_without(f"the tool of {run!r:.80} cannot be added to a running worker, so its calls wait for another")


def end_unstarted(worker: Worker) -> None:
    """End a worker whose start was refused, as the SDK does: otherwise `async with worker` would wait for its end."""
    try:
        worker._shutdown_complete_event.set()
    except AttributeError:
        warn_without("a worker whose start was refused may not end by itself")


def default_build_id() -> str:
    """Return the build id of a worker that was given none; empty if it is unknown."""
    try:
        from temporalio.worker._worker import load_default_build_id
    except ImportError:
        warn_without("deploys of a worker without a build id are not told apart")
        return ""
    return load_default_build_id()
