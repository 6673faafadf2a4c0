"""Tools that need approval, in process: the data kept between processes, and the effect of decisions."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.looking import resume, run, run_pipeline
from support.temporal_runs import until
from support.transcripts import asks_for, call, error_of, tool_results

from integration.local.test_tool_approvals import approve, posts, reject, waits, world
from standfast import (
    Agent,
    Approval,
    InputError,
    Step,
    assert_complete,
    is_interrupted,
    pipeline,
    run_streaming,
)
from standfast.events import RunEnded, ToolStarted
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- between processes ---


async def test_a_checkpoint_is_enough_to_continue(where: Callable[[], dict[str, Any]]) -> None:
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
    signed: Any = {"checkpoint_key": "a key of the tests"}
    waiting = await waits(agent, model, **signed, **where())
    for decision in (approve("c2", edit={"text": "TWO"}), reject("c1", by="ada", comment="no")):
        waiting = await resume(agent, waiting.checkpoint, llm=model, decisions=[decision], **signed, **where())  # type: ignore[assignment]
    assert [item.gate for item in waiting.approvals] == ["c3"]
    assert waiting.checkpoint.pending_tool_use_id == "c3"
    ended = assert_complete(
        await resume(agent, waiting.checkpoint, llm=model, decisions=[approve("c3")], **signed, **where())
    )
    assert posted == ["TWO", "three"]
    assert error_of(tool_results(ended.messages)[0]) == "Not run: it was rejected by ada: no"


async def test_people_see_what_they_decide_on() -> None:
    _, post = world(Approval(message="ok?", timeout="1h", approvers=["ops"], groups={"ops": ["ada", "bob"]}, quorum=2))
    waiting = await waits(Agent("a", tools=[post]), posts("hi"))
    (item,) = waiting.approvals
    assert (waiting.question, item.message, item.tool, item.arguments) == (
        "ok?",
        "ok?",
        "post",
        {"text": "hi", "times": 1},
    )
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
        ([{"gate": "c1", "decision": "yes"}], "A decision is invalid: decision"),
        ([{"gate": "c1"}], "A decision is invalid: decision"),
        ([{"gate": "c1", "decision": "approve", "who": "ada"}], "A decision is invalid: who"),
        ([approve("c9")], "gate c9 is not open; open: c1"),
        ([approve(edit={"text": float("nan")})], "A decision is invalid: edit: "),
        ([approve(edit={"text": {1, 2}})], "A decision is invalid: edit: "),
        ([approve(edit=10**5000)], "A decision is invalid: edit: "),
        ([approve(by="x" * 300)], "A decision is invalid: by: "),
        ([approve(comment="x" * 5000)], "A decision is invalid: comment: "),
        (
            [approve(edit={"text": "a", "tims": 2})],
            "gate c1: edit: tool post has no argument 'tims'; it has text, times",
        ),
    ],
    ids=[
        "no list",
        "nothing",
        "no decision",
        "missing",
        "unknown key",
        "unknown gate",
        "no JSON",
        "an object",
        "too long a number",
        "too long a name",
        "too long a comment",
        "unknown argument",
    ],
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


@pytest.mark.parametrize("wrong", [approve("c2", by="bob"), approve("c9", by="ada"), reject("c1", by="ada")],
                         ids=["somebody else", "another gate", "decided already"])  # fmt: skip
async def test_either_all_decisions_count_or_none(store: SQLiteStore, wrong: dict[str, Any]) -> None:
    """Else a call could be approved and not run, and a later run would not know that."""
    posted, post = world(Approval(approvers=["ada"]))
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("one"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)
    with pytest.raises(InputError):
        await run(agent, decisions=[approve("c1", by="ada"), wrong], **given)
    assert posted == []
    left: Any = await run(agent, **given)
    assert [item.gate for item in left.approvals] == ["c1"]
    assert_complete(await run(agent, decisions=[approve("c1", by="ada")], **given))
    assert posted == ["one"]


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
        with pytest.raises(InputError, match="gate c1: the call has already run"):
            await run(agent, decisions=[other], **given)
    rows = [
        (row.gate, row.decision, row.by, row.comment, row.edit, row.refused)
        for row in await store.load_decisions("a/s")
    ]
    assert rows == [
        ("c1", "reject", "bob", "no", None, "gate c1: bob may not decide it; ada may"),
        ("c1", "approve", "ada", None, {"text": "ho"}, None),
        ("c1", "reject", "ada", None, None, "gate c1: the call has already run"),
        ("c1", "approve", "ada", None, {"text": "more"}, "gate c1: the call has already run"),
    ]
    assert posted == ["ho"]


async def test_a_call_that_ran_when_nobody_decided_cannot_be_decided_any_more(store: SQLiteStore) -> None:
    posted, post = world(Approval(timeout=0.1, on_timeout="approve"))
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    (item,) = (await run(agent, message="go", **given)).approvals
    await until(lambda: datetime.now(UTC) > item.deadline)
    assert_complete(await run(agent, **given))
    for late in (approve(by="ada", digest=item.digest), reject(by="ada", digest=item.digest)):
        with pytest.raises(InputError, match="gate c1: the call has already run"):
            await run(agent, decisions=[late], **given)
    assert posted == ["hi"]


async def test_a_stream_starts_the_call_that_was_approved(store: SQLiteStore) -> None:
    _, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    (item,) = (await run(agent, message="go", **given)).approvals
    decision = approve(edit={"text": "ho"}, digest=item.digest)
    events = [event async for event in run_streaming(agent, decisions=[decision], **given)]
    assert [event.call.arguments for event in events if isinstance(event, ToolStarted)] == [{"text": "ho"}]
    assert isinstance(events[-1], RunEnded)


# --- in a pipeline ---


async def test_a_pipeline_waits_for_the_calls_of_its_agents(store: SQLiteStore) -> None:
    posted, post = world(Approval(message="post it?", approvers=["ada"]))
    flow = pipeline("w").step("write", agent=Agent("a", tools=[post])).step("b", agent=Agent("b")).build()
    given: Any = {"llm": ScriptedModel([asks_for(call("post", "c1", text="hi")), "posted", "b"]), "store": store}
    went = await run_pipeline(flow, run_key="r", **given)
    assert (went.status, went.pending_step, went.approval_message) == ("pending", "write/c1", "post it?")
    assert [(item.gate, item.tool, item.arguments) for item in went.approvals] == [
        ("write/c1", "post", {"text": "hi", "times": 1})
    ]
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
    assert "its tool 'post' waits for approval, which needs a store" in str(went.error)


def test_a_tool_step_has_its_gate_before_it() -> None:
    _, post = world(Approval())
    with pytest.raises(Exception, match="Step 'x': tool 'post' has an approval; put an approval step before it"):
        Step("x", run=post)
