"""Consecutive and concurrent gates of pydantic-ai calls, with rejections, edits, and questions."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from integrations.pydantic_ai.test_conversations import Script, calls, reads, says
from integrations.pydantic_ai.test_gates import decision, durability_of, shop_of
from pydantic_ai import (
    Agent,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from support.gated_runs import check_killed_everywhere

from standfast import Approval, InputError
from standfast.integrations.pydantic_ai.conversations import Turn
from standfast.stores import SQLiteStore
from standfast.stores.waits import WaitFilter
from standfast.temporal.client.clients import RunsInProcess

Decide = Callable[[SQLiteStore, Agent[Any, Any], Any, str, dict[str, Any]], Awaitable[None]]


@pytest.fixture
def store(any_store: Any) -> Any:
    """A store of each kind."""
    return any_store


def charges(*cents: int, ids: str = "c") -> ModelResponse:
    return ModelResponse(
        [ToolCallPart("charge", {"cents": n}, tool_call_id=f"{ids}{place}") for place, n in enumerate(cents)]
    )


def reads_all(messages: list[ModelMessage]) -> ModelResponse:
    """Say what was read of all calls of the conversation."""
    requests = [one for one in messages if isinstance(one, ModelRequest)]
    return says(
        json.dumps([part.content for one in requests for part in one.parts if isinstance(part, ToolReturnPart)])
    )


async def by_the_capability(
    store: SQLiteStore, agent: Agent[Any, Any], asked: Any, conversation: str, said: dict[str, Any]
) -> None:
    await durability_of(agent).decide(conversation, [said])


async def where_nothing_runs(
    store: SQLiteStore, agent: Agent[Any, Any], asked: Any, conversation: str, said: dict[str, Any]
) -> None:
    await RunsInProcess(store).decide(f"in-process:seller/{conversation}", said)


async def by_results(
    store: SQLiteStore, agent: Agent[Any, Any], asked: Any, conversation: str, said: dict[str, Any]
) -> None:
    yes = said["decision"] == "approve"
    call, verdict = said["gate"], ToolApproved(override_args=said.get("edit")) if yes else ToolDenied(said["comment"])
    metadata = {call: {"digest": said["digest"]}}
    results = DeferredToolResults(approvals={call: verdict}, answered_by={call: said["by"]}, metadata=metadata)
    await agent.run(conversation_id=conversation, deferred_tool_results=results)


@pytest.mark.parametrize(
    ("decide", "own_ids"), [(by_the_capability, True), (where_nothing_runs, False), (by_results, False)]
)
async def test_each_gate_of_a_turn_is_asked_once_and_what_people_decided_is_what_happens(
    store: SQLiteStore, decide: Decide, own_ids: bool
) -> None:
    """Two gates beside each other, then three in a row: approved, rejected, edited; all of one call's look."""
    ids = iter("abcdefg")
    steps = [(5, 5), (5,), (5,), (5,)]
    script = Script(*(charges(*cents, ids=next(ids) if own_ids else "c") for cents in steps), reads_all)
    agent, till = shop_of(store, script)
    verdicts = ["approve", "reject", "reject", "edit", "approve"]
    asked = 0
    for _ in range(20):
        run = await agent.run("Sell it.", conversation_id="order-7", run_id="sale")
        if not isinstance(run.output, DeferredToolRequests):
            break
        gate = (await durability_of(agent).pending("order-7"))[0]
        verdict = verdicts[asked]
        more = {"reject": {"decision": "reject", "comment": f"no {asked}"}, "edit": {"edit": {"cents": 4}}}
        said = decision(gate.gate, "ada", gate.digest, **more.get(verdict, {}))
        await decide(store, agent, run.output, "order-7", said)
        asked += 1
    edited = {"note": "ada changed the arguments before it ran", "arguments": {"cents": 4}, "result": 4}
    told = [5, *(f"Not run: it was rejected by ada: no {place}" for place in (1, 2)), edited, 5]
    assert (asked, till.charged, json.loads(run.output)) == (5, [5, 4, 5], told)
    again = await agent.run("Sell it.", conversation_id="order-7", run_id="sale")  # the turn that has ended
    assert (json.loads(again.output), till.charged) == (told, [5, 4, 5])
    rows = [row for row in await store.load_decisions("seller/order-7") if row.refused is None]
    assert [(row.decision, row.edit) for row in rows] == [
        ("approve", None),
        ("reject", None),
        ("reject", None),
        ("approve", {"cents": 4}),
        ("approve", None),
    ]
    assert await RunsInProcess(store).waiting(WaitFilter(namespace="default")) == []


