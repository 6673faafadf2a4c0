"""The inbox reads the board: in pages, searched and counted, without a worker or a query."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from support.pages import XSS, browser
from support.temporal_runs import Temporal
from temporalio.client import Client, WorkflowHandle

from standfast.stores import Wait
from standfast.temporal import StandfastClient
from standfast.temporal.client.board.boards import kept_mark
from standfast.temporal.wire.boards import ShownItem, key_of, wait_of
from standfast.testing.boards import board_of, later

# What the person can decide has a card, and all else a line.
SHOWN = re.compile(r"<(?:h2 id=[^>]*|li)><span class=\"kind\">[a-z]+</span> (?:<a [^>]*>)?(.*?)(?:</a>|</h2>)")


def item(number: int, **more: Any) -> ShownItem:
    shown: dict[str, Any] = {
        "kind": "approval",
        "name": f"c{number}",
        "message": f"Refund order {number}?",
        "since": later(0).isoformat(),
        "deadline": later(1_000 - number).isoformat(),
        "digest": "d" * 32,
        "approvers": ["ada"],
    }
    return {"item": {name: value for name, value in (shown | more).items() if value is not None}}


async def fill(temporal: Temporal, *items: ShownItem, **board: Any) -> None:
    """Show items on the board as those of runs of which the server knows nothing."""
    await temporal.store.save_reply(kept_mark("default"), 0, "true")
    for number, shown in enumerate(items):
        run = board_of(f"shop/{number}", **board)
        waits: list[Wait] = [wait_of(shown, key_of(shown), run)]
        await temporal.store.show_waits(run, waits)


def messages(page: httpx.Response) -> list[str]:
    assert page.status_code == 200, page.text
    return SHOWN.findall(page.text)


@asynccontextmanager
async def asking_nobody(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """Give a browser whose page can neither list runs nor ask one."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the page asked Temporal")

    monkeypatch.setattr(Client, "list_workflows", refuse)
    monkeypatch.setattr(WorkflowHandle, "query", refuse)
    monkeypatch.setattr(WorkflowHandle, "describe", refuse)
    async with browser(temporal) as page:
        yield page


