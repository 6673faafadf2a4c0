"""A user's worker, without a plugin, whose activity dies after its effect: `guarded_worker ADDRESS QUEUE …`.

    python -m support.guarded_worker ADDRESS QUEUE STORE LEDGER (bare | guarded | safe | verified) DEATHS

Each charge is a line in the file LEDGER. The process dies behind the first DEATHS of them.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

from standfast.effects import Happened, NotHappened, effect
from standfast.stores import open_store

ADDRESS, QUEUE, STORE, LEDGER, KIND, DEATHS = sys.argv[1:7] if __name__ == "__main__" else [""] * 6


def charges() -> list[str]:
    return Path(LEDGER).read_text().splitlines() if Path(LEDGER).exists() else []


async def charge(card: str, cents: int) -> dict[str, int]:
    with Path(LEDGER).open("a") as file:
        print(card, cents, file=file)
    if len(charges()) <= int(DEATHS):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"charged": cents}


def looked_up(card: str, cents: int) -> Happened | NotHappened:
    return Happened({"charged": cents}) if f"{card} {cents}" in charges() else NotHappened()


OPTIONS = {"guarded": {}, "safe": {"safe_to_retry": True}, "verified": {"verify": looked_up}}


@workflow.defn
class Purchase:
    @workflow.run
    async def run(self, card: str) -> dict[str, int]:
        found: dict[str, int] = await workflow.execute_activity(
            "charge", args=[card, 5], start_to_close_timeout=timedelta(seconds=2)
        )
        return found


async def main() -> None:
    function = charge if KIND == "bare" else effect(open_store(STORE), **OPTIONS[KIND])(charge)
    client = await Client.connect(ADDRESS)
    async with Worker(client, task_queue=QUEUE, workflows=[Purchase], activities=[activity.defn(function)]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
