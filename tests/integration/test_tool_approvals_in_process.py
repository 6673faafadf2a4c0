"""Tools that people must let run, in process: what is kept between processes, and that no call runs unapproved."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Agent,
    Approval,
    InputError,
    InterruptedResponse,
    Message,
    SessionConflictError,
    Step,
    assert_complete,
    is_interrupted,
    pipeline,
    resume,
    run,
    run_pipeline,
    run_streaming,
    sqlite_store,
    tool,
)
from holdfast.local import RunEnded, ToolStarted
from holdfast.stores import SQLiteStore
from holdfast.testing import ScriptedModel
from integration.test_tool_approvals import approve, posts, reject, world
from integration.transcripts import asks_for, call, error_of, kind_of, tool_results


class Died(BaseException):
    """The process is gone."""


async def waits(agent: Agent, model: Any, **options: Any) -> InterruptedResponse:
    """Run an agent to its gates."""
    result = await run(agent, message="go", llm=model, **options)
    assert is_interrupted(result)
    return result


# --- between processes ---


async def test_a_checkpoint_is_enough_to_go_on(where: Callable[[], dict[str, Any]]) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("hi"), **where())
    ended = await resume(
        agent, waiting.checkpoint.model_dump_json(), llm=ScriptedModel(["done"]), decisions=[approve()], **where()
    )
    assert (assert_complete(ended).response, posted) == ("done", ["hi"])


async def test_what_was_decided_so_far_is_in_the_next_checkpoint(where: Callable[[], dict[str, Any]]) -> None:
    posted, post = world(Approval())
    agent, model = Agent("a", tools=[post]), posts("one", "two", "three")
    waiting = await waits(agent, model, **where())
    for decision in (approve("c2", edit={"text": "TWO"}), reject("c1", by="ada", comment="no")):
        waiting = await resume(agent, waiting.checkpoint, llm=model, decisions=[decision], **where())  # type: ignore[assignment]
    assert [item.gate for item in waiting.approvals] == ["c3"]
    assert waiting.checkpoint.pending_tool_use_id == "c3"
    ended = assert_complete(await resume(agent, waiting.checkpoint, llm=model, decisions=[approve("c3")], **where()))
    assert posted == ["TWO", "three"]
    assert error_of(tool_results(ended.messages)[0]) == "Not run: it was rejected by ada: no"


async def test_people_see_what_they_decide_on() -> None:
    _, post = world(Approval(message="ok?", timeout="1h", approvers=["ops"], groups={"ops": ["ada", "bob"]}, quorum=2))
    waiting = await waits(Agent("a", tools=[post]), posts("hi"))
    (item,) = waiting.approvals
    assert (waiting.question, item.message, item.tool, item.arguments) == ("ok?", "ok?", "post", {"text": "hi"})
    assert (item.approvers, item.quorum, item.approved_by) == (("ada", "bob"), 2, ())
    assert item.deadline == item.since + timedelta(hours=1)
    half: Any = await resume(
        Agent("a", tools=[post]), waiting.checkpoint, llm=posts(), decisions=[approve(by="bob", digest=item.digest)]
    )
    assert half.approvals[0].approved_by == ("bob",)


async def test_a_run_that_waits_says_what_is_wrong_with_an_answer_or_a_message(store: SQLiteStore) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    waiting = await run(agent, message="go", **given)
    assert is_interrupted(waiting)
    with pytest.raises(InputError, match="call c1 waits to be approved, not for an answer: give decisions="):
        await resume(agent, waiting.checkpoint, "yes", **given)
    with pytest.raises(InputError, match="Session s waits for approval of call c1: give decisions="):
        await run(agent, message="hello?", **given)
    assert posted == []


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        ({"gate": "c1", "decision": "approve"}, "decisions must be a list of decisions, such as "),
        (None, "decisions must be a list of decisions, such as "),
        ([{"gate": "c1", "decision": "yes"}], "A decision cannot be used: decision"),
        ([{"gate": "c1"}], "A decision cannot be used: decision"),
        ([{"gate": "c1", "decision": "approve", "who": "ada"}], "A decision cannot be used: who"),
        ([approve("c9")], "gate c9 is not open; open: c1"),
        ([approve(edit={"text": float("nan")})], "gate c1: edit: "),
    ],
    ids=["no list", "nothing", "no decision", "missing", "unknown key", "unknown gate", "no JSON"],
)
async def test_a_decision_that_cannot_be_used_changes_nothing(store: SQLiteStore, decisions: Any, why: str) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)
    with pytest.raises(InputError, match=why):
        await run(agent, decisions=decisions, **given)
    assert_complete(await run(agent, decisions=[approve()], **given))
    assert posted == ["hi"]


async def test_decisions_before_one_that_does_not_count_stay(store: SQLiteStore) -> None:
    posted, post = world(Approval(approvers=["ada"]))
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("one", "two"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)
    with pytest.raises(InputError, match="bob may not decide it"):
        await run(agent, decisions=[approve("c1", by="ada"), approve("c2", by="bob")], **given)
    left: Any = await run(agent, **given)
    assert [item.gate for item in left.approvals] == ["c2"]
    assert_complete(await run(agent, decisions=[approve("c2", by="ada")], **given))
    assert posted == ["one", "two"]


async def test_each_decision_is_a_row_and_the_same_once_more_changes_nothing(store: SQLiteStore) -> None:
    posted, post = world(Approval(approvers=["ada"]))
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)
    with pytest.raises(InputError, match="bob may not"):
        await run(agent, decisions=[reject(by="bob", comment="no")], **given)
    for _ in range(2):
        assert_complete(await run(agent, decisions=[approve(by="ada", edit={"text": "ho"})], **given))
    others: list[dict[str, Any]] = [reject(by="ada"), approve(by="ada", edit={"text": "more"})]
    for other in others:
        with pytest.raises(InputError, match="gate c1 was decided already"):
            await run(agent, decisions=[other], **given)
    rows = [
        (row.gate, row.decision, row.by, row.comment, row.edit, row.refused)
        for row in await store.load_decisions("a/s")
    ]
    assert rows == [
        ("c1", "reject", "bob", "no", None, "gate c1: bob may not decide it; ada may"),
        ("c1", "approve", "ada", None, {"text": "ho"}, None),
        ("c1", "reject", "ada", None, None, "gate c1 was decided already"),
        ("c1", "approve", "ada", None, {"text": "more"}, "gate c1 was decided already"),
    ]
    assert posted == ["ho"]


async def test_a_stream_starts_the_call_that_was_approved(store: SQLiteStore) -> None:
    _, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)
    events = [event async for event in run_streaming(agent, decisions=[approve(edit={"text": "ho"})], **given)]
    assert [event.call.arguments for event in events if isinstance(event, ToolStarted)] == [{"text": "ho"}]
    assert isinstance(events[-1], RunEnded)


# --- crashes, and other ways around a gate ---


@pytest.mark.parametrize("safe", [False, True], ids=["with effects", "safe"])
async def test_a_call_that_died_after_it_was_approved_is_an_orphan_like_any_other(
    store: SQLiteStore, safe: bool
) -> None:
    started: list[str] = []

    @tool(approval=Approval(), safe_to_retry=safe)
    async def post(text: str) -> str:
        """Post."""
        started.append(text)
        if len(started) == 1:
            raise Died
        return "posted"

    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)
    task = asyncio.ensure_future(run(agent, decisions=[approve(by="ada", edit={"text": "ho"})], **given))
    with pytest.raises(Died):
        await task
    ended = assert_complete(await run(agent, **given))
    if safe:
        assert started == ["ho", "ho"]
        assert json.loads(tool_results(ended.messages)[0].content)["result"] == "posted"
    else:
        assert started == ["ho"]
        assert kind_of(ended.messages, "c1") == "tool-durability-error"


async def test_a_process_that_died_between_two_decisions_has_run_nothing(tmp_path: Path) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("one", "two"), "session_id": "s"}
    await run(agent, message="go", store=sqlite_store(tmp_path / "a.db"), **given)
    await run(agent, decisions=[approve("c1")], store=sqlite_store(tmp_path / "a.db"), **given)
    ended = await run(agent, decisions=[approve("c2")], store=sqlite_store(tmp_path / "a.db"), **given)
    assert (assert_complete(ended).status, posted) == ("complete", ["one", "two"])


async def test_two_processes_that_approve_at_once_run_it_once(tmp_path: Path) -> None:
    """With a store whose holds others do not see: both have read the session before either has decided."""
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    model = posts("hi")
    await run(agent, message="go", llm=model, store=sqlite_store(tmp_path / "a.db"), session_id="s")

    class Unheld(SQLiteStore):
        async def hold(self, session_id: str) -> bool:
            return True

        async def let_go(self, session_id: str) -> None:
            pass

    stores = [Unheld(tmp_path / "a.db"), Unheld(tmp_path / "a.db")]
    both = await asyncio.gather(
        *(
            run(agent, decisions=[approve(by=str(n))], llm=model, store=one, session_id="s")
            for n, one in enumerate(stores)
        ),
        return_exceptions=True,
    )
    assert posted == ["hi"]
    assert [type(result) for result in both].count(SessionConflictError) == 1


async def test_a_transcript_that_was_brought_asks_before_its_calls_run() -> None:
    posted, post = world(Approval())
    messages = [
        Message(role="user", content="go"),
        Message(role="assistant", tool_calls=(call("post", "c1", text="hi"),)),
    ]
    result = await run(Agent("a", tools=[post]), messages=messages, llm=ScriptedModel(["done"]))
    assert is_interrupted(result)
    assert [item.gate for item in result.approvals] == ["c1"]
    assert posted == []


async def test_an_orphan_of_a_tool_that_needs_approval_since_is_not_run(store: SQLiteStore) -> None:
    """The tool had no approval when the process died; a safe one would be run again."""
    posted, post = world(Approval(), safe_to_retry=True)

    @tool(name="post", safe_to_retry=True)
    async def before(text: str) -> str:
        """Post."""
        raise Died

    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    with pytest.raises(Died):
        await asyncio.ensure_future(run(Agent("a", tools=[before]), message="go", **given))
    ended = assert_complete(await run(Agent("a", tools=[post]), **given))
    assert posted == []
    assert error_of(tool_results(ended.messages)[0]) == (
        'Not run: tool "post" needs approval, which this call has not. Call it again'
    )


async def test_a_checkpoint_without_its_questions_asks_again() -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    waiting = await waits(agent, posts("hi"))
    stripped = waiting.checkpoint.model_copy(update={"questions": None, "pending_tool_use_id": None})
    again = await run(agent, checkpoint=stripped, llm=ScriptedModel(["done"]))
    assert is_interrupted(again)
    assert [item.gate for item in again.approvals] == ["c1"]
    assert posted == []


# --- in a pipeline ---


async def test_a_pipeline_waits_for_the_calls_of_its_agents(store: SQLiteStore) -> None:
    posted, post = world(Approval(message="post it?", approvers=["ada"]))
    flow = pipeline("w").step("write", agent=Agent("a", tools=[post])).step("b", agent=Agent("b")).build()
    given: Any = {"llm": ScriptedModel([asks_for(call("post", "c1", text="hi")), "posted", "b"]), "store": store}
    went = await run_pipeline(flow, run_key="r", **given)
    assert (went.status, went.pending_step, went.approval_message) == ("pending", "write/c1", "post it?")
    assert [(item.gate, item.tool, item.arguments) for item in went.approvals] == [("write/c1", "post", {"text": "hi"})]
    with pytest.raises(InputError, match="bob may not decide it"):
        await run_pipeline(flow, run_key="r", decisions=[approve("write/c1", by="bob")], **given)
    for _ in range(2):  # the same decision once more changes nothing
        went = await run_pipeline(flow, run_key="r", decisions=[approve("write/c1", by="ada")], **given)
    assert (went.status, posted) == ("complete", ["hi"])
    assert went.outputs["write"] == {"response": "posted"}
    with pytest.raises(InputError, match="gate write/c1 was decided already"):
        await run_pipeline(flow, run_key="r", decisions=[reject("write/c1", by="ada")], **given)
    for unknown in ("c1", "write", "other/c1"):
        with pytest.raises(InputError, match=r"<step>/<id of a call>|write/<id of the call>"):
            await run_pipeline(flow, run_key="r", decisions=[approve(unknown)], **given)


async def test_without_a_store_a_step_whose_calls_wait_fails() -> None:
    posted, post = world(Approval())
    went = await run_pipeline(pipeline("w").step("write", agent=Agent("a", tools=[post])).build(), llm=posts("hi"))
    assert (went.status, went.error_reason, posted) == ("error", "agent-failed", [])
    assert "its tool 'post' waits for approval, which takes a store" in str(went.error)


def test_a_tool_step_has_its_gate_before_it() -> None:
    _, post = world(Approval())
    with pytest.raises(Exception, match="Step 'x': tool 'post' has an approval; put an approval step before it"):
        Step("x", run=post)
