"""Commands start a run and chat with an agent in a given context."""

from pathlib import Path

import pytest
from support.commands import done, refused, standfast
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call, tool_results

from integration.web.test_web_contexts import looking, seller
from standfast import sqlite_store
from standfast.testing import ScriptedModel

APP = """
from pydantic import BaseModel

from standfast import Agent
from standfast.testing import ScriptedModel


class Shop(BaseModel):
    name: str
    limit: int = 10


llm = ScriptedModel(lambda messages, tools: messages[0].content)
AGENTS = [
    Agent("seller", context=Shop, instructions=lambda ctx: f"shop {ctx.context.name}, {ctx.context.limit}"),
    Agent("plain"),
]
"""


async def seen_in(temporal: Temporal, session: str = "s") -> list[str]:
    return [said.content for said in tool_results(await temporal.messages(session))]


async def test_a_run_is_started_in_a_context_from_the_line_or_a_file(temporal: Temporal, tmp_path: Path) -> None:
    (tmp_path / "shop.json").write_text('{"name": "Mill", "kind": "mill"}')
    at = ("start", "seller", "-m", "hi", "-s", temporal.session(), "--task-queue", temporal.name, "--wait")
    async with temporal.worker(seller, llm=looking("whose")):
        for words in (("--context", '{"name": "Acme"}'), (), ("--context", f"@{tmp_path / 'shop.json'}")):
            await done(temporal, *at, *words)
    assert await seen_in(temporal) == ["Acme/bakery/10/False", "Acme/bakery/10/False", "Mill/mill/10/False"]


async def test_a_wrong_context_is_one_line(temporal: Temporal) -> None:
    at = ("start", "seller", "-m", "hi", "--task-queue", temporal.name)
    assert "--context is not JSON" in await refused(temporal, *at, "--context", "{oops", code=2)
    assert "--context is of an agent" in await refused(temporal, "start", "p", "-i", "1", "--context", "{}", code=2)
    async with temporal.worker(seller, llm=ScriptedModel([])):
        assert "name: Field required" in await refused(temporal, *at, "--context", "{}", code=3)
        assert "needs a context" in await refused(temporal, *at, code=3)


async def test_a_message_to_a_run_in_flight_has_its_context(temporal: Temporal) -> None:
    at = ("start", "seller", "-m", "hi", "-s", temporal.session(), "--task-queue", temporal.name, "--say")
    acme = ("--context", '{"name": "Acme"}')
    async with temporal.worker(seller, llm=ScriptedModel([asks_for(call("post", "c1")), "done"])):
        assert await done(temporal, *at, *acme) == f"Started seller/{temporal.session()}\n"
        (gate,) = await pending(temporal.client.get_workflow_handle(f"seller/{temporal.session()}"))
        for words in (acme, ()):
            assert await done(temporal, *at, *words) == f"Message sent to seller/{temporal.session()}\n"
        other = ("--context", '{"name": "Other"}')
        assert "was not started with this context" in await refused(temporal, *at, *other)
        await temporal.people.decide(f"seller/{temporal.session()}", gate["name"], "approve")
        assert (await result(temporal.client.get_workflow_handle(f"seller/{temporal.session()}")))[
            "status"
        ] == "complete"


async def test_a_conversation_in_this_process_has_its_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    at = ("chat", "seller", "--app", "shop.py", "-s", "s")
    said = await done(None, *at, "--context", '{"name": "Acme", "limit": 3}', stdin="one\ntwo")
    assert said.splitlines() == ["shop Acme, 3"] * 2
    assert await done(None, *at, stdin="three") == "shop Acme, 3\n", "the session keeps it"
    for agent, context, why in (("seller", "{}", "name: Field required"), ("plain", "{}", "does not take a context")):
        asked = ("chat", agent, "--app", "shop.py", "-s", f"new-{agent}", "--context", context)
        assert why in (await standfast(None, *asked, stdin="one")).stderr
    async with sqlite_store("standfast.db") as store:
        assert [session.id for session in await store.list_sessions()] == ["s"]


async def test_a_conversation_on_temporal_has_its_context(temporal: Temporal) -> None:
    at = ("chat", "seller", "-s", temporal.session(), "--task-queue", temporal.name)
    async with temporal.worker(seller, llm=looking("whose")):
        await done(temporal, *at, "--context", '{"name": "Acme"}', stdin="one\ntwo")
        await done(temporal, *at, stdin="three")
    assert await seen_in(temporal) == ["Acme/bakery/10/False"] * 3
