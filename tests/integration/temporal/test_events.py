"""Events of runs: in order, and the same at every reading, however a run continues."""

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from support.questions import ask
from support.resets import reset
from support.temporal_runs import Run, Temporal, pending, question, result, until
from support.transcripts import asks_for, call
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from integration.temporal.test_partial_answers import Speaker
from standfast import (
    Agent,
    Approval,
    Event,
    GateDecided,
    GateEscalated,
    GateOpened,
    InputError,
    MessageReceived,
    QuestionAsked,
    ReasoningDelta,
    RetryableError,
    RetryPolicy,
    RunEnded,
    RunStarted,
    StatusChanged,
    StepCompleted,
    StepStarted,
    TextDelta,
    ToolContext,
    ToolEnded,
    ToolLost,
    ToolRetried,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    Usage,
    event_json,
    pipeline,
    read_event,
    run_streaming,
    tool,
)
from standfast.stores import PartialAnswer
from standfast.stores.partial_answers import reasoning_key
from standfast.temporal import StandfastClient, start_pipeline
from standfast.testing import ScriptedModel


@tool
async def post(text: str) -> str:
    """Post a text."""
    return f"posted {text}"


@tool
async def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"no {text}")


def names(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def reader(temporal: Temporal) -> StandfastClient:
    return StandfastClient(temporal.client, store=temporal.store)


async def followed(temporal: Temporal, run: Run, after: str | None = None) -> list[Event]:
    return [event async for event in reader(temporal).stream(run.id, after=after)]


POSTER = Agent("poster", model="m", tools=[post, fail])
SCRIPT: list[Any] = [
    asks_for(call("post", "c1", text="a"), call("fail", "c2", text="b"), call("nope", "c3"), text="Look"),
    {"text": "Done", "usage": {"input_tokens": 3, "output_tokens": 2, "cost": 0.5}},
]


async def test_a_run_is_told_from_its_start_to_its_end(temporal: Temporal) -> None:
    async with temporal.worker(POSTER, llm=ScriptedModel(SCRIPT)):
        run = await temporal.start(POSTER, "go", user_id="ada")
        events = [event for event in await followed(temporal, run) if not isinstance(event, StatusChanged)]
    assert names(events) == [
        "RunStarted",
        "TurnStarted",
        "TurnEnded",
        "ToolStarted",
        "ToolEnded",
        "ToolStarted",
        "ToolEnded",
        "ToolEnded",
        "TurnStarted",
        "TurnEnded",
        "RunEnded",
    ]
    first, begun, said = events[:3]
    assert isinstance(first, RunStarted)
    assert (first.name, first.message, first.user_id) == ("poster", "go", "ada")
    assert isinstance(begun, TurnStarted)
    assert (begun.turn, begun.model) == (1, "m")
    assert isinstance(said, TurnEnded)
    assert (said.turn, said.text, [one.id for one in said.calls]) == (1, "Look", ["c1", "c2", "c3"])
    assert said.calls[0].arguments == {"text": "a"}
    ended = {event.call.id: event for event in events if isinstance(event, ToolEnded)}
    assert (ended["c1"].outcome, ended["c1"].text) == ("returned", "posted a")
    assert ended["c2"].outcome == ended["c3"].outcome == "failed"
    assert ended["c1"].seconds is not None
    last = events[-1]
    assert isinstance(last, RunEnded)
    assert (last.status, last.response) == ("complete", "Done")
    said = events[-2]
    assert isinstance(said, TurnEnded)
    assert said.usage == last.usage == Usage(input_tokens=3, output_tokens=2, cost=0.5)


async def test_events_are_the_same_whenever_they_are_read_and_each_has_its_own_id(temporal: Temporal) -> None:
    async with temporal.worker(POSTER, llm=ScriptedModel(SCRIPT)):
        run = await temporal.start(POSTER)
        live = await followed(temporal, run)
    again, later = await followed(temporal, run), await reader(temporal).events(run.id)
    assert live == again == later
    assert len({event.id for event in live}) == len(live)
    assert all(event.at is not None for event in live)
    assert [read_event(event_json(event)) for event in live] == live


async def test_a_reader_continues_after_any_event(temporal: Temporal) -> None:
    async with temporal.worker(POSTER, llm=ScriptedModel(SCRIPT)):
        run = await temporal.start(POSTER)
        events = await followed(temporal, run)
    for index, event in enumerate(events[:-1]):
        assert await followed(temporal, run, event.id) == events[index + 1 :]
    assert await followed(temporal, run, events[-1].id) == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("after", ["", "7", "x/1.0", "00000000-0000-0000-0000-000000000000/1.0", "a" * 9_999])
async def test_an_event_that_is_not_of_the_run_is_refused(temporal: Temporal, after: str) -> None:
    async with temporal.worker(POSTER, llm=ScriptedModel(["Done"])):
        run = await temporal.start(POSTER)
        await result(run)
    with pytest.raises(InputError):
        await followed(temporal, run, after)


async def test_a_question_and_its_answer_are_told(temporal: Temporal) -> None:
    async with question(temporal) as run:
        await temporal.people.answer(run.id, "Ada", tool_call_id="c1", by="eve")
        await result(run)
        events = await followed(temporal, run)
    (asked,) = [event for event in events if isinstance(event, QuestionAsked)]
    assert (asked.question, asked.call.id) == ("Who?", "c1")
    (told,) = [event for event in events if isinstance(event, MessageReceived)]
    assert (told.kind, told.text, told.of, told.by) == ("answer", "Ada", "c1", "eve")
    waits = [event.waits_for for event in events if isinstance(event, StatusChanged)]
    assert waits[:2] == [("question",), ()]


async def test_a_gate_and_every_decision_at_it_are_told(temporal: Temporal) -> None:
    @tool(approval=Approval(message="Shall it?", approvers=["ada"]))
    async def send(text: str) -> str:
        """Send."""
        return "sent"

    agent = Agent("sender", tools=[send])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("send", "c1", text="x")), "Done"])):
        run = await temporal.start(agent)
        (item,) = await pending(run)
        with pytest.raises(InputError):
            await temporal.people.decide(run.id, "c1", "approve", by="eve")
        await temporal.people.decide(run.id, "c1", "approve", by="ada", comment="fine")
        await result(run)
        events = await followed(temporal, run)
    (gate,) = [event for event in events if isinstance(event, GateOpened)]
    assert (gate.gate, gate.digest, gate.approvers) == ("c1", item["digest"], ("ada",))
    assert gate.call is not None
    assert gate.call.arguments == {"text": "x"}
    decided = [event for event in events if isinstance(event, GateDecided)]
    assert [(one.by, one.decision, one.refused is None) for one in decided] == [
        ("eve", "approve", False),
        ("ada", "approve", True),
    ]
    assert decided[1].comment == "fine"


