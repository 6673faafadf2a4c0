"""Messages sent by our client: each counts once, its sender learns the truth, and no query wedges the run."""

import asyncio
from functools import partial
from typing import Any

import pytest
from support.temporal_runs import (
    Run,
    Temporal,
    check_healthy,
    events,
    pending,
    question,
    refusals,
    result,
    until,
)
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.common import RawValue

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval
from standfast.errors import InputError, NotConfirmedError
from standfast.temporal.client.runs.descriptions import cancel_run, looked_at
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel

ADA = Approval(approvers=["ada"])


async def counted(temporal: Temporal, handle: Run) -> list[bool]:
    """Return of the decisions in the audit trail whether they counted."""
    key = (await handle.query("status"))["journal_key"]
    return [record.refused is None for record in await temporal.store.load_decisions(key)]


async def test_a_sender_without_an_answer_sends_the_same_again_and_it_counts_once(temporal: Temporal) -> None:
    posted, post = world(ADA)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    with pytest.raises(NotConfirmedError, match="check the run before") as unsure:
        await temporal.people_who_wait(0.5).decide(handle.id, "c1", "approve", by="ada", digest=item["digest"])
    decide = partial(temporal.people.decide, handle.id, "c1", "approve", by="ada", digest=item["digest"])
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        await decide(id=unsure.value.id)
        assert (await result(handle))["status"] == "complete"
        await decide(id=unsure.value.id)  # also later
        with pytest.raises(InputError, match="has ended"):
            await decide()
        assert posted == ["hi"]
        assert await counted(temporal, handle) == [True]


async def test_what_came_too_late_for_a_run_that_was_cut_off_does_not_count(temporal: Temporal) -> None:
    _, post = world(ADA)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    await handle.signal("message", RawValue(Payload(metadata={"encoding": b"json/plain"}, data=b"{nonsense")))
    sending = [
        asyncio.create_task(temporal.people.decide(handle.id, "c1", "approve", by="ada", digest=item["digest"])),
        asyncio.create_task(temporal.people.message(handle.id, "hello")),
    ]

    async def have_arrived() -> bool:
        kinds = [event.event_type for event in await events(handle)]
        return kinds.count(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED) == 3

    await until(have_arrived)
    await handle.terminate()
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel([])):
        for task in sending:
            with pytest.raises(InputError, match=r"ended before it took `.*`: it does not count"):
                await task


async def test_what_a_run_refuses_is_told_to_its_sender_alone_and_of_decisions_to_all(temporal: Temporal) -> None:
    async with question(temporal) as handle:
        with pytest.raises(InputError, match="the run is not paused"):
            await temporal.people.resume(handle.id)
        with pytest.raises(InputError, match="call c9 does not ask anything"):
            await temporal.people.answer(handle.id, "x", tool_call_id="c9")
        with pytest.raises(InputError, match="no gate c9 is open"):
            await temporal.people.decide(handle.id, "c9", "approve", by="ada")
        with pytest.raises(InputError, match="call c9 does not wait for it"):
            await temporal.people.resolve(handle.id, "c9", "leave")
        assert await refusals(handle) == ["approve: no gate c9 is open; open: none"]


@pytest.mark.slow
async def test_what_is_known_of_a_signal_is_known_when_the_run_has_gone_on_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 60)
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", id="of-ada")
        for number in range(30):  # in vain, and each grows the history
            with pytest.raises(InputError, match="nobody"):
                await temporal.people.decide(handle.id, "c1", "approve", by=f"nobody {number}")
        latest: Run = temporal.client.get_workflow_handle(handle.id)
        assert (await latest.describe()).run_id != handle.result_run_id
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", id="of-ada")  # is not a second one
        with pytest.raises(InputError, match="ada"):
            await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(latest)
    assert posted == ["hi"]


async def test_nothing_that_our_client_sends_is_an_update(temporal: Temporal) -> None:
    async with question(temporal) as handle:
        await asyncio.gather(*(temporal.people.message(handle.id, f"message {number}") for number in range(20)))
        exported = await temporal.people.export(handle.id)
        assert exported.pending_tool_use_id == "c1"
        await temporal.people.answer(handle.id, "Ada")
        kinds = {event.event_type for event in await events(handle)}
        assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED not in kinds


async def test_a_run_that_was_not_asked_for_the_outcome_of_a_signal_knows_none(temporal: Temporal) -> None:
    async with question(temporal) as handle:
        for asked in ("unknown", "", None, 5, {"id": []}):
            assert await handle.query("standfast.outcome", asked) is None
        assert await handle.query("standfast.outcome") is None
        await handle.signal("export", {"id": "e"})
        await until(lambda: _outcome(handle, "e"))


async def _outcome(handle: Run, sent: str) -> Any:
    return await handle.query("standfast.outcome", sent)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("odd", ["", "x" * 201, 5, [], {}, True, "a\nb"])
async def test_a_signal_with_an_odd_id_is_refused_and_wedges_nothing(temporal: Temporal, odd: Any) -> None:
    async with question(temporal) as handle:
        for signal in ("approve", "reject", "answer", "message", "resume", "resolve", "export"):
            await handle.signal(signal, {"id": odd, "text": "x", "gate": "c1"})
        assert len([one for one in await refusals(handle) if one.startswith("id must be text")]) == 7


async def test_what_another_program_runs_is_left_alone(temporal: Temporal) -> None:
    """A cancel reached the workflow of a payroll."""
    foreign: Run = await temporal.client.start_workflow("payroll", id=f"payroll/{temporal.name}", task_queue="others")
    people = temporal.people
    refused = await asyncio.gather(
        people.decide(foreign.id, "pay", "approve", digest=None),  # they have nothing to look at first
        people.answer(foreign.id, "yes"),
        people.message(foreign.id, "hello"),
        people.resume(foreign.id),
        people.resolve(foreign.id, "c1", "leave"),
        people.export(foreign.id),
        cancel_run(temporal.client, foreign.id),
        looked_at(temporal.client, foreign.id),
        return_exceptions=True,
    )
    assert all(isinstance(one, InputError) for one in refused), refused
    assert {"of type payroll, is not known as a standfast run" in str(one) for one in refused} == {True}
    kinds = {event.event_type for event in await events(foreign)}
    assert kinds == {EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED}
    await foreign.terminate()