@pytest.mark.parametrize("way", ["durable", "adapter"])
def test_a_run_that_is_killed_between_its_gates_asks_and_runs_each_call_once(tmp_path: Path, way: str) -> None:
    (folder := tmp_path / way).mkdir()
    check_killed_everywhere("integrations.pydantic_ai.gated_desk", folder)


async def test_an_approval_in_one_turn_does_not_count_for_the_same_call_in_the_next(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(charges(5), reads, charges(5), reads))
    gates = durability_of(agent)
    for turn in (1, 2):
        for attempt in range(2):
            run = await agent.run("Sell it.", conversation_id="order-7", run_id=f"sale-{turn}")
            assert isinstance(run.output, DeferredToolRequests), (turn, attempt)
        (gate,) = await gates.pending("order-7")
        assert await gates.decide("order-7", [decision(gate.gate, "ada", gate.digest)]) == ()
        run = await agent.run("Sell it.", conversation_id="order-7", run_id=f"sale-{turn}")
        assert (run.output, till.charged) == ("[5]", [5] * turn)


async def test_results_brought_again_after_a_crash_approve_no_later_call_of_the_same_id(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(charges(5), charges(5), reads_all))
    await agent.run("Sell it.", conversation_id="order-7")
    results = DeferredToolResults(approvals={"c0": True})
    second = await agent.run(conversation_id="order-7", deferred_tool_results=results)
    assert (isinstance(second.output, DeferredToolRequests), till.charged) == (True, [5])
    with pytest.raises(InputError, match=r"call id .c0. twice in this turn.*digest"):
        await agent.run(conversation_id="order-7", deferred_tool_results=results)
    assert till.charged == [5]
    results.metadata["c0"] = {"digest": second.output.metadata["c0"]["digest"]}
    done = await agent.run(conversation_id="order-7", deferred_tool_results=results)
    assert (done.output, till.charged) == ("[5, 5]", [5, 5])


async def test_gates_and_questions_of_one_turn_each_wait_and_end_once(store: SQLiteStore) -> None:
    async def ask_warehouse(item: str) -> str:
        raise CallDeferred

    script = Script(
        calls(("charge", {"cents": 5}), ("ask_warehouse", {"item": "book"})),
        calls(("ask_warehouse", {"item": "pen"})),
        calls(("charge", {"cents": 7})),
        reads_all,
    )
    agent, till = shop_of(store, script)
    agent.tool_plain(ask_warehouse)
    gates = durability_of(agent)
    seen = list[tuple[list[str], list[str]]]()
    for number in range(10):
        run = await agent.run("Sell it.", conversation_id="order-7")
        if not isinstance(run.output, DeferredToolRequests):
            break
        waiting = await gates.pending("order-7")
        seen.append(([one.gate for one in waiting], [part.tool_call_id for part in run.output.calls]))
        if waiting:
            assert await gates.decide("order-7", [decision(waiting[0].gate, "ada", waiting[0].digest)]) == ()
        elif run.output.calls:
            answers = {part.tool_call_id: f"{number} left" for part in run.output.calls}
            brought = DeferredToolResults(calls=answers)
            await agent.run(conversation_id="order-7", deferred_tool_results=brought)
    assert (json.loads(run.output), till.charged) == ([5, "1 left", "2 left", 7], [5, 7])
    assert [len(gates) for gates, _ in seen] == [1, 0, 0, 1]