async def test_a_long_answer_and_long_arguments_are_told_whole_if_the_store_is_at_hand(temporal: Temporal) -> None:
    long = "é" * 20_000
    script = [asks_for(call("post", "c1", text=long)), long]
    async with temporal.worker(POSTER, llm=ScriptedModel(script)):
        run = await temporal.start(POSTER)
        events = await followed(temporal, run)
    said = [event for event in events if isinstance(event, TurnEnded)]
    assert said[0].calls[0].arguments == {"text": long}
    assert said[1].text == long
    (started,) = [event for event in events if isinstance(event, ToolStarted)]
    assert started.call.arguments == {"text": long}
    (ended,) = [event for event in events if isinstance(event, ToolEnded)]
    assert ended.size == len(f"posted {long}".encode())
    assert ended.text == f"posted {long}"
    without = [event async for event in StandfastClient(temporal.client).stream(run.id)]
    assert [event.id for event in without] == [event.id for event in events]


async def test_what_is_said_beside_short_arguments_is_told_whole(temporal: Temporal) -> None:
    said = "I look at the order before I do anything else about it."
    script = [asks_for(call("post", "c1", text="x"), text=said), "Done"]
    async with temporal.worker(POSTER, llm=ScriptedModel(script)):
        events = await followed(temporal, await temporal.start(POSTER))
    assert [event.text for event in events if isinstance(event, TurnEnded)] == [said, "Done"]


