"""The fast lane takes many turns in one activity, and keeps every promise of the other lane."""

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from support.operators import OperatedActivity
from support.resets import reset, tasks
from support.temporal_runs import (
    Run,
    Temporal,
    chain,
    check_healthy,
    events,
    pending,
    result,
    scheduled,
    until,
    waiting,
)
from support.transcripts import asks_for, call, shape, tool_contents, without_ids

from standfast import (
    Agent,
    InterruptError,
    LLMResponse,
    Loop,
    RetryableError,
    RetryPolicy,
    TokenBudget,
    Tool,
    ToolContext,
    tool,
)
from standfast.events import ToolEnded
from standfast.temporal import StandfastClient, plugin
from standfast.temporal.activities.runs import stretches
from standfast.temporal.workflows.run import agent_workflows
from standfast.testing import ScriptedModel


@pytest.fixture
def fast(temporal: Temporal) -> Temporal:
    return replace(temporal, lane="fast")


LONG = Loop(max_iterations=100)


class Till:
    """Counts its effects, and stops in the call that it is told to stop in."""

    def __init__(self, stops_in: str = "") -> None:
        self.effects = Counter[str]()
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.stops_in = stops_in

    def tool(self, **options: Any) -> Tool[..., Any]:
        @tool(**options)
        async def pay(ctx: ToolContext) -> str:
            """Pay."""
            self.effects[ctx.tool_call_id] += 1
            if ctx.tool_call_id == self.stops_in:
                self.inside.set()
                while not self.go_on.is_set():
                    await asyncio.sleep(0.01)
            return f"paid {ctx.tool_call_id}"

        return pay


def payments(count: int) -> list[LLMResponse | str]:
    """Return a model's answers: so many payments, one after the other."""
    return [*(asks_for(call("pay", f"c{number}")) for number in range(1, count + 1)), "done"]


def paid(count: int) -> list[tuple[str, str]]:
    return [(f"c{number}", f"paid c{number}") for number in range(1, count + 1)]


@tool(parallel=True)
async def look(text: str) -> str:
    """Look."""
    return text * 300


@tool
async def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@tool
async def ask(text: str) -> str:
    """Ask."""
    raise InterruptError(f"{text}?")


@tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
async def late(ctx: ToolContext) -> str:
    """Succeed at the third attempt."""
    if ctx.attempt < 3:
        raise RetryableError("busy")
    return f"attempt {ctx.attempt}"


SCRIPT = [
    asks_for(call("look", "a1", text="x"), call("look", "a2", text="y"), text="first"),
    asks_for(call("fail", "b1", text="no luck"), call("missing", "b2")),
    asks_for(call("late", "c1")),
    asks_for(call("ask", "d1", text="Really"), call("look", "d2", text="z")),
    asks_for(call("look", "e1", text="z" * 2_000)),
    "done",
]


def told(event: Any) -> Any:
    """Return what an event says, without when and in which lane."""
    return replace(event, id=None, at=None, **({"seconds": None} if hasattr(event, "seconds") else {}))


async def test_a_run_has_the_same_transcript_and_events_in_both_lanes(temporal: Temporal, fast: Temporal) -> None:
    agent = Agent("a", tools=[look, fail, ask, late])
    seen = []
    for here, session in ((temporal, "each"), (fast, "fast")):
        async with here.worker(agent, llm=ScriptedModel(SCRIPT)):
            run = await here.start(agent, session=session)
            client = StandfastClient(here.client, store=here.store)
            await until(lambda client=client, run=run: client.pending(run.id))
            await run.execute_update("answer", {"text": "yes"})
            ended = await result(run)
            await check_healthy(run)
        told_events = [told(event) for event in await client.events(run.id)]
        seen.append(({**ended, "session_id": ""}, without_ids(await here.messages(session)), told_events))
    (each, each_messages, each_events), (quick, fast_messages, fast_events) = seen
    assert quick == each
    assert fast_messages == each_messages
    # The calls of a stretch are known one after the other, even if they ran side by side.
    assert sorted(repr(one).replace(".fast", ".each") for one in fast_events) == sorted(map(repr, each_events))


async def test_a_stretch_is_one_activity_of_a_few_hundred_bytes_a_step(fast: Temporal) -> None:
    till, steps = Till(), 40
    agent = Agent("a", tools=[till.tool()], loop=LONG)
    async with fast.worker(agent, llm=ScriptedModel(payments(steps))):
        run = await fast.start(agent)
        await result(run)
        await check_healthy(run)
    history = await events(run)
    assert scheduled(history) == ["standfast.stretch"]
    assert sum(event.ByteSize() for event in history) < 3_000 + 300 * steps
    assert tool_contents(await fast.messages()) == paid(steps)


