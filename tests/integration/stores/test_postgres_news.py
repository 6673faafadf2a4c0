"""PostgreSQL notifies viewers of a model's new words, so that they need not poll."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.postgres import PostgresServer, new_schema
from support.postgres_proxies import PostgresProxy

from standfast.events import ReasoningDelta
from standfast.runtime import streamed_answers
from standfast.runtime.streamed_answers import Heard, load_more, news_of, until_more
from standfast.stores import PartialAnswer, PostgresStore
from standfast.stores.partial_answers import reasoning_key
from standfast.stores.postgres import notifications as postgres_news

NEVER = 600.0


def part(text: str, offset: int = 0) -> PartialAnswer:
    return PartialAnswer(turn=1, attempt="a", offset=offset, text=text)


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[PostgresProxy]:
    async with PostgresProxy(postgres).running() as running:
        yield running


@pytest.fixture(autouse=True)
def viewers_only_look_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_answers, "AT_LEAST_EVERY", NEVER)
    monkeypatch.setattr(postgres_news, "RETRIES", 0.05)


async def view(store: PostgresStore, key: str, whole: str) -> int:
    """View an answer to its end, and return how often the store was looked at."""
    heard, said, looks = None, "", 0
    async with news_of(store, key) as news:
        while said != whole:
            looks += 1
            found = await store.load_partial(key, after=heard)
            if found is not None:
                heard, said = found, said + found.text
            if said != whole:
                await until_more(news, NEVER)
    return looks


async def listening(server: PostgresServer, schema: str, count: int = 1) -> None:
    query = f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{postgres_news.channel(schema)}%'"
    async with asyncio.timeout(30):
        while int(server.sql(query)) != count:
            await asyncio.sleep(0.02)


async def test_a_viewer_looks_only_when_there_is_more(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as worker, postgres.store(schema) as page:
        viewing = asyncio.create_task(view(page, "run", "one two "))
        other = asyncio.create_task(view(page, "other", "x"))
        await listening(postgres, schema)
        await worker.add_partial("run", part("one "))
        await worker.add_partial("run", part("two ", 4))
        assert await asyncio.wait_for(viewing, 30) <= 4  # at first, when it listens, and when it is told
        await worker.add_partial("other", part("x"))
        assert await asyncio.wait_for(other, 30) <= 3
        await listening(postgres, schema, 0)  # all viewers have left


async def test_a_viewer_of_a_run_is_told_of_its_thoughts(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as worker, postgres.store(schema) as page, news_of(page, "run") as news:
        await listening(postgres, schema)
        assert news is not None
        await until_more(news, NEVER)  # of earlier rows
        await worker.add_partial(reasoning_key("run"), part("Hm."))
        await asyncio.wait_for(news.wait(), 30)
        assert await load_more(page, "run", Heard()) == [
            (ReasoningDelta("Hm.", 1, 0), Heard(thoughts=part("Hm."))),
        ]


async def test_what_was_said_before_a_viewer_listens_is_seen(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as worker, postgres.store(schema) as page:
        await worker.add_partial("run", part("all"))
        assert await asyncio.wait_for(view(page, "run", "all"), 30) <= 2


async def test_a_viewer_whose_connection_was_lost_hears_again(postgres: PostgresServer, proxy: PostgresProxy) -> None:
    schema = new_schema()
    async with postgres.store(schema) as worker, proxy.store(schema) as page:
        viewing = asyncio.create_task(view(page, "run", "one two three "))
        await listening(postgres, schema)
        await worker.add_partial("run", part("one "))
        proxy.cut()
        await worker.add_partial("run", part("two ", 4))  # without a listener
        proxy.mend()
        await listening(postgres, schema)
        await worker.add_partial("run", part("three ", 8))
        await asyncio.wait_for(viewing, 30)


async def test_a_viewer_who_leaves_while_it_connects_leaves_no_connection(
    postgres: PostgresServer, proxy: PostgresProxy
) -> None:
    async with proxy.store() as page:
        await page.load_partial("run")  # the pool has its connection
        before = len(proxy.open)
        proxy.hold_back("set_config")
        viewing = asyncio.create_task(view(page, "run", "one "))
        await asyncio.wait_for(proxy.holds_back.wait(), 30)
        viewing.cancel()
        await asyncio.wait({viewing})
        proxy.go_on()
        async with asyncio.timeout(30):
            while len(proxy.open) > before:
                await asyncio.sleep(0.02)


async def test_word_of_an_answer_costs_no_round_trip(proxy: PostgresProxy) -> None:
    async with proxy.store() as store:
        await store.add_partial("run", part("one "))
        before = len(proxy.statements)
        await store.add_partial("run", part("two ", 4))
        assert len(proxy.statements) - before == 1


async def test_runs_of_any_name_are_told_of(postgres: PostgresServer) -> None:
    schema = new_schema()
    async with postgres.store(schema) as worker, postgres.store(schema) as page:
        for key in ("x" * 9_000, "a'; NOTIFY b; --", "nul\0", "é\u202e"):
            viewing = asyncio.create_task(view(page, key, "said"))
            await listening(postgres, schema)
            await worker.add_partial(key, part("said"))
            await asyncio.wait_for(viewing, 30)
            await listening(postgres, schema, 0)
