"""Gates of a run that was ended from outside: the session's next run knows the decisions."""

import pytest
from support.resets import reset
from support.temporal_runs import Run, Temporal, check_healthy, pending, result, until
from support.transcripts import error_of, tool_results
from temporalio.client import WorkflowFailureError

from integration.local.test_tool_approvals import posts, world
from integration.temporal.test_temporal_tool_approvals import TEAM
from standfast import Agent, Approval, InputError


async def terminated(handle: Run) -> None:
    await handle.terminate()
    with pytest.raises(WorkflowFailureError):
        await result(handle)


@pytest.mark.slow
async def test_only_what_is_undecided_is_asked_again(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("one", "two", "three")):
        handle = await temporal.start("a")
        await pending(handle, 3)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", edit={"text": "ONE"})
        await temporal.people.decide(handle.id, "c2", "reject", by="ada", comment="no")
        await terminated(handle)
        again = await temporal.start("a", None)
        assert [item["name"] for item in await pending(again)] == ["c3"]
        assert posted == []
        await temporal.people.decide(again.id, "c3", "approve", by="bob")
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    assert posted == ["ONE", "three"]
    assert error_of(tool_results(await temporal.messages())[1]) == "Not run: it was rejected by ada: no"


async def test_of_several_who_must_approve_those_who_have_need_not_again(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        for _ in range(2):
            await terminated(handle)
            handle = await temporal.start("a", None)
            await until(lambda: _approved_by_ada(handle))  # noqa: B023
        with pytest.raises(InputError, match="ada has approved it already"):
            await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        assert (await result(handle))["status"] == "complete"
    assert posted == ["hi"]


async def _approved_by_ada(handle: Run) -> bool:
    (item,) = await pending(handle)
    return bool(item["approved_by"] == ["ada"])


async def test_a_run_that_took_gates_over_can_be_reset_to_its_start(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
        await terminated(handle)
        handle = await temporal.start("a", None)
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        ended = await result(handle)
        handle = await reset(temporal, handle, 0)
        assert (await result(handle))["response"] == ended["response"]
        await check_healthy(handle)
    assert posted == ["hi"]
