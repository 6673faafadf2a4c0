"""Deploys under parked runs: the model sees and calls the tools of the new version."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.deploys import QUESTION, by_turn, clerk, deployed, parked, read, waits_for
from support.temporal_runs import Temporal, check_healthy, events, pending, result, until
from support.transcripts import asks_for, call
from temporalio.api.enums.v1 import EventType

from standfast import Agent, Approval, Tool, tool
from standfast.stores import Append
from standfast.temporal.workflows.run import agent_workflows
from standfast.temporal.workflows.run.activity_options import WRITING
from standfast.testing import ScriptedModel


def post(name: str = "post", **options: Any) -> Tool[..., Any]:
    @tool(name=name, **options)
    async def post(text: str) -> str:
        """Post a text."""
        return f"{name} {text}"

    return post


POST = asks_for(call("post", "c1", text="x"))


async def test_a_tool_that_a_deploy_added_can_be_called_by_a_run_in_flight(temporal: Temporal) -> None:
    assert await deployed(temporal, clerk(), clerk(post()), POST) == {"c1": "post x"}


async def test_a_renamed_tool_is_called_by_its_new_name_and_its_old_name_is_not_found(temporal: Temporal) -> None:
    both = asks_for(call("post", "c1", text="x"), call("send", "c2", text="x"))
    found = await deployed(temporal, clerk(post()), clerk(post("send")), both)
    assert found == {"c1": '{"error": "Tool \\"post\\" not found. Available tools: ask, send"}', "c2": "send x"}


async def test_a_removed_tool_is_not_found_in_the_words_that_a_new_run_reads(temporal: Temporal) -> None:
    gone = {"c1": '{"error": "Tool \\"post\\" not found. Available tools: ask"}'}
    assert await deployed(temporal, clerk(post()), clerk(), POST) == gone


async def test_an_agent_that_a_deploy_added_as_a_tool_runs_as_a_child(temporal: Temporal) -> None:
    helper = Agent("helper")
    script = by_turn(QUESTION, asks_for(call("helper", "c1", message="help")), "done")

    def model(messages: Any, tools: Any) -> Any:
        return "helped" if messages[-1].content == "help" else script(messages, tools)

    run = await parked(temporal, clerk(), model)
    async with temporal.worker(clerk(helper), helper, llm=ScriptedModel(model)):
        await run.execute_update("answer", {"text": "yes"})
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "helped"}


async def test_tools_that_a_deploy_made_parallel_run_together(temporal: Temporal) -> None:
    met = asyncio.Barrier(2)

    def meet(**options: Any) -> Tool[..., Any]:
        @tool(name="meet", **options)
        async def meet() -> str:
            """Meet the other one."""
            await met.wait()
            return "met"

        return meet

    both = asks_for(call("meet", "c1"), call("meet", "c2"))
    assert await deployed(temporal, clerk(meet()), clerk(meet(parallel=True)), both) == {"c1": "met", "c2": "met"}


@pytest.mark.parametrize("seconds", [30, 300])
async def test_a_timeout_that_a_deploy_changed_holds_for_the_next_turn(temporal: Temporal, seconds: int) -> None:
    before, after = clerk(post(timeout=100)), clerk(post(timeout=seconds))
    await deployed(temporal, before, after, POST)
    run = temporal.client.get_workflow_handle(f"clerk/{temporal.session()}")
    (posted,) = [
        event.activity_task_scheduled_event_attributes
        for event in await events(run)
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == "post"
    ]
    assert posted.start_to_close_timeout.ToTimedelta() == timedelta(seconds=seconds + 5) + WRITING


async def test_the_turns_tools_say_nothing_in_a_history_where_no_deploy_has_changed_them(temporal: Temporal) -> None:
    await deployed(temporal, clerk(post()), clerk(post()), POST)
    history = b"".join(event.SerializeToString() for event in await events(temporal_run(temporal)))
    assert b"declared" not in history


def temporal_run(temporal: Temporal) -> Any:
    return temporal.client.get_workflow_handle(f"clerk/{temporal.session()}")


async def test_a_run_that_continues_as_new_knows_the_tools_of_its_turn(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call whose gate is open moves as well, and runs by the rules recorded with it."""
    monkeypatch.setattr(agent_workflows, "STEPS", 1)
    script = by_turn(QUESTION, POST, "done")
    run = await parked(temporal, clerk(), script)
    latest = temporal_run(temporal)
    async with temporal.worker(clerk(post(approval=Approval(message="Post?"))), llm=ScriptedModel(script)):
        await latest.execute_update("answer", {"text": "yes"})
        await until(partial(waits_for, latest, "approval"))
        await temporal.people.decide(latest.id, "c1", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "post x"}


# --- a turn whose answer is kept already ---


class DiesAfterTheAnswer:
    """A store whose writer never hears that an answer is kept that asks for a call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.kept = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_reply(self, appends: list[Append], **options: Any) -> str:
        kept: str = await self._store.append_reply(appends, **options)
        if any(asked.name != "ask" for asked in appends[-1].messages[-1].tool_calls or ()):
            self.kept.set()
            raise RuntimeError("the worker is lost")
        return kept


@pytest.mark.slow
async def test_an_answer_that_is_read_again_says_the_same_of_its_tools_after_a_deploy(temporal: Temporal) -> None:
    """The tool was there when the model asked for it: it is waited for, not reported as never heard of."""
    script = by_turn(QUESTION, POST, "done")
    store = DiesAfterTheAnswer(temporal.store)
    run = await parked(temporal, clerk(post(safe_to_retry=True)), script)
    async with temporal.worker(clerk(post()), llm=ScriptedModel(script), store=store):
        await run.execute_update("answer", {"text": "yes"})
        await store.kept.wait()
    async with temporal.worker(clerk(), llm=ScriptedModel(script)):
        await until(partial(waits_for, run, "worker"))
        assert [item["name"] for item in await pending(run)] == ["post"]
    async with temporal.worker(clerk(post()), llm=ScriptedModel(script)):
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "post x"}
    await check_healthy(run)


# --- approvals, verify ---


async def test_an_approval_that_a_deploy_added_is_asked_for_the_next_call(temporal: Temporal) -> None:
    script = by_turn(QUESTION, POST, "done")
    run = await parked(temporal, clerk(post()), script)
    async with temporal.worker(clerk(post(approval=Approval(message="Post?"))), llm=ScriptedModel(script)):
        await run.execute_update("answer", {"text": "yes"})
        await until(partial(waits_for, run, "approval"))
        await temporal.people.decide(run.id, "c1", "reject", by="ada")
        assert (await result(run))["status"] == "complete"
    assert "rejected by ada" in read(await temporal.messages())["c1"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("after", [{}, {"approval": Approval(message="Post it?", approvers=["ada"])}])
async def test_a_gate_that_is_open_stays_so_whatever_a_deploy_asks_now(temporal: Temporal, after: Any) -> None:
    script = by_turn(POST, "done")
    async with temporal.worker(clerk(post(approval=Approval(message="Post?"))), llm=ScriptedModel(script)):
        run = await temporal.start("clerk")
        await pending(run)
    async with temporal.worker(clerk(post(**after)), llm=ScriptedModel(script)):
        assert [item["kind"] for item in await pending(run)] == ["approval"]
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
    assert read(await temporal.messages()) == {"c1": "post x"}
