"""Who may go on with a session, what it keeps of the agent's state, and which ids it may have."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import (
    Agent,
    AgentContext,
    Checkpoint,
    HoldfastError,
    InputError,
    Message,
    RunResult,
    SessionAccessDeniedError,
    SessionConflictError,
    SessionNotFoundError,
    assert_complete,
    memory_store,
    resume,
    run,
    run_streaming,
    sqlite_store,
    tool,
)
from holdfast.stores import Session, SQLiteStore
from holdfast.testing import ScriptedModel


async def contents(store: Any, session_id: str = "s") -> list[str]:
    return [message.content for message in await store.load_messages(session_id)]


async def stored_state(store: SQLiteStore) -> Any:
    session = await store.load_session("s")
    assert session is not None
    return json.loads(session.state)


# --- ids ----------------------------------------------------------------------------------------------------------


async def test_a_run_without_a_session_id_makes_a_new_session(store: SQLiteStore) -> None:
    ids = []
    for _ in range(2):
        result = assert_complete(await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store))
        ids.append(result.session_id or "")
    uuid4 = r"sess_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert [bool(re.fullmatch(uuid4, session_id)) for session_id in ids] == [True, True]
    assert sorted(session.id for session in await store.list_sessions()) == sorted(set(ids))


@pytest.mark.parametrize("session_id", ["s", "issue-42", "user@example.com:7", "A_b.c~d+e=f", "0", "x" * 200])
async def test_an_ordinary_session_id_is_taken_as_it_is(store: SQLiteStore, session_id: str) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id=session_id)
    assert [session.id for session in await store.list_sessions()] == [session_id]


HOSTILE_IDS = [
    pytest.param("", id="empty"),
    pytest.param(" ", id="space"),
    pytest.param("x'; DROP TABLE agent_sessions; --", id="sql"),
    pytest.param('s" OR "1"="1', id="quotes"),
    pytest.param("%", id="like"),
    pytest.param("../../etc/passwd", id="path"),
    pytest.param("a/b", id="slash"),
    pytest.param("a\\b", id="backslash"),
    pytest.param(".hidden", id="dot"),
    pytest.param("-rf", id="option"),
    pytest.param("x" * 10_000, id="10 kB"),
    pytest.param("x" * 201, id="one too long"),
    pytest.param("s\0", id="NUL"),
    pytest.param("s\n", id="newline"),
    pytest.param("s\r\nSet-Cookie: a=b", id="header"),
    pytest.param("größe", id="umlaut"),
    pytest.param("ſ", id="folds to s"),
    pytest.param("١", id="arabic digit"),
    pytest.param("s\u202e", id="right to left"),
    pytest.param("\ud800", id="lone surrogate"),
    pytest.param("🙂", id="emoji"),
    pytest.param(b"s", id="bytes"),
    pytest.param(7, id="number"),
    pytest.param(["s"], id="list"),
]


@pytest.mark.parametrize("session_id", HOSTILE_IDS)
async def test_a_hostile_session_id_is_refused_and_nothing_is_written(store: SQLiteStore, session_id: Any) -> None:
    model = ScriptedModel(["yes"])
    with pytest.raises(InputError, match="session_id must be 1 to 200 characters") as caught:
        await run(Agent("greeter"), message="hi", llm=model, store=store, session_id=session_id)
    assert (model.calls, await store.list_sessions()) == ([], [])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("session_id", ["../x", "x\0", ""])
async def test_a_hostile_session_id_in_a_checkpoint_is_refused(store: SQLiteStore, session_id: str) -> None:
    checkpoint = Checkpoint.model_validate(
        {"messages": [{"role": "user", "content": "hi"}], "session_id": session_id}
    ).model_dump()
    with pytest.raises(InputError, match="session_id must be"):
        await resume(Agent("greeter"), checkpoint, "yes", llm=ScriptedModel(["yes"]), store=store)
    assert await store.list_sessions() == []


async def test_a_session_id_without_a_store_is_refused() -> None:
    with pytest.raises(InputError, match="needs a store"):
        await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), session_id="s")


async def test_ids_that_differ_in_case_are_different_sessions(store: SQLiteStore) -> None:
    for session_id in ("s", "S"):
        await run(Agent("greeter"), message=session_id, llm=ScriptedModel(["yes"]), store=store, session_id=session_id)
    assert [await contents(store, session_id) for session_id in ("s", "S")] == [["s", "yes"], ["S", "yes"]]


# --- strict and creating mode -------------------------------------------------------------------------------------


async def test_an_unknown_session_is_created_under_its_id(store: SQLiteStore) -> None:
    result = assert_complete(
        await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    )
    assert (result.session_id, await contents(store)) == ("s", ["hi", "yes"])


async def test_an_unknown_session_is_an_error_in_strict_mode(store: SQLiteStore) -> None:
    model = ScriptedModel(["yes"])
    with pytest.raises(SessionNotFoundError) as caught:
        await run(Agent("greeter"), message="hi", llm=model, store=store, session_id="s", create_session=False)
    assert (caught.value.code, str(caught.value)) == ("SESSION_NOT_FOUND", "Session not found or access denied: s")
    assert (model.calls, await store.load_session("s")) == ([], None)


async def test_a_known_session_goes_on_in_strict_mode(store: SQLiteStore) -> None:
    for text, create in (("one", True), ("two", False)):
        await run(
            Agent("greeter"),
            message=text,
            llm=ScriptedModel(["ok"]),
            store=store,
            session_id="s",
            create_session=create,
        )
    assert await contents(store) == ["one", "ok", "two", "ok"]


async def test_an_unknown_session_without_a_message_is_refused_and_not_created(store: SQLiteStore) -> None:
    with pytest.raises(InputError, match="nothing to run"):
        await run(Agent("greeter"), llm=ScriptedModel([]), store=store, session_id="s")
    assert await store.load_session("s") is None


async def test_a_session_with_messages_takes_no_transcript(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    transcript = [{"role": "user", "content": "forged"}]
    with pytest.raises(InputError, match="Session s has messages of its own"):
        await run(Agent("greeter"), messages=transcript, llm=ScriptedModel([]), store=store, session_id="s")
    assert await contents(store) == ["hi", "yes"]


# --- state --------------------------------------------------------------------------------------------------------


class Counter(BaseModel):
    n: int = 0


async def test_the_session_keeps_the_state_as_json_with_the_changes_of_on_complete(store: SQLiteStore) -> None:
    def start(ctx: AgentContext) -> None:
        ctx.state["started"] = ctx.state.get("started", 0) + 1

    async def complete(ctx: AgentContext) -> None:
        ctx.state["completed"] = [ctx.agent.name]

    agent = Agent("greeter", on_start=start, on_complete=complete)
    for expected in (1, 2):
        await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
        assert await stored_state(store) == {"started": expected, "completed": ["greeter"]}


async def test_a_typed_state_comes_back_as_its_type(store: SQLiteStore) -> None:
    seen: list[Any] = []

    def start(ctx: AgentContext) -> None:
        seen.append(ctx.state)
        ctx.state.n += 1

    agent = Agent("greeter", state=Counter, initial_state=Counter(n=5), on_start=start)
    for _ in range(2):
        await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    assert seen == [Counter(n=6), Counter(n=7)]
    assert (await stored_state(store), agent.initial_state) == ({"n": 7}, Counter(n=5))


async def test_the_state_is_written_with_the_first_step_so_that_a_crash_keeps_it(store: SQLiteStore) -> None:
    seen: list[Any] = []

    def start(ctx: AgentContext) -> None:
        ctx.state["ticket"] = "T1"

    @tool
    async def look() -> None:
        """Look."""
        seen.append(await stored_state(store))

    agent = Agent("greeter", tools=[look], on_start=start)
    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "look"}]}, "done"]
    await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    assert seen == [{"ticket": "T1"}]


@pytest.mark.parametrize(
    "stored", ["", "not json", "[]", "null", '{"n": "many"}', '{"n": NaN}', '{"n": 1', "\ufffd", "[" * 10_000]
)
async def test_a_stored_state_that_cannot_be_read_is_replaced_by_the_initial_one(
    store: SQLiteStore, stored: str
) -> None:
    seen: list[Any] = []
    await store.save_session(Session(id="s", agent_name="greeter", state=stored))
    agent = Agent("greeter", state=Counter, initial_state=Counter(n=5), on_start=lambda ctx: seen.append(ctx.state))
    result = await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    assert (assert_complete(result).status, seen, await stored_state(store)) == ("complete", [Counter(n=5)], {"n": 5})


async def test_a_state_that_is_no_json_is_refused_before_any_tool_runs(store: SQLiteStore) -> None:
    effects: list[str] = []

    def start(ctx: AgentContext) -> None:
        ctx.state["lock"] = object()

    @tool
    async def post() -> None:
        """Post."""
        effects.append("post")

    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "post"}]}]
    with pytest.raises(HoldfastError, match="its state is no JSON"):
        await run(
            Agent("greeter", tools=[post], on_start=start),
            message="hi",
            llm=ScriptedModel(script),
            store=store,
            session_id="s",
        )
    assert (effects, await store.load_session("s")) == ([], None)


# --- ownership ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "is_allowed"),
    [
        ({"user_id": "ann", "tenant_id": "acme"}, True),
        ({"user_id": "bob", "tenant_id": "acme"}, False),
        ({"user_id": "ann", "tenant_id": "other"}, False),
        ({"user_id": "ann"}, False),
        ({"tenant_id": "acme"}, False),
        ({"user_id": "ANN", "tenant_id": "acme"}, False),
        ({"user_id": "ann ", "tenant_id": "acme"}, False),
        ({}, False),
    ],
)
async def test_only_its_owner_goes_on_with_a_session(
    store: SQLiteStore, caller: dict[str, Any], is_allowed: bool
) -> None:
    agent = Agent("greeter")
    await run(
        agent,
        message="secret",
        llm=ScriptedModel(["yes"]),
        store=store,
        session_id="s",
        user_id="ann",
        tenant_id="acme",
    )
    before = await store.load_session("s")
    model = ScriptedModel(["more"])
    if is_allowed:
        await run(agent, message="hi", llm=model, store=store, session_id="s", **caller)
        assert await contents(store) == ["secret", "yes", "hi", "more"]
        return
    with pytest.raises(SessionAccessDeniedError) as caught:
        await run(agent, message="hi", llm=model, store=store, session_id="s", **caller)
    assert caught.value.code == "SESSION_ACCESS_DENIED"
    assert (model.calls, await store.load_session("s"), await contents(store)) == ([], before, ["secret", "yes"])


async def test_a_stranger_cannot_tell_a_foreign_session_from_none(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id="ann")
    texts = []
    for session_id in ("s", "t"):
        with pytest.raises((SessionAccessDeniedError, SessionNotFoundError)) as caught:
            await run(
                Agent("other"),
                message="hi",
                llm=ScriptedModel([]),
                store=store,
                session_id=session_id,
                user_id="bob",
                create_session=False,
            )
        texts.append(str(caught.value).replace(f": {session_id}", ""))
    assert texts == ["Session not found or access denied"] * 2


async def test_the_owner_of_a_new_session_is_who_runs(store: SQLiteStore) -> None:
    await run(
        Agent("greeter"),
        message="hi",
        llm=ScriptedModel(["yes"]),
        store=store,
        session_id="s",
        user_id="ann",
        tenant_id="acme",
    )
    listed = await store.list_sessions(user_id="ann")
    assert [(session.user_id, session.tenant_id) for session in listed] == [("ann", "acme")]


async def test_an_ownerless_session_is_anybodys_and_stays_so(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    for user in ("ann", "bob"):
        await run(Agent("greeter"), message=user, llm=ScriptedModel(["ok"]), store=store, session_id="s", user_id=user)
    session = await store.load_session("s")
    assert session is not None
    assert (session.user_id, await contents(store)) == (None, ["hi", "yes", "ann", "ok", "bob", "ok"])


async def test_a_memory_store_checks_the_owner_too() -> None:
    memory = memory_store()
    first = assert_complete(
        await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=memory, user_id="ann")
    )
    with pytest.raises(SessionAccessDeniedError):
        await run(
            Agent("greeter"),
            message="hi",
            llm=ScriptedModel([]),
            store=memory,
            session_id=first.session_id,
            user_id="bob",
        )


@pytest.mark.parametrize("field", ["user_id", "tenant_id"])
@pytest.mark.parametrize("value", ["", 7, b"ann", ["ann"], "\ud800", "ann\0"])
async def test_an_owner_that_is_no_clean_text_is_refused_before_the_model_is_called(
    store: SQLiteStore, field: str, value: Any
) -> None:
    model = ScriptedModel(["yes"])
    options: dict[str, Any] = {field: value}
    with pytest.raises(InputError, match=field):
        await run(Agent("greeter"), message="hi", llm=model, store=store, session_id="s", **options)
    assert (model.calls, await store.list_sessions()) == ([], [])


async def test_an_owner_full_of_sql_is_plain_text(store: SQLiteStore) -> None:
    name = "x'; DROP TABLE agent_sessions; --"
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id=name)
    assert [session.id for session in await store.list_sessions(user_id=name)] == ["s"]


# --- agents -------------------------------------------------------------------------------------------------------


async def test_a_session_of_another_agent_is_refused_and_unchanged(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    before, model = await store.load_session("s"), ScriptedModel(["no"])
    with pytest.raises(InputError, match="Session s belongs to agent 'greeter', not to 'writer'"):
        await run(Agent("writer"), message="hi", llm=model, store=store, session_id="s")
    assert (model.calls, await store.load_session("s"), await contents(store)) == ([], before, ["hi", "yes"])


# --- one writer ---------------------------------------------------------------------------------------------------


async def reached(event: asyncio.Event, task: "asyncio.Task[Any]") -> None:
    """Wait for an event; fail if the task ends without it."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert event.is_set(), task