async def test_an_agents_own_lane_is_taken_before_the_plugins(temporal: Temporal) -> None:
    agent = Agent("a", tools=[Till().tool()], lane="fast")
    async with temporal.worker(agent, llm=ScriptedModel(payments(2))):
        run = await temporal.start(agent)
        await result(run)
    assert scheduled(await events(run)) == ["standfast.stretch"]


async def test_a_long_run_takes_many_stretches_and_continues_as_new(
    fast: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "TURNS", 3)
    monkeypatch.setattr(agent_workflows, "STEPS", 2)
    till = Till()
    agent = Agent("a", tools=[till.tool()], loop=LONG)
    async with fast.worker(agent, llm=ScriptedModel(payments(20))):
        run = await fast.start(agent)
        assert (await result(run))["iterations"] == 21
    links = await chain(fast.client, run)
    assert [scheduled(link) for link in links] == [["standfast.stretch"] * 2] * 3 + [["standfast.stretch"]]
    assert tool_contents(await fast.messages()) == paid(20)
    assert set(till.effects.values()) == {1}


async def test_a_stretch_ends_before_its_result_is_too_large_for_a_history(
    fast: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "BYTES", 2_000)
    wide = [asks_for(*(call("look", f"c{turn}.{place}", text="x") for place in range(32))) for turn in range(4)]
    agent = Agent("a", tools=[look], loop=LONG)
    async with fast.worker(agent, llm=ScriptedModel([*wide, "done"])):
        run = await fast.start(agent)
        await result(run)
    history = await events(run)
    assert scheduled(history) == ["standfast.stretch"] * 5  # one for each turn of 32 calls


async def test_a_stretch_whose_time_is_over_leaves_the_other_calls_of_its_turn(
    fast: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stretches, "LONGEST", 2.0)
    till = Till(stops_in="c1")
    agent = Agent("a", tools=[till.tool()])
    several = asks_for(*(call("pay", f"c{number}") for number in (1, 2, 3)))
    async with fast.worker(agent, llm=ScriptedModel([several, "done"])):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await asyncio.sleep(2.1)
        till.go_on.set()
        await result(run)
    assert scheduled(await events(run)) == ["standfast.stretch", "pay", "pay", "standfast.stretch"]
    assert tool_contents(await fast.messages()) == paid(3)
    assert set(till.effects.values()) == {1}


async def test_a_message_is_heard_when_the_stretch_ends(fast: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "LONGEST", 0.0)
    till = Till(stops_in="c1")
    agent = Agent("a", tools=[till.tool()])
    async with fast.worker(agent, llm=ScriptedModel(payments(2))):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await run.execute_update("message", {"text": "hurry"})
        till.go_on.set()
        await result(run)
        await check_healthy(run)
    assert shape(await fast.messages()) == [
        "user go", "calls c1", "result c1", "user hurry", "calls c2", "result c2", "assistant done",
    ]  # fmt: skip


@pytest.mark.parametrize("stops_in", ["c1", "c3"])
@pytest.mark.parametrize("kind", [{}, {"safe_to_retry": True}], ids=["with effects", "safe"])
async def test_a_cancel_leaves_the_same_transcript_in_both_lanes(
    temporal: Temporal, fast: Temporal, kind: dict[str, Any], stops_in: str
) -> None:
    kept = []
    for here, session in ((temporal, "each"), (fast, "fast")):
        till = Till(stops_in=stops_in)
        agent = Agent("a", tools=[till.tool(**kind)])
        async with here.worker(agent, llm=ScriptedModel(payments(4))):
            run = await here.start(agent, session=session)
            await until(till.inside.is_set)
            await run.cancel()
            await until(lambda run=run: run_has_ended(run))
            await check_healthy(run)
        assert till.effects == Counter(f"c{number}" for number in range(1, int(stops_in[1:]) + 1))
        kept.append(without_ids(await here.messages(session)))
    assert kept[0] == kept[1]


async def run_has_ended(run: Run) -> bool:
    return (await run.describe()).close_time is not None


@pytest.mark.parametrize("kind", [{}, {"safe_to_retry": True}], ids=["with effects", "safe"])
async def test_a_run_that_is_reset_to_each_of_its_tasks_runs_no_call_again(
    fast: Temporal, kind: dict[str, Any]
) -> None:
    till = Till()
    agent = Agent("a", tools=[till.tool(**kind)])
    async with fast.worker(agent, llm=ScriptedModel([*payments(5), *["other"] * 9])):
        run = await fast.start(agent)
        await result(run)
        before = await fast.messages()
        for task in range(len(await tasks(run))):
            run = await reset(fast, run, task)
            assert (await result(run))["status"] == "complete"
            await check_healthy(run)
        assert await fast.messages() == before
    assert set(till.effects.values()) == {1}


