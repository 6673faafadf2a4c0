"""Tools that need approval, on Temporal: their gates when the run is moved, interrupted, or attacked."""

import asyncio
from typing import Any

import pytest
from support.looking import run
from support.resets import resets
from support.temporal_runs import (
    Run,
    Temporal,
    chain,
    check_healthy,
    continue_after,
    failure,
    pending,
    result,
    until,
    wedges,
)
from support.transcripts import asks_for, call, error_of, kind_of, tool_results
from temporalio.client import WorkflowFailureError

from integration.local.test_tool_approvals import approve, posts, reject, world
from integration.temporal.test_temporal_tool_approvals import TEAM, at_gate
from standfast import (
    Agent,
    AgentContext,
    Approval,
    InputError,
    SessionConflictError,
    ToolCall,
    assert_complete,
    is_interrupted,
    tool,
)
from standfast.temporal import StandfastClient
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


async def test_a_run_that_is_cancelled_at_a_gate_answers_its_calls(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("one", "two")):
        handle = await temporal.start("a")
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        await check_healthy(handle)
    assert posted == []
    one, two = tool_results(await temporal.messages())
    assert error_of(one) == "Not run: the run was cancelled before people had decided"
    assert error_of(two) == "Not run: the run was cancelled before this call started"


async def test_a_gate_outlives_its_worker(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
    given = {"gate": "c1", "by": "ada", "edit": {"text": "ho"}, "digest": item["digest"]}
    await handle.signal("approve", given)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["ho"]


@pytest.mark.slow
async def test_a_run_that_grows_long_at_a_gate_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 60)
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("one", "two")):
        handle = await temporal.start("a")
        edit = {"text": "ONE"}
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada", edit=edit)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada")
        await temporal.people.decide(handle.id, "c2", "approve", by="bob")
        for number in range(40):
            await handle.signal("reject", {"gate": "c1", "by": f"nobody {number}"})

        async def moved() -> bool:
            return (await temporal.client.get_workflow_handle(handle.id).describe()).run_id != handle.result_run_id

        await until(moved)
        latest: Run = temporal.client.get_workflow_handle(handle.id)
        (left,) = await pending(latest)
        assert (left["name"], left["approved_by"], left["arguments"]) == ("c1", ["ada"], edit)
        with pytest.raises(InputError, match="gate c2 was approved already"):
            await temporal.people.decide(handle.id, "c2", "reject", by="ada")
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        assert (await result(handle))["status"] == "complete"
        assert not [failed for one in await chain(temporal.client, handle) for failed in wedges(one)]
    assert posted == ["ONE", "two"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("most", [0, 6, 12, 18, 24, 30])
async def test_no_approval_is_lost_when_a_run_continues_as_new_amid_exports(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    continue_after(monkeypatch, most)
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts("hi")):
        handle = await temporal.start("a")
        (item,) = await pending(handle)
        latest: Run = temporal.client.get_workflow_handle(handle.id)
        people = temporal.people

        async def meanwhile() -> None:
            for number in range(6):
                await asyncio.gather(
                    people.export(handle.id), latest.signal("reject", {"gate": "c1", "by": f"nobody {number}"}),
                    return_exceptions=True,
                )  # fmt: skip

        async def ada() -> None:
            await people.decide(handle.id, "c1", "approve", by="ada", digest=item["digest"])

        await asyncio.gather(meanwhile(), ada())

        async def kept() -> bool:
            return [item["approved_by"] for item in await pending(latest)] == [["ada"]]

        await until(kept)
        exported = await people.export(handle.id)
        assert exported.questions is not None
        assert [one["by"] for one in (exported.questions[0].gate or {})["approvals"]] == ["ada"]
        await until(kept)  # the run may have gone on as new with the export
        await people.decide(handle.id, "c1", "approve", by="bob", digest=item["digest"])
        assert (await result(latest))["status"] == "complete"
    assert posted == ["hi"]


async def test_large_edits_and_comments_end_no_run(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada"]))
    async with temporal.worker(Agent("a", tools=[post]), llm=posts(*"123456789")):
        handle = await temporal.start("a")
        await pending(handle, 9)
        for number in range(1, 9):
            edit = {"text": str(number) * 220_000}
            await temporal.people.decide(handle.id, f"c{number}", "approve", by="ada", edit=edit)
        with pytest.raises(InputError, match="comment: String should have at most 4096 characters"):
            await temporal.people.decide(handle.id, "c9", "reject", by="ada", comment="x" * 240_000)
        with pytest.raises(InputError, match="more than 1,048,576"):
            await temporal.people.export(handle.id)
        await temporal.people.decide(handle.id, "c9", "reject", by="ada", comment="x" * 4_000)
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert [len(text) for text in posted] == [220_000] * 8


async def test_names_of_groups_that_are_too_long_for_a_search_end_no_run(temporal: Temporal) -> None:
    _, post = world(lambda call: Approval(approvers=["g"], groups={"g": ["x" * 300]}))
    many = [f"{number}-" + "x" * 250 for number in range(20)]
    _, wide = world(lambda call: Approval(approvers=many, groups={group: ["ada"] for group in many}))
    async with temporal.worker(Agent("a", tools=[post]), Agent("b", tools=[]), llm=posts("hi")):
        handle = await temporal.start("a")
        assert (await result(handle))["status"] == "complete"
    assert "at most 256 characters" in error_of(tool_results(await temporal.messages())[0])
    async with (await temporal.elsewhere()).worker(Agent("c", tools=[wide]), llm=posts("hi")):
        handle = await temporal.start("c", session="wide")
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        assert (await result(handle))["status"] == "complete"


@pytest.mark.parametrize(
    "damage", [{"gate": {}}, {"gate": {"name": "zz"}}, {"since": "2026-01-01"}, {"rule": {"remind_every": 1e-9}}],
    ids=["empty", "name", "time zone", "reminder"],
)  # fmt: skip
async def test_a_checkpoint_with_a_damaged_gate_fails_its_run(temporal: Temporal, damage: dict[str, Any]) -> None:
    _, post = world(TEAM)
    agent = Agent("a", tools=[post])
    waiting = await run(agent, message="go", llm=posts("hi"))
    assert is_interrupted(waiting)
    given = waiting.checkpoint.model_dump(mode="json")
    gate = given["questions"][0]["gate"]
    given["questions"][0]["gate"] = damage.get("gate", {**gate, **damage})
    async with temporal.worker(agent, llm=posts()):
        handle = await temporal.start("a", None, checkpoint=given)
        if damage == {"rule": {"remind_every": 1e-9}}:  # in range, and never more often than ten times a second
            await pending(handle)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await result(handle)
        else:
            assert "the checkpoint has a gate that cannot be used" in (await failure(handle)).message
        await check_healthy(handle)


async def test_a_session_that_waits_on_temporal_is_not_decided_on_in_process(temporal: Temporal) -> None:
    async with at_gate(temporal) as (handle, posted):
        agent = Agent("a", tools=[world(TEAM)[1]])
        given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts()}
        tries: list[dict[str, Any]] = [{"message": "hello"}, {"decisions": [approve(by="ada")]}, {}]
        for try_ in tries:
            with pytest.raises(SessionConflictError, match=f"has a run in flight on Temporal: workflow {handle.id}"):
                await run(agent, **try_, **given)
        assert posted == []


# --- the other driver ---


async def test_a_run_is_exported_at_its_gate_and_continues_in_process(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    agent = Agent("a", tools=[post])
    key: Any = {"checkpoint_key": "a key of the tests"}
    async with temporal.worker(agent, llm=posts("one", "two"), **key):
        handle = await temporal.start("a")
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada", edit={"text": "TWO"})
        checkpoint = await temporal.people.export(handle.id)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
    waiting = await run(agent, checkpoint=checkpoint, llm=ScriptedModel(["done"]), **key)
    assert is_interrupted(waiting)
    assert [item.gate for item in waiting.approvals] == ["c1"]
    decided: Any = {"decisions": [approve(by="bob")], **key}
    ended = await run(agent, checkpoint=waiting.checkpoint, llm=ScriptedModel(["done"]), **decided)
    assert assert_complete(ended).status == "complete"
    assert posted == ["one", "TWO"]


async def test_a_session_that_waits_in_process_continues_on_temporal(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    agent = Agent("a", tools=[post])
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("one", "two", "three")}
    await run(agent, message="go", **given)
    edit = {"text": "TWO"}
    decisions = [approve("c1", by="ada"), reject("c3", by="ada", comment="no"), approve("c2", by="ada", edit=edit)]
    await run(agent, decisions=decisions, **given)
    await run(agent, decisions=[approve("c2", by="bob")], **given)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start("a", message=None)
        (left,) = await pending(handle)
        assert (left["name"], left["approved_by"], left["arguments"]) == ("c1", ["ada"], {"text": "one", "times": 1})
        await temporal.people.decide(handle.id, "c1", "approve", by="bob")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["one", "TWO"]
    assert error_of(tool_results(await temporal.messages())[2]) == "Not run: it was rejected by ada: no"


async def test_what_was_decided_where_nothing_ran_counts_for_the_run_on_temporal_that_takes_over(
    temporal: Temporal,
) -> None:
    posted, post = world(Approval(approvers=["ada"]))
    agent = Agent("a", tools=[post], access={"approve": lambda user: user != "cy"})
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("one", "two")}
    await run(agent, message="go", **given)
    where = f"in-process:a/{temporal.session()}"
    people = StandfastClient(temporal.client, store=temporal.store)
    one, two = sorted(await people.pending(where), key=lambda item: str(item["name"]))
    await people.decide(where, "c1", "approve", by="ada", digest=one["digest"], edit={"text": "ONE"})
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start("a", message=None)
        (left,) = await pending(handle)
        assert left["name"] == "c2"
        assert await people.pending(where) == []  # it is on the workflow's board
        with pytest.raises(SessionConflictError, match="in flight on Temporal"):
            await people.decide(where, "c2", "approve", by="ada", digest=two["digest"])
        await temporal.people.decide(handle.id, "c2", "reject", by="ada")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["ONE"]


async def test_a_call_that_was_approved_where_nothing_ran_runs_once_on_temporal_that_takes_over(
    temporal: Temporal,
) -> None:
    posted, post = world(Approval(approvers=["ada"]))
    agent = Agent("a", tools=[post])
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("one")}
    await run(agent, message="go", **given)
    where = f"in-process:a/{temporal.session()}"
    people = StandfastClient(temporal.client, store=temporal.store)
    (one,) = await people.pending(where)
    await people.decide(where, "c1", "approve", by="ada", digest=one["digest"], edit={"text": "ONE"})
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start("a", message=None)
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
        async for again in resets(temporal, handle):
            assert (await result(again))["status"] == "complete"
    assert posted == ["ONE"]


