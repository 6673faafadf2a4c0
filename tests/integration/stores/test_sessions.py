"""Valid session ids, the creation of a session, and the stored state of an agent."""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel
from support.stores import contents

from standfast import (
    Agent,
    AgentContext,
    Checkpoint,
    InputError,
    SessionNotFoundError,
    StandfastError,
    assert_complete,
    resume,
    run,
    tool,
)
from standfast.stores import Session, SQLiteStore
from standfast.testing import ScriptedModel


async def stored_state(store: SQLiteStore) -> Any:
    session = await store.load_session("s")
    assert session is not None
    return json.loads(session.state)


# --- ids ---


async def test_a_run_without_a_session_id_makes_a_new_session(store: SQLiteStore) -> None:
    ids = []
    for _ in range(2):
        result = assert_complete(await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store))
        ids.append(result.session_id or "")
    uuid4 = r"sess_[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert [bool(re.fullmatch(uuid4, session_id)) for session_id in ids] == [True, True]
    assert sorted(session.id for session in await store.list_sessions()) == sorted(set(ids))


@pytest.mark.parametrize("session_id", ["s", "issue-42", "user@example.com:7", "A_b.c~d+e=f", "0", "x" * 200])
async def test_an_ordinary_session_id_is_taken_unchanged(store: SQLiteStore, session_id: str) -> None:
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


# --- strict and creating mode ---


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


async def test_a_known_session_continues_in_strict_mode(store: SQLiteStore) -> None:
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
    with pytest.raises(InputError, match="Session s has its own messages"):
        await run(Agent("greeter"), messages=transcript, llm=ScriptedModel([]), store=store, session_id="s")
    assert await contents(store) == ["hi", "yes"]


# --- state ---


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


async def test_a_state_that_is_not_json_is_refused_before_any_tool_runs(store: SQLiteStore) -> None:
    effects: list[str] = []

    def start(ctx: AgentContext) -> None:
        ctx.state["lock"] = object()

    @tool
    async def post() -> None:
        """Post."""
        effects.append("post")

    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "post"}]}]
    with pytest.raises(StandfastError, match="its state is not JSON"):
        await run(
            Agent("greeter", tools=[post], on_start=start),
            message="hi",
            llm=ScriptedModel(script),
            store=store,
            session_id="s",
        )
    assert (effects, await store.load_session("s")) == ([], None)


# --- agents ---


async def test_a_session_of_another_agent_is_refused_and_unchanged(store: SQLiteStore) -> None:
    await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    before, model = await store.load_session("s"), ScriptedModel(["no"])
    with pytest.raises(InputError, match="Session s belongs to agent 'greeter', not to 'writer'"):
        await run(Agent("writer"), message="hi", llm=model, store=store, session_id="s")
    assert (model.calls, await store.load_session("s"), await contents(store)) == ([], before, ["hi", "yes"])