async def test_ids_stay_when_a_run_continues_as_new(temporal: Temporal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.temporal.workflows.run.agent_workflows.STEPS", 2)
    script = [*(asks_for(call("post", f"c{number}", text="x")) for number in range(5)), "Done"]
    async with temporal.worker(POSTER, llm=ScriptedModel(script)):
        run = await temporal.start(POSTER)
        live = await followed(temporal, run)
    assert live == await reader(temporal).events(run.id)
    assert len({str(event.id).partition("/")[0] for event in live}) == 3
    assert [event.turn for event in live if isinstance(event, TurnEnded)] == [1, 2, 3, 4, 5, 6]
    assert names(live).count("RunStarted") == names(live).count("RunEnded") == 1
    assert [event.call.id for event in live if isinstance(event, ToolEnded)] == [f"c{number}" for number in range(5)]
    for index in (3, len(live) - 4):
        assert await followed(temporal, run, live[index].id) == live[index + 1 :]


async def test_a_reset_is_told_and_changes_no_id(temporal: Temporal) -> None:
    def answers(messages: Any, tools: Any) -> Any:
        return (
            "Done" if any(message.role == "tool" for message in messages) else asks_for(call("ask", "c1", question="?"))
        )

    agent = Agent("clerk", tools=[ask])
    async with temporal.worker(agent, llm=ScriptedModel(answers)):
        run = await temporal.start(agent)
        await pending(run)
        before = await reader(temporal).events(run.id)
        following = asyncio.create_task(followed(temporal, run))
        await reset(temporal, run, 1)
        await pending(temporal.client.get_workflow_handle(run.id))
        await temporal.people.answer(run.id, "Ada", tool_call_id="c1")
        live = await following
    later = await reader(temporal).events(run.id)
    assert live == later
    assert later[: len(before)] == before
    assert names(later).count("RunReset") == 1
    assert names(later).count("RunEnded") == 1
    at = names(later).index("RunReset")
    assert {str(event.id).partition("/")[0] for event in later[:at]} == {
        run.result_run_id or run.first_execution_run_id
    }
    assert "RunStarted" not in names(later)[1:]


async def test_a_run_that_is_terminated_has_ended(temporal: Temporal) -> None:
    run = await temporal.start(POSTER)
    following = asyncio.create_task(followed(temporal, run))
    await until(lambda: temporal.client.get_workflow_handle(run.id).describe())
    await temporal.client.get_workflow_handle(run.id).terminate(reason="enough")
    last = (await following)[-1]
    assert isinstance(last, RunEnded)
    assert (last.status, last.error) == ("terminated", "enough")


# --- what was lost ---


async def test_a_call_whose_worker_died_is_told_as_lost_and_unknown_and_was_not_run_again(temporal: Temporal) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    async def charge(ctx: ToolContext) -> str:
        """Charge."""
        loop.call_soon_threadsafe(started.set)
        await asyncio.get_running_loop().create_future()
        return "never"

    agent = Agent("payer", tools=[charge])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("charge", "c1")), "Done"])):
        run = await temporal.start(agent)
        await started.wait()
        died = ApplicationError("its worker died", type="WorkerDied", non_retryable=True)
        at_work = (await temporal.store.running_calls())[0]
        token = base64.b64decode(at_work.task_token)
        await temporal.client.get_async_activity_handle(task_token=token).fail(died)
        await result(run)
        events = await followed(temporal, run)
    (lost,) = [event for event in events if isinstance(event, ToolLost)]
    assert (lost.call.id, lost.reason) == ("c1", "its worker died while it ran")
    ended = [event for event in events if isinstance(event, ToolEnded)]
    assert [(event.outcome, event.recovered) for event in ended] == [("unknown", False)]
    assert len([event for event in events if isinstance(event, ToolStarted)]) == 1


async def test_a_tool_that_is_tried_again_is_told_with_every_error_of_before(temporal: Temporal) -> None:
    tries: list[int] = []

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
    async def flaky() -> str:
        """Fail once."""
        tries.append(1)
        if len(tries) < 2:
            raise RetryableError("later")
        return "ok"

    agent = Agent("flaky", tools=[flaky])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("flaky", "c1")), "Done"])):
        run = await temporal.start(agent)
        events = await followed(temporal, run)
    (again,) = [event for event in events if isinstance(event, ToolRetried)]
    assert (again.attempt, "later" in again.error) == (2, True)
    (ended,) = [event for event in events if isinstance(event, ToolEnded)]
    assert (ended.outcome, ended.text) == ("returned", "ok")