async def test_what_somebody_changed_where_nothing_ran_is_put_to_guardrails_when_temporal_takes_over(
    temporal: Temporal,
) -> None:
    posted, post = world(Approval(approvers=["ada"]))

    def no_spam(ctx: AgentContext, asked: ToolCall) -> str | None:
        assert isinstance(asked.arguments, dict)
        return "spam" if ctx.deps == "strict" and asked.arguments["text"] == "BUY" else None

    agent = Agent("a", tools=[post], tool_guardrails=[no_spam], deps=lambda ctx: "strict")
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("one", "two")}
    await run(agent, message="go", **given)
    where = f"in-process:a/{temporal.session()}"
    people = StandfastClient(temporal.client, store=temporal.store)
    one, _ = sorted(await people.pending(where), key=lambda item: str(item["name"]))
    await people.decide(where, "c1", "approve", by="ada", digest=one["digest"], edit={"text": "BUY"})
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start("a", message=None)
        assert [item["name"] for item in await pending(handle, 2)] == ["c1", "c2"]
        await temporal.people.decide(handle.id, "c1", "approve", by="ada")
        await temporal.people.decide(handle.id, "c2", "reject", by="ada")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["one"]
    rows = await temporal.store.load_decisions(f"a/{temporal.session()}")
    assert [row.refused for row in rows] == [
        None,
        "gate c1: edit: the guardrail no_spam refuses these arguments: spam",
    ]


