"""Keys of effects: given by users, or made for Temporal activities, where they are the same after a reset."""

import asyncio
import base64
import contextlib
import inspect
import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from standfast.errors import DefinitionError, InputError
from standfast.stores.protocol import RunningCall
from standfast.tools.signatures import is_approved

LONGEST_KEY = 400  # characters
LONGEST_NAME = 100  # characters
_REMEMBERED = 10_000  # runs


@dataclass(frozen=True, slots=True)
class EffectKey:
    """What tells a call of an effect from all others.

    Args:
        scope: its scope in the ledger.
        name: of the effect.
        id: for people and outside systems.
        place: the number of the effect's call in its activity, from 0.
        activity: the activity that runs it: its task token in base64, and the ids of the workflow and its run.
        is_doubtful: whether an earlier attempt may have had another key.
    """

    scope: str
    name: str
    id: str
    place: int = 0
    activity: tuple[str, str, str] | None = None
    is_doubtful: bool = False

    def running(self, owner: str) -> RunningCall | None:
        """Return the record by which a worker can tell Temporal at once that this attempt's process has died."""
        if self.activity is None:
            return None
        token, workflow_id, run_id = self.activity
        return RunningCall(
            owner=owner, worker=process_of(owner), task_token=token, workflow_id=workflow_id, run_id=run_id
        )


def owner_of(process: str, count: int, time: float | None) -> str:
    """Return the name of a process's attempt, which says after how many seconds it has been cut off."""
    return f"{process}.{count}" + ("" if time is None else f"-{ceil(time)}")


def process_of(owner: str) -> str:
    """Return the name that the process of an attempt holds."""
    return owner.rpartition(".")[0]


def time_of(owner: str) -> float | None:
    """Return the seconds after which an attempt has been cut off; None if it does not say."""
    time = owner.rpartition(".")[2].partition("-")[2]
    return float(time) if time else None


def given_key(name: str, key: object) -> EffectKey:
    """Return the key of a call from the user's `key=`.

    Raises:
        InputError: it is not a text of 1 to 400 characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
        raise InputError(
            f"Effect '{name}': its key must be a printable text of 1 to {LONGEST_KEY} characters, got {key!r:.80}"
        )
    # Named like the steps of an in-process run: each key is deleted separately when it is old.
    return EffectKey(f"effect/{name}/{key}/steps/call", name, key)


def check_key_of(owner: str, key: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Check that a key's function takes the arguments of the guarded one; what it takes of a call is not checked.

    Raises:
        DefinitionError: no call has arguments that both take.
    """
    try:
        takes, given = inspect.signature(key), inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # such as `str`, which has none
        return
    named = [one for one in given if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    for several in (named, [one for one in named if one.default is one.empty]):
        for by_name in ([one for one in several if one.kind is one.KEYWORD_ONLY], several):
            with contextlib.suppress(TypeError):
                takes.bind(*[None for one in several if one not in by_name], **{one.name: None for one in by_name})
                return
    raise DefinitionError(
        f"{owner}: key must take the arguments of the function, {inspect.signature(function)}, and takes {takes}"
    )


# --- activities -----------------------------------------------------------------------------------------------------


def in_activity() -> bool:
    """Whether an activity of Temporal runs this; who does not use Temporal does not load it."""
    activity = sys.modules.get("temporalio.activity")
    return activity is not None and activity.in_activity()


def in_workflow() -> bool:
    """Whether a workflow of Temporal runs this, which reaches no store."""
    workflow = sys.modules.get("temporalio.workflow")
    return workflow is not None and workflow.in_workflow()


def is_cancel(error: BaseException) -> bool:
    """Whether an error is a cancel; Temporal raises a different one in activities that are plain functions."""
    theirs = sys.modules.get("temporalio.exceptions")
    return isinstance(error, asyncio.CancelledError) or (
        theirs is not None and isinstance(error, theirs.CancelledError)
    )


def is_let_through(arguments: str) -> bool:
    """Whether this is an activity that people have let through with these arguments, by their hash."""
    if not in_activity():
        return False
    from temporalio import activity

    return is_approved(activity.info().activity_id, arguments)


class ActivityKeys:
    """Makes the keys of the effects that activities of this process call."""

    def __init__(self) -> None:
        self._first_runs: OrderedDict[str, str] = OrderedDict()  # by run id: that with which the run began
        self._calls: dict[
            int, Counter[str]
        ] = {}  # of each effect, by the id of the attempt's info, while that is there

    async def next(self, name: str) -> EffectKey:
        """Return the key of an effect's next call in this activity.

        It names the run as it began: a reset makes another run, in which the activity has the same id.

        Raises:
            InputError: the activity is a plain function, to which Temporal gives no client.
        """
        from temporalio import activity

        info = activity.info()
        if (counts := self._calls.get(id(info))) is None:
            counts = self._calls[id(info)] = Counter()
            weakref.finalize(info, self._calls.pop, id(info), None).atexit = False
        place = counts[name]
        counts[name] += 1
        if info.workflow_id is None or info.workflow_run_id is None:
            scope = f"effect/{info.namespace}/{info.activity_id}/{info.activity_run_id}/steps/call"
            return EffectKey(scope, name, f"{info.activity_id}/{name}", place)
        first = self._first_runs.get(info.workflow_run_id)
        if first is None:
            first = _remembered(self._first_runs, info.workflow_run_id, await _first_run(name))
        ident = f"{first}/{info.activity_id}/{name}" + (f".{place + 1}" if place else "")
        token = base64.b64encode(info.task_token).decode()
        scope = f"{first}/effects/{info.activity_id}"
        running = None if info.is_local else (token, info.workflow_id, info.workflow_run_id)
        # After a long wait for its retry, a local activity has another id, unless its user has chosen one.
        return EffectKey(scope, name, ident, place, running, is_doubtful=info.is_local and info.attempt > 1)


async def _first_run(name: str) -> str:
    """Return the id with which the run of this activity began."""
    from temporalio import activity

    info = activity.info()
    try:
        client = activity.client()
    except RuntimeError:
        raise InputError(
            f"Effect '{name}': activity {info.activity_type} is a plain function, to which Temporal gives no client, "
            "so that a reset could not be noticed. Make it an async def, or give the effect a key="
        ) from None
    run = client.get_workflow_handle(str(info.workflow_id), run_id=info.workflow_run_id)
    async for event in run.fetch_history_events(page_size=1):
        return event.workflow_execution_started_event_attributes.original_execution_run_id
    raise InputError(f"Effect '{name}': workflow {info.workflow_id} has no history")


def _remembered(known: OrderedDict[Any, Any], key: Any, value: Any) -> Any:
    """Return what is known, and otherwise the value, which is known then; the oldest is forgotten."""
    found = known.setdefault(key, value)
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
    return found
