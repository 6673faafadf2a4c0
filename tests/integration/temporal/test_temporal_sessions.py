"""Sessions and Temporal: one writer, owners, and a change of driver at any point."""

import asyncio
from typing import Any

import pytest
from support.doubles import echo, fail, poster
from support.questions import ask
from support.temporal_runs import (
    Temporal,
    ask_once,
    check_healthy,
    clerk,
    failure,
    pending,
    question,
    result,
    waiting,
)
from support.transcripts import DURABILITY, USER, asks, asks_for, call, kind_of, says, shape, tool_contents
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from standfast import (
    Agent,
    Checkpoint,
    InputError,
    InterruptError,
    Loop,
    Question,
    SessionConflictError,
    Usage,
    assert_complete,
    is_interrupted,
    resume,
    run,
    tool,
)
from standfast.stores import session_key_of
from standfast.testing import ScriptedModel, crash_after_tool_results

helper = Agent("helper", tools=[echo, ask])


# --- one writer ---


async def test_a_second_workflow_on_a_session_in_flight_is_refused(temporal: Temporal) -> None:
    async with question(temporal) as first:
        second = await temporal.start_raw("clerk", {"message": "me too", "session_id": temporal.session()})
        error = await failure(second)
        assert error.type == "SessionConflictError"
        assert first.id in error.message
        await first.execute_update("answer", {"text": "Ada"})
        await result(first)
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "assistant done"]


async def test_of_two_workflows_that_begin_a_session_at_once_one_writes(temporal: Temporal) -> None:
    model = ScriptedModel(
        lambda messages, tools: "done" if len(messages) > 3 else asks_for(call("echo", "c", text="x"))
    )
    async with temporal.worker(helper, llm=model):
        given = {"message": "go", "session_id": temporal.session()}
        runs = await asyncio.gather(*(temporal.start_raw("helper", given) for _ in range(4)))
        ends = await asyncio.gather(*(result(started) for started in runs), return_exceptions=True)
    kinds = sorted(
        end["status"] if isinstance(end, dict) else getattr(getattr(end, "cause", end), "type", "?") for end in ends
    )
    assert kinds.count("complete") >= 1
    assert set(kinds) <= {"complete", "SessionConflictError"}
    lines = shape(await temporal.messages())
    assert lines.count("user go") == kinds.count("complete")


async def test_a_run_in_process_and_one_on_temporal_do_not_share_a_session(temporal: Temporal) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def answer(messages: Any, tools: Any) -> str:
        inside.set()
        await go_on.wait()
        return "here"

    here = asyncio.create_task(
        run(helper, message="go", llm=ScriptedModel(answer), store=temporal.store, session_id=temporal.session())
    )
    async with asyncio.timeout(60):
        await inside.wait()
    async with temporal.worker(helper, llm=ScriptedModel(["there"])):
        error = await failure(await temporal.start(helper))
    assert error.type == "SessionConflictError"
    go_on.set()
    assert assert_complete(await here).response == "here"


async def test_a_run_in_process_is_refused_where_a_workflow_has_written_and_continues(temporal: Temporal) -> None:
    async with question(temporal):
        there = await temporal.store.load_session(temporal.session())
        assert there is not None
        with pytest.raises((SessionConflictError, InputError)):
            await run(clerk, message="x", llm=ScriptedModel(["x"]), store=temporal.store, session_id=temporal.session())


# --- owners ---


@pytest.mark.parametrize(
    ("first", "then", "allowed"),
    [
        ({"user_id": "ada"}, {"user_id": "ada"}, True),
        ({"user_id": "ada"}, {"user_id": "bob"}, False),
        ({"user_id": "ada"}, {}, False),
        ({"user_id": "ada", "tenant_id": "acme"}, {"user_id": "bob", "tenant_id": "acme"}, False),
        ({"user_id": "ada", "tenant_id": "acme"}, {"tenant_id": "acme"}, False),
        ({}, {"user_id": "bob"}, True),
    ],
    ids=str,
)
async def test_a_session_belongs_to_its_owner(
    temporal: Temporal, first: dict[str, str], then: dict[str, str], allowed: bool
) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(["one", "two"])):
        await temporal.run(helper, **first)
        again = await temporal.start(helper, "more", **then)
        if allowed:
            assert (await result(again))["response"] == "two"
        else:
            error = await failure(again)
            assert error.type == "SessionAccessDeniedError"
            assert error.message == f"Session not found or access denied: {temporal.session()}"
            await check_healthy(again)
    key = session_key_of(first.get("tenant_id"), temporal.session())
    session = await temporal.store.load_session(key)
    assert session is not None
    assert (session.user_id, session.tenant_id) == (first.get("user_id"), first.get("tenant_id"))
    assert len(await temporal.store.load_messages(key)) == (4 if allowed else 2)


