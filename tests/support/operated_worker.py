"""A user's worker whose guarded activities stop where they are told: `operated_worker ADDRESS QUEUE FOLDER`.

An activity stops at a point of its case while the file `CASE.POINT` is in the folder. Each effect is a line in a file.
With a window, such as "before claim", as a further word the process is killed there; see `dying_effects`.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from standfast import Approval
from standfast.effects import Happened, NotHappened, effect
from standfast.stores import sqlite_store
from standfast.temporal import StandfastPlugin, execute_effect
from support.dying_effects import DyingStore

ADDRESS, QUEUE, FOLDER, *WINDOW = sys.argv[1:] if __name__ == "__main__" else [""] * 3
SOON = timedelta(milliseconds=50)


class BusyError(Exception):
    """It has not run, and may be tried again."""


def is_told(case: str, point: str) -> bool:
    path = Path(FOLDER) / f"{case}.{point}"
    if path.exists():
        path.with_name(f"{path.name}.reached").touch()
    return path.exists()


async def stop(case: str, point: str, *, hears: bool) -> None:
    while is_told(case, point):
        if hears:
            activity.heartbeat()
        await asyncio.sleep(0.02)


async def happen(case: str, *, hears: bool = True) -> str:
    if is_told(case, "busy"):
        raise BusyError(case)
    await stop(case, "begun", hears=hears)
    with (Path(FOLDER) / "effects").open("a") as file:
        print(case, file=file)
    await stop(case, "happened", hears=hears)
    return f"did {case}"


def looked_up(case: str) -> Happened | NotHappened:
    path = Path(FOLDER) / "effects"
    return Happened(f"saw {case}") if path.exists() and case in path.read_text().splitlines() else NotHappened()


def activities(store: Any) -> dict[str, Any]:
    @effect(store, "charge", not_run=(BusyError,))
    async def charge(case: str) -> str:
        return await happen(case)

    @effect(store, "deaf", not_run=(BusyError,))  # it does not hear what operators want of it
    async def deaf(case: str) -> str:
        return await happen(case, hears=False)

    @effect(store, "seen", verify=looked_up, not_run=(BusyError,))
    async def seen(case: str) -> str:
        return await happen(case)

    @effect(store, "keyed", key=lambda case: case)
    async def keyed(case: str) -> str:
        return await happen(case)

    @effect(store, "inner")
    async def inner(case: str) -> str:
        return await happen(case)

    async def around(case: str) -> str:
        done = await inner(case)
        await stop(case, "kept", hears=True)
        return done

    @effect(store, "approved", approval=Approval())
    async def approved(case: str) -> str:
        return await happen(case, hears=False)

    @effect(store, "approved_by_key", key=lambda case: case, approval=Approval())
    async def approved_by_key(case: str) -> str:
        return await happen(case, hears=False)

    functions = (charge, deaf, seen, keyed, around, approved, approved_by_key)
    return {one.__name__: activity.defn(one) for one in functions}


ACTIVITIES: dict[str, Any] = {}


@workflow.defn(sandboxed=False)
class Operated:
    """Runs an activity, in one of several ways."""

    @workflow.run
    async def run(self, name: str, case: str, how: str) -> str:
        options: dict[str, Any] = {
            "start_to_close_timeout": timedelta(seconds=60),
            "heartbeat_timeout": timedelta(seconds=1) if name in ("charge", "seen", "around") else None,
            "retry_policy": RetryPolicy(initial_interval=SOON, maximum_interval=SOON),
            "result_type": str,
        }
        match how:
            case "gate, soon tried again":
                return str(await execute_effect(ACTIVITIES[name], case, start_to_close_timeout=timedelta(seconds=2)))
            case "gate" | "gate, then as new":
                done = str(await execute_effect(ACTIVITIES[name], case))
                if how == "gate, then as new":
                    workflow.continue_as_new(args=[name, case, "gate"])
                return done
            case "one id":
                options["activity_id"] = "mine"
                await workflow.execute_activity(name, case, **options)
            case "child":
                child: str = await workflow.execute_child_workflow(
                    Operated.run, args=[name, case, ""], id=f"{workflow.info().workflow_id}/child"
                )
                return child
        return str(await workflow.execute_activity(name, case, **options))


async def main() -> None:
    store: Any = sqlite_store(Path(FOLDER) / "store.db")
    for window in WINDOW:
        store = DyingStore(store, window)
    ACTIVITIES.update(activities(store))
    client = await Client.connect(ADDRESS)
    found: list[Any] = list(ACTIVITIES.values())
    plugin = StandfastPlugin(store=store)
    options: dict[str, Any] = {"workflows": [Operated], "activities": found, "plugins": [plugin]}
    soon = timedelta(seconds=1)  # after which another worker has the workflows of one that was killed
    async with Worker(client, task_queue=QUEUE, sticky_queue_schedule_to_start_timeout=soon, **options):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
