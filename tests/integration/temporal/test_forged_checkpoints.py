"""A forged checkpoint lets nothing pass: its gates are opened again, or its signature is missing."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.temporal_runs import Temporal, check_healthy, failure, pending, result
from temporalio.client import WorkflowFailureError

from integration.local.test_tool_approvals import approve, posts, reject, world
from integration.local.test_tool_approvals_in_process import waits
from standfast import Agent, Approval, InputError, assert_complete, is_interrupted, resume, run, sqlite_store
from standfast.stores import SQLiteStore
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel

KEY: dict[str, Any] = {"checkpoint_key": "a key of the tests"}
YEARS_AGO = (datetime.now(UTC) - timedelta(days=3_000)).isoformat()
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).isoformat()
BOSS = {"gate": "c1", "decision": "approve", "by": "boss"}

FORGED: dict[str, Mapping[str, Any]] = {
    "approved": {"status": "approved", "approvals": [BOSS]},
    "approved by nobody": {"status": "approved"},
    "half approved": {"approvals": [BOSS]},
    "others may approve": {"rule": {"users": ["mallory"]}},
    "anybody may approve": {"rule": {}},
    "time approves": {"rule": {"users": ["boss"], "timeout": 1.0, "on_timeout": "approve"}, "since": YESTERDAY},
    "escalates to mallory": {
        "rule": {"timeout": 1.0, "on_timeout": "escalate", "escalate_to": {"users": ["mallory"]}},
        "since": YESTERDAY,
    },
}


def forge(checkpoint: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with another gate."""
    plain: dict[str, Any] = checkpoint.model_dump(mode="json")
    plain["questions"][0]["gate"] |= changes
    return plain


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED.keys())
async def test_what_is_written_into_the_gate_of_a_checkpoint_pays_nobody(changes: Mapping[str, Any]) -> None:
    posted, post = world(Approval(approvers=["boss"]))
    agent = Agent("a", tools=[post])
    given = forge((await waits(agent, posts("hi"))).checkpoint, changes)
    again = await run(agent, checkpoint=given, llm=posts())
    assert is_interrupted(again)
    assert (again.approvals[0].approvers, again.approvals[0].approved_by) == (("boss",), ())
    with pytest.raises(InputError, match=r"mallory may not decide it|has changed"):
        await resume(agent, given, llm=posts(), decisions=[approve(by="mallory")])
    assert posted == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED.keys())
async def test_what_is_written_into_an_imported_gate_pays_nobody_on_temporal(
    temporal: Temporal, changes: Mapping[str, Any]
) -> None:
    posted, post = world(Approval(approvers=["boss"]))
    agent = Agent("a", tools=[post])
    given = forge((await waits(agent, posts("hi"))).checkpoint, changes)
    async with temporal.worker(agent, llm=ScriptedModel(["done"])):
        handle = await temporal.start(agent, None, checkpoint=given)
        (item,) = await pending(handle)
        assert (item["approvers"], item.get("approved_by", []), posted) == (["boss"], [], [])
        with pytest.raises(InputError, match="mallory may not decide it"):
            await temporal.people.decide(handle.id, "c1", "approve", by="mallory")
        await temporal.people.decide(handle.id, "c1", "approve", by="boss")
        assert (await result(handle))["status"] == "complete"
        await check_healthy(handle)
    assert posted == ["hi"]
    assert [row.by for row in await temporal.store.load_decisions(handle.result_run_id or "")] == ["mallory", "boss"]


async def test_the_message_and_the_arguments_of_an_imported_gate_are_those_of_its_call(store: SQLiteStore) -> None:
    _, post = world(Approval(message=lambda call: f"Post {call.arguments['text']}?"))
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("millions"))
    given = forge(waiting.checkpoint, {"arguments": {"text": "hi", "times": 1}})
    given["questions"][0]["question"] = "Post hi?"
    again = await run(agent, checkpoint=given, llm=posts())
    assert is_interrupted(again)
    (item,) = again.approvals
    assert (item.message, item.arguments) == ("Post millions?", {"text": "millions", "times": 1})


