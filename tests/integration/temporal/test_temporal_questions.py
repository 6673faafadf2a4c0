"""Questions of a run on Temporal: who may answer, when, in which order, and the fate of extra answers."""

from typing import Any

import pytest
from support.doubles import echo, fail
from support.questions import ask
from support.temporal_runs import (
    Run,
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    pending,
    question,
    refusals,
    result,
    status,
    until,
    waiting,
)
from support.transcripts import asks_for, call, error_of, result_of, shape, tool_contents
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from standfast import Agent, InputError, InterruptError, Loop, tool
from standfast.testing import ScriptedModel, time_skipping_server


def asking(*ids: str) -> ScriptedModel:
    """Return a model that asks a question per id in its first turn."""
    return ScriptedModel([asks_for(*(call("ask", call_id, question=f"{call_id}?") for call_id in ids)), "done"])


async def refused(run: Run, data: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await run.execute_update("answer", data)
    assert isinstance(error.value.cause, ApplicationError)
    return error.value.cause.message


# --- one question ---


async def test_a_question_shows_what_it_is_and_until_when(temporal: Temporal) -> None:
    async with question(temporal) as run:
        (asked,) = await pending(run)
        assert (asked["kind"], asked["name"], asked["message"]) == ("question", "c1", "Who?")
        assert asked["since"] < asked["deadline"]
        described = await status(run)
        assert (described["status"], described["iterations"], described["running"]) == ("waiting", 1, [])
        assert described["waiting"] == [asked]


async def test_a_question_without_a_timeout_has_no_deadline(temporal: Temporal) -> None:
    async with question(temporal, Agent("patient", tools=[ask], loop=Loop(answer_timeout=None))) as run:
        (asked,) = await pending(run)
        assert "deadline" not in asked


@pytest.mark.parametrize("data", [{"text": "Ada"}, {"text": "Ada", "tool_call_id": "c1", "by": "eve"}])
@pytest.mark.parametrize("door", ["update", "signal"])
async def test_an_answer_becomes_the_result_of_the_call(temporal: Temporal, door: str, data: dict[str, Any]) -> None:
    async with question(temporal) as run:
        if door == "signal":
            await run.signal("answer", data)
        else:
            assert await run.execute_update("answer", data) == {"accepted": True, "tool_call_id": "c1"}
        ended = await result(run)
        assert (ended["status"], ended["iterations"]) == ("complete", 2)
        assert await refusals(run) == []
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]
    assert tool_contents(await temporal.messages()) == [("c1", "Ada")]


async def test_a_client_answers_and_learns_why_an_answer_does_not_count(temporal: Temporal) -> None:
    async with question(temporal) as run:
        people = temporal.people
        with pytest.raises(InputError, match="call c9 does not ask anything; the run waits for the answer to c1"):
            await people.answer(run.id, "Ada", tool_call_id="c9")
        await people.answer(run.id, "Ada", by="eve")
        assert (await people.result(run.id))["response"] == "done"
        with pytest.raises(Exception, match="has ended"):
            await people.answer(run.id, "Ada")


async def test_an_empty_answer_is_an_answer(temporal: Temporal) -> None:
    async with question(temporal) as run:
        await run.execute_update("answer", {"text": ""})
        await result(run)
    assert tool_contents(await temporal.messages()) == [("c1", "")]


async def test_an_answer_of_a_hundred_kilobytes_arrives_whole(temporal: Temporal) -> None:
    text = "é" * 50_000
    async with question(temporal) as run:
        await run.execute_update("answer", {"text": text})
        await result(run)
    assert tool_contents(await temporal.messages()) == [("c1", text)]


async def test_a_second_answer_is_refused_and_the_first_stands(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=asking("a1", "a2")):
        run = await temporal.start(clerk)
        await pending(run, 2)
        await run.execute_update("answer", {"text": "first", "tool_call_id": "a2"})
        assert await refused(run, {"text": "second", "tool_call_id": "a2"}) == "answer: call a2 already has its answer"
        await run.execute_update("answer", {"text": "one"})
        await result(run)
        await check_healthy(run)
    assert sorted(tool_contents(await temporal.messages())) == [("a1", "one"), ("a2", "first")]