async def test_a_deadline_that_ended_one_gate_does_not_open_it_again_after_the_next(store: SQLiteStore) -> None:
    agent, till = shop_of(
        store,
        Script(charges(5), charges(7), reads_all),
        lambda call: Approval(timeout=0.05 if call.arguments["cents"] == 5 else "1d"),
    )
    gates = durability_of(agent)
    await agent.run("Sell it.", conversation_id="order-7")
    while [one.arguments for one in await gates.pending("order-7")] != [{"cents": 7}]:
        await agent.run("Sell it.", conversation_id="order-7")
    (gate,) = await gates.pending("order-7")
    await gates.decide("order-7", [decision(gate.gate, "ada", gate.digest)])
    done = await agent.run("Sell it.", conversation_id="order-7")
    first, second = json.loads(done.output)
    assert ("not approved in time" in first, second, till.charged) == (True, 7, [7])


async def test_a_turn_that_another_message_ended_is_not_replayed(store: SQLiteStore) -> None:
    agent, till = shop_of(store, Script(charges(5, 7), says("Fine."), says("Never.")))
    gates = durability_of(agent)
    await agent.run("Sell it.", conversation_id="order-7", run_id="sale")
    approvals = [decision(one.gate, "ada", one.digest) for one in await gates.pending("order-7")]
    await gates.decide("order-7", approvals)
    assert (await agent.run("Leave it.", conversation_id="order-7")).output == "Fine."
    with pytest.raises(InputError, match="another message ended this turn"):
        await agent.run("Sell it.", conversation_id="order-7", run_id="sale")
    assert (till.charged, len((await agent.run(conversation_id="order-7")).all_messages())) == ([], 5)


async def test_a_gate_that_an_earlier_version_has_passed_is_not_asked_again(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keeps_none(turn: Turn, step: int, call_id: str, verdict: str) -> str:
        return verdict

    agent, till = shop_of(store, Script(charges(5, 6), charges(7), reads_all))
    gates = durability_of(agent)
    with monkeypatch.context() as earlier:
        earlier.setattr(Turn, "keep_verdict", keeps_none)
        await agent.run("Sell it.", conversation_id="order-7")
        first, second = await gates.pending("order-7")
        edited = decision(second.gate, "ada", second.digest, edit={"cents": 4})
        await gates.decide("order-7", [{**decision(first.gate, "ada", first.digest), "decision": "reject"}, edited])
        await agent.run("Sell it.", conversation_id="order-7")
    await agent.run("Sell it.", conversation_id="order-7")
    (gate,) = await gates.pending("order-7")
    assert gate.arguments == {"cents": 7}
    await gates.decide("order-7", [decision(gate.gate, "ada", gate.digest)])
    rejected, changed, paid = json.loads((await agent.run("Sell it.", conversation_id="order-7")).output)
    assert ("rejected by ada" in rejected, changed["result"], paid, till.charged) == (True, 4, 7, [4, 7])


async def test_calls_that_a_tool_makes_wait_beside_each_other(store: SQLiteStore) -> None:
    """As of code that a model has written: its calls are asked about in the step of the call that runs it."""

    async def run_code(ctx: RunContext[Any]) -> list[int]:
        assert ctx.tool_manager is not None
        made = [ToolCallPart("charge", {"cents": cents}, tool_call_id=f"code__{cents}") for cents in (5, 7)]
        return await asyncio.gather(*(ctx.tool_manager.handle_call(call) for call in made))

    agent, till = shop_of(store, Script(calls(("run_code", {})), reads_all))
    agent.tool(run_code, metadata={"safe_to_retry": True})
    gates, asked = durability_of(agent), set[str]()
    for _ in range(8):
        run = await agent.run("Sell it.", conversation_id="order-7")
        if not isinstance(run.output, DeferredToolRequests):
            break
        for one in await gates.pending("order-7"):
            asked.add(one.gate)
            await gates.decide("order-7", [decision(one.gate, "ada", one.digest)])
    assert (json.loads(run.output), sorted(till.charged)) == ([[5, 7]], [5, 7])
    assert asked >= {"code__5", "code__7"}
    assert len([row for row in await store.load_decisions("seller/order-7") if row.refused is None]) == len(asked)
