"""Deploys that change a tool's guarantees, under lost or parked calls: the stricter guarantee applies."""

import json
from functools import partial
from typing import Any

from support.deploys import QUESTION, LosesCalls, by_turn, clerk, is_being_settled, parked, read
from support.temporal_runs import Run, Temporal, check_healthy, events, pending, result, until, waiting
from support.transcripts import asks_for, call, kind_of, tool_results
from temporalio.api.enums.v1 import EventType

from standfast import Agent, Approval, Happened, RetryPolicy, Tool, ToolEnded, tool
from standfast.testing import ScriptedModel

QUICK = RetryPolicy(initial_interval=0.01, maximum_attempts=2)
SCRIPT = by_turn(asks_for(call("pay", "c1")), "done")


def pay(paid: list[str], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    return pay


async def lost(temporal: Temporal, before: Tool[..., Any], lost: Any) -> Run:
    """Return a run whose call was claimed by a worker that has ended."""
    async with temporal.worker(clerk(before), llm=ScriptedModel(SCRIPT), store=LosesCalls(temporal.store)):
        run = await temporal.start("clerk")
        await until(partial(lost, run))
    return run


async def is_tried_again(run: Run) -> bool:
    """Whether a call has failed, and waits for its next attempt."""
    found = (await run.describe()).raw_description.pending_activities
    return any(item.activity_type.name == "pay" and item.attempt > 1 for item in found)


async def test_a_lost_call_of_a_tool_that_is_no_longer_safe_is_of_unknown_outcome(temporal: Temporal) -> None:
    paid: list[str] = []
    run = await lost(temporal, pay(paid, safe_to_retry=True), is_tried_again)
    async with temporal.worker(clerk(pay(paid)), llm=ScriptedModel(SCRIPT)):
        assert (await result(run))["status"] == "complete"
    messages = await temporal.messages()
    assert (kind_of(messages, "c1"), paid) == ("tool-durability-error", [])
    assert "an earlier attempt at it was lost" in json.loads(read(messages)["c1"])["error"]
    await check_healthy(run)


async def test_a_lost_call_of_a_tool_that_was_made_safe_since_is_not_repeated(temporal: Temporal) -> None:
    paid: list[str] = []
    run = await lost(temporal, pay(paid), is_being_settled)
    async with temporal.worker(clerk(pay(paid, safe_to_retry=True)), llm=ScriptedModel(SCRIPT)):
        assert (await result(run))["status"] == "complete"
    assert (kind_of(await temporal.messages(), "c1"), paid) == ("tool-durability-error", [])


async def test_the_next_run_does_not_repeat_what_an_earlier_one_lost_before_it_was_made_safe(
    temporal: Temporal,
) -> None:
    paid: list[str] = []
    run = await lost(temporal, pay(paid), is_being_settled)
    await run.terminate()
    async with temporal.worker(clerk(pay(paid, safe_to_retry=True)), llm=ScriptedModel(SCRIPT)):
        assert (await result(await temporal.start("clerk", None)))["status"] == "complete"
    assert (kind_of(await temporal.messages(), "c1"), paid) == ("tool-durability-error", [])


async def test_a_lost_call_is_looked_up_by_the_verify_that_a_deploy_has_brought(temporal: Temporal) -> None:
    paid: list[str] = []
    run = await lost(temporal, pay(paid), is_being_settled)
    verified = pay(paid, verify=lambda: Happened("receipt"))
    async with temporal.worker(clerk(verified), llm=ScriptedModel(SCRIPT)):
        assert (await result(run))["status"] == "complete"
        ended = next(one for one in await temporal.people.events(run.id) if isinstance(one, ToolEnded))
    assert (read(await temporal.messages()), paid) == ({"c1": "receipt"}, [])
    assert (ended.recovered, ended.found_by) == (True, "verify")


async def test_a_lost_call_whose_verify_is_gone_is_of_unknown_outcome(temporal: Temporal) -> None:
    paid: list[str] = []
    run = await lost(temporal, pay(paid, verify=lambda: Happened("receipt")), is_being_settled)
    async with temporal.worker(clerk(pay(paid)), llm=ScriptedModel(SCRIPT)):
        assert (await result(run))["status"] == "complete"
    assert (kind_of(await temporal.messages(), "c1"), paid) == ("tool-durability-error", [])


async def test_the_model_reads_how_often_a_safe_call_was_tried_only_where_that_is_known(temporal: Temporal) -> None:
    paid: list[str] = []
    async with temporal.worker(
        clerk(pay(paid, safe_to_retry=True, retry=QUICK)), llm=ScriptedModel(SCRIPT), store=Claims(temporal.store)
    ):
        assert (await temporal.run(clerk()))["status"] == "complete"
    (told,) = tool_results(await temporal.messages())
    assert "it was cut off 2 times: " in told.content


class Claims(LosesCalls):
    """A store whose worker is lost when it has claimed a call, which is looked up."""

    async def settle(self, *place: str) -> Any:
        return await self._store.settle(*place)


async def test_a_failure_is_told_as_such_by_a_tool_that_was_made_safe_and_retries_since(temporal: Temporal) -> None:
    """The call was recorded with one attempt, which is its last: what it raises is not an unknown outcome."""

    def approved(paid: list[str], **options: Any) -> Tool[..., Any]:
        @tool(approval=Approval(message="Pay?"), **options)
        async def pay() -> str:
            """Pay."""
            paid.append("paid")
            raise ValueError("no money")

        return pay

    paid: list[str] = []
    async with temporal.worker(clerk(approved(paid)), llm=ScriptedModel(SCRIPT)):
        run = await temporal.start("clerk")
        await pending(run)
    async with temporal.worker(clerk(approved(paid, safe_to_retry=True, retry=QUICK)), llm=ScriptedModel(SCRIPT)):
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
    assert (read(await temporal.messages()), paid) == ({"c1": '{"error": "no money"}'}, ["paid"])


# --- what people see ---


async def test_the_summary_of_a_model_call_names_the_model_that_is_called(temporal: Temporal) -> None:
    def version(model: str) -> Agent:
        return clerk(model=model)

    script = by_turn(
        QUESTION, QUESTION.model_copy(update={"tool_calls": (call("ask", "q2", question="Now?"),)}), "done"
    )
    run = await parked(temporal, version("openai:old"), script)
    async with temporal.worker(version("openai:new"), llm=ScriptedModel(script)):
        for question in ("q1", "q2"):
            await until(partial(_asks, run, question))
            await run.execute_update("answer", {"text": "yes", "tool_call_id": question})
        assert (await result(run))["status"] == "complete"
    asked = [
        event
        for event in await events(run)
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == "call_model"
    ]
    shown = [event.user_metadata.summary.data.decode() for event in asked]
    # A call scheduled under the old name was not made: the worker that has the agent decides what it calls.
    assert [text.strip('"') for text in shown] == [
        "openai:old · turn 1", "openai:old · turn 2", "openai:new · turn 2", "openai:new · turn 3",
    ]  # fmt: skip
    await check_healthy(run)


async def _asks(run: Run, question: str) -> bool:
    return [item["name"] for item in await waiting(run)] == [question]
