"""An agent tool is lost with its calling run: the next run of either driver finds its work."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support.drivers import Driver
from support.temporal_runs import Temporal, check_healthy, pending, result, until
from support.transcripts import DURABILITY, asks_for, call, kind_of, result_of, shape

from standfast import Agent, Loop, Message, tool
from standfast.runtime.child_agents import session_of_call
from standfast.stores import Session, SQLiteStore
from standfast.testing import ScriptedModel

EFFECTS: list[str] = []


@tool
async def charge() -> str:
    """Charge."""
    EFFECTS.append("charge")
    return "charged"


writer = Agent("writer", model="writer", tools=[charge])
boss = Agent("boss", model="boss", tools=[writer])
TO_WRITER = call("writer", "w1", message="Write it")


def models(**answers: Any) -> Any:
    """Return models that answer by how often they have answered in what they see."""

    def model(script: Sequence[Any]) -> ScriptedModel:
        return ScriptedModel(lambda messages, tools: script[sum(one.role == "assistant" for one in messages)])

    return {name: model(script) for name, script in answers.items()}.__getitem__


async def leave(store: SQLiteStore, session: str, agent: str, *messages: Message) -> Session:
    """Write what a run on Temporal has left that is gone."""
    kept = Session(id=session, agent_name=agent, journal_key="gone/1", workflow_id="gone", created_at=datetime.now(UTC))
    await store.append_messages_atomic(session, list(messages), kept)
    return kept


def asking(*calls: Any) -> Message:
    return Message(role="assistant", tool_calls=calls)


def user(text: str) -> Message:
    return Message(role="user", content=text)


ENDED = (user("Write it"), Message(role="assistant", content="Dear Ada"))
UNFINISHED = (user("Write it"), asking(call("charge", "c1")))


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("left", [ENDED, UNFINISHED], ids=["ended", "unfinished"])
async def test_an_agent_that_a_temporal_run_has_left_is_found_by_the_next_run(driver: Driver, left: Any) -> None:
    store, session = driver.temporal.store, driver.temporal.session("s")
    parent = await leave(store, session, "boss", user("go"), asking(TO_WRITER))
    child = session_of_call(session, "w1", f"{parent.key}/2.0")
    await leave(store, child, "writer", *left)
    script = models(boss=[None, "sent"], writer=[None, "Dear Ada"])
    ended = await driver.run(boss, script, message=None, also=[writer])
    assert (ended.status, ended.response, result_of(ended.messages, "w1")) == ("complete", "sent", "Dear Ada")
    assert shape(await store.load_messages(child))[0] == "user Write it"
    assert len([one for one in await store.load_messages(child) if one.role == "user"]) == 1


async def test_an_agent_that_had_not_begun_is_run(temporal: Temporal) -> None:
    session = temporal.session("s")
    await leave(temporal.store, session, "boss", user("go"), asking(TO_WRITER))
    async with temporal.worker(boss, writer, llm=models(boss=[None, "sent"], writer=["Dear Ada"])):
        run = await temporal.start(boss, None)
        await result(run)
        await check_healthy(run)
    assert result_of(await temporal.messages(), "w1") == "Dear Ada"


async def test_what_an_agent_did_in_a_process_that_died_is_unknown_to_temporal(temporal: Temporal) -> None:
    kept = Session(id=temporal.session("s"), agent_name="boss", created_at=datetime.now(UTC))
    await temporal.store.append_messages_atomic(kept.id, [user("go"), asking(TO_WRITER)], kept)
    async with temporal.worker(boss, writer, llm=models(boss=[None, "sent"], writer=["Dear Ada"])):
        await result(await temporal.start(boss, None))
    assert kind_of(await temporal.messages(), "w1") == DURABILITY


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("times", [1, 2])
async def test_an_agent_that_was_cancelled_with_its_caller_continues_with_the_next(
    temporal: Temporal, times: int
) -> None:
    begun, effects = asyncio.Semaphore(0), list[int]()

    @tool
    async def post() -> str:
        """Post, and wait."""
        effects.append(1)
        begun.release()
        await asyncio.Event().wait()
        return "posted"

    @tool(safe_to_retry=True)
    async def look() -> str:
        """Look, and wait the first times."""
        begun.release()
        await asyncio.sleep(0 if len(effects) == times else 60)
        return "seen"

    poster = Agent("writer", model="writer", tools=[post, look])
    caller = Agent("boss", model="boss", tools=[poster])
    asks = [asks_for(call(name, name)) for name in (*["post"] * times, "look")]
    script = models(boss=[asks_for(TO_WRITER), "sent"], writer=[*asks, "Dear Ada"])
    async with temporal.worker(caller, poster, llm=script):
        run = await temporal.start(caller, "go")
        for _ in range(times):
            await asyncio.wait_for(begun.acquire(), 30)
            await run.terminate()

            async def free() -> bool:
                marks = await temporal.store.find_work(temporal.session("s"))
                return all(work.ended_at is not None for work in marks)

            await until(free)
            run = await temporal.start(caller, None)
        ended = await result(run)
        await check_healthy(run)
    assert (ended["response"], len(effects)) == ("sent", times)
    assert result_of(await temporal.messages(), "w1") == "Dear Ada"


@pytest.mark.parametrize("is_lost", [False, True], ids=["lives", "is lost again"])
async def test_a_person_who_says_that_an_agent_was_not_run_is_heard_before_it_has_ended(
    temporal: Temporal, is_lost: bool
) -> None:
    """What was acknowledged stays: a later run of the session does not ask it again."""
    inside, go_on = threading.Event(), threading.Event()

    async def write(messages: Any, tools: Any) -> str:
        inside.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return "Dear Ada"

    caller = Agent("boss", model="boss", tools=[writer], loop=Loop(on_unknown="ask"))
    kept = Session(id=temporal.session("s"), agent_name="boss", created_at=datetime.now(UTC))
    await temporal.store.append_messages_atomic(kept.id, [user("go"), asking(TO_WRITER)], kept)
    script = {"boss": ScriptedModel(["sent"]), "writer": ScriptedModel(write)}
    async with temporal.worker(caller, writer, llm=script.__getitem__):
        run = await temporal.start(caller, None)
        assert (await pending(run))[0]["kind"] == "unknown"
        await temporal.people.resolve(run.id, "w1", "not-happened", by="ada")
        await until(inside.is_set)
        if is_lost:
            await run.terminate()
            run = await temporal.start(caller, None)
        go_on.set()
        assert (await result(run))["response"] == "sent"
        await check_healthy(run)
    assert result_of(await temporal.messages(), "w1") == "Dear Ada"
