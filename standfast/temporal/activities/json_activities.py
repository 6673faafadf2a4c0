"""Defines activities that take and return JSON unchanged, and log each attempt."""

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from temporalio import activity

from standfast.temporal.activities.run_log import log_raised, log_returned

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def json_activity(name: str) -> Callable[[CallableT], CallableT]:
    """Make a function an activity whose types are only for type checkers.

    A converter that used the types would drop unknown keys, such as a newer worker's.
    """

    def define(function: CallableT) -> CallableT:
        function.__annotations__ = dict.fromkeys(function.__annotations__, dict[str, Any])

        @functools.wraps(function)
        async def run(*arguments: Any) -> Any:
            reference, begun = arguments[-1], time.monotonic()  # after `self`
            try:
                result = await function(*arguments)
            except BaseException as error:
                log_raised(name, reference, begun, error)
                raise
            log_returned(name, reference, begun, result)
            return result

        return cast(CallableT, activity.defn(name=name)(run))

    return define
