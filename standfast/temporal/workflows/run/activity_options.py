"""Defines the timeouts and retry policies of all activities in one table."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from standfast.temporal.wire import names
from standfast.temporal.wire.snapshots import ToolFacts
from standfast.tools import RetryPolicy as LoopRetryPolicy

HEARTBEAT = timedelta(seconds=10)
MODEL_HEARTBEAT = timedelta(seconds=15)
MODEL_TIMEOUT = timedelta(seconds=900)  # a long answer is billed even if it is lost; heartbeats detect dead workers
HOOK_TIMEOUT = timedelta(seconds=120)
OUTAGE_WAITS = (timedelta(seconds=60), timedelta(seconds=900))  # between calls of a provider that is down: first, last
WRITING = timedelta(days=30)  # a handler's effects are lost if they are not recorded; the handler has its own timeout

# For activities that only read and write the store: they retry for as long as needed, visibly after a while.
_STORE_RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=0.2),
    maximum_interval=timedelta(seconds=10),
    non_retryable_error_types=[names.STORE_AWAY, names.STORE_BEHIND],
)
_WAIT = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED

STORE_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": HOOK_TIMEOUT,  # the hook at a run's end is user code, and may call a model
    "heartbeat_timeout": MODEL_HEARTBEAT,
    "retry_policy": _STORE_RETRIES,
}
OPEN_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=10),  # the run answers no queries in the meantime
    # Longer waits are workflow timers: a worker cannot stop while it retries a local activity (measured).
    "local_retry_threshold": timedelta(seconds=1),
    # Another worker may have what this worker lacks, including a store, so this worker does not retry.
    "retry_policy": replace(
        _STORE_RETRIES,
        maximum_attempts=1,
        non_retryable_error_types=[names.NOT_HERE, names.STORE_ERROR, names.STORE_AWAY],
    ),
}
# For the same activity on any worker that has what is missing, as soon as one is available.
OPEN_ELSEWHERE_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=30),
    "heartbeat_timeout": HEARTBEAT,  # a worker that is stopping may accept it and lose it (measured: one time in ten)
    "retry_policy": _STORE_RETRIES,
}
ATTACH_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(days=365),
    "heartbeat_timeout": HEARTBEAT,
    "retry_policy": _STORE_RETRIES,
    "cancellation_type": _WAIT,
}


def model_options(retry: LoopRetryPolicy, asks: str) -> dict[str, Any]:
    """Return the options of a model call.

    Args:
        asks: describes the activity to people; see `summary`.
    """
    return {
        "summary": summary(asks),
        "start_to_close_timeout": MODEL_TIMEOUT,
        "heartbeat_timeout": MODEL_HEARTBEAT,
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(seconds=retry.waits[0]),
            backoff_coefficient=retry.backoff_coefficient,
            maximum_interval=timedelta(seconds=retry.waits[1]),
            maximum_attempts=retry.maximum_attempts,
            non_retryable_error_types=[names.STORE_AWAY, names.STORE_BEHIND],
        ),
        "cancellation_type": _WAIT,
    }


def stretch_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a stretch, whose first part is a model call with these: it limits each of its parts."""
    return {**options, "summary": summary(f"{options['summary']} and on"), "start_to_close_timeout": WRITING}


def until_the_outage_is_over(options: dict[str, Any], first: timedelta, longest: timedelta) -> dict[str, Any]:
    """Return the options of a model call that has waited once and is retried for as long as its provider is down.

    Temporal counts the waits, so the run gets no events in the meantime.
    """
    policy = replace(
        options["retry_policy"],
        initial_interval=min(2 * first, longest),
        backoff_coefficient=2,
        maximum_interval=longest,
        maximum_attempts=0,
    )
    return {**options, "retry_policy": policy}


def until_the_store_is_back(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an activity that failed because its store was away: it retries until the store is back."""
    policy = replace(
        options["retry_policy"],
        maximum_interval=timedelta(seconds=10),
        maximum_attempts=0,
        non_retryable_error_types=[names.MODEL_UNAVAILABLE],  # these attempts count towards the model's own policy
    )
    return {**options, "retry_policy": policy}


def tool_options(tool: ToolFacts, asks: str) -> dict[str, Any]:
    """Return the options of one dispatch of a call: one attempt, or a few if a retry is safe, but never unlimited."""
    return {
        "summary": summary(asks),
        "start_to_close_timeout": timedelta(seconds=tool.timeout) + WRITING,
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(seconds=tool.initial),
            backoff_coefficient=tool.factor,
            maximum_interval=timedelta(seconds=tool.longest),
            maximum_attempts=tool.attempts,
        ),
        "cancellation_type": _WAIT,
    }


NOTIFY_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=30),
    "schedule_to_close_timeout": timedelta(days=1),  # by then people have checked the outcome themselves
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=10)),
    "cancellation_type": ActivityCancellationType.ABANDON,
}


# For the board, which the run does not wait for: in its workflow task if that is quick, otherwise on any worker.
SHOW_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=2),
    "schedule_to_close_timeout": timedelta(seconds=2),
    "retry_policy": RetryPolicy(maximum_attempts=1),
}
SHOW_ELSEWHERE_OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=30),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=0.2), maximum_interval=timedelta(seconds=10)),
    "cancellation_type": ActivityCancellationType.ABANDON,
    "summary": "show what waits",
}


def settle_options(tool: ToolFacts, asks: str) -> dict[str, Any]:
    """Return the options for settling a call, which may run its `verify`: it retries until the call is settled."""
    return {
        "summary": summary(asks),
        "start_to_close_timeout": timedelta(seconds=max(tool.timeout, 30.0)),
        "heartbeat_timeout": HEARTBEAT,
        "retry_policy": _STORE_RETRIES,
    }


def summary(text: str) -> str:
    """Return a summary that every server accepts: one line of at most 200 bytes."""
    return " ".join(text.split()).encode()[:200].decode(errors="ignore")
