"""Tools that need approval, in process: no way around a gate, and the state after a crash."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr
from support.looking import resume, run
from support.questions import ask
from support.temporal_runs import until
from support.transcripts import asks_for, call, error_of, kind_of, tool_results

from integration.local.test_tool_approvals import Died, approve, posts, reject, waits, world
from standfast import (
    Agent,
    Approval,
    InputError,
    Message,
    SessionConflictError,
    assert_complete,
    is_interrupted,
    sqlite_store,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


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

        async def load_messages(self, session_id: str) -> list[Message]:
            messages = await super().load_messages(session_id)
            have_read.add(self)
            while len(have_read) < 2:
                await asyncio.sleep(0.01)
            return messages

    have_read = set[Unheld]()
    stores = [Unheld(tmp_path / "a.db"), Unheld(tmp_path / "a.db")]
    both = await asyncio.gather(
        *(
            run(agent, decisions=[approve(by=str(n))], llm=model, store=one, session_id="s")
            for n, one in enumerate(stores)
        ),
        return_exceptions=True,
    )
    assert posted == ["hi"]
    assert sum(isinstance(result, SessionConflictError | InputError) for result in both) == 1


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
    """The tool did not need approval when the process died; a safe one would run again."""
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
        'Not run: tool "post" needs approval, which this call lacks. Call it again'
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


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "c9"},
        {"since": "2026-01-01T00:00:00"},
        {"rule": {"remind_every": 0}},
        {"rule": {"users": 5}},
        {"digest": None},
    ],
    ids=["name", "time zone", "reminder", "users", "digest"],
)
async def test_a_checkpoint_with_a_damaged_gate_is_refused(damage: dict[str, Any]) -> None:
    _, post = world(Approval())
    agent = Agent("a", tools=[post])
    given = (await waits(agent, posts("hi"))).checkpoint.model_dump(mode="json")
    given["questions"][0]["gate"] |= damage
    with pytest.raises(InputError, match="the checkpoint has a gate that cannot be used"):
        await run(agent, checkpoint=given, llm=posts())


async def test_what_was_recorded_counts_although_its_process_died(store: SQLiteStore, monkeypatch: Any) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    await run(agent, message="go", **given)

    async def dies(*_: Any, **__: Any) -> int:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(SQLiteStore, "append_messages_atomic", dies)
        rejecting = asyncio.ensure_future(run(agent, decisions=[reject(by="ada", comment="no")], **given))
        with pytest.raises(Died):
            await rejecting
    with pytest.raises(InputError, match="gate c1 was rejected already"):
        await run(agent, decisions=[approve(by="bob")], **given)
    ended = assert_complete(await run(agent, **given))
    assert error_of(tool_results(ended.messages)[0]) == "Not run: it was rejected by ada: no"
    assert posted == []


async def test_a_decision_counts_for_one_call_alone_though_ids_repeat(store: SQLiteStore) -> None:
    posted, post = world(Approval())
    agent = Agent("a", tools=[post])
    twice = ScriptedModel([asks_for(call("post", "", text=text)) if text else "done" for text in ("a", "", "b", "")])
    given: Any = {"llm": twice, "store": store, "session_id": "s", "max_stored_messages": 1}
    first: Any = await run(agent, message="go", **given)
    decision = approve(first.approvals[0].gate, by="ada")
    await run(agent, decisions=[decision], **given)
    second: Any = await run(agent, message="go on", **given)
    assert second.approvals[0].gate != first.approvals[0].gate
    assert is_interrupted(await run(agent, decisions=[decision], **given))  # the very same once more changes nothing
    assert posted == ["a"]


async def test_people_and_functions_see_what_the_handler_gets(store: SQLiteStore) -> None:
    wiped: list[tuple[str, bool]] = []

    @tool(approval=lambda call: None if call.arguments["dry_run"] else Approval(approvers=["cfo"]))
    async def wipe(disk: str, dry_run: bool = True) -> str:
        """Wipe a disk."""
        wiped.append((disk, dry_run))
        return "wiped"

    agent = Agent("a", tools=[wipe])
    asks = asks_for(call("wipe", "c1", disk="a"), call("wipe", "c2", disk="b", dry_run="false", force=True))
    waiting: Any = await run(agent, message="go", llm=ScriptedModel([asks]), store=store, session_id="s")
    assert [(item.gate, item.arguments) for item in waiting.approvals] == [("c2", {"disk": "b", "dry_run": False})]
    given: Any = {"llm": ScriptedModel(["done"]), "store": store, "session_id": "s"}
    assert_complete(await run(agent, decisions=[approve("c2", by="cfo")], **given))
    assert wiped == [("a", True), ("b", False)]


async def test_what_was_approved_is_what_runs_though_a_default_has_changed() -> None:
    paid: list[int] = []

    def version(default: int) -> Agent:
        @tool(approval=Approval())
        async def pay(amount: int = default) -> str:
            """Pay."""
            paid.append(amount)
            return "paid"

        return Agent("a", tools=[pay])

    key: Any = {"checkpoint_key": "a key of the tests"}
    waiting = await waits(version(5), ScriptedModel([asks_for(call("pay", "c1"))]), **key)
    assert waiting.approvals[0].arguments == {"amount": 5}
    await resume(version(5_000), waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=[approve()], **key)
    assert paid == [5]


async def test_a_secret_is_approved_as_it_was_given() -> None:
    seen: list[str] = []

    @tool(approval=Approval())
    async def log_in(password: SecretStr) -> str:
        """Log in."""
        seen.append(password.get_secret_value())
        return "in"

    agent = Agent("a", tools=[log_in])
    waiting = await waits(agent, ScriptedModel([asks_for(call("log_in", "c1", password="hunter2"))]))
    await resume(agent, waiting.checkpoint, llm=ScriptedModel(["done"]), decisions=[approve()])
    assert seen == ["hunter2"]


async def test_an_approval_that_ends_its_process_does_not(store: SQLiteStore) -> None:
    def leaves(call: Any) -> Any:
        raise SystemExit(3)

    posted, post = world(leaves)
    result = assert_complete(await run(Agent("a", tools=[post]), message="go", llm=posts("hi"), store=store))
    assert "its approval raised SystemExit: 3" in error_of(tool_results(result.messages)[0])
    assert posted == []


async def test_arguments_that_cannot_be_shown_as_they_run_do_not_run(store: SQLiteStore) -> None:
    """Else one of them would be enough to show people, and the function, all others as the model wrote them."""
    wiped: list[str] = []

    @tool(approval=lambda call: None if call.arguments.get("dry_run", True) else Approval())
    async def wipe(disk: str, dry_run: bool = True, speed: float = 1.0) -> str:
        """Wipe a disk."""
        wiped.append(disk)
        return "wiped"

    asks = asks_for(call("wipe", "c1", disk="a", dry_run="false", speed="nan"))
    result = await run(Agent("a", tools=[wipe]), message="go", llm=ScriptedModel([asks, "done"]), store=store)
    assert "cannot be shown to people" in error_of(tool_results(assert_complete(result).messages)[0])
    assert wiped == []


async def test_an_edit_does_not_enter_by_the_escalation_of_a_stricter_approval() -> None:
    posted: list[int] = []
    small = Approval(approvers=["clerk"])
    big = Approval(approvers=["cfo"], timeout="7d", on_timeout="escalate", escalate_to=small)

    @tool(approval=lambda call: big if call.arguments["amount"] > 100 else small)
    async def pay(amount: int) -> str:
        """Pay."""
        posted.append(amount)
        return "paid"

    agent = Agent("a", tools=[pay])
    waiting = await waits(agent, ScriptedModel([asks_for(call("pay", "c1", amount=5))]))
    with pytest.raises(InputError, match="these arguments need a different approval"):
        await resume(agent, waiting.checkpoint, llm=posts(), decisions=[approve(by="clerk", edit={"amount": 1_000})])
    assert posted == []


async def test_an_edit_has_no_unknown_names_further_in_either() -> None:
    class Order(BaseModel):
        to: str
        amount: int = 900

    @tool(approval=Approval())
    async def pay(order: Order) -> str:
        """Pay."""
        return "paid"

    agent = Agent("a", tools=[pay])
    waiting = await waits(agent, ScriptedModel([asks_for(call("pay", "c1", order={"to": "eve"}))]))
    edit = {"order": {"to": "eve", "amuont": 90}}
    with pytest.raises(InputError, match=r"tool pay has no argument 'order\.amuont'"):
        await resume(agent, waiting.checkpoint, llm=posts(), decisions=[approve(edit=edit)])


async def test_what_was_recorded_after_an_escalation_counts_although_its_process_died(
    store: SQLiteStore, monkeypatch: Any
) -> None:
    leads = Approval(approvers=["bob", "eve"], timeout=0.3, on_timeout="approve")
    posted, post = world(Approval(approvers=["ada"], timeout=0.1, on_timeout="escalate", escalate_to=leads))
    agent = Agent("a", tools=[post])
    given: Any = {"llm": posts("hi"), "store": store, "session_id": "s"}
    first: Any = await run(agent, message="go", **given)
    await until(lambda: datetime.now(UTC) > first.approvals[0].deadline)

    async def dies(*_: Any, **__: Any) -> int:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(SQLiteStore, "append_messages_atomic", dies)
        rejecting = asyncio.ensure_future(run(agent, decisions=[reject(by="bob", comment="no")], **given))
        with pytest.raises(Died):
            await rejecting
    await until(lambda: datetime.now(UTC) > first.approvals[0].deadline + timedelta(seconds=0.4))
    ended = assert_complete(await run(agent, **given))
    assert error_of(tool_results(ended.messages)[0]) == "Not run: it was rejected by bob: no"
    assert posted == []


async def test_a_decision_with_a_new_run_is_refused_since_nobody_has_seen_its_call(store: SQLiteStore) -> None:
    posted, post = world(Approval())
    model = posts("hi")
    with pytest.raises(InputError, match="gate c1 is not open; open: none"):
        await run(
            Agent("a", tools=[post]),
            message="go",
            llm=model,
            store=store,
            session_id="s",
            decisions=[approve(by="ada")],
        )
    assert (posted, model.calls, await store.load_session("s")) == ([], [], None)


async def test_a_decision_before_its_call_is_asked_for_is_refused_and_does_not_wait(
    where: Callable[[], dict[str, Any]],
) -> None:
    """The arguments of the call have not been shown."""
    posted, post = world(Approval())
    agent = Agent("a", tools=[ask, post])
    script = ScriptedModel(
        [asks_for(call("ask", "q1", question="ok?")), asks_for(call("post", "c1", text="hi")), "done"]
    )
    asked = await run(agent, message="go", llm=script, **where())
    assert is_interrupted(asked)
    with pytest.raises(InputError, match="gate c1 is not open; open: none"):
        await resume(agent, asked.checkpoint, "yes", llm=script, decisions=[approve(by="ada")], **where())
    with pytest.raises(InputError, match="gate c1 is not open; open: none"):
        await resume(agent, asked.checkpoint, llm=script, decisions=[approve(by="ada")], **where())
    waiting = await resume(agent, asked.checkpoint, "yes", llm=script, **where())
    assert is_interrupted(waiting)
    assert ([item.gate for item in waiting.approvals], waiting.approvals[0].approved_by, posted) == (["c1"], (), [])
    given: dict[str, Any] = {"decisions": [approve(by="ada", digest=waiting.approvals[0].digest)]}
    assert_complete(await resume(agent, waiting.checkpoint, llm=script, **given, **where()))
    assert posted == ["hi"]