# --- words ---


async def test_a_models_words_come_within_its_turn_and_make_up_its_answer(temporal: Temporal) -> None:
    model = Speaker("It ", "rains.")
    agent = Agent("talker")
    heard: list[Event] = []
    async with temporal.worker(agent, llm=model, stream=True):
        run = await temporal.start(agent)
        async for event in reader(temporal).stream(run.id):
            heard.append(event)
            if isinstance(event, TextDelta):
                model.go_on()
        await result(run)
    assert [event.id for event in heard if isinstance(event, TextDelta)] == [None, None]
    assert "".join(event.text for event in heard if isinstance(event, TextDelta)) == "It rains."
    order = [name for name in names(heard) if name in ("TurnStarted", "TextDelta", "TurnEnded")]
    assert order == ["TurnStarted", "TextDelta", "TextDelta", "TurnEnded"]
    assert [event for event in heard if event.id is not None] == await reader(temporal).events(run.id)


def shown_at_last(events: Sequence[Event], turn: int = 1) -> tuple[str, str]:
    """Return the thoughts and the text that a reader of the pieces of a turn shows at last."""
    shown = {ReasoningDelta: "", TextDelta: ""}
    for event in events:
        if isinstance(event, TextDelta | ReasoningDelta) and event.turn == turn:
            shown[type(event)] = shown[type(event)][: event.offset] + event.text
    return shown[ReasoningDelta], shown[TextDelta]


@pytest.mark.parametrize("pieces", [("Yes",), (ReasoningDelta("New"), "Yes")], ids=["no thoughts", "other thoughts"])
async def test_two_readers_forget_the_thoughts_of_a_worker_that_has_died(
    temporal: Temporal, pieces: tuple[Any, ...]
) -> None:
    model, agent = Speaker(*pieces), Agent("talker")
    run = await temporal.start(agent)
    key = run.first_execution_run_id or ""
    for place in (key, reasoning_key(key)):
        left = PartialAnswer(turn=1, attempt="2000-01-01T00:00:00.000000.001", offset=0, text="Old")
        await temporal.store.add_partial(place, left)
    heard: list[list[Event]] = [[], []]

    async def read(events: list[Event]) -> None:
        async for event in reader(temporal).stream(run.id):
            events += [event]

    reading = [asyncio.create_task(read(events)) for events in heard]
    async with temporal.worker(agent, llm=model, stream=True):
        thoughts = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))
        for piece in pieces:
            last = (thoughts, piece if isinstance(piece, str) else "")
            await until(lambda: all(shown_at_last(events) == last for events in heard))  # noqa: B023
            model.go_on()
        await asyncio.gather(*reading)
    for events in heard:
        (ended,) = [event for event in events if isinstance(event, TurnEnded)]
        assert (ended.text, ended.thoughts) == ("Yes", thoughts or None)


async def test_thoughts_of_a_cancelled_call_are_gone(temporal: Temporal) -> None:
    model, agent = Speaker(ReasoningDelta("Hm"), "Yes"), Agent("talker")
    async with temporal.worker(agent, llm=model, stream=True):
        run = await temporal.start(agent)
        key = reasoning_key(run.first_execution_run_id or "")

        async def is_thought(wanted: bool) -> bool:
            return (await temporal.store.load_partial(key) is not None) is wanted

        await until(lambda: is_thought(True))
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(run)
        await until(lambda: is_thought(False))
        events = await reader(temporal).events(run.id)
    assert "Hm" not in repr(events)


# --- pipelines ---