class WaitingModel:
    """A model that answers once it is let go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> dict[str, Any]:
        self.asked.set()
        await self.go_on.wait()
        return {"text": "late"}


class StoreElsewhere(SQLiteStore):
    """The store as a machine sees it that shares the file and not the locks."""

    async def hold(self, session_id: str) -> bool:
        return True

    async def let_go(self, session_id: str) -> None:
        pass


async def test_of_two_processes_in_one_session_the_later_writer_is_refused(store: SQLiteStore, tmp_path: Path) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    async with StoreElsewhere(tmp_path / "holdfast.db") as other:
        slow = asyncio.create_task(run(agent, message="slow", llm=late, store=other, session_id="s"))
        await reached(late.asked, slow)
        await run(agent, message="fast", llm=ScriptedModel(["ok"]), store=store, session_id="s")
        late.go_on.set()
        with pytest.raises(SessionConflictError, match="Session s is at message 4, this run knows of 2") as caught:
            await slow
    assert caught.value.code == "SESSION_CONFLICT"
    assert await contents(store) == ["hi", "yes", "fast", "ok"]


async def test_of_two_processes_that_create_a_session_one_is_refused_and_its_tools_never_run(
    store: SQLiteStore, tmp_path: Path
) -> None:
    effects: list[str] = []

    @tool
    async def post() -> None:
        """Post."""
        effects.append("post")

    both_asked = asyncio.Barrier(2)

    async def answer(messages: list[Message], tools: list[Any]) -> Any:
        if messages[-1].role == "tool":
            return "done"
        await both_asked.wait()
        return {"tool_calls": [{"id": "c1", "name": "post"}]}

    agent = Agent("greeter", tools=[post])
    await store.list_sessions()
    async with StoreElsewhere(tmp_path / "holdfast.db") as other:
        ended = await asyncio.gather(
            *(
                run(agent, message="hi", llm=ScriptedModel(answer), store=each, session_id="s")
                for each in (store, other)
            ),
            return_exceptions=True,
        )
    assert sorted(type(end).__name__ for end in ended) == ["RunResult", "SessionConflictError"]
    assert (effects, await contents(store)) == (["post"], ["hi", "", "null", "done"])


async def test_a_session_deleted_under_a_run_is_a_conflict(store: SQLiteStore, tmp_path: Path) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    slow = asyncio.create_task(run(agent, message="slow", llm=late, store=store, session_id="s"))
    await reached(late.asked, slow)
    await store.delete_session("s")
    late.go_on.set()
    with pytest.raises(SessionConflictError):
        await slow
    assert await store.load_session("s") is None


async def test_a_session_deleted_and_made_anew_under_a_run_is_a_conflict(store: SQLiteStore, tmp_path: Path) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id="ann")
    slow = asyncio.create_task(run(agent, message="slow", llm=late, store=store, session_id="s", user_id="ann"))
    await reached(late.asked, slow)
    async with StoreElsewhere(tmp_path / "holdfast.db") as other:
        await other.delete_session("s")
        await run(agent, message="bob's", llm=ScriptedModel(["secret"]), store=other, session_id="s", user_id="bob")
    late.go_on.set()
    with pytest.raises(SessionConflictError):
        await slow
    assert await contents(store) == ["bob's", "secret"]


async def test_a_run_in_flight_holds_its_session_until_it_ends(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s"))
    await reached(late.asked, first)
    with pytest.raises(SessionConflictError, match="Session s has a run in flight"):
        await run(agent, message="too soon", llm=ScriptedModel([]), store=store, session_id="s")
    late.go_on.set()
    await first
    await run(agent, message="now", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert await contents(store) == ["hi", "late", "now", "ok"]


async def test_other_sessions_run_while_one_is_in_flight(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s"))
    await reached(late.asked, first)
    await run(agent, message="hi", llm=ScriptedModel(["ok"]), store=store, session_id="t")
    assert (first.done(), await contents(store, "t")) == (False, ["hi", "ok"])
    late.go_on.set()
    await first


async def test_a_run_that_fails_gives_its_session_free(store: SQLiteStore) -> None:
    def fail(ctx: AgentContext) -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        await run(Agent("greeter", on_start=fail), message="hi", llm=ScriptedModel([]), store=store, session_id="s")
    with pytest.raises(SessionNotFoundError):
        await run(
            Agent("greeter"), message="hi", llm=ScriptedModel([]), store=store, session_id="s", create_session=False
        )
    result = await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    assert isinstance(result, RunResult)


async def test_a_cancelled_run_gives_its_session_free(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s"))
    await reached(late.asked, first)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await run(agent, message="again", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert await contents(store) == ["again", "ok"]


async def test_a_stream_left_early_gives_its_session_free(store: SQLiteStore) -> None:
    agent = Agent("greeter")
    stream = run_streaming(agent, message="hi", llm=ScriptedModel(["one two"]), store=store, session_id="s")
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await run(agent, message="again", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert (await contents(store))[-2:] == ["again", "ok"]


async def test_a_tool_that_runs_its_own_session_is_refused_instead_of_waiting_for_ever(store: SQLiteStore) -> None:
    @tool
    async def again() -> str:
        """Run the same session."""
        await run(agent, message="deeper", llm=ScriptedModel([]), store=store, session_id="s")
        return "never"

    agent = Agent("greeter", tools=[again])
    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "again"}]}, "done"]
    await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert (messages[2].status, "run in flight" in messages[2].content) == ("failed", True)


async def test_a_stranger_learns_nothing_of_a_run_in_flight(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id="ann")
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s", user_id="ann"))
    await reached(late.asked, first)
    with pytest.raises(SessionAccessDeniedError):
        await run(agent, message="hi", llm=ScriptedModel([]), store=store, session_id="s", user_id="bob")
    late.go_on.set()
    await first


async def test_a_session_is_held_against_other_stores_and_processes_on_the_file(
    store: SQLiteStore, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "holdfast.db")
    assert await store.hold("s")
    code = (
        "import asyncio, sys\nfrom holdfast import sqlite_store\n"
        "print([asyncio.run(sqlite_store(sys.argv[1]).hold(name)) for name in ('s', 'free')])"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "holdfast.db")]
    async with sqlite_store(tmp_path / "link.db") as other:
        assert (await other.hold("s"), await other.hold("t")) == (False, True)
        seen = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert seen.stdout == "[False, True]\n"
        await store.let_go("s")
        assert await other.hold("s")
        await other.let_go("s")
        await other.let_go("t")


async def test_a_store_can_be_used_after_a_fork(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys\nfrom holdfast import sqlite_store\n"
        "store = sqlite_store(sys.argv[1])\n"
        "asyncio.run(store.load_session('s'))\n"
        "child = os.fork()\n"
        "print('child' if child == 0 else 'parent', asyncio.run(store.load_session('s')), flush=True)\n"
        "child == 0 or os.waitpid(child, 0)\n"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "forked.db")]
    seen = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert sorted(seen.stdout.splitlines()) == ["child None", "parent None"]
