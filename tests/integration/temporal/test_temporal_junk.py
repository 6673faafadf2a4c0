"""Arbitrary input to a run: nothing wedges it, invalid input is refused with a reason, and the run continues."""

import asyncio
import contextlib
import json
from functools import partial
from typing import Any

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    failure,
    has_ended,
    pending,
    question,
    raw_payload,
    refusals,
    result,
    status,
    until,
    wedges,
)
from support.temporal_runs import events as events_of
from temporalio.client import WithStartWorkflowOperation, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from standfast import Agent
from standfast.testing import ScriptedModel


def raw(text: str | bytes, encoding: str = "json/plain") -> RawValue:
    return RawValue(raw_payload(text.encode() if isinstance(text, str) else text, encoding))


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


# What can be decoded, and is not an object of the known keys. No key of these is known to any of the messages.
JUNK: dict[str, tuple[Any, ...]] = {
    "two arguments": ({"text": "x"}, {"text": "y"}),
    "three arguments": ("x", 1, None),
    "text": ("hello",),
    "a number": (5,),
    "true": (True,),
    "a list": ([{"text": "x"}],),
    "an unknown key": ({"nonsense": 1},),
    "an empty key": ({"": ""},),
    "an unknown key beside a known one": ({"text": "x", "Text": "y"},),
    "nested 100 levels": ({"text": nested(100)},),
    "NaN": (raw('{"text": NaN}'),),
    "infinity": (raw('{"text": 1e999}'),),
    "binary": (raw(b"\x00\xff", "binary/plain"),),
    "two megabytes": ({"text": "x" * 1_900_000},),
    "a million values": ({"text": [1] * 900_000},),
    "a wrong type": ({"text": 5, "action": [], "tool_call_id": {}, "decision": 1.5},),
}
LARGE = ("two megabytes", "a million values")
UNDECODABLE = {
    "an integer of 5,000 digits": raw('{"text": "x", "n": ' + "9" * 5_000 + "}"),
    "nested 1,000 levels": raw("[" * 1_000 + "]" * 1_000),
    "a lone surrogate": raw('{"text": "\\ud800"}'),
    "no JSON": raw("{"),
    "nothing": raw(""),
    "not UTF-8": raw(b'"\xff"'),
    "an unknown encoding": raw("{}", "of/somebody"),
}
EVERYTHING = JUNK | {what: (data,) for what, data in UNDECODABLE.items()}
MESSAGES = ("message", "answer", "resume")
UPDATES = (*MESSAGES, "resolve", "export")


# --- signals ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", MESSAGES)
async def test_a_signal_that_cannot_be_used_is_noted_with_the_reason(temporal: Temporal, name: str) -> None:
    async with question(temporal) as run:
        for count, (what, arguments) in enumerate(JUNK.items(), 1):
            await run.signal(name, args=list(arguments))
            reasons = await until(partial(_noted, run, count))
            assert reasons[-1].startswith(name), what
            assert len(reasons[-1]) <= 500, what
        await check_healthy(run)


async def _noted(run: Run, count: int) -> list[str]:
    reasons = await refusals(run)
    return reasons if len(reasons) == min(count, 10) else []


async def test_a_signal_without_arguments_is_noted_or_taken(temporal: Temporal) -> None:
    async with question(temporal) as run:
        for name in MESSAGES:
            await run.signal(name)
        reasons = await refusals(run)
        assert [reason.partition(":")[0].partition(" ")[0] for reason in reasons] == ["message", "answer", "resume"]
        assert reasons[2] == "resume: the run is not paused"


async def test_a_signal_that_cannot_be_decoded_changes_nothing(temporal: Temporal) -> None:
    async with question(temporal) as run:
        for what in UNDECODABLE.values():
            for name in MESSAGES:
                await run.signal(name, what)
            assert [item["kind"] for item in await pending(run)] == ["question"]


async def test_a_signal_of_another_name_changes_nothing(temporal: Temporal) -> None:
    async with question(temporal) as run:
        await run.signal("approve", {"gate": "x"})
        assert [item["kind"] for item in await pending(run)] == ["question"]


async def test_a_signal_over_the_limit_of_the_server_is_refused_to_its_sender(temporal: Temporal) -> None:
    async with question(temporal) as run:
        with pytest.raises(RPCError, match="exceeds limit"):
            await run.signal("message", {"text": "x" * 3_000_000})


@pytest.mark.slow
async def test_hundreds_of_useless_signals_at_once_do_no_harm(temporal: Temporal) -> None:
    async with question(temporal) as run:
        junk = [(name, arguments) for name in MESSAGES for what, arguments in JUNK.items() if what not in LARGE]
        await asyncio.gather(*(run.signal(name, args=list(arguments)) for name, arguments in junk * 8))
        assert len(await refusals(run)) == 10