async def test_an_answer_before_the_question_is_refused_and_never_answers_it(temporal: Temporal) -> None:
    run = await temporal.start(clerk)
    await run.signal("answer", {"text": "Eve", "tool_call_id": "c1"})
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        await pending(run)
        assert await refusals(run) == ["answer: call c1 does not ask anything; the run waits for the answer to nothing"]
        await run.signal("answer", {"text": "Ada", "tool_call_id": "c1"})
        assert (await result(run))["response"] == "done"
        await check_healthy(run)
    assert tool_contents(await temporal.messages()) == [("c1", "Ada")]


async def test_an_early_answer_that_names_no_call_is_noted(temporal: Temporal) -> None:
    run = await temporal.start(clerk)
    await run.signal("answer", {"text": "Ada"})
    async with temporal.worker(clerk, llm=ScriptedModel(ask_once)):
        await pending(run)
        assert await refusals(run) == ["answer: the run does not wait for an answer"]
        await run.signal("answer", {"text": "Eve"})
        await result(run)
    assert tool_contents(await temporal.messages()) == [("c1", "Eve")]


async def test_a_late_answer_changes_nothing(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("ask", "a1", question="?")), asks_for(call("ask", "a2", question="?")), "ok"])
    async with temporal.worker(clerk, llm=model):
        run = await temporal.start(clerk)
        await pending(run)
        await run.execute_update("answer", {"text": "one"})
        await until(lambda: _waits_for(run, "a2"))
        assert await refused(run, {"text": "x", "tool_call_id": "a1"}) == "answer: call a1 already has its answer"
        await run.signal("answer", {"text": "x", "tool_call_id": "a1"})
        assert await refusals(run) == ["answer: call a1 already has its answer"]
        await run.execute_update("answer", {"text": "two"})
        await result(run)
        await check_healthy(run)
    assert tool_contents(await temporal.messages()) == [("a1", "one"), ("a2", "two")]


async def _waits_for(run: Run, call_id: str) -> bool:
    return [item["name"] for item in await waiting(run)] == [call_id]


async def test_the_same_update_twice_counts_once(temporal: Temporal) -> None:
    async with question(temporal) as run:
        first = await run.execute_update("answer", {"text": "Ada"}, id="decision-1")
        assert await run.execute_update("answer", {"text": "Ada"}, id="decision-1") == first


# --- several questions ---


@pytest.mark.parametrize("order", [["a1", "a2"], ["a2", "a1"]], ids=" then ".join)
@pytest.mark.parametrize("door", ["update", "signal"])
async def test_two_questions_of_a_turn_are_answered_in_either_order(
    temporal: Temporal, door: str, order: list[str]
) -> None:
    model = asking("a1", "a2")
    async with temporal.worker(clerk, llm=model):
        run = await temporal.start(clerk)
        assert [item["name"] for item in await pending(run, 2)] == ["a1", "a2"]
        for call_id in order:
            data = {"text": f"to {call_id}", "tool_call_id": call_id}
            await (run.signal("answer", data) if door == "signal" else run.execute_update("answer", data))
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert sorted(tool_contents(await temporal.messages())) == [("a1", "to a1"), ("a2", "to a2")]
    assert len(model.calls) == 2
    assert tool_contents(model.calls[1].messages) == [("a1", "to a1"), ("a2", "to a2")]  # in call order


async def test_answers_without_an_id_go_to_the_questions_in_call_order(temporal: Temporal) -> None:
    async with temporal.worker(clerk, llm=asking("a1", "a2", "a3")):
        run = await temporal.start(clerk)
        await pending(run, 3)
        for number in (1, 2, 3):
            assert (await run.execute_update("answer", {"text": str(number)}))["tool_call_id"] == f"a{number}"
        await result(run)
    assert tool_contents(await temporal.messages()) == [("a1", "1"), ("a2", "2"), ("a3", "3")]


async def test_calls_beside_a_question_run_and_are_not_run_again(temporal: Temporal) -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> str:
        """Post."""
        ran.append(text)
        return text

    agent = Agent("poster", tools=[ask, post])
    model = ScriptedModel(
        [
            asks_for(call("post", "p1", text="one"), call("ask", "a1", question="?"), call("post", "p2", text="two")),
            "ok",
        ]
    )
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await pending(run)
        assert tool_contents(await temporal.messages()) == [("p1", "one"), ("p2", "two")]
        await run.execute_update("answer", {"text": "Ada"})
        await result(run)
    assert ran == ["one", "two"]
    assert tool_contents(model.calls[1].messages) == [("p1", "one"), ("a1", "Ada"), ("p2", "two")]