@pytest.mark.parametrize(
    "act", ["fail", "fail_to_be_retried", "complete_with_junk", "reset", "pause_for_a_while", "time_out"]
)
async def test_whatever_an_operator_does_to_a_stretch_each_call_runs_once(fast: Temporal, act: str) -> None:
    till = Till(stops_in="c2")
    agent, model = Agent("a", tools=[till.tool()]), ScriptedModel(payments(4))
    async with fast.worker(agent, llm=model):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        operated = OperatedActivity(fast.client, run.id, await stretch_id(run))
        await getattr(operated, act)()
        await asyncio.sleep(0.2)
        till.go_on.set()
        people = fast.people

        async def is_over() -> bool:
            if await run_has_ended(run):
                return True
            for item in await people.pending(run.id):
                if item["kind"] == "pause":
                    await people.resume(run.id, "retry")
            return False

        await until(is_over)
        await check_healthy(run)
    assert till.effects["c2"] == 1
    assert set(till.effects.values()) == {1}
    assert [one for one, _ in tool_contents(await fast.messages())] == ["c1", "c2", "c3", "c4"]


async def stretch_id(run: Run) -> str:
    async def find() -> str:
        described = (await run.describe()).raw_description
        return next((one.activity_id for one in described.pending_activities), "")

    found: str = await until(find)
    return found


async def test_a_worker_that_drains_leaves_the_rest_to_the_next(fast: Temporal) -> None:
    till = Till(stops_in="c2")
    agent, model = Agent("a", tools=[till.tool()]), ScriptedModel(payments(4))
    async with fast.worker(agent, llm=model) as worker:
        run = await fast.start(agent)
        await until(till.inside.is_set)
        draining = asyncio.create_task(worker.shutdown())
        await asyncio.sleep(0.1)
        till.go_on.set()
        await draining
    assert set(till.effects) == {"c1", "c2"}
    async with fast.worker(agent, llm=model):
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert tool_contents(await fast.messages()) == paid(4)
    assert set(till.effects.values()) == {1}


def spends(tokens: int, number: int) -> dict[str, Any]:
    calls = [{"id": f"c{number}", "name": "pay", "arguments": {}}]
    return {"tool_calls": calls, "usage": {"input_tokens": tokens, "output_tokens": 0}}


async def test_people_are_asked_for_more_before_the_calls_of_the_answer_that_spent_the_budget(fast: Temporal) -> None:
    agent = Agent("a", tools=[Till().tool()], loop=Loop(token_budget=TokenBudget(100), on_budget="ask"))
    async with fast.worker(agent, llm=ScriptedModel([spends(10, 1), spends(100, 2), "done"])):
        run = await fast.start(agent)
        assert [item["name"] for item in await pending(run)] == ["budget"]
        await fast.people.resume(run.id, "retry")
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert tool_contents(await fast.messages()) == paid(2)


async def test_a_stretch_that_is_attempted_again_asks_for_no_answer_again(fast: Temporal) -> None:
    till, model = Till(stops_in="c3"), ScriptedModel([*payments(4), *["other"] * 9])
    agent = Agent("a", tools=[till.tool(safe_to_retry=True, retry=RetryPolicy(maximum_attempts=1))])
    async with fast.worker(agent, llm=model):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await OperatedActivity(fast.client, run.id, await stretch_id(run)).fail_to_be_retried()
        await asyncio.sleep(0.2)
        till.go_on.set()
        await result(run)
        await check_healthy(run)
    assert tool_contents(await fast.messages()) == paid(4)
    assert len(model.calls) == 5


async def test_a_run_that_is_cancelled_between_attempts_at_a_stretch_says_what_the_lost_one_did(
    fast: Temporal,
) -> None:
    till = Till(stops_in="c3")
    agent = Agent("a", tools=[till.tool(timeout=2)])
    async with fast.worker(agent, llm=ScriptedModel(payments(4))):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await OperatedActivity(fast.client, run.id, await stretch_id(run)).fail_to_be_retried()
        await run.cancel()
        await until(lambda: run_has_ended(run))
        await check_healthy(run)
        told = await StandfastClient(fast.client, store=fast.store).events(run.id)
    assert tool_contents(await fast.messages())[:2] == paid(2)
    ended = [(one.call.id, one.outcome) for one in told if isinstance(one, ToolEnded)]
    assert ended == [("c1", "returned"), ("c2", "returned"), ("c3", "unknown")]
    assert till.effects == Counter(["c1", "c2", "c3"])