async def test_a_call_that_was_changed_is_not_approved_by_the_digest_of_the_one_before() -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("hi"))
    given = waiting.checkpoint.model_dump(mode="json")
    given["messages"][1]["tool_calls"][0]["arguments"] = {"text": "millions"}
    for decision in (approve(), approve(digest=waiting.approvals[0].digest)):
        with pytest.raises(InputError, match="gate c1 has changed"):
            await resume(agent, given, llm=posts(), decisions=[decision])
    assert posted == []


async def test_a_checkpoint_without_a_gate_for_one_of_its_calls_asks_about_both() -> None:
    posted, post = world(Approval(approvers=["boss"]))
    agent = Agent("a", tools=[post])
    given = (await waits(agent, posts("one", "two"))).checkpoint.model_dump(mode="json")
    del given["questions"][1]
    given["questions"][0]["gate"] |= FORGED["approved"]
    again = await run(agent, checkpoint=given, llm=posts())
    assert is_interrupted(again)
    assert ([item.gate for item in again.approvals], posted) == (["c1", "c2"], [])


async def test_time_that_is_over_stays_over_in_a_checkpoint() -> None:
    posted, post = world(Approval(timeout="1d", on_timeout="reject"))
    agent = Agent("a", tools=[post])
    given = forge((await waits(agent, posts("hi"))).checkpoint, {"since": YEARS_AGO})
    ended = assert_complete(await run(agent, checkpoint=given, llm=ScriptedModel(["done"])))
    assert (ended.status, posted) == ("complete", [])


async def test_time_that_would_approve_begins_again_in_a_checkpoint() -> None:
    posted, post = world(Approval(timeout="1d", on_timeout="approve"))
    agent = Agent("a", tools=[post])
    given = forge((await waits(agent, posts("hi"))).checkpoint, {"since": YEARS_AGO})
    assert is_interrupted(await run(agent, checkpoint=given, llm=posts()))
    assert posted == []


async def test_a_verdict_of_a_session_that_was_deleted_does_not_count_for_one_made_again(store: SQLiteStore) -> None:
    posted, post = world(Approval())
    agent, given = Agent("a", tools=[post]), {"store": store, "session_id": "s"}
    waiting = await waits(agent, posts("hi"), **given)
    old = waiting.checkpoint.model_copy(update={"session_id": None})
    await resume(agent, waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=[approve(by="ada")], **given)  # type: ignore[arg-type]
    await store.delete_session("s")
    again = await run(agent, checkpoint=old, llm=posts(), **given)  # type: ignore[arg-type]
    assert is_interrupted(again)
    assert is_interrupted(await run(agent, llm=posts(), **given))  # type: ignore[arg-type]
    assert posted == ["hi"]


# --- signed ---


async def test_a_signed_checkpoint_continues_from_what_was_decided() -> None:
    posted, post = world(Approval(approvers=["ada", "bob"], quorum=2))
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("hi"), **KEY)
    seen = waiting.approvals[0].digest
    ada, bob = (approve(by=who, digest=seen) for who in ("ada", "bob"))
    waiting = await resume(agent, waiting.checkpoint, llm=posts(), decisions=[ada], **KEY)  # type: ignore[assignment]
    assert waiting.approvals[0].approved_by == ("ada",)
    saved = waiting.checkpoint.model_dump_json()
    ended = await resume(agent, saved, llm=ScriptedModel(["done"]), decisions=[bob], **KEY)
    assert (assert_complete(ended).status, posted) == ("complete", ["hi"])


def _unsigned(plain: dict[str, Any]) -> None:
    del plain["signature"]


def _approved(plain: dict[str, Any]) -> None:
    plain["questions"][0]["gate"] |= FORGED["approved"]


def _other_call(plain: dict[str, Any]) -> None:
    plain["messages"][1]["tool_calls"][0]["arguments"] = {"text": "millions"}


def _fresh(plain: dict[str, Any]) -> None:
    plain["iterations"] = 0


@pytest.mark.parametrize("change", [_unsigned, _approved, _other_call, _fresh])
async def test_where_there_is_a_key_a_checkpoint_that_was_changed_is_refused(
    temporal: Temporal, change: Callable[[dict[str, Any]], None]
) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    plain = (await waits(agent, posts("hi"), **KEY)).checkpoint.model_dump(mode="json")
    change(plain)
    words = "the checkpoint is not signed" if change is _unsigned else "the checkpoint was changed"
    with pytest.raises(InputError, match=words):
        await run(agent, checkpoint=plain, llm=posts(), **KEY)
    async with temporal.worker(agent, llm=posts(), **KEY):
        handle = await temporal.start(agent, None, checkpoint=plain)
        assert words in (await failure(handle)).message
    assert posted == []