@pytest.mark.slow
async def test_hundreds_of_messages_at_once_are_all_told_in_the_end(temporal: Temporal) -> None:
    async with question(temporal, max_stored_messages=1_000) as run:
        texts = [f"message {number}" for number in range(300)]
        await asyncio.gather(*(run.signal("message", {"text": text}) for text in texts))
        assert await refusals(run) == []
    said = [message.content for message in await temporal.messages() if message.role == "user"]
    assert sorted(said) == sorted(["go", *texts])


# --- updates ---


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", UPDATES)
async def test_an_update_that_cannot_be_used_is_refused_with_the_reason(temporal: Temporal, name: str) -> None:
    async with question(temporal) as run:
        for what, arguments in JUNK.items():
            if name == "export" and len(arguments) == 1:
                continue  # it takes anything, since it needs nothing
            reason = await _refused(run, name, *arguments)
            assert reason.startswith(name), (what, reason)
        await check_healthy(run)


async def _sent(run: Run, name: str, *arguments: Any) -> None:
    """Send an update, again where the server aborts it with the workflow task that it took back from a busy worker."""
    while True:
        try:
            await run.execute_update(name, args=list(arguments))
        except RPCError as error:
            if error.status != RPCStatusCode.UNAVAILABLE:
                raise
        else:
            return


async def _refused(run: Run, name: str, *arguments: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await _sent(run, name, *arguments)
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.message


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", [name for name in UPDATES if name != "export"])
async def test_an_update_without_arguments_is_refused_with_the_reason(temporal: Temporal, name: str) -> None:
    async with question(temporal) as run:
        assert (await _refused(run, name)).startswith(name)


async def test_an_update_that_cannot_be_decoded_is_refused(temporal: Temporal) -> None:
    async with question(temporal) as run:
        for what in UNDECODABLE.values():
            for name in (*MESSAGES, "resolve"):
                assert await _refused(run, name, what) != ""


async def test_an_update_of_another_name_is_refused(temporal: Temporal) -> None:
    async with question(temporal) as run:
        assert "decide" in await _refused(run, "decide", {"gate": "x"})


@pytest.mark.parametrize("name", ["message", "answer"])
async def test_an_update_over_the_limit_of_the_server_leaves_the_run_as_it_was(temporal: Temporal, name: str) -> None:
    async with question(temporal) as run:
        with pytest.raises((RPCError, WorkflowUpdateFailedError)):
            async with asyncio.timeout(3):
                await run.execute_update(name, {"text": "x" * 3_000_000})
        async with asyncio.timeout(60):
            assert [item["kind"] for item in await pending(run)] == ["question"]


@pytest.mark.slow
async def test_dozens_of_useless_updates_at_once_do_no_harm(temporal: Temporal) -> None:
    async with question(temporal) as run:
        junk = [(name, {"nonsense": number}) for number in range(15) for name in MESSAGES]
        reasons = await asyncio.gather(*(_refused(run, name, data) for name, data in junk))
        assert all("unknown key 'nonsense'" in reason for reason in reasons)


# --- queries ---


async def test_a_query_with_junk_is_answered_or_refused(temporal: Temporal) -> None:
    async with question(temporal) as run:
        for arguments in EVERYTHING.values():
            for name in ("status", "pending"):
                with contextlib.suppress(WorkflowQueryFailedError):
                    assert await run.query(name, args=list(arguments)) == await run.query(name)
        with pytest.raises(WorkflowQueryFailedError):
            await run.query("transcript")


# --- the input ---

BAD_INPUT: dict[str, tuple[Any, ...]] = {
    **JUNK,
    "no message": ({},),
    "no argument": (),
    "null": (None,),
    "a message that is a number": ({"message": 1},),
    "no iterations": ({"message": "x", "max_iterations": 0},),
    "true iterations": ({"message": "x", "max_iterations": True},),
    "half an iteration": ({"message": "x", "max_iterations": 1.5},),
    "an empty user": ({"message": "x", "user_id": ""},),
    "a session id with a slash": ({"message": "x", "session_id": "a/b"},),
    "a checkpoint of nothing": ({"checkpoint": {}},),
    "a checkpoint of junk": ({"checkpoint": {"messages": [{"role": "clown"}]}},),
    "a checkpoint that asks for nothing": (
        {"checkpoint": {"messages": [{"role": "user", "content": "x"}], "pending_tool_use_id": "c9"}},
    ),
    "a call of no keys": ({"call": {}},),
    "a state that was not carried over": ({"carried": {}},),
    "a state of junk": ({"carried": {"turn": [1], "opened": 5}},),
    "a state that looks like one": ({"carried": {"turn": [0, 0, 0], "opened": {"session": "s", "facts": {}}}},),
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("what", BAD_INPUT)
async def test_an_input_that_cannot_be_used_fails_the_run_with_the_reason(temporal: Temporal, what: str) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(lambda messages, tools: "done")):
        run = await temporal.start_raw("helper", *BAD_INPUT[what])
        error = await _failure_soon(run)
        assert (error.type, error.non_retryable) == ("InputError", True)
        assert len(error.message) < 2_000
        shown = await status(run)
        assert (shown["status"], shown["error"]) == ("error", error.message)
        await check_healthy(run)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("what", UNDECODABLE)
async def test_an_input_that_cannot_be_decoded_fails_the_run(temporal: Temporal, what: str) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(lambda messages, tools: "done")):
        run = await temporal.start_raw("helper", UNDECODABLE[what])
        await _failure_soon(run)
        await check_healthy(run)