async def test_a_stretch_that_is_lost_in_a_call_does_not_count_as_a_failure_of_the_model(fast: Temporal) -> None:
    till = Till(stops_in="c2")
    agent = Agent("a", tools=[till.tool(timeout=2)], loop=Loop(model_retry=RetryPolicy(maximum_attempts=1)))
    async with fast.worker(agent, llm=ScriptedModel(payments(4))):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await OperatedActivity(fast.client, run.id, await stretch_id(run)).time_out()
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    told = dict(tool_contents(await fast.messages()))
    assert "may or may not have taken effect" in told.pop("c2")
    assert list(told.items()) == [one for one in paid(4) if one[0] != "c2"]
    assert set(till.effects.values()) == {1}


async def test_the_events_of_a_cancelled_turn_say_which_of_its_calls_have_run(fast: Temporal) -> None:
    inside = threading.Event()

    @tool(parallel=True)
    async def linger(ctx: ToolContext) -> str:
        """Return a moment after the cancel."""
        inside.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
        return "did it"

    agent = Agent("a", tools=[linger], loop=Loop(max_tool_concurrency=1))
    async with fast.worker(agent, llm=ScriptedModel([asks_for(call("linger", "a1"), call("linger", "a2"))])):
        run = await fast.start(agent)
        await until(inside.is_set)
        await run.cancel()
        await until(lambda: run_has_ended(run))
        told = await StandfastClient(fast.client, store=fast.store).events(run.id)
    ended = [(one.call.id, one.outcome) for one in told if isinstance(one, ToolEnded)]
    assert ended == [("a1", "returned"), ("a2", "cancelled")]
    assert dict(tool_contents(await fast.messages()))["a1"] == "did it"


FORGED = {
    "a lost call of no tool": [{"reply": {"seq": 2, "calls": [["c1", "nope", 0, ""]]}, "lost": [[0, "Lost", True]]}],
    "more turns than there were": [{"reply": {"seq": 2, "calls": []}}, {"reply": {"seq": 9, "text": "all paid"}}],
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_turns_that_an_operator_makes_up_neither_stop_a_run_nor_repeat_a_call(
    fast: Temporal, forged: Any
) -> None:
    till = Till(stops_in="c2")
    agent = Agent("a", tools=[till.tool()])
    async with fast.worker(agent, llm=ScriptedModel(payments(4))):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await OperatedActivity(fast.client, run.id, await stretch_id(run)).complete({"turns": forged})
        till.go_on.set()

        async def stands() -> bool:
            return await run_has_ended(run) or bool(await waiting(run))

        await until(stands)
        await check_healthy(run)
    assert set(till.effects.values()) == {1}


async def test_a_safe_call_that_a_stopping_worker_cuts_off_runs_again(
    fast: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "DRAIN", 0.0)
    till = Till(stops_in="c2")
    agent, model = Agent("a", tools=[till.tool(safe_to_retry=True)]), ScriptedModel(payments(4))
    async with fast.worker(agent, llm=model) as worker:
        run = await fast.start(agent)
        await until(till.inside.is_set)
        await worker.shutdown()
    till.go_on.set()
    async with fast.worker(agent, llm=model):
        await result(run)
        await check_healthy(run)
    assert tool_contents(await fast.messages()) == paid(4)


async def test_a_stream_continues_after_an_event_inside_a_stretch(fast: Temporal) -> None:
    agent = Agent("a", tools=[Till().tool()])
    async with fast.worker(agent, llm=ScriptedModel(payments(2))):
        run = await fast.start(agent)
        await result(run)
        client = StandfastClient(fast.client, store=fast.store)
        told = await client.events(run.id)
        for place, event in enumerate(told):
            rest = [one.id async for one in client.stream(run.id, after=event.id)]
            assert rest == [one.id for one in told[place + 1 :]]


async def test_a_run_that_is_reset_while_its_stretch_runs_waits_for_the_call_of_the_old_one(fast: Temporal) -> None:
    till, model = Till(stops_in="c2"), ScriptedModel([*payments(4), *["other"] * 5])
    agent = Agent("a", tools=[till.tool()])
    async with fast.worker(agent, llm=model):
        run = await fast.start(agent)
        await until(till.inside.is_set)
        again = await reset(fast, run, 0)
        await stretch_id(again)
        till.go_on.set()
        assert (await result(again))["iterations"] == 5
        await check_healthy(again)
    assert tool_contents(await fast.messages()) == paid(4)
    assert set(till.effects.values()) == {1}
