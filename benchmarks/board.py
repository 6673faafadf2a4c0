"""Measures the inbox with 10,000 waiting items: `python benchmarks/board.py [DSN]`, with a SQLite file and no worker.

For each query it prints the median and the slowest of 20, in milliseconds, and the same for an empty board.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import httpx

from standfast import postgres_store, sqlite_store
from standfast.stores import Board
from standfast.temporal import StandfastClient, connect
from standfast.temporal.client.board.boards import kept_mark
from standfast.temporal.wire.boards import ShownItem, key_of, wait_of
from standfast.testing import dev_server
from standfast.web import Access, Person, create_app

ITEMS, ROUNDS = 10_000, 20
NOW = datetime.now(UTC)


async def fill(store: Any) -> None:
    await store.save_reply(kept_mark("default"), 0, "true")
    slots = asyncio.Semaphore(50)

    async def show(number: int) -> None:
        board = Board(
            namespace="default",
            workflow_id=f"shop/order-{number}",
            run_id=f"r{number}",
            first_run_id=f"r{number}",
            journal_key=f"r{number}",
            agent=("shop", "clerk", "payer")[number % 3],
            task_queue="standfast",
            at=NOW,
            session=f"order-{number}",
            user_id=f"user-{number % 100}",
        )
        shown: ShownItem = {
            "item": {
                "kind": "approval",
                "name": f"call_{number}",
                "message": f"Refund order {number}? " + "The customer has sent it back. " * 10,
                "since": (NOW - timedelta(seconds=number)).isoformat(),
                "deadline": (NOW + timedelta(seconds=(number * 7919) % 86_400)).isoformat(),
                "digest": "0" * 32,
                "approvers": [f"person-{number % 50}", "ada"][: 1 + (number % 20 == 0)],
                "tool": "refund",
                "arguments": {"order": number, "lines": ["a line of the order"] * 20},
            }
        }
        async with slots:
            await store.show_waits(board, [wait_of(shown, key_of(shown), board)])

    await asyncio.gather(*map(show, range(ITEMS)))


async def timed(work: Callable[[], Awaitable[Any]]) -> str:
    took = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await work()
        took.append((time.perf_counter() - started) * 1_000)
    return f"{sorted(took)[ROUNDS // 2]:7.1f} {max(took):7.1f}"


async def got(page: httpx.AsyncClient, address: str, text: str = "<h1>Inbox</h1>") -> None:
    found = await page.get(address)
    if found.status_code != 200 or text not in found.text:
        raise AssertionError(f"{address} does not have {text}: {found.status_code} {found.text[:500]}")


async def measure(name: str, store: Any, client: Any) -> None:
    people = StandfastClient(client, store=store)
    app = create_app(client, access=Access(local=Person(name="ada", role="operator")), store=store)
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 4711))
    # The connection has no other end whose owner could be looked up.
    ours = patch("standfast.web.identity.connection_owners._user_of", return_value=os.getuid())
    headers = {"Accept": "text/html"}
    with ours:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as page:
            await measure_with(name, people, page)


async def measure_with(name: str, people: StandfastClient, page: httpx.AsyncClient) -> None:
    (item, *_) = [*await people.waiting(limit=1), {"place": None}]
    for what, work in {
        "inbox": lambda: got(page, "/"),
        "inbox, search": lambda: got(page, "/?text=order+9999"),
        "inbox, one group": lambda: got(page, "/?group=leads"),
        "inbox, one person": lambda: got(page, "/?person=person-7"),
        "API, GET /pending": lambda: got(page, "/api/v1/pending", '"items"'),
        "waiting()": lambda: people.waiting(),
        "waiting(limit=50)": lambda: people.waiting(limit=50),
        "waiting(limit=50, after=)": lambda: people.waiting(limit=50, after=item["place"]),
        "waiting(text=, limit=50)": lambda: people.waiting(text="refund 9999", limit=50),
        "waiting(person=, limit=50)": lambda: people.waiting(person="person-7", limit=50),
        "waiting(agent=, limit=50)": lambda: people.waiting(agent="clerk", limit=50),
        "count_waiting()": lambda: people.count_waiting(),
    }.items():
        print(f"{name:22}{what:28}{await timed(work)}")


async def main() -> None:
    async with dev_server() as server:
        client = await connect(server.address)
        with tempfile.TemporaryDirectory() as folder:
            stores: dict[str, Callable[[str], Any]] = {"SQLite": lambda which: sqlite_store(f"{folder}/{which}.db")}
            if sys.argv[1:]:
                stores["PostgreSQL"] = lambda which: postgres_store(sys.argv[1], schema=f"board_{which}")
            for name, make in stores.items():
                async with make("empty") as empty, make("full") as full:
                    await empty.save_reply(kept_mark("default"), 0, "true")
                    await fill(full)
                    await measure(f"{name}, empty", empty, client)
                    await measure(f"{name}, {ITEMS:,}", full, client)


if __name__ == "__main__":
    asyncio.run(main())
