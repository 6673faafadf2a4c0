"""A pipeline whose tool charges through the object that `deps` made, and whose process dies after the charge.

`python -m support.mortal_pipeline FOLDER` runs it in this process. With an address, a task queue and a workflow id it
is a worker of that run, until the run ends.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio.worker import Worker

from standfast import Happened, NotHappened, Pipeline, StepContext, ToolContext, pipeline, run_pipeline, tool
from standfast.stores import sqlite_store
from standfast.temporal import StandfastPlugin, connect
from support.mortal_programs import charge_and_die, charges

DEATHS = 1


class Order(BaseModel):
    customer: str
    cents: int


class Till:
    def __init__(self, folder: Path) -> None:
        self.folder, self.is_open = folder, True


def shop(folder: Path) -> Pipeline:
    @asynccontextmanager
    async def open_till(ctx: StepContext) -> AsyncIterator[Till]:
        with (folder / "opened").open("a") as file:
            print(ctx.input.customer, ctx.user_id, ctx.run_key, file=file)
        till = Till(folder)
        try:
            yield till
        finally:
            till.is_open = False

    def has_charged(cents: int, ctx: ToolContext[Till]) -> Happened | NotHappened:
        assert ctx.deps.is_open
        return Happened({"charged": cents}) if cents in charges(ctx.deps.folder) else NotHappened()

    @tool(verify=has_charged)
    def charge(cents: int, ctx: ToolContext[Till]) -> dict[str, int]:
        """Charge a card."""
        assert ctx.deps.is_open
        return charge_and_die(str(ctx.deps.folder), DEATHS, cents)

    @tool(safe_to_retry=True)
    def look(ctx: ToolContext[Till]) -> list[int]:
        """Look up what was charged."""
        return charges(ctx.deps.folder)

    return (
        pipeline("shop", input=Order, deps=open_till)
        .step("charge", run=charge, input=lambda ctx: {"cents": ctx.input.cents})
        .step("look", run=look)
        .build()
    )


async def main(folder: Path, *temporal: str) -> Any:
    flow, order = shop(folder), {"customer": "ann", "cents": 7}
    async with sqlite_store(folder / "shop.db") as store:
        if not temporal:
            ended = await run_pipeline(flow, input=order, store=store, run_key="k", user_id="eve")
            return [ended.status, dict(ended.outputs)]
        address, queue, workflow_id = temporal
        client = await connect(address)
        async with Worker(client, task_queue=queue, plugins=[StandfastPlugin(pipelines=[flow], store=store)]):
            result: Any = await client.get_workflow_handle(workflow_id).result()
            return [result["status"], result["outputs"]]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))))
