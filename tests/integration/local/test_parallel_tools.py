"""Batches: which calls of a turn run concurrently, how many, and the order of their results."""

import asyncio

import pytest
from support.doubles import ask
from support.transcripts import call, contents, error, results

from standfast import Agent, Loop, tool


async def test_two_parallel_calls_both_start_before_either_ends() -> None:
    both = asyncio.Barrier(2)

    @tool(parallel=True)
    async def meet() -> str:
        await both.wait()
        return "met"

    assert contents(await ask(Agent("a", tools=[meet]), call("meet", "c1"), call("meet", "c2"))) == ["met", "met"]


class Recorder:
    """Tools that note when they start and end; a parallel one lets others start before it ends."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def _work(self, name: str) -> str:
        self.log.append(f"{name} starts")
        for _ in range(5):
            await asyncio.sleep(0)
        self.log.append(f"{name} ends")
        return name

    def agent(self) -> Agent:
        @tool(parallel=True)
        async def par(name: str) -> str:
            return await self._work(name)

        @tool
        async def serial(name: str) -> str:
            return await self._work(name)

        return Agent("a", tools=[par, serial])


async def test_a_serial_call_waits_for_all_before_it_and_holds_up_all_after_it() -> None:
    recorder = Recorder()
    calls = [call("par", "1", name="A"), call("serial", "2", name="B"), call("par", "3", name="C")]
    result = await ask(recorder.agent(), *calls, call("par", "4", name="D"))
    assert recorder.log[:4] == ["A starts", "A ends", "B starts", "B ends"]
    assert sorted(recorder.log[4:6]) == ["C starts", "D starts"]
    assert contents(result) == ["A", "B", "C", "D"]


async def test_serial_calls_run_one_after_the_other() -> None:
    recorder = Recorder()
    await ask(recorder.agent(), call("serial", "1", name="A"), call("serial", "2", name="B"))
    assert recorder.log == ["A starts", "A ends", "B starts", "B ends"]


async def test_an_unknown_tool_among_parallel_calls_counts_as_serial() -> None:
    recorder = Recorder()
    result = await ask(recorder.agent(), call("par", "1", name="A"), call("nope", "2"), call("par", "3", name="B"))
    assert recorder.log == ["A starts", "A ends", "B starts", "B ends"]
    assert [message.status for message in results(result)] == ["completed", "failed", "completed"]


async def test_siblings_of_a_failing_parallel_call_finish() -> None:
    failed = asyncio.Event()

    @tool(parallel=True)
    async def work(name: str) -> str:
        if name == "bad":
            failed.set()
            raise ValueError("no")
        await failed.wait()
        return name

    calls = [call("work", "1", name="one"), call("work", "2", name="bad"), call("work", "3", name="three")]
    result = await ask(Agent("a", tools=[work]), *calls)
    assert [contents(result)[0], error(result, 1), contents(result)[2]] == ["one", "no", "three"]


async def test_results_keep_the_order_of_the_calls_whatever_finished_first() -> None:
    done = {name: asyncio.Event() for name in "abc"}
    order: list[str] = []

    @tool(parallel=True)
    async def work(name: str, after: str = "") -> str:
        if after:
            await done[after].wait()
        order.append(name)
        done[name].set()
        return name

    calls = [
        call("work", "1", name="a", after="b"),
        call("work", "2", name="b", after="c"),
        call("work", "3", name="c"),
    ]
    result = await ask(Agent("a", tools=[work]), *calls)
    assert order == ["c", "b", "a"]
    assert contents(result) == ["a", "b", "c"]


@pytest.mark.parametrize(("loop", "limit"), [(Loop(max_tool_concurrency=2), 2), (Loop(), 5)], ids=["two", "default"])
async def test_at_most_max_tool_concurrency_calls_run_at_once(loop: Loop, limit: int) -> None:
    running: set[str] = set()
    peaks: list[int] = []
    full = asyncio.Event()

    @tool(parallel=True)
    async def work(name: str) -> str:
        running.add(name)
        peaks.append(len(running))
        if len(running) == limit:
            full.set()
        await full.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        running.discard(name)
        return name

    names = [f"n{position}" for position in range(2 * limit)]
    result = await ask(Agent("a", tools=[work], loop=loop), *(call("work", name, name=name) for name in names))
    assert max(peaks) == limit
    assert contents(result) == names