async def test_a_checkpoint_that_is_signed_for_one_agent_is_none_of_another() -> None:
    _, post = world(Approval())
    waiting = await waits(Agent("a", tools=[post]), posts("hi"), **KEY)
    with pytest.raises(InputError, match="another agent than 'b'"):
        await run(Agent("b", tools=[post]), checkpoint=waiting.checkpoint, llm=posts(), **KEY)


async def test_a_key_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(InputError, match="checkpoint_key must have at least 16 bytes, got 6"):
        await run(Agent("a"), message="go", llm=posts(), checkpoint_key="secret")


async def test_what_was_decided_on_temporal_continues_there_from_a_signed_export(temporal: Temporal) -> None:
    posted, post = world(Approval(approvers=["ada", "bob"]))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("one", "two"), **KEY):
        handle = await temporal.start(agent)
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada", edit={"text": "TWO"})
        checkpoint = await temporal.people.export(handle.id)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await result(handle)
        again = await temporal.start(agent, None, session="again", checkpoint=checkpoint)
        (left,) = await pending(again)
        assert left["name"] == "c1"
        await temporal.people.decide(again.id, "c1", "reject", by="bob")
        assert (await result(again))["status"] == "complete"
        await check_healthy(again)
    assert posted == ["TWO"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("then", ["temporal", "process"])
@pytest.mark.parametrize("where", ["its session", "another session", "another store", "no store"])
async def test_what_an_unsigned_export_says_of_decisions_counts_only_where_the_store_has_them(
    temporal: Temporal, tmp_path: Path, where: str, then: str
) -> None:
    if (where, then) == ("no store", "temporal"):
        return  # a worker has one
    posted, post = world(Approval(approvers=["ada", "bob"]))
    agent = Agent("a", tools=[post])
    async with temporal.worker(agent, llm=posts("one", "two")):
        handle = await temporal.start(agent)
        await pending(handle, 2)
        await temporal.people.decide(handle.id, "c2", "approve", by="ada")
        exported = await temporal.people.export(handle.id)
        await handle.terminate()
    assert exported.signature is None
    asked = ["c1"] if where == "its session" else ["c1", "c2"]
    async with sqlite_store(tmp_path / "other.db") as other:
        given: dict[str, Any] = {"store": other if where == "another store" else temporal.store}
        if where == "another session":
            given["session_id"] = f"{temporal.name}.again"
        if then == "process":
            given = {} if where == "no store" else given
            if where == "its session":
                with pytest.raises(InputError, match="waits for approval of call c1 in the workflow"):
                    await run(agent, checkpoint=exported, llm=posts(), **given)
                return  # a run on Temporal continues there
            waiting = await run(agent, checkpoint=exported, llm=posts(), **given)
            assert is_interrupted(waiting)
            assert ([item.gate for item in waiting.approvals], posted) == (asked, [])
            decisions = [approve(gate, by="bob") for gate in asked]
            ended = await resume(agent, waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=decisions, **given)
            assert assert_complete(ended).status == "complete"
        else:
            there = await temporal.elsewhere()
            if where == "another store":
                await there.move_queue()
            async with there.worker(agent, llm=ScriptedModel(["done"]), store=given["store"]):
                again = await start_agent(
                    there.client, agent, checkpoint=exported, session_id=given.get("session_id"), task_queue=there.name
                )
                items = await pending(again, len(asked))
                assert ([item["name"] for item in items], posted) == (asked, [])
                for gate in asked:
                    await there.people.decide(again.id, gate, "approve", by="bob")
                assert (await result(again))["status"] == "complete"
                await check_healthy(again)
    assert posted == ["one", "two"]


async def test_rejections_count_for_an_unsigned_checkpoint_as_well() -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("one", "two"))
    decisions = [reject("c1"), approve("c2")]
    ended = await resume(agent, waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=decisions)
    assert (assert_complete(ended).status, posted) == ("complete", ["two"])