async def test_a_session_of_another_agent_is_refused(temporal: Temporal) -> None:
    other = Agent("other")
    async with temporal.worker(helper, other, llm=ScriptedModel(["one", "two"])):
        await temporal.run(helper)
        error = await failure(await temporal.start(other))
    assert error.type == "InputError"
    assert "belongs to agent 'helper', not to 'other'" in error.message


async def test_a_session_is_made_when_there_is_none_and_found_when_there_is(temporal: Temporal) -> None:
    model = ScriptedModel(["one", "two"])
    async with temporal.worker(helper, llm=model):
        assert (await temporal.run(helper, "first"))["session_id"] == temporal.session()
        assert (await temporal.run(helper, "second"))["iterations"] == 1
    assert [message.content for message in model.calls[1].messages[1:]] == ["first", "one", "second"]


async def test_a_run_without_a_session_gets_its_own(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(["one"])):
        started = await temporal.start_raw("helper", {"message": "go"}, id=f"any-id-{temporal.name}")
        session = (await result(started))["session_id"]
    assert session.startswith("sess_")
    assert shape(await temporal.store.load_messages(session)) == ["user go", "assistant one"]


async def test_the_session_of_a_workflow_id_is_used_if_none_is_named(temporal: Temporal) -> None:
    async with temporal.worker(helper, llm=ScriptedModel(["one"])):
        started = await temporal.start_raw("helper", {"message": "go"}, id=f"helper/{temporal.session()}")
        assert (await result(started))["session_id"] == temporal.session()


async def test_a_session_that_is_finished_finishes_again_without_a_model_call(temporal: Temporal) -> None:
    model = ScriptedModel(["one"])
    async with temporal.worker(helper, llm=model):
        first = await temporal.run(helper)
        again = await temporal.run(helper, None)
    assert (again["status"], again["response"], len(model.calls)) == ("complete", first["response"], 1)
    assert shape(await temporal.messages()) == ["user go", "assistant one"]


# --- from one driver to the other ---


async def test_a_session_goes_back_and_forth_between_the_drivers(temporal: Temporal) -> None:
    model = ScriptedModel(lambda messages, tools: f"{len(messages)} seen")
    options: dict[str, Any] = {"llm": model, "store": temporal.store, "session_id": temporal.session()}
    async with temporal.worker(helper, llm=model):
        await temporal.run(helper, "on temporal")
        await run(helper, message="in process", **options)
        await temporal.run(helper, "on temporal again")
        assert_complete(await run(helper, message="in process again", **options))
    assert shape(await temporal.messages()) == [
        "user on temporal", "assistant 2 seen", "user in process", "assistant 4 seen",
        "user on temporal again", "assistant 6 seen", "user in process again", "assistant 8 seen",
    ]  # fmt: skip


async def test_a_question_asked_in_process_is_answered_on_temporal(temporal: Temporal) -> None:
    model = ScriptedModel([asks_for(call("ask", "a1", question="1?"), call("ask", "a2", question="2?")), "done"])
    asked = await run(helper, message="go", llm=model, store=temporal.store, session_id=temporal.session())
    assert is_interrupted(asked)
    async with temporal.worker(helper, llm=model):
        started = await temporal.start(helper, None)
        assert [(item["name"], item["message"]) for item in await pending(started, 2)] == [("a1", "1?"), ("a2", "2?")]
        await started.execute_update("answer", {"text": "two", "tool_call_id": "a2"})
        await started.execute_update("answer", {"text": "one"})
        assert (await result(started))["response"] == "done"
        await check_healthy(started)
    assert sorted(tool_contents(await temporal.messages())) == [("a1", "one"), ("a2", "two")]


