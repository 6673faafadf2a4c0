"""Waiting pydantic-ai calls: gates with approvers, deadlines and digests, decided in either way."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from integrations.pydantic_ai.test_conversations import Power, Script, Till, agent_of, calls, reads, says
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    Tool,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.exceptions import UserError

from standfast import Approval, InputError, SessionAccessDeniedError
from standfast.integrations.pydantic_ai import StandfastDurability
from standfast.stores import SQLiteStore
from standfast.temporal.client.clients import RunsInProcess

TWO = calls(("charge", {"cents": 5}), ("charge", {"cents": 7}))
BOTH = [str, DeferredToolRequests]


@pytest.fixture
def store(any_store: Any) -> Any:
    """A store of each kind."""
    return any_store


def shop_of(store: SQLiteStore, script: Script, approval: Any = None, **options: Any) -> tuple[Agent[Any, Any], Till]:
    till = Till()
    agent = agent_of(
        store,
        script,
        Tool(till.charge, requires_approval=True),
        output_type=options.pop("output_type", BOTH),
        approval=approval,
        **options,
    )
    return agent, till


def durability_of(agent: Agent[Any, Any]) -> StandfastDurability:
    found = StandfastDurability.from_agent(agent)
    assert found is not None
    return found


async def test_a_call_waits_until_standfasts_decision_and_the_same_run_continues(store: SQLiteStore) -> None:
    agent, till = shop_of(
        store,
        Script(TWO, reads),
        Approval(message=lambda call: f"Charge {call.arguments['cents']}?", approvers=["ada", "bob"], timeout="2d"),
    )
    for _ in range(2):  # the second as after a crash: the same still waits
        result = await agent.run("Sell it.", conversation_id="order-7")
        assert isinstance(result.output, DeferredToolRequests)
        assert [part.tool_call_id for part in result.output.approvals] == ["c0", "c1"]
    gates = durability_of(agent)
    first, second = await gates.pending("order-7")
    assert (first.message, first.approvers, first.arguments) == ("Charge 5?", ("ada", "bob"), {"cents": 5})
    assert first.deadline is not None
    assert first.deadline - first.since == timedelta(days=2)
    assert result.output.metadata["c0"]["digest"] == first.digest
    with pytest.raises(InputError, match="mallory may not decide it"):
        await gates.decide("order-7", [decision("c0", "mallory", first.digest)])
    with pytest.raises(InputError, match="has changed"):
        await gates.decide("order-7", [decision("c0", "ada", second.digest)])
    assert [one.gate for one in await gates.decide("order-7", [decision("c0", "ada", first.digest)])] == ["c1"]
    assert isinstance((await agent.run("Sell it.", conversation_id="order-7")).output, DeferredToolRequests)
    assert till.charged == []  # nothing of the turn runs before all is decided
    refusal = {**decision("c1", "bob", second.digest), "decision": "reject", "comment": "too much"}
    assert await gates.decide("order-7", [refusal]) == ()
    result = await agent.run("Sell it.", conversation_id="order-7")
    assert (json.loads(result.output), till.charged) == ([5, "Not run: it was rejected by bob: too much"], [5])
    rows = await store.load_decisions("seller/order-7")
    assert [(row.gate, row.by, row.refused is None) for row in rows] == [
        ("c0", "mallory", False),
        ("c0", "ada", False),
        ("c0", "ada", True),
        ("c1", "bob", True),
    ]
    assert await gates.pending("order-7") == ()
    with pytest.raises(InputError, match="does not wait for anyone"):
        await gates.decide("order-7", [refusal])


async def test_people_find_a_call_that_waits_under_the_name_that_its_agent_has(store: SQLiteStore) -> None:
    agent, till = shop_of(
        store, Script(calls(("charge", {"cents": 5})), reads), Approval(message="Charge?"), name="my_clerk"
    )
    await agent.run("Sell it.", conversation_id="inv_3")
    people = RunsInProcess(store)
    (waits,) = await people.pending("in-process:my_clerk/inv_3")
    await people.decide("in-process:my_clerk/inv_3", decision(waits["name"], "ada", waits["digest"]))
    assert ((await agent.run("Sell it.", conversation_id="inv_3")).output, till.charged) == ("[5]", [5])


def decision(gate: str, by: str, digest: str, **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": "approve", "by": by, "digest": digest, **more}


async def test_pydantic_ais_own_results_are_decisions_too_and_recorded_once(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(TWO, Power(), reads))
    asked = await agent.run("Sell it.", conversation_id="order-7")
    results = DeferredToolResults(
        approvals={"c0": ToolApproved(override_args={"cents": 4}), "c1": ToolDenied("no")},
        answered_by={"c0": "ada", "c1": "bob"},
    )
    with pytest.raises(Power):
        await agent.run(message_history=asked.all_messages(), deferred_tool_results=results, conversation_id="order-7")
    result = await agent.run(conversation_id="order-7")  # the decisions are in the store
    read = json.loads(result.output)
    assert read[0] == {"note": "ada changed the arguments before it ran", "arguments": {"cents": 4}, "result": 4}
    assert read[1] == "Not run: it was rejected by bob: no"
    assert till.charged == [4]
    assert [row.by for row in await store.load_decisions("seller/order-7")] == ["ada", "bob"]


async def test_edited_arguments_are_validated_by_the_tools_schema(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(calls(("charge", {"cents": 5})), reads))
    await agent.run("Sell it.", conversation_id="order-7")
    gates = durability_of(agent)
    (one,) = await gates.pending("order-7")
    for edit in ({"cents": "many"}, {"cents": 5, "tip": 1}, {}):
        with pytest.raises(InputError, match="edit"):
            await gates.decide("order-7", [decision("c0", "ada", one.digest, edit=edit)])
    await gates.decide("order-7", [decision("c0", "ada", one.digest, edit={"cents": 4})])
    await agent.run("Sell it.", conversation_id="order-7")
    assert till.charged == [4]


async def test_a_deadline_ends_a_gate_and_the_model_is_told(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(calls(("charge", {"cents": 5})), reads), Approval(timeout=0.2))
    asked = await agent.run("Sell it.", conversation_id="order-7")
    deadline = datetime.fromisoformat(asked.output.metadata["c0"]["deadline"])
    while datetime.now(UTC) <= deadline:
        await asyncio.sleep(0.05)
    result = await agent.run("Sell it.", conversation_id="order-7")
    assert "Approval timed out" in result.output
    assert till.charged == []


async def test_a_person_who_asked_cannot_approve_where_that_is_excluded(store: SQLiteStore) -> None:
    rule = Approval(approvers=["ada", "bob"], exclude_requester=True)
    agent, till = shop_of(store, Script(calls(("charge", {"cents": 5})), reads), rule, user_id=lambda ctx: "ada")
    await agent.run("Sell it.", conversation_id="order-7")
    gates = durability_of(agent)
    with pytest.raises(SessionAccessDeniedError):
        await gates.pending("order-7")
    (one,) = await gates.pending("order-7", user_id="ada")
    with pytest.raises(InputError, match="has asked for it"):
        await gates.decide("order-7", [decision("c0", "ada", one.digest)], user_id="ada")
    await gates.decide("order-7", [decision("c0", "bob", one.digest)], user_id="ada")
    assert (await agent.run(conversation_id="order-7")).output == "[5]"
    assert till.charged == [5]


async def test_a_tool_that_asks_on_its_own_runs_once_with_what_was_approved(store: SQLiteStore) -> None:
    runs = list[tuple[int, bool]]()

    async def charge(ctx: RunContext[Any], cents: int) -> int:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "it is much"})
        runs.append((cents, ctx.tool_call_approved))
        return cents

    agent = agent_of(store, Script(calls(("charge", {"cents": 5})), Power(), reads), charge, output_type=BOTH)
    asked = await agent.run("Sell it.", conversation_id="order-7")
    assert asked.output.metadata["c0"]["why"] == "it is much"
    results = DeferredToolResults(approvals={"c0": ToolApproved(override_args={"cents": 4})})
    for _ in range(2):
        try:
            result = await agent.run(deferred_tool_results=results, conversation_id="order-7")
        except Power:
            continue
    assert ('"result": 4' in result.output, runs) == (True, [(4, True)])


async def test_a_result_that_somebody_brings_is_kept_and_the_first_one_stays(store: SQLiteStore) -> None:
    async def ask_warehouse(item: str) -> str:
        raise CallDeferred

    script = Script(calls(("ask_warehouse", {"item": "book"})), Power(), reads)
    agent = agent_of(store, script, ask_warehouse, output_type=BOTH)
    asked = await agent.run("Sell it.", conversation_id="order-7")
    assert [part.tool_call_id for part in asked.output.calls] == ["c0"]
    with pytest.raises(InputError, match="no waiting call 'c9'"):
        await agent.run(deferred_tool_results=DeferredToolResults(calls={"c9": 1}), conversation_id="order-7")
    with pytest.raises(Power):
        await agent.run(deferred_tool_results=DeferredToolResults(calls={"c0": [3, "left"]}), conversation_id="order-7")
    result = await agent.run(deferred_tool_results=DeferredToolResults(calls={"c0": 9}), conversation_id="order-7")
    assert result.output == '[[3, "left"]]'


async def test_what_comes_with_an_approval_reaches_the_tool_in_a_later_run_too(store: SQLiteStore) -> None:
    seen: dict[int, list[Any]] = {5: [], 7: []}
    kept = {"role": "cashier", "on": "2026-01-01T00:00:00Z"}

    async def pay(ctx: RunContext[Any], cents: int) -> int:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        seen[cents].append(ctx.tool_call_metadata)
        if cents == 5 and len(seen[5]) == 1:  # not the first of both: they run at once, in either order
            raise Power
        return cents

    agent = agent_of(store, Script(calls(("pay", {"cents": 5}), ("pay", {"cents": 7})), reads), output_type=BOTH)
    agent.tool(metadata={"safe_to_retry": True})(pay)
    await agent.run("Pay it.", conversation_id="order-7")
    with pytest.raises(InputError, match=r"metadata must be JSON"):
        await agent.run(
            conversation_id="order-7",
            deferred_tool_results=DeferredToolResults(approvals={"c0": True}, metadata={"c0": {"bad": object()}}),
        )
    with pytest.raises(InputError, match="has changed"):  # the decision in the same request does not count either
        await agent.run(
            conversation_id="order-7",
            deferred_tool_results=DeferredToolResults(approvals={"c0": True}, metadata={"c0": {"digest": "other"}}),
        )
    given = {"role": "cashier", "on": datetime(2026, 1, 1, tzinfo=UTC)}
    first = DeferredToolResults(approvals={"c0": True}, metadata={"c0": given})
    asked = await agent.run(conversation_id="order-7", deferred_tool_results=first)
    assert isinstance(asked.output, DeferredToolRequests)
    with pytest.raises(Power):
        await agent.run(
            conversation_id="order-7", deferred_tool_results=DeferredToolResults(approvals={"c1": ToolApproved()})
        )
    result = await agent.run("Pay it.", conversation_id="order-7")
    assert (result.output, seen[5], set(seen[7])) == ("[5, 7]", [kept, kept], {None})


async def test_results_are_refused_where_nothing_waits_for_them(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(says("Hello."), says("Bye.")))
    await agent.run("Hello.", conversation_id="order-7")
    for results, problem in (
        (DeferredToolResults(approvals={"c0": True}), "Conversation order-7 does not wait for anyone"),
        (DeferredToolResults(calls={"c0": 1}), "Conversation order-7 has no waiting call 'c0'"),
    ):
        with pytest.raises(InputError, match=problem):
            await agent.run(conversation_id="order-7", deferred_tool_results=results)
    assert (await agent.run("Bye.", conversation_id="order-7")).output == "Bye."
    assert till.charged == []


async def test_an_agent_without_deferred_outputs_waits_too(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(calls(("charge", {"cents": 5})), reads), output_type=str)
    with pytest.raises(UserError, match="DeferredToolRequests"):
        await agent.run("Sell it.", conversation_id="order-7")
    gates = durability_of(agent)
    (one,) = await gates.pending("order-7")
    await gates.decide("order-7", [decision("c0", "ada", one.digest)])
    assert (await agent.run("Sell it.", conversation_id="order-7")).output == "[5]"
    assert till.charged == [5]


async def test_another_message_lets_nothing_run_that_waits(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(calls(("charge", {"cents": 5})), says("Fine.")))
    await agent.run("Sell it.", conversation_id="order-7")
    assert (await agent.run("Leave it.", conversation_id="order-7")).output == "Fine."
    assert (till.charged, await durability_of(agent).pending("order-7")) == ([], ())


async def test_a_standing_approval_lets_later_calls_pass(store: SQLiteStore) -> None:
    one_call = calls(("charge", {"cents": 5}))
    agent, till = shop_of(
        store, Script(one_call, reads, one_call, reads), Approval(approvers=["ada"], remember="session")
    )
    await agent.run("Sell it.", conversation_id="order-7")
    gates = durability_of(agent)
    (one,) = await gates.pending("order-7")
    wish = {"scope": "session", "until": "7d"}
    await gates.decide("order-7", [decision("c0", "ada", one.digest, remember=wish)])
    await agent.run("Sell it.", conversation_id="order-7")
    assert (await agent.run("Once more.", conversation_id="order-7")).output == "[5]"
    assert till.charged == [5, 5]
