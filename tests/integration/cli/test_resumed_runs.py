"""One command resumes all paused runs, counted by cause; repeating it is harmless."""

import asyncio
import json
import signal
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from support.commands import data, done, refused, standfast
from support.temporal_runs import Temporal, ask_models_once, pending, result, status, until
from temporalio.service import RPCError, RPCStatusCode

from standfast import Agent, AgentContext, Loop, ModelError
from standfast.cli import messages
from standfast.temporal import StandfastClient
from standfast.temporal.client.runs import resumes
from standfast.temporal.client.runs.resumes import resume_each
from standfast.testing import ScriptedModel

MANY = 15


class Provider:
    """A provider that is down until someone mends it."""

    def __init__(self) -> None:
        self.is_up = False

    def model(self) -> ScriptedModel:
        return ScriptedModel(lambda messages, tools: "up" if self.is_up else ModelError("down", transient=True))


async def listed(temporal: Temporal, count: int) -> None:
    """Wait until so many of this test's runs are listed as paused."""

    async def found() -> bool:
        query = f"StandfastStatus = 'paused' AND ExecutionStatus = 'Running' AND TaskQueue = '{temporal.name}'"
        return len([run async for run in temporal.client.list_workflows(query)]) == count

    await until(found)


def of(temporal: Temporal) -> tuple[str, ...]:
    return ("resume", "--all", "--query", f"TaskQueue = '{temporal.name}'")