async def test_all_that_waits_is_reached_by_pages_the_nearest_deadline_first(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(temporal, *(item(number) for number in range(130)))
    async with asking_nobody(temporal, monkeypatch) as page:
        seen, address = list[str](), "/"
        for _ in range(3):
            found = await page.get(address)
            seen += messages(found)
            more = re.search(r'href="([^"]*)">More items for you', found.text)
            address = more[1].replace("&amp;", "&") if more else ""
        assert address == ""
        assert seen == [f"Refund order {number}?" for number in reversed(range(130))]


async def test_what_waits_for_me_is_first_however_much_waits_for_others(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [item(1_000 - number, approvers=["bob"]) for number in range(120)]
    await fill(temporal, *others, item(1, message="Mine?", approvers=["Ada"]))
    async with asking_nobody(temporal, monkeypatch) as page:
        found = await page.get("/")
        assert messages(found)[0] == "Mine?"
        assert len(messages(found)) == 51
        assert "121 approval" in found.text
        assert "More items for others" in found.text


async def test_the_inbox_is_searched(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    long = item(5, kind="question", digest=None, approvers=None, message="100% of O'Neil_5?")
    await fill(temporal, *(item(number) for number in range(12)), long)
    async with asking_nobody(temporal, monkeypatch) as page:
        for query, count in (
            ("text=order+11", 1),
            ("text=REFUND", 12),
            ("text=100%25", 1),
            ("text=o'neil_5", 1),
            ("text=o%25neil", 0),
            ("text=%00", 0),
            ("kind=question", 1),
            ("agent=greeter", 13),
            ("agent=gree", 0),
            ("person=bob", 1),
            ("group=leads", 0),
            ("waits_longer_than=1h", 13),
        ):
            assert len(messages(await page.get(f"/?{query}"))) == count, query


@pytest.mark.parametrize("query", ["waits_longer_than=soon", "after=nonsense", "after=e30", "waits_longer_than=9e99"])
async def test_a_filter_that_cannot_be_used_is_one_sentence(temporal: Temporal, query: str) -> None:
    await fill(temporal, item(1))
    async with browser(temporal) as page:
        found = await page.get(f"/?{query}")
        assert found.status_code in (404, 409, 422)
        assert "Traceback" not in found.text


async def test_what_people_typed_is_shown_as_text(temporal: Temporal) -> None:
    await fill(temporal, item(1, message=XSS))
    async with browser(temporal) as page:
        found = await page.get("/", params={"text": XSS, "person": XSS, "group": XSS})
        assert "<script>alert" not in found.text
        assert "<script>alert" not in (await page.get("/")).text


async def test_a_board_that_fits_a_page_is_looked_through_once(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(temporal, *(item(number) for number in range(9)), item(9, approvers=["bob"]), item(10, approvers=None))
    looks = list[str]()
    for name in ("waits", "count_waits"):
        real = getattr(temporal.store, name)

        def look(*wanted: Any, real: Any = real, name: str = name, **options: Any) -> Any:
            looks.append(name)
            return real(*wanted, **options)

        monkeypatch.setattr(temporal.store, name, look)
    async with asking_nobody(temporal, monkeypatch) as page:
        found = await page.get("/")
    assert looks == ["waits", "waits"]  # the runs of the namespace, and those in process
    mine, others = found.text.split("Waiting for others")
    assert "Refund order 10?" in mine
    assert SHOWN.findall(others) == ["Refund order 9?"]
    assert "11 approvals" in found.text


@pytest.mark.slow
async def test_of_ten_thousand_that_wait_with_no_worker_none_is_lost(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest comes last, because it lacks a deadline."""
    count = 10_000
    items = [item(number, deadline=later(100_000 - number).isoformat()) for number in range(1, count)]
    oldest = item(0, since=later(-1_000).isoformat(), deadline=None, message="Oldest?")
    await temporal.store.save_reply(kept_mark("default"), 0, "true")
    runs = [(board_of(f"shop/{number}"), shown) for number, shown in enumerate([oldest, *items])]
    for start in range(0, count, 500):
        writes = [
            temporal.store.show_waits(run, [wait_of(shown, key_of(shown), run)])
            for run, shown in runs[start : start + 500]
        ]
        await asyncio.gather(*writes)
    async with asking_nobody(temporal, monkeypatch) as page:
        people, after, seen = StandfastClient(temporal.client, store=temporal.store), None, list[str]()
        while found := await people.waiting(limit=2_000, after=after):
            seen += [one["workflow_id"] for one in found]
            after = found[-1]["place"]
        assert seen == [f"shop/{number}" for number in reversed(range(count))]
        assert await people.count_waiting() == {"approval": count}
        assert "10,000 approvals" in (await page.get("/")).text
        assert messages(await page.get("/?text=oldest")) == ["Oldest?"]
        assert messages(await page.get("/?waits_longer_than=1h&text=order+9999"))[:1] == ["Refund order 9999?"]
        found = (await page.get("/api/v1/pending")).json()
        assert [one["workflow_id"] for one in found["items"]] == seen[:100]
        assert found["counts"] == {"approval": count}
        found = (await page.get("/api/v1/pending", params={"limit": 3, "after": found["next"]})).json()
        assert [one["workflow_id"] for one in found["items"]] == seen[100:103]
        found = (await page.get("/api/v1/pending", params={"text": "oldest", "waits_longer_than": "10m"})).json()
        assert [one["workflow_id"] for one in found["items"]] == seen[-1:]
        assert (found["counts"], found.get("next")) == ({"approval": 1}, None)
        for wrong in ({"after": "nowhere"}, {"waits_longer_than": "long"}):
            assert (await page.get("/api/v1/pending", params=wrong)).status_code == 422
