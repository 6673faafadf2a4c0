"""A payload codec hides histories; the page and the command read them, or report what they lack."""

import asyncio
import contextlib
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.codecs import CODEC, OtherKey
from support.commands import done, refused
from support.pages import CHARGES, LOCAL, browser, charge
from support.temporal_runs import Temporal, ask_once, clerk, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, InputError, tool
from standfast.temporal import connect
from standfast.temporal.client.queues.servers import temporal_binary
from standfast.temporal.client.runs.stuck import find_stuck
from standfast.testing import ScriptedModel
from standfast.web import Access, create_app

HERE = "support.codecs"


def at(temporal: Temporal) -> str:
    return temporal.client.service_client.config.target_host


async def encoded(temporal: Temporal, codec: Any = CODEC) -> Temporal:
    return Temporal(await connect(at(temporal), codec=codec), temporal.store, temporal.name)


@tool
async def fail() -> str:
    raise ValueError("the secret of the failure")


async def test_a_history_has_nothing_in_the_clear(temporal: Temporal) -> None:
    hidden = await encoded(temporal)
    agent = Agent("clerk", tools=[fail])
    async with hidden.worker(agent, llm=ScriptedModel([asks_for(call("fail", "c1")), "the secret answer"])):
        run = await hidden.start(agent, "the secret message")
        assert (await result(run))["response"] == "the secret answer"
        history = b"".join([event.SerializeToString() async for event in run.fetch_history_events()])
        assert [word for word in (b"the secret", b'"calls"', b"turn 1") if word in history] == []


async def test_the_messages_of_failures_are_encoded_and_read_again(temporal: Temporal) -> None:
    hidden = await encoded(temporal)
    async with hidden.worker(Agent("clerk"), llm=ScriptedModel([ValueError("the secret of the model")])):
        run = await hidden.start("clerk")

        async def seen() -> Any:
            shown = await done(temporal, "show", run.id, "--codec", f"{HERE}:CODEC")
            return "the secret of the model" in shown

        await until(seen)
        description = (await run.describe()).raw_description
        history = b"".join([event.SerializeToString() async for event in run.fetch_history_events()])
        assert b"the secret" not in history + description.SerializeToString()


async def test_page_and_command_read_what_the_codec_has_hidden(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, agent = await encoded(temporal), Agent("clerk", tools=[charge])
    async with hidden.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(hidden) as client:
        run = await hidden.start(agent)
        await pending(run)
        assert "Charge the customer?" in (await client.get(f"/runs/{run.id}")).text
        assert "Charge the customer?" in await done(temporal, "pending", run.id, "--codec", f"{HERE}:CODEC")
        assert "Charge the customer?" in await done(temporal, "pending", run.id, STANDFAST_CODEC=f"{HERE}:Reversed")
        await done(temporal, "approve", run.id, "--yes", STANDFAST_CODEC=f"{HERE}:CODEC")
        assert (await result(run))["status"] == "complete"
        ended = await done(temporal, "show", run.id, STANDFAST_CODEC=f"{HERE}:CODEC")
        assert "done" in ended


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("codec", "says"), [(None, "which needs the codec"), (OtherKey(), "with the same key?")])
async def test_without_the_right_codec_page_and_command_say_so(temporal: Temporal, codec: Any, says: str) -> None:
    hidden, agent = await encoded(temporal), Agent("clerk", tools=[charge])
    lacking = await encoded(temporal, codec)
    options = () if codec is None else ("--codec", f"{HERE}:OtherKey")
    async with hidden.worker(agent, llm=ScriptedModel([CHARGES, "done"])), browser(lacking) as client:
        run = await hidden.start(agent)
        await pending(run)
        for page in ("/", "/runs", f"/runs/{run.id}"):
            shown = await client.get(page)
            assert shown.status_code == 200, shown.text
        assert says in shown.text
        for command in (("pending", run.id), ("approve", run.id)):
            told = await refused(temporal, *command, *options)
            assert says in told
            assert "STANDFAST_CODEC=MODULE:ATTRIBUTE" in told
        assert says in await done(temporal, "show", run.id, *options)
        assert says in await done(temporal, "pending", *options)
        await hidden.people.decide(run.id, "c1", "approve", by="ada")
        await result(run)
        assert says in (await client.get(f"/runs/{run.id}")).text
        assert says in await done(temporal, "show", run.id, *options)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("nowhere:CODEC", "There is no codec at 'nowhere:CODEC'"),
        (f"{HERE}:Nobody", "has no attribute 'Nobody'"),
        (HERE, "There is no codec at"),
        ("", "There is no codec at ''"),
        (f"{HERE}:NO_CODEC", "is an int, not a temporalio.converter.PayloadCodec"),
        (f"{HERE}:broken", "cannot be made: RuntimeError: the key is not there"),
    ],
)
async def test_a_codec_that_is_none_is_refused_in_words(temporal: Temporal, where: str, says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        await connect(at(temporal), codec=where)
    if where:
        assert says in await refused(temporal, "ls", "--codec", where)


async def test_the_environment_names_the_codec_of_every_client(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STANDFAST_CODEC", f"{HERE}:CODEC")
    client = await connect(at(temporal))
    (payload,) = await client.data_converter.encode(["hello"])
    assert payload.metadata["encoding"] == b"binary/secret"
    assert await client.data_converter.decode([payload], [str]) == ["hello"]
    assert create_app(client, access=Access(local=LOCAL.local)) is not None


async def test_a_run_that_was_sent_what_its_workers_cannot_read_is_found_and_continues_without_it(
    temporal: Temporal,
) -> None:
    hidden, other = await encoded(temporal), await encoded(temporal, OtherKey())
    async with hidden.worker(clerk, llm=ScriptedModel(ask_once)):
        run = await hidden.start(clerk)
        await pending(run)
        await other.client.get_workflow_handle(run.id).signal("message", {"text": "in another key"})
        (stuck,) = await until(lambda: find_stuck(hidden.client, hidden.name, 100))
        assert "with the same key?" in stuck.why
        assert stuck.rescue.startswith("give its workers the codec and the key of the sender; or drop every")

        words = shlex.split(stuck.rescue.partition("temporal ")[2])
        process = await asyncio.create_subprocess_exec(temporal_binary(), *words, "--address", at(temporal))
        assert await process.wait() == 0

        async def answered() -> bool:
            with contextlib.suppress(InputError):  # it looks up what was answered before the reset
                await hidden.people.answer(run.id, "Ada")
                return True
            return False

        await until(answered)
        assert (await result(hidden.client.get_workflow_handle(run.id, result_type=dict)))["status"] == "complete"
