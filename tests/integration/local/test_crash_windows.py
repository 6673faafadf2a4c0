"""A run dies at one of its writes or inside a handler, and the next run continues it."""

import asyncio
import json

import pytest
from support.doubles import poster, reached
from support.stores import crash_on_write, seed
from support.transcripts import DURABILITY, USER, asks, calls, kind_of, result_of, shape

from standfast import Agent, assert_complete, run, tool
from standfast.stores import Session, SQLiteStore
from standfast.testing import ScriptedModel, SimulatedCrash, crash_after_tool_results

# --- crash windows ---


async def test_an_unsafe_call_lost_in_flight_is_answered_with_a_durability_error(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1")], 2)
    assert effects == ["c1"]

    model = ScriptedModel(["I will look first."])
    result = assert_complete(await run(agent, llm=model, store=store, session_id="s"))
    assert (result.status, effects) == ("complete", ["c1"])
    payload = json.loads(result_of(await store.load_messages("s"), "c1"))
    assert {key: payload[key] for key in ("kind", "toolName", "toolCallId")} == {
        "kind": "tool-durability-error",
        "toolName": "post",
        "toolCallId": "c1",
    }
    assert sorted(payload) == ["error", "kind", "toolCallId", "toolName"]
    assert result_of(model.calls[0].messages, "c1") == result_of(await store.load_messages("s"), "c1")


async def test_a_durability_error_names_the_tool_the_call_and_the_way_out(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[poster([])])
    await seed(store, [USER, asks("c1")])
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    error = json.loads(result_of(await store.load_messages("s"), "c1"))["error"]
    for part in ("'post'", "c1", "was not run again", "Check the external state"):
        assert part in error
    assert "safe_to_retry" not in error  # the model cannot declare it


async def test_a_safe_call_lost_in_flight_runs_again_and_its_real_result_is_stored(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=True)])
    await crash_on_write(store, agent, [calls("c1")], 2)
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert effects == ["c1", "c1"]
    assert shape(messages) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert result_of(messages, "c1") == "posted c1"
    assert not any(DURABILITY in message.content for message in messages)


async def test_a_crash_on_the_first_write_runs_no_handler_and_leaves_no_session(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1")], 1)
    assert (effects, await store.load_session("s")) == ([], None)

    await run(agent, message="hi", llm=ScriptedModel([calls("c2"), "done"]), store=store, session_id="s")
    assert effects == ["c2"]
    assert shape(await store.load_messages("s")) == ["user hi", "calls c2", "result c2", "assistant done"]


async def test_a_crash_inside_an_unsafe_handler_is_answered_with_a_durability_error(store: SQLiteStore) -> None:
    started: list[str] = []

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        started.append(text)
        raise SimulatedCrash("in the handler")

    agent = Agent("poster", tools=[post])
    with pytest.raises(SimulatedCrash):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1")]), store=store, session_id="s")
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert (started, kind_of(await store.load_messages("s"), "c1")) == (["c1"], DURABILITY)


async def test_a_crash_on_the_last_write_loses_only_the_last_text(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1"), "done"], 3)
    result = assert_complete(await run(agent, llm=ScriptedModel(["done again"]), store=store, session_id="s"))
    assert (result.response, effects) == ("done again", ["c1"])
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done again"]


async def test_a_cancelled_run_records_its_unsafe_call_as_unknown(store: SQLiteStore) -> None:
    started = asyncio.Event()

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent("poster", tools=[post])
    going = asyncio.create_task(
        run(agent, message="hi", llm=ScriptedModel([calls("c1", "c2")]), store=store, session_id="s")
    )
    await reached(started, going)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls c1 c2", "result c1", "result c2"]
    assert [kind_of(messages, call_id) for call_id in ("c1", "c2")] == [DURABILITY, None]
    assert messages[-1].status == "cancelled"


# --- a crash while repairing ---


@pytest.mark.parametrize("safe", [True, False])
async def test_a_repair_that_crashes_is_done_again_once_per_call(store: SQLiteStore, safe: bool) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=safe)])
    await seed(store, [USER, asks("a", "b")])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, llm=ScriptedModel([]), store=crash_after_tool_results(store, 1), session_id="s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls a b"]

    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls a b", "result a", "result b", "assistant done"]
    assert effects == (["a", "b", "a", "b"] if safe else [])
    assert [kind_of(messages, call_id) for call_id in "ab"] == ([None] * 2 if safe else [DURABILITY] * 2)


# --- the harness for one crash ---


@pytest.mark.parametrize(("number", "stored"), [(1, []), (2, ["user hi", "calls c1"])])
async def test_the_crash_harness_fails_one_atomic_write_and_nothing_of_it_lands(
    store: SQLiteStore, number: int, stored: list[str]
) -> None:
    agent = Agent("poster", tools=[poster([])])
    await crash_on_write(store, agent, [calls("c1")], number)
    assert shape(await store.load_messages("s")) == stored


async def test_the_crash_harness_passes_everything_else_through(store: SQLiteStore) -> None:
    harness = crash_after_tool_results(store)
    session = Session(id="s", agent_name="poster")
    await harness.save_session(session)
    await harness.append_messages("s", [USER], session)
    assert await harness.append_messages_atomic("s", [USER], session) == 2
    with pytest.raises(RuntimeError, match="simulated crash after tool results"):
        await harness.append_messages_atomic("s", [USER], session)
    assert await harness.append_messages_atomic("s", [USER], session) == 3
    await harness.prune_messages("s", 1)
    assert (shape(await harness.load_messages("s")), harness.durable) == (["user hi"], True)
    assert [listed.id for listed in await harness.list_sessions()] == ["s"]
    await harness.delete_session("s")
    assert await harness.load_session("s") is None
