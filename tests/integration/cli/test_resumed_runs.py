"""All paused runs are resumed by one command, counted, and told apart by their cause; doing it again does no harm."""

import asyncio
from typing import Any

import pytest
from support.commands import data, done, refused, standfast
from support.temporal_runs import Temporal, ask_models_once, pending, result, status, until

from standfast import Agent, AgentContext, Loop, ModelError
from standfast.testing import ScriptedModel

MANY = 40


class Provider:
    """A provider that is down until somebody mends it."""

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
        assert await done(temporal, *of(temporal), "--yes") == "1 resumed, 0 not paused any more, 0 failed\n"
        assert (await result(hooked))["response"] == "up"
        await listed(temporal, 0)
        assert await done(temporal, *of(temporal), "--yes") == "No run is paused.\n"


async def test_runs_that_went_on_meanwhile_are_no_failures(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    from standfast.temporal.client.resumes import resume_each

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


async def test_runs_that_cannot_be_resumed_are_named(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_models_once(monkeypatch)
    agent = Agent("clerk", loop=Loop(on_model_outage="pause"))
    async with temporal.worker(agent, llm=Provider().model()):
        run = await temporal.start(agent)
        await pending(run)
        await listed(temporal, 1)
    # no worker any more
    ended = await standfast(temporal, *of(temporal), "--yes")
    assert ended.exit_code == 1
    assert f"{run.id}: " in ended.stdout
    assert "0 resumed, 0 not paused any more, 1 failed" in ended.stdout


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