async def test_all_runs_of_an_outage_are_resumed_at_once(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_models_once(monkeypatch)
    provider, broken = Provider(), True

    def check(context: AgentContext) -> None:
        if broken:
            raise RuntimeError("no table")

    agents = Agent("clerk"), Agent("other", on_start=check)
    async with temporal.worker(*agents, llm=provider.model()):
        runs = [await temporal.start(agents[0], session=f"s{number}") for number in range(MANY)]
        hooked = await temporal.start(agents[1], session="hooked")
        await asyncio.gather(*map(pending, [*runs, hooked]))
        await listed(temporal, MANY + 1)

        assert len(await data(temporal, *of(temporal), "--dry-run")) == MANY + 1
        assert len(await data(temporal, *of(temporal), "--cause", "model", "--dry-run")) == MANY
        assert f"{MANY} runs are paused: --yes resumes them" in await refused(
            temporal, *of(temporal), "--cause", "model"
        )
        provider.is_up = True
        counts = await data(temporal, *of(temporal), "--cause", "model", "--yes")
        assert counts == {"resumed": MANY, "not_paused": 0, "failed": {}}
        assert {(await result(run))["response"] for run in runs} == {"up"}
        assert (await status(hooked))["status"] == "paused"

        await listed(temporal, 1)
        assert await data(temporal, *of(temporal), "--name", "model", "--yes") == {
            "resumed": 0,
            "not_paused": 0,
            "failed": {},
        }
        broken = False
        assert await done(temporal, *of(temporal), "--yes") == "1 resumed, 0 no longer paused, 0 failed\n"
        assert (await result(hooked))["response"] == "up"
        await listed(temporal, 0)
        assert await done(temporal, *of(temporal), "--yes") == "No run is paused.\n"


async def test_runs_that_continued_in_the_meantime_are_not_failures(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    provider = Provider()
    agent = Agent("clerk")
    async with temporal.worker(agent, llm=provider.model()):
        runs = [await temporal.start(agent, session=f"s{number}") for number in range(3)]
        await asyncio.gather(*map(pending, runs))
        provider.is_up = True
        await temporal.people.resume(runs[0].id)
        await result(runs[0])
        both = await asyncio.gather(*(resume_each(temporal.people, [run.id for run in runs]) for _ in range(2)))
        outcomes: list[list[Any]] = [sorted(one.outcome for one in pair) for pair in zip(*both, strict=True)]
        assert outcomes == [["gone", "gone"], ["done", "gone"], ["done", "gone"]]


@pytest.mark.slow
async def test_runs_that_cannot_be_resumed_are_named(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_models_once(monkeypatch)
    agent = Agent("clerk", loop=Loop(on_model_outage="pause"))
    async with temporal.worker(agent, llm=Provider().model()):
        run = await temporal.start(agent)
        await pending(run)
        await listed(temporal, 1)
    # no worker any more
    monkeypatch.setattr(messages, "_TOLD_EVERY", 0.0)
    ended = await standfast(temporal, *of(temporal), "--yes")
    assert ended.exit_code == 1
    assert ended.stderr == "1 of 1 runs\n"
    assert f"{run.id}: " in ended.stdout
    assert "0 resumed, 0 no longer paused, 1 failed" in ended.stdout


async def test_runs_that_nobody_has_spoken_for_in_time_are_asked_again_and_resumed_once(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    provider, agent, slow = Provider(), Agent("clerk"), Agent("slow")
    elsewhere = replace(await temporal.elsewhere(), name=f"{temporal.name}.slow")
    first = asyncio.Event()
    model, later = provider.model(), provider.model()
    async with temporal.worker(agent, llm=model):
        quick = await temporal.start(agent, session="quick")
        async with elsewhere.worker(slow, llm=provider.model()):
            late = await elsewhere.start(slow, session="late")
            await asyncio.gather(*map(pending, [quick, late]))
        provider.is_up = True
        # The worker of the second run is away until the first one is resumed, and the sender has given up.
        patient = StandfastClient(temporal.client, timeout=2)
        resuming = asyncio.create_task(resume_each(patient, [quick.id, late.id], tell=lambda _: first.set()))
        await first.wait()

        async def is_sent_again() -> bool:
            return len(await signals_of(late)) == 2

        await until(is_sent_again)
        async with elsewhere.worker(slow, llm=later):
            outcomes = [(one.outcome, one.why) for one in await resuming]
            assert outcomes == [("done", None), ("done", None)]
            assert (await result(late))["response"] == "up"
        assert (await result(quick))["response"] == "up"
    assert len(later.calls) == 1
    assert len(set(await signals_of(late))) == 1, "it has one id, however often it is sent"


async def signals_of(run: Any) -> list[str]:
    """Return the ids of the resumes that a run was sent."""
    history = await run.fetch_history()
    sent = [event.workflow_execution_signaled_event_attributes for event in history.events]
    return [json.loads(one.input.payloads[0].data)["id"] for one in sent if one.signal_name == "resume"]


async def test_a_command_that_is_stopped_says_how_far_it_was_and_can_be_given_again(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    provider, agent = Provider(), Agent("clerk")
    async with temporal.worker(agent, llm=provider.model()):
        runs = [await temporal.start(agent, session=f"s{number}") for number in range(3)]
        await asyncio.gather(*map(pending, runs))
        await listed(temporal, 3)
    provider.is_up = True
    at = ("--address", temporal.client.service_client.config.target_host)
    words = [sys.executable, "-m", "standfast", *of(temporal), "--yes", *at]
    command = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    await until(lambda: signals_of(runs[0]))
    command.send_signal(signal.SIGINT)
    told = (await command.communicate())[1].decode()
    assert command.returncode == 130
    assert "Stopped: 0 of 3 resumed. Run the command again for the others." in told
    model = provider.model()
    async with temporal.worker(agent, llm=model):
        counts = await data(temporal, *of(temporal), "--yes")
        assert counts["failed"] == {}
        assert {(await result(run))["response"] for run in runs} == {"up"}
    assert len(model.calls) == 3


async def test_a_server_that_is_too_busy_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumes, "_PAUSE", 0.01)
    pace, refused, at_once, most = resumes._Pace(), Counter[str](), 0, 0

    async def do(run: str) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        refused[run] += 1
        if refused[run] <= 3:
            raise RPCError("namespace rate limit exceeded", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        return run

    runs = [f"r{number}" for number in range(20)]
    assert await resumes._each(runs, pace, do) == runs
    assert most <= 8
    assert pace._most < 8

    async def away(run: str) -> str:
        raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")

    with pytest.raises(RPCError, match="connection refused"):
        await resumes._each(runs, pace, away)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Give RUN, or --all."),
        (("r", "--all"), "Give RUN, or --all."),
        (("r", "--yes"), "--query, --dry-run and --yes go with --all."),
        (("r", "--query", "x"), "--query, --dry-run and --yes go with --all."),
        (("--all", "--skip", "--reason", "x"), "--skip is for one run."),
    ],
)
async def test_what_does_not_go_together_is_refused(words: tuple[str, ...], why: str) -> None:
    assert why in await refused(None, "resume", *words, code=2)


async def test_a_wrong_query_is_told(temporal: Temporal) -> None:
    assert "Temporal server says" in await refused(temporal, "resume", "--all", "--query", "nonsense", "--yes")