async def test_a_gate_that_temporal_took_over_is_not_open_in_process_any_more(temporal: Temporal) -> None:
    """Else the call could be approved on Temporal and, when that run is terminated while it runs, once more here."""
    started = asyncio.Event()
    posted: list[str] = []

    @tool(approval=Approval())
    async def post(text: str) -> str:
        """Post."""
        posted.append(text)
        started.set()
        await asyncio.sleep(60)
        return "posted"

    agent = Agent("a", tools=[post])
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("hi")}
    await run(agent, message="go", **given)
    async with temporal.worker(agent, llm=posts()):
        handle = await temporal.start("a", message=None)
        await pending(handle)
        await temporal.people.decide(handle.id, "c1", "approve")
        await started.wait()
        await handle.terminate()
    with pytest.raises(InputError, match="If that run is gone, start the session on Temporal again"):
        await run(agent, **given)
    async with (await temporal.elsewhere()).worker(agent, llm=ScriptedModel(["done"])):
        again = await temporal.start("a", message=None)
        assert (await result(again))["status"] == "complete"
    assert kind_of(await temporal.messages(), "c1") == "tool-durability-error"
    assert posted == ["hi"]


async def test_a_run_that_was_terminated_at_its_gate_is_not_run_without_approval(temporal: Temporal) -> None:
    posted, post = world(TEAM)
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("post", "c1", text="hi")), "done"])):
        handle = await temporal.start("a")
        await pending(handle)
        await handle.terminate()
        again = await temporal.start("a", message=None)
        await pending(again)  # people decide again
        assert posted == []
        await temporal.people.decide(again.id, "c1", "approve", by="ada")
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    assert posted == ["hi"]


async def test_a_session_that_a_workflow_took_over_is_not_decided_on_in_process(temporal: Temporal) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("hi")}
    await run(agent, message="go", **given)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start("a", message=None)
        await pending(handle)
        for options in ({}, {"message": "hello"}, {"decisions": [approve()]}):
            with pytest.raises(SessionConflictError, match=f"has a run in flight on Temporal: workflow {handle.id}"):
                await run(agent, **options, **given)  # type: ignore[arg-type]
        await temporal.people.decide(handle.id, "c1", "approve")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["hi"]


async def test_a_gate_on_temporal_is_not_decided_on_in_process_while_no_worker_lives(temporal: Temporal) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        handle = await temporal.start("a")
        await pending(handle)
    given: Any = {"store": temporal.store, "session_id": temporal.session(), "llm": posts("hi")}
    with pytest.raises(InputError, match=f"waits for approval of call c1 in the workflow {handle.id}"):
        await run(agent, decisions=[approve()], **given)
    assert posted == []
