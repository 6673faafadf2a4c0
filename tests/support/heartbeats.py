"""How soon the server gives up a dead worker's activities: tests with dead workers wait for this each time."""

from datetime import timedelta

from standfast.temporal import plugin
from standfast.temporal.activities.worker import activity_guards
from standfast.temporal.workflows.run import activity_options


def give_up_after(seconds: float) -> None:
    """Let workers of this process be given up after so many seconds of silence, and say more often that they live."""
    silence = timedelta(seconds=seconds)
    activity_options.HEARTBEAT = activity_options.MODEL_HEARTBEAT = silence
    for options in (
        activity_options.STORE_OPTIONS,
        activity_options.OPEN_ELSEWHERE_OPTIONS,
        activity_options.ATTACH_OPTIONS,
    ):
        options["heartbeat_timeout"] = silence
    activity_guards.HEARTBEAT_EVERY = plugin.HEARTBEAT_EVERY = min(activity_guards.HEARTBEAT_EVERY, seconds / 5)
