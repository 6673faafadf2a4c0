"""A worker of a user's own, whose guarded charges stop where an operator wants: `python -m support.operated_worker …`.

    python -m support.operated_worker ADDRESS QUEUE STORE FOLDER

Each charge is a line in FOLDER/charges. A charge waits before its effect while there is a file FOLDER/before, and
behind it while there is FOLDER/behind. A workflow `Operated` carries out the steps that it is given, and tells what
came of each.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError
from temporalio.worker import Worker

from standfast import Agent, Approval
from standfast.effects import Happened, NotHappened, effect
from standfast.stores import open_store
from standfast.temporal import StandfastPlugin, execute_effect
from standfast.testing import ScriptedModel

ADDRESS, QUEUE, STORE, FOLDER = sys.argv[1:5] if __name__ == "__main__" else [""] * 4


async def stop_at(place: str, order: str) -> None:
    with Path(FOLDER, f"{place}s").open("a") as file:
        print(order, file=file)
    while Path(FOLDER, place).exists():
        await asyncio.sleep(0.02)


async def charge(order: str) -> str:
    await stop_at("before", order)
    with Path(FOLDER, "charges").open("a") as file:
        print(order, file=file)
    await stop_at("behind", order)
    return f"charged {order}"


def looked_up(order: str) -> Happened | NotHappened:
    charges = Path(FOLDER, "charges")
    return Happened("found") if charges.exists() and order in charges.read_text().split() else NotHappened()


def guarded(store: Any) -> dict[str, Any]:
    """Return the charges by their names, as activities."""
    options: dict[str, dict[str, Any]] = {
        "charge": {},
        "keyed": {"key": lambda order: order},
        "verified": {"verify": looked_up},
        "safe": {"safe_to_retry": True},
        "approved": {"approval": Approval(message="Charge?")},
    }
    return {
        name: activity.defn(name=name)(effect(store, name, **given)(_another(charge)))
        for name, given in options.items()
    }


def _another(function: Any) -> Any:
    async def another(order: str) -> str:
        return str(await function(order))

    return another


@workflow.defn(sandboxed=False)
class Operated:
    @workflow.run
    async def run(self, plan: dict[str, Any]) -> list[Any]:
        told = [await self.told(step) for step in plan["steps"]]
        if plan.get("again"):
            workflow.continue_as_new({**plan, "again": plan["again"] - 1})
        return told

    async def told(self, step: dict[str, Any]) -> Any:
        try:
            return await self.carry_out(**step)
        except (ActivityError, ChildWorkflowError) as error:
            cause = error.cause
            return [getattr(cause, "type", None) and str(cause.type), str(getattr(cause, "message", cause))]
        except ApplicationError as error:
            return [error.type, error.message]

    async def carry_out(
        self,
        do: str = "charge",
        order: str = "a",
        how: str = "activity",
        seconds: float = 60,
        attempts: int = 0,
        wait: float = 0.05,
        **options: Any,
    ) -> Any:
        retry = RetryPolicy(maximum_attempts=attempts, initial_interval=timedelta(seconds=wait), backoff_coefficient=1)
        timed: Any = {"start_to_close_timeout": timedelta(seconds=seconds), "retry_policy": retry, **options}
        if how == "child":
            plan = {"steps": [{"do": do, "order": order}]}
            return await workflow.execute_child_workflow("Operated", plan, id=f"{workflow.info().workflow_id}/child")
        if how == "approved":
            return await execute_effect(ACTIVITIES[do], order, **timed)
        if how == "local":
            return await workflow.execute_local_activity(
                do, order, local_retry_threshold=timedelta(milliseconds=10), **timed
            )
        return await workflow.execute_activity(do, order, **timed)


ACTIVITIES: dict[str, Any] = {}


async def main() -> None:
    store = open_store(STORE)
    ACTIVITIES.update(guarded(store))
    client = await Client.connect(ADDRESS)
    plugin = StandfastPlugin(agents=[Agent("other")], store=store, llm=ScriptedModel([]))
    given: dict[str, Any] = {"workflows": [Operated], "activities": list(ACTIVITIES.values())}
    async with Worker(client, task_queue=QUEUE, plugins=[plugin], **given):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
