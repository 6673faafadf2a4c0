"""Open pages share their queries, and learn of each change once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from standfast.errors import StandfastError
from standfast.web.page import live_updates
from standfast.web.page.live_updates import Looks, digest


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "_EVERY", 0.02)


async def changes(events: AsyncIterator[str]) -> str:
    """Return the next event that is not a sign of life."""
    async with asyncio.timeout(60):
        async for event in events:
            if not event.startswith(":"):
                return event
    raise AssertionError("no event")


async def test_however_many_have_a_page_open_it_is_looked_at_once() -> None:
    looked, shown = 0, "before"

    async def look(of: str) -> str:
        nonlocal looked
        looked += 1
        await asyncio.sleep(0.1)
        return shown

    shared = Looks(look, None)
    pages = [asyncio.ensure_future(changes(shared.events("/", digest("before"), None))) for _ in range(50)]
    while looked < 3:
        await asyncio.sleep(0.01)
    shown = "after"
    assert set(await asyncio.gather(*pages)) == {"event: changed\ndata: \n\n"}
    assert looked <= 6


async def test_what_has_changed_before_a_page_listens_is_told() -> None:
    async def look(of: str) -> str:
        return f"now {of}"

    assert "changed" in await changes(Looks(look, None).events("/runs/a", digest("before"), None))


async def test_a_look_that_fails_is_made_again() -> None:
    answers: list[Exception | str] = [StandfastError("no worker"), StandfastError("no worker"), "there"]

    async def look(of: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert "changed" in await changes(Looks(look, None).events("/", digest("before"), None))
    assert answers == []
