"""The writes of a durable run and their order, including when the model, a hook or a tool ends it."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.doubles import poster
from support.stores import Recorder
from support.transcripts import USER, asks, calls, shape

from standfast import (
    Agent,
    AgentContext,
    InputError,
    Loop,
    RunResult,
    StoreError,
    TerminalError,
    assert_complete,
    memory_store,
    run,
    sqlite_store,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel, crash_after_tool_results

# --- what is written, and when ---


async def test_a_tool_step_is_two_writes_and_the_final_text_a_third(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    agent = Agent("poster", tools=[poster([])])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=recorder, session_id="s")
    assert recorder.writes == [
        ("append_messages_atomic", ["user hi", "calls c1"]),
        ("append_messages_atomic", ["result c1"]),
        ("append_messages_atomic", ["assistant done"]),
    ]


async def test_all_results_of_a_turn_land_in_one_write_in_call_order(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    agent = Agent("poster", tools=[poster([], parallel=True)])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1", "c2", "c3"), "done"]), store=recorder)
    assert recorder.writes[1] == ("append_messages_atomic", ["result c1", "result c2", "result c3"])


async def test_the_user_message_is_only_in_the_first_write(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    agent = Agent("poster", tools=[poster([])])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), calls("c2"), "done"]), store=recorder)
    assert [messages for _, messages in recorder.writes] == [
        ["user hi", "calls c1"],
        ["result c1"],
        ["calls c2"],
        ["result c2"],
        ["assistant done"],
    ]


async def test_a_turn_of_text_is_one_write(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    await run(Agent("poster"), message="hi", llm=ScriptedModel(["done"]), store=recorder, session_id="s")
    assert recorder.writes == [("append_messages_atomic", ["user hi", "assistant done"])]


async def test_ten_steps_of_two_calls_are_twenty_one_writes(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    script = [calls(f"a{step}", f"b{step}") for step in range(10)]
    await run(Agent("poster", tools=[poster([])]), message="hi", llm=ScriptedModel([*script, "done"]), store=recorder)
    assert [name for name, _ in recorder.writes] == ["append_messages_atomic"] * 21


async def test_the_calls_are_written_before_their_handlers_start(store: SQLiteStore) -> None:
    seen: list[list[str]] = []

    @tool
    async def post(text: str) -> None:
        """Post a text."""
        seen.append(shape(await store.load_messages("s")))

    agent = Agent("poster", tools=[post])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    assert seen == [["user hi", "calls c1"]]


async def test_system_messages_are_not_stored(store: SQLiteStore) -> None:
    agent = Agent("poster", instructions="Be brief.", tools=[poster([])], loop=Loop(token_budget=1_000))
    usage = {"usage": {"input_tokens": 850, "output_tokens": 0}}
    model = ScriptedModel([{**calls("c1"), **usage}, "done"])
    await run(agent, message="hi", llm=model, store=store, session_id="s")
    assert [message.role for message in model.calls[1].messages].count("system") == 2
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_run_without_a_store_writes_nothing_and_has_no_session() -> None:
    result = assert_complete(await run(Agent("poster"), message="hi", llm=ScriptedModel(["done"])))
    assert result.session_id is None


async def test_a_transcript_that_was_brought_is_stored_before_its_calls_run(store: SQLiteStore) -> None:
    effects: list[str] = []
    brought = [USER, asks("c1")]
    crashing = crash_after_tool_results(store)
    agent = Agent("poster", tools=[poster(effects)])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, messages=brought, llm=ScriptedModel([]), store=crashing, session_id="s")
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert len(effects) == 1
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_results_that_a_store_refuses_for_a_moment_are_kept(store: SQLiteStore) -> None:
    class Hiccup(SQLiteStore):
        keys: ClassVar[list[Any]] = []

        async def append_messages_atomic(self, *args: Any, **options: Any) -> int:
            self.keys.append(options["write_key"])
            if len(self.keys) == 2:
                raise StoreError("busy")
            return await super().append_messages_atomic(*args, **options)

    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    async with Hiccup(":memory:") as hiccup:
        result = assert_complete(
            await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=hiccup, session_id="s")
        )
        assert shape(await hiccup.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert (result.status, effects) == ("complete", ["c1"])
    assert [Hiccup.keys.index(key) for key in Hiccup.keys] == [0, 1, 1, 3]


# --- errors of the model ---


async def test_a_model_error_at_once_writes_nothing(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    model = ScriptedModel([RuntimeError("no route to model")])
    result = assert_complete(await run(Agent("poster"), message="hi", llm=model, store=recorder, session_id="s"))
    assert (result.status, result.response, result.iterations) == ("error", "no route to model", 1)
    assert recorder.writes == []
    assert await store.load_session("s") is None


async def test_a_model_error_after_a_step_keeps_the_step_and_the_session_continues(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    model = ScriptedModel([calls("c1"), RuntimeError("overloaded")])
    failed = assert_complete(await run(agent, message="hi", llm=model, store=store, session_id="s"))
    assert (failed.status, failed.session_id) == ("error", "s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1"]

    again = assert_complete(await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s"))
    assert (again.status, effects) == ("complete", ["c1"])
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_model_error_on_a_resumed_session_changes_nothing(store: SQLiteStore) -> None:
    def count(ctx: AgentContext) -> None:
        ctx.state["runs"] = ctx.state.get("runs", 0) + 1

    agent = Agent("poster", on_start=count)
    await run(agent, message="hi", llm=ScriptedModel(["done"]), store=store, session_id="s")
    before = await store.load_session("s"), await store.load_messages("s")
    await run(agent, message="more", llm=ScriptedModel([RuntimeError("down")]), store=store, session_id="s")
    assert (await store.load_session("s"), await store.load_messages("s")) == before


async def test_a_model_error_does_not_prune_a_session(store: SQLiteStore) -> None:
    agent = Agent("poster")
    for text in ("one", "two", "three"):
        await run(agent, message=text, llm=ScriptedModel(["done"]), store=store, session_id="s")
    before = await store.load_messages("s")
    model = ScriptedModel([RuntimeError("down")])
    await run(agent, message="more", llm=model, store=store, session_id="s", max_stored_messages=2)
    assert await store.load_messages("s") == before


# --- hooks and terminal errors ---


async def test_an_on_complete_that_raises_loses_no_message(store: SQLiteStore) -> None:
    def fail(ctx: AgentContext) -> None:
        raise OSError("no mail today")

    agent = Agent("poster", tools=[poster([])], on_complete=fail)
    with pytest.raises(OSError, match="no mail today"):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_an_on_complete_that_raises_loses_no_message_of_a_memory_store() -> None:
    def fail(ctx: AgentContext) -> None:
        raise OSError("no mail today")

    memory = memory_store()
    agent = Agent("poster", tools=[poster([])], on_complete=fail)
    with pytest.raises(OSError, match="no mail today"):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=memory)
    (session,) = await memory.list_sessions()
    assert shape(await memory.load_messages(session.id)) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_terminal_error_that_fails_the_run_is_recorded_before_it_is_raised(store: SQLiteStore) -> None:
    @tool
    async def post(text: str) -> str:
        """Post a text."""
        raise TerminalError("account closed", 410, {"account": 7})

    agent = Agent("poster", tools=[post], on_terminal_tool_error="fail")
    with pytest.raises(TerminalError, match="account closed") as caught:
        await run(agent, message="hi", llm=ScriptedModel([calls("c1", "c2")]), store=store, session_id="s")
    assert (caught.value.status_code, caught.value.metadata) == (410, {"account": 7})
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls c1 c2", "result c1", "result c2"]
    assert [message.status for message in messages[2:]] == ["failed", "cancelled"]


# --- finished sessions ---


async def test_a_finished_session_finishes_again_without_the_model_and_without_a_write(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    first = await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    before = await store.load_session("s")
    recorder = Recorder(store)
    again = await run(agent, llm=ScriptedModel([]), store=recorder, session_id="s")
    assert isinstance(first, RunResult)
    assert isinstance(again, RunResult)
    assert (again.status, again.response, again.messages) == (first.status, first.response, first.messages)
    assert (effects, recorder.writes, await store.load_session("s")) == (["c1"], [], before)


async def test_an_exported_run_ends_in_another_store_as_it_did_in_the_first(store: SQLiteStore, tmp_path: Path) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    done = assert_complete(
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    )
    async with sqlite_store(tmp_path / "other.db") as other:
        with pytest.raises(InputError, match="belongs to session s, which is not in this store"):
            await run(agent, checkpoint=done.checkpoint, llm=ScriptedModel([]), store=other)
        exported = done.checkpoint.model_copy(update={"session_id": None}).model_dump_json()
        await run(agent, checkpoint=exported, llm=ScriptedModel([]), store=other, session_id="s")
        assert await other.load_messages("s") == await store.load_messages("s")
    assert effects == ["c1"]