async def test_a_question_asked_on_temporal_is_answered_in_process_after_a_cancel(temporal: Temporal) -> None:
    model = ScriptedModel(ask_once)
    async with temporal.worker(clerk, llm=model):
        started = await temporal.start(clerk)
        await pending(started)
        await started.cancel()
        with pytest.raises(WorkflowFailureError) as ended:
            await result(started)
        assert isinstance(ended.value.cause, CancelledError)
        await check_healthy(started)
    options: dict[str, Any] = {"llm": model, "store": temporal.store}
    asked = await run(clerk, session_id=temporal.session(), **options)
    assert is_interrupted(asked)
    assert asked.question == "Who?"
    assert assert_complete(await resume(clerk, asked.checkpoint, "Ada", **options)).response == "done"
    assert tool_contents(await temporal.messages()) == [("c1", "Ada")]


async def test_an_escalation_in_process_is_answered_on_temporal(temporal: Temporal) -> None:
    stuck = Agent("stuck", tools=[fail], loop=Loop(stuck_threshold=1, on_stuck="escalate"))
    model = ScriptedModel([asks_for(call("fail", "f1")), "done"])
    await run(stuck, message="go", llm=model, store=temporal.store, session_id=temporal.session())
    async with temporal.worker(stuck, llm=model):
        started = await temporal.start(stuck, None)
        assert [item["kind"] for item in await pending(started)] == ["question"]
        await started.execute_update("answer", {"text": "skip"})
        assert (await result(started))["response"] == "done"
    assert shape(await temporal.messages())[-2:] == ["user skip", "assistant done"]


async def test_a_new_message_to_a_session_that_waits_comes_after_the_answer(temporal: Temporal) -> None:
    model = ScriptedModel(ask_once)
    await run(clerk, message="go", llm=model, store=temporal.store, session_id=temporal.session())
    async with temporal.worker(clerk, llm=model):
        started = await temporal.start(clerk, "and another thing")
        assert [item["name"] for item in await pending(started)] == ["c1"]
        await started.execute_update("answer", {"text": "Ada"})
        await result(started)
        await check_healthy(started)
    assert shape(await temporal.messages()) == [
        "user go", "calls c1", "result c1", "user and another thing", "assistant done",
    ]  # fmt: skip


@pytest.mark.parametrize("safe", [True, False], ids=["safe", "with effects"])
async def test_a_call_that_a_crash_in_process_left_is_repaired_on_temporal(temporal: Temporal, safe: bool) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=safe)])
    script: list[Any] = [asks_for(call("post", "c1", text="x")), "done"]
    with pytest.raises(RuntimeError, match="simulated"):
        await run(
            agent, message="go", llm=ScriptedModel(script), session_id=temporal.session(),
            store=crash_after_tool_results(temporal.store),
        )  # fmt: skip
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        ended = await temporal.run(agent, "more")
    assert ended["status"] == "complete"
    assert len(effects) == (2 if safe else 1)
    assert kind_of(await temporal.messages(), "c1") == (None if safe else DURABILITY)
    assert shape(await temporal.messages()) == ["user go", "calls c1", "result c1", "user more", "assistant done"]


# --- checkpoints ---


async def test_a_run_is_exported_and_finished_in_process(temporal: Temporal) -> None:
    first = asks_for(call("echo", "e1", text="x"), call("ask", "a1", question="Who?"), tokens=7)
    async with temporal.worker(helper, llm=ScriptedModel([first])):
        started = await temporal.start(helper)
        await pending(started)
        checkpoint = await temporal.people.export(started.id)
        assert [item["name"] for item in await waiting(started)] == ["a1"]
        await check_healthy(started)
        await started.cancel()
    assert (checkpoint.iterations, checkpoint.usage, checkpoint.pending_tool_use_id) == (1, Usage(input_tokens=7), "a1")
    assert checkpoint.questions == (Question(question="Who?", tool_call_id="a1"),)
    ended = assert_complete(await resume(helper, checkpoint, "Ada", llm=ScriptedModel([says("done", 3)])))
    assert (ended.response, ended.iterations, ended.usage) == ("done", 2, Usage(input_tokens=10))
    assert tool_contents(ended.messages) == [("e1", "x"), ("a1", "Ada")]


