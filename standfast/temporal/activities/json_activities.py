"""Defines activities that take and return JSON as it is."""

from collections.abc import Callable
from typing import Any, TypeVar

from temporalio import activity

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def json_activity(name: str) -> Callable[[CallableT], CallableT]:
    """Make a function an activity whose types are for type checkers alone.

    A converter that read by them would drop the keys that they do not know: those of a newer worker.
    """

    def define(function: CallableT) -> CallableT:
        function.__annotations__ = dict.fromkeys(function.__annotations__, dict[str, Any])
        return activity.defn(name=name)(function)

    return define