async def _failure_soon(run: Run) -> ApplicationError:
    """Return what a run failed with; if its workflow task loops instead, stop it and say why."""
    try:
        async with asyncio.timeout(20):
            return await failure(run)
    except TimeoutError:
        history = await events_of(run)
        await run.terminate("its workflow task loops")
        raise AssertionError(f"the run did not end; its workflow task failed with {wedges(history)}") from None


async def test_an_input_over_the_limit_of_the_server_is_refused_to_its_sender(temporal: Temporal) -> None:
    with pytest.raises(RPCError, match="exceeds limit"):
        await temporal.start_raw("helper", {"message": "x" * 3_000_000})


# --- before the start, and after the end ---


@pytest.mark.slow
async def test_a_signal_of_junk_before_the_start_does_no_harm(temporal: Temporal) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(lambda messages, tools: "done")):

        async def start(what: str, arguments: tuple[Any, ...]) -> None:
            run = await temporal.start_raw(
                "helper", {"message": "go"}, start_signal="message", start_signal_args=list(arguments)
            )
            assert (await result(run))["response"] == "done"
            await check_healthy(run)
            assert len(await refusals(run)) == 1 or what in UNDECODABLE

        await asyncio.gather(*(start(what, arguments) for what, arguments in EVERYTHING.items()))


async def test_messages_sent_before_the_start_are_told(temporal: Temporal) -> None:
    run = await temporal.start(Agent("helper"), "one", if_running="message")
    for text in ("two", "three"):
        await run.signal("message", {"text": text})
    model = ScriptedModel(["done"])
    async with temporal.worker(Agent("helper"), llm=model):
        assert (await result(run))["response"] == "done"
    assert [message.content for message in model.calls[0].messages[1:]] == ["one", "two", "three"]


async def test_an_update_of_junk_with_the_start_is_refused_and_the_run_continues(temporal: Temporal) -> None:
    async with temporal.worker(Agent("helper"), llm=ScriptedModel(lambda messages, tools: "done")):

        async def start(number: int, arguments: tuple[Any, ...]) -> None:
            operation: Any = WithStartWorkflowOperation(
                "helper",
                {"message": "go"},
                id=f"helper/{temporal.session(str(number))}",
                task_queue=temporal.name,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            )
            with pytest.raises(WorkflowUpdateFailedError):
                await temporal.client.execute_update_with_start_workflow(
                    "message", args=list(arguments), start_workflow_operation=operation
                )
            run: Run = await operation.workflow_handle()
            assert (await result(run))["response"] == "done"
            await check_healthy(run)

        await asyncio.gather(*(start(number, arguments) for number, arguments in enumerate(EVERYTHING.values())))


async def test_whatever_is_sent_after_the_end_is_refused_and_changes_nothing(temporal: Temporal) -> None:
    async with question(temporal) as run:
        await run.execute_update("answer", {"text": "Ada"})
        ended = await result(run)
        for name in MESSAGES:
            with pytest.raises(RPCError, match="already completed"):
                await run.signal(name, {"text": "x"})
        for name in UPDATES:
            with pytest.raises((RPCError, WorkflowUpdateFailedError)):
                await run.execute_update(name, {"text": "x"})
        assert await run.query("pending") == []
        assert await has_ended(run)
        assert await result(run) == ended


async def test_a_status_of_junk_is_json_that_any_program_reads(temporal: Temporal) -> None:
    async with question(temporal) as run:
        for arguments in JUNK.values():
            await run.signal("message", args=list(arguments))
        json.dumps(await run.query("status"), allow_nan=False)
