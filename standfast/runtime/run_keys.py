"""Keeps the list of runs of a run key, and begins a run with the results of the last of them.

A run's records are stored under its own journal key: runs with the same run key must not find each other's records,
whichever drivers they have. The list is also in the journal. So both drivers find the runs of both, even without a live
worker. Each owner has separate lists: strangers cannot find a user's run.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from standfast.errors import InputError
from standfast.messages import JSONObject
from standfast.pipeline_loop import REJECTED, Action, Done, PipelineState, RunStep, Todo, plan
from standfast.pipelines import Pipeline
from standfast.pipelines.paths import stage_index
from standfast.runtime.pipeline_results import Kept
from standfast.stores.kept_values import append, length
from standfast.stores.protocol import DurableStore

_SHOWN = 10  # keys in the error about a key without a run

Who = Mapping[str, str | None]
"""The `user_id` and `tenant_id` of the user who begins a run."""


async def list_run(store: DurableStore, pipeline: str, run_key: str, journal_key: str, who: Who) -> None:
    """Record this run as the last one of its run key, before it begins; repeating that changes nothing.

    Args:
        pipeline: the pipeline's name in this run.
    """
    place = _place(pipeline, who)
    count = await length(store, f"{place}/{run_key}")
    if count == 0:
        await append(store, place, run_key, await length(store, place))
    if count == 0 or await store.load_reply(f"{place}/{run_key}", count - 1) != journal_key:
        await append(store, f"{place}/{run_key}", journal_key, count)


async def find_last(store: DurableStore, pipeline: Pipeline, run_key: str, who: Who, *, before: str) -> Kept:
    """Return the records of the last run of a run key.

    Args:
        before: the journal key of the run that asks, which may have the same run key.

    Raises:
        InputError: there is none, or it belongs to another user: the error is the same, and names the last keys with a
            run.
    """
    for name in pipeline.names:
        place = f"{_place(name, who)}/{run_key}"
        for number in reversed(range(await length(store, place))):
            kept = Kept(str(await store.load_reply(place, number)), store)
            if kept.name != before and await kept.find("?input"):
                return kept
    known = [key for name in pipeline.names for key in await _last_keys(store, _place(name, who))]
    whose = ", ".join(f"{name} {value!r}" for name, value in who.items() if value is not None) or "nobody in particular"
    raise InputError(
        f"restart_of: pipeline '{pipeline.name}' has no earlier run with the run_key {run_key!r} that was started for "
        f"{whose}; {'the last that have one: ' + ', '.join(dict.fromkeys(known)) if known else 'there is none at all'}"
    )


async def restarted(
    store: DurableStore, pipeline: Pipeline, kept: Kept, who: Who, run_key: str, first: str
) -> tuple[JSONObject, Any]:
    """Store the last run's results before a step as another run's results; that run has not begun.

    Args:
        kept: the records of the other run.
        first: the name of the step.

    Returns the results, by the plan's keys, and the input of the earlier run.

    Raises:
        InputError: there is no such run, or it did not reach that step; or the other run was set up for a different
            restart before.
    """
    await kept.check(who)
    before = await _restarted_before(kept, run_key, first)
    earlier = Kept(before, store) if before else await find_last(store, pipeline, run_key, who, before=kept.name)
    state = PipelineState(plan(pipeline)[: stage_index(pipeline, first)])
    used, gates = list[Action](), set[str]()
    while isinstance(todo := state.next_actions(), Todo):
        for action in todo.actions:
            if not await earlier.find(action.key):
                raise InputError(f"restart from {first!r}: the earlier run has no result of step {action.path!r}")
            came_to = action.done(earlier[action.key])
            state = state.ended(action.key, came_to)
            if isinstance(action, RunStep) and action.step.kind == "approval" and not _goes_back(action, came_to):
                gates.add(action.key)
            else:
                used.append(action)
    await kept.keep("?who", dict(who))  # first, since everything that follows belongs to them
    await kept.check(who)
    await kept.keep("?restart", {"run_key": run_key, "from": first, "journal_key": earlier.name})
    for action in used:
        for key in (action.key, f"{action.path}?result"):
            if await earlier.find(key):
                await kept.keep(key, earlier[key])
    # A verdict counts once: the gates ask again, before the steps behind them run again.
    done = {key: done.value for key, done in state.done.items() if key not in gates}
    await earlier.find("?input")
    return done, earlier["?input"]


def _goes_back(action: RunStep, came_to: Done) -> bool:
    """Whether a rejection has led back to an earlier stage: its recorded result is used again."""
    return action.step.goes_back and came_to.value == REJECTED


async def check_restart(kept: Kept, run_key: str, first: str) -> None:
    """Refuse to continue a run that did not begin as this restart.

    Raises:
        InputError: it did not.
    """
    if not await _restarted_before(kept, run_key, first):
        raise InputError(
            f"Run {kept.name} has begun already, and not as a restart of {run_key!r}; give the restart another run_key"
        )


async def _restarted_before(kept: Kept, run_key: str, first: str) -> str | None:
    """Return the journal key of the earlier run, if this run was already set up as this restart of it."""
    if not await kept.find("?restart"):
        return None
    given = kept["?restart"]
    if (given["run_key"], given["from"]) != (run_key, first):
        raise InputError(
            f"Run {kept.name} is a restart of {given['run_key']!r} from {given['from']!r}; give another restart "
            "another run_key"
        )
    return str(given["journal_key"])


def _place(pipeline: str, who: Who) -> str:
    return f"{pipeline}/runs/{to_json([who['tenant_id'], who['user_id']]).decode()}"


async def _last_keys(store: DurableStore, place: str) -> list[str]:
    count = await length(store, place)
    numbers = range(count - 1, max(-1, count - 1 - _SHOWN), -1)
    return [str(await store.load_reply(place, number)) for number in numbers]
