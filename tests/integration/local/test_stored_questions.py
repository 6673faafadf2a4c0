"""Questions stored in a session: each gets its answer exactly once, whatever happens in between."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.doubles import poster, reached
from support.questions import asking
from support.stores import StoreElsewhere, seed
from support.transcripts import USER, asks, calls, kind_of, result_of, shape

from standfast import (
    Agent,
    InputError,
    InterruptError,
    SessionConflictError,
    assert_complete,
    is_interrupted,
    resume,
    run,
    sqlite_store,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel, crash_after_tool_results


async def test_a_question_survives_in_the_session_and_its_answer_is_the_result(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    script = [calls("c1", tool="ask")]
    first = await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    again = await run(agent, llm=ScriptedModel([]), store=store, session_id="s")
    assert is_interrupted(first)
    assert is_interrupted(again)
    assert (again.question, again.checkpoint.pending_tool_use_id) == ("c1?", "c1")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1"]

    await resume(agent, again.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert (result_of(messages, "c1"), messages[2].tool_name) == ("yes", "ask")


async def test_a_question_is_answered_once(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    waiting = await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store)
    assert is_interrupted(waiting)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    before = await store.load_messages(waiting.session_id or "")
    with pytest.raises(InputError, match="does not wait for the answer to call c1 any more"):
        await resume(agent, waiting.checkpoint, "no", llm=ScriptedModel([]), store=store)
    assert await store.load_messages(waiting.session_id or "") == before


async def test_a_session_that_asks_takes_no_new_message(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    with pytest.raises(InputError, match=r"Session s waits for the answer to 'c1\?' \(call c1\)"):
        await run(agent, message="never mind", llm=ScriptedModel([]), store=store, session_id="s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1"]


async def test_an_answer_lost_before_its_write_is_asked_for_again(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    waiting = await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    assert is_interrupted(waiting)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]), store=crash_after_tool_results(store, 1))
    again = await run(agent, llm=ScriptedModel([]), store=store, session_id="s")
    assert is_interrupted(again)
    assert again.question == "c1?"


async def test_two_questions_of_a_turn_are_asked_one_after_the_other_without_the_model(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    script = [calls("c1", "c2", tool="ask")]
    first = await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    assert is_interrupted(first)
    second = await resume(agent, first.checkpoint, "one", llm=ScriptedModel([]), store=store)
    assert is_interrupted(second)
    assert [first.question, second.question] == ["c1?", "c2?"]
    await resume(agent, second.checkpoint, "two", llm=ScriptedModel(["done"]), store=store)
    messages = await store.load_messages("s")
    assert [result_of(messages, call_id) for call_id in ("c1", "c2")] == ["one", "two"]


@pytest.mark.parametrize("is_stored", [True, False], ids=["session", "checkpoint"])
async def test_the_model_sees_results_in_call_order_though_the_first_was_answered_last(
    store: SQLiteStore, is_stored: bool
) -> None:
    both = [*calls("c1", tool="ask")["tool_calls"], *calls("c2")["tool_calls"]]
    agent = Agent("poster", tools=[asking(), poster([])])
    options: dict[str, Any] = {"store": store} if is_stored else {}
    waiting = await run(agent, message="hi", llm=ScriptedModel([{"tool_calls": both}]), **options)
    assert is_interrupted(waiting)
    model = ScriptedModel(["done"])
    result = assert_complete(await resume(agent, waiting.checkpoint, "yes", llm=model, **options))
    assert shape(model.calls[0].messages[1:]) == ["user hi", "calls c1 c2", "result c1", "result c2"]
    assert shape(result.messages) == ["user hi", "calls c1 c2", "result c1", "result c2", "assistant done"]


async def test_a_call_beside_a_question_is_not_run_again_by_the_answer(store: SQLiteStore) -> None:
    effects: list[str] = []
    both = [*calls("c1", tool="ask")["tool_calls"], *calls("c2")["tool_calls"]]
    agent = Agent("poster", tools=[asking(), poster(effects)])
    waiting = await run(agent, message="hi", llm=ScriptedModel([{"tool_calls": both}]), store=store, session_id="s")
    assert is_interrupted(waiting)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    assert (effects, kind_of(await store.load_messages("s"), "c2")) == (["c2"], None)


async def test_a_checkpoint_continues_in_another_store_under_its_session_id(store: SQLiteStore, tmp_path: Path) -> None:
    agent = Agent("poster", tools=[asking()])
    waiting = await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    assert is_interrupted(waiting)
    exported = waiting.checkpoint.model_copy(update={"session_id": None}).model_dump_json()
    async with sqlite_store(tmp_path / "other.db") as other:
        with pytest.raises(InputError, match="belongs to session s, which is not in this store"):
            await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]), store=other)
        with pytest.raises(InputError, match="belongs to session s: pass the store= that holds it"):
            await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]))
        with pytest.raises(InputError, match="belongs to session s, not to session t"):
            await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]), store=store, session_id="t")
        await resume(agent, exported, "yes", llm=ScriptedModel(["done"]), store=other, session_id="s")
        assert shape(await other.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_an_answer_to_an_old_checkpoint_is_not_taken_for_the_answer_to_a_new_question(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    old = assert_complete(await run(agent, message="hi", llm=ScriptedModel(["ok"]), store=store, session_id="s"))
    await run(agent, message="go", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    with pytest.raises(InputError, match="does not wait for an answer here"):
        await resume(agent, old.checkpoint, "yes", llm=ScriptedModel([]), store=store)
    assert shape(await store.load_messages("s"))[-1] == "calls c1"


async def test_a_question_that_was_returned_is_not_overwritten_by_a_run_that_began_before(
    store: SQLiteStore, tmp_path: Path
) -> None:
    await seed(store, [USER, asks("c1", tool="ask")])
    late, go = asyncio.Event(), asyncio.Event()

    async def unknown(text: str) -> None:
        late.set()
        await go.wait()

    @tool(verify=unknown)
    async def ask(text: str) -> str:
        """Ask a person."""
        raise InterruptError(f"{text}?")

    @tool(name="ask", safe_to_retry=True)
    async def ask_again(text: str) -> str:
        """Ask a person."""
        raise InterruptError(f"{text}?")

    async with StoreElsewhere(tmp_path / "standfast.db") as other:
        slow = asyncio.create_task(
            run(Agent("poster", tools=[ask]), llm=ScriptedModel(["done"]), store=other, session_id="s")
        )
        await reached(late, slow)
        waiting = await run(Agent("poster", tools=[ask_again]), llm=ScriptedModel([]), store=store, session_id="s")
        assert is_interrupted(waiting)
        go.set()
        with pytest.raises(SessionConflictError):
            await slow
    await resume(
        Agent("poster", tools=[ask_again]), waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store
    )
    assert result_of(await store.load_messages("s"), "c1") == "yes"