async def test_a_pipelines_steps_and_gates_are_told(temporal: Temporal) -> None:
    drafter = Agent("drafter")
    steps = (
        pipeline("review")
        .step("draft", agent=drafter, input=lambda ctx: "draft it")
        .step("approval", approval=Approval(message="Fine?"))
        .step("post", run=post, input=lambda ctx: {"text": "x"})
        .build()
    )
    async with temporal.worker(drafter, pipelines=[steps], llm=ScriptedModel(["A draft"])):
        run = await start_pipeline(
            temporal.client, steps, input={}, run_key=temporal.session("p"), task_queue=temporal.name
        )
        await pending(run)
        await temporal.people.decide(run.id, "approval", "approve", by="ada")
        await result(run)
        events = [event for event in await followed(temporal, run) if not isinstance(event, StatusChanged)]
    assert names(events) == [
        "RunStarted",
        "StepStarted",
        "StepCompleted",
        "GateOpened",
        "GateDecided",
        "StepCompleted",
        "ToolStarted",
        "ToolEnded",
        "StepCompleted",
        "RunEnded",
    ]
    assert [event.step for event in events if isinstance(event, StepCompleted)] == ["draft", "approval", "post"]
    inner = await reader(temporal).events(next(str(event.run) for event in events if isinstance(event, StepStarted)))
    assert names(inner)[-1] == "RunEnded"


def at_gates(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Return what is told of gates; in process, one that waits is told whenever a run ends at it."""
    told: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case GateOpened(gate, _, _, call, approvers):
                assert call is not None
                opened = ("asks", gate, call.arguments, approvers)
                told += [opened] if opened not in told else []
            case GateDecided():
                told.append((event.decision, event.by, event.refused, event.comment, event.edit, event.waits))
            case GateEscalated():
                told.append(("escalated", event.gate))
    return told


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("goes", ["decided", "overdue"])
async def test_both_drivers_tell_alike_of_decisions_and_escalations(temporal: Temporal, goes: str) -> None:
    to = Approval(approvers=["eve"])
    asks = Approval(approvers=["ada", "bob"], quorum=2)
    if goes == "overdue":
        asks = Approval(approvers=["ada"], timeout=1, on_timeout="escalate", escalate_to=to)

    @tool(approval=asks)
    async def send(text: str) -> str:
        """Send."""
        return "sent"

    agent = Agent("sender", tools=[send])
    edit = {"text": "y"}
    acts: list[dict[str, Any]] = [{"by": "zoe"}, {"by": "ada", "edit": edit, "comment": "y"}, {"by": "bob"}]
    acts = [{"by": "eve"}] if goes == "overdue" else acts
    given: Any = {"store": temporal.store, "session_id": "here"}
    script = [asks_for(call("send", "c1", text="x")), "Done"]

    ended = await stream_to_end(given, agent, here := list[Event](), llm=ScriptedModel(script), message="go")
    for act in acts:
        (item,) = ended.approvals
        if goes == "overdue":
            await until(lambda: item.deadline < datetime.now(UTC))  # noqa: B023
            ended = await stream_to_end(given, agent, here, llm=ScriptedModel([]))
        (item,) = ended.approvals
        decision = {"gate": "c1", "decision": "approve", "digest": item.digest, **act}
        with contextlib.suppress(InputError):
            ended = await stream_to_end(given, agent, here, llm=ScriptedModel(["Done"]), decisions=[decision])

    async with temporal.worker(agent, llm=ScriptedModel(script)):
        run = await temporal.start(agent)
        await pending(run)
        if goes == "overdue":
            await until(lambda: asks_eve(run))
        for act in acts:
            with contextlib.suppress(InputError):
                await temporal.people.decide(run.id, "c1", "approve", **act)
        await result(run)
        there = await followed(temporal, run)
    assert [one for one in at_gates(here) if one[-1] != ("eve",)] == at_gates(there)
    shown = {
        "overdue": ["asks", "escalated", "asks", "approve"],
        "decided": ["asks", "approve", "approve", "asks", "approve"],
    }
    assert [one[0] for one in at_gates(here)] == shown[goes]


async def asks_eve(run: Run) -> bool:
    return any(item["approvers"] == ["eve"] for item in await pending(run))


async def stream_to_end(given: dict[str, Any], agent: Agent, told: list[Event], **options: Any) -> Any:
    """Run an agent in process, and add to what was told; return the result."""
    async for event in run_streaming(agent, **given, **options):
        told.append(event)  # noqa: PERF401  # what was told before an error is kept
    return told[-1].result  # type: ignore[union-attr]