# --- deadlines ---


async def test_a_question_that_nobody_answers_in_time_is_answered_with_an_error(temporal: Temporal) -> None:
    hasty = Agent("hasty", tools=[ask], loop=Loop(answer_timeout=0.3))
    async with temporal.worker(hasty, llm=ScriptedModel(ask_once)):
        run = await temporal.start(hasty)
        assert (await result(run))["status"] == "complete"
        assert await waiting(run) == []
        await check_healthy(run)
    assert "Nobody answered within 0:00:00.300000" in result_of(await temporal.messages(), "c1")


async def test_all_questions_of_a_turn_share_one_deadline(temporal: Temporal) -> None:
    hasty = Agent("hasty", tools=[ask, echo], loop=Loop(answer_timeout=0.4))
    async with temporal.worker(hasty, llm=asking("a1", "a2")):
        run = await temporal.start(hasty)
        first, second = await pending(run, 2)
        assert first["deadline"] == second["deadline"]
        await run.execute_update("answer", {"text": "in time", "tool_call_id": "a2"})
        assert (await result(run))["status"] == "complete"
    results = dict(tool_contents(await temporal.messages()))
    assert "Nobody answered within" in results["a1"]
    assert results["a2"] == "in time"


async def test_a_question_waits_for_a_month_and_a_worker_that_is_away(temporal: Temporal) -> None:
    async with time_skipping_server() as environment:
        there = Temporal(environment.client, temporal.store, temporal.name)
        async with there.worker(clerk, llm=ScriptedModel(ask_once)):
            run = await there.start(clerk)
            ended = await result(run)
    assert (ended["status"], ended["response"]) == ("complete", "done")
    told = error_of((await temporal.messages())[2])
    assert told.startswith("Nobody answered within")
    assert "e+" not in told


# --- questions of the loop itself ---


async def test_a_stuck_agent_that_escalates_is_told_what_the_person_says(temporal: Temporal) -> None:
    stuck = Agent("stuck", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    model = ScriptedModel([asks_for(call("fail", "f1")), "done"])
    async with temporal.worker(stuck, llm=model):
        run = await temporal.start(stuck)
        (asked,) = await pending(run)
        assert (asked["kind"], asked["name"]) == ("question", "")
        assert asked["message"] == "No tool call of the last 1 turns succeeded. How should the agent go on?"
        await run.execute_update("answer", {"text": "skip it"})
        assert (await result(run))["status"] == "complete"
        await check_healthy(run)
    assert shape(await temporal.messages()) == [
        "user go", "calls f1", "result f1", "user skip it", "assistant done",
    ]  # fmt: skip


async def test_the_answer_to_an_escalation_is_told_before_what_was_said_in_the_meantime(temporal: Temporal) -> None:
    stuck = Agent("stuck", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    async with temporal.worker(stuck, llm=ScriptedModel([asks_for(call("fail", "f1")), "done"])):
        run = await temporal.start(stuck)
        await pending(run)
        await run.execute_update("message", {"text": "and hurry"})
        await run.execute_update("answer", {"text": "skip it"})
        await result(run)
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert said == ["go", "skip it", "and hurry"]


async def test_an_escalation_that_nobody_answers_continues_with_that_news(temporal: Temporal) -> None:
    loop = Loop(stuck_threshold=1, on_stuck="escalate", answer_timeout=0.3)
    stuck = Agent("stuck", tools=[fail], loop=loop)
    async with temporal.worker(stuck, llm=ScriptedModel([asks_for(call("fail", "f1")), "done"])):
        assert (await temporal.run(stuck))["status"] == "complete"
    assert "user Nobody answered within 0" in "; ".join(shape(await temporal.messages()))


async def test_a_tool_that_asks_again_is_not_run_again(temporal: Temporal) -> None:
    times: list[int] = []

    @tool
    async def confirm() -> str:
        """Ask for a yes."""
        times.append(1)
        raise InterruptError("Sure?")

    agent = Agent("careful", tools=[confirm])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("confirm", "c1")), "done"])):
        run = await temporal.start(agent)
        await pending(run)
        await run.execute_update("answer", {"text": "yes"})
        await result(run)
    assert times == [1]