async def test_a_checkpoint_of_a_run_in_process_continues_on_temporal(temporal: Temporal) -> None:
    first = asks_for(call("ask", "a1", question="Who?"), call("echo", "e1", text="x"), tokens=7)
    asked = await run(helper, message="go", llm=ScriptedModel([first]))
    assert is_interrupted(asked)
    async with temporal.worker(helper, llm=ScriptedModel([says("done", 3)])):
        started = await temporal.start(helper, None, checkpoint=asked.checkpoint)
        await pending(started)
        await started.execute_update("answer", {"text": "Ada"})
        ended = await result(started)
        await check_healthy(started)
    assert (ended["response"], ended["iterations"], ended["usage"]["input_tokens"]) == ("done", 2, 10)
    assert sorted(tool_contents(await temporal.messages())) == [("a1", "Ada"), ("e1", "x")]


async def test_a_checkpoint_of_the_documents_four_fields_keeps_its_question(temporal: Temporal) -> None:
    times: list[int] = []

    @tool
    async def confirm() -> str:
        """Ask."""
        times.append(1)
        raise InterruptError("Sure?")

    agent = Agent("careful", tools=[confirm])
    checkpoint = Checkpoint(messages=(USER, asks("c1", tool="confirm")), iterations=1, pending_tool_use_id="c1")
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        started = await temporal.start(agent, None, checkpoint=checkpoint)
        assert [item["name"] for item in await pending(started)] == ["c1"]
        await started.execute_update("answer", {"text": "yes"})
        await result(started)
    assert times == []
    assert tool_contents(await temporal.messages()) == [("c1", "yes")]


async def test_unanswered_calls_of_a_checkpoint_are_run(temporal: Temporal) -> None:
    checkpoint = Checkpoint(messages=(USER, asks("c1", "c2", tool="echo")), iterations=1)
    async with temporal.worker(helper, llm=ScriptedModel(["done"])):
        ended = await temporal.run(helper, None, checkpoint=checkpoint)
    assert (ended["status"], ended["iterations"]) == ("complete", 2)
    assert tool_contents(await temporal.messages()) == [("c1", "c1"), ("c2", "c2")]


async def test_a_checkpoint_that_is_finished_finishes_again(temporal: Temporal) -> None:
    ended = assert_complete(await run(helper, message="go", llm=ScriptedModel(["one"])))
    model = ScriptedModel([])
    async with temporal.worker(helper, llm=model):
        again = await temporal.run(helper, None, checkpoint=ended.checkpoint)
    assert (again["status"], again["response"], model.calls) == ("complete", "one", [])
    assert shape(await temporal.messages()) == ["user go", "assistant one"]


async def test_a_checkpoint_and_a_message_continue_together(temporal: Temporal) -> None:
    ended = assert_complete(await run(helper, message="go", llm=ScriptedModel(["one"])))
    async with temporal.worker(helper, llm=ScriptedModel(["two"])):
        assert (await temporal.run(helper, "more", checkpoint=ended.checkpoint))["response"] == "two"
    assert shape(await temporal.messages()) == ["user go", "assistant one", "user more", "assistant two"]


async def test_a_checkpoint_is_refused_where_there_are_messages_already(temporal: Temporal) -> None:
    ended = assert_complete(await run(helper, message="go", llm=ScriptedModel(["one"])))
    async with temporal.worker(helper, llm=ScriptedModel(["x"])):
        await temporal.run(helper)
        error = await failure(await temporal.start(helper, None, checkpoint=ended.checkpoint))
    assert (error.type, "has its own messages" in error.message) == ("InputError", True)


async def test_a_checkpoint_of_a_stored_session_is_refused(temporal: Temporal) -> None:
    ended = assert_complete(
        await run(helper, message="go", llm=ScriptedModel(["one"]), store=temporal.store, session_id="here")
    )
    async with temporal.worker(helper, llm=ScriptedModel(["x"])):
        error = await failure(await temporal.start(helper, None, checkpoint=ended.checkpoint))
    assert (error.type, "belongs to session here" in error.message) == ("InputError", True)


async def test_a_run_that_is_too_large_is_not_exported_and_continues(temporal: Temporal) -> None:
    first = asks_for(call("echo", "e1", text="x" * 1_200_000), call("ask", "a1", question="?"))
    async with temporal.worker(helper, llm=ScriptedModel([first, "done"])):
        started = await temporal.start(helper)
        await pending(started)
        with pytest.raises(InputError, match="more than 1,048,576; read it from the store"):
            await temporal.people.export(started.id)
        await started.execute_update("answer", {"text": "x"})
        assert (await result(started))["status"] == "complete"
        await check_healthy(started)
