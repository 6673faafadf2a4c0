"""Sessions that wait for an answer: who may answer, how often, and what is refused in the meantime."""

from pathlib import Path

import pytest
from support.questions import agent, interrupted
from support.transcripts import call, tool_contents

from standfast import InputError, assert_complete, is_interrupted, resume, run, sqlite_store
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_a_question_is_answered_in_another_process_by_the_session_alone(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "h.db") as first:
        asked = await interrupted(call("ask", "a1", question="Who?"), store=first, session_id="s")
        text = asked.checkpoint.model_dump_json()
    async with sqlite_store(tmp_path / "h.db") as second:
        result = assert_complete(await resume(agent, text, "Alice", store=second, llm=ScriptedModel(["Hi Alice"])))
        assert (result.response, result.session_id) == ("Hi Alice", "s")
        assert await second.load_messages("s") == list(result.messages)


async def test_a_session_that_waits_gives_its_question_again_without_calling_the_model(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path / "h.db") as first:
        asked = await interrupted(call("ask", "a1", question="Who?"), store=first, session_id="s")
    async with sqlite_store(tmp_path / "h.db") as second:
        model = ScriptedModel([])
        again = await run(agent, store=second, session_id="s", llm=model)
        assert is_interrupted(again)
        assert (again.question, model.calls) == ("Who?", [])
        assert again.checkpoint.pending_tool_use_id == asked.checkpoint.pending_tool_use_id
        result = assert_complete(await resume(agent, again.checkpoint, "A", store=second, llm=ScriptedModel(["ok"])))
        assert result.status == "complete"


async def test_a_new_message_while_a_question_is_open_is_refused_and_changes_nothing(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    before = await store.load_messages("s")
    with pytest.raises(InputError, match=r"waits for the answer to 'Who\?'"):
        await run(agent, message="hello?", store=store, session_id="s", llm=ScriptedModel([]))
    assert await store.load_messages("s") == before
    result = assert_complete(await resume(agent, asked.checkpoint, "Alice", store=store, llm=ScriptedModel(["ok"])))
    assert result.status == "complete"


async def test_a_new_message_with_a_checkpoint_that_asks_is_refused() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    with pytest.raises(InputError, match=r"waits for the answer to 'Who\?'"):
        await run(agent, checkpoint=asked.checkpoint, message="hello?", llm=ScriptedModel([]))


async def test_a_checkpoint_that_asks_gives_its_question_again() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    again = await run(agent, checkpoint=asked.checkpoint, llm=ScriptedModel([]))
    assert is_interrupted(again)
    assert again == asked


async def test_answering_a_stored_question_twice_is_refused(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    first = assert_complete(await resume(agent, asked.checkpoint, "Alice", store=store, llm=ScriptedModel(["ok"])))
    with pytest.raises(InputError, match="a1"):
        await resume(agent, asked.checkpoint, "Bob", store=store, llm=ScriptedModel(["never"]))
    assert await store.load_messages("s") == list(first.messages)


async def test_answering_the_first_of_two_stored_questions_twice_is_refused(store: SQLiteStore) -> None:
    asked = await interrupted(
        call("ask", "a1", question="One?"), call("ask", "a2", question="Two?"), store=store, session_id="s"
    )
    await resume(agent, asked.checkpoint, "1", store=store, llm=ScriptedModel([]))
    with pytest.raises(InputError, match="a1"):
        await resume(agent, asked.checkpoint, "1", store=store, llm=ScriptedModel([]))
    assert tool_contents(await store.load_messages("s")) == [("a1", "1")]


async def test_a_checkpoint_without_a_session_may_be_answered_twice_in_two_ways() -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    for name in ("Alice", "Bob"):
        result = assert_complete(await resume(agent, asked.checkpoint, name, llm=ScriptedModel(["ok"])))
        assert tool_contents(result.messages) == [("a1", name)]


async def test_an_interrupted_run_can_move_into_a_store(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), call("echo", "e1", text="x"))
    result = assert_complete(
        await resume(agent, asked.checkpoint, "Alice", store=store, session_id="new", llm=ScriptedModel(["ok"]))
    )
    assert result.session_id == "new"
    again = assert_complete(await run(agent, store=store, session_id="new", llm=ScriptedModel([])))
    assert again.messages == result.messages


async def test_an_interrupted_run_can_be_parked_in_a_store_without_an_answer(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"))
    parked = await run(agent, checkpoint=asked.checkpoint, store=store, session_id="new", llm=ScriptedModel([]))
    assert is_interrupted(parked)
    later = await run(agent, store=store, session_id="new", llm=ScriptedModel([]))
    assert is_interrupted(later)
    assert (later.question, await store.load_messages("new")) == ("Who?", list(asked.checkpoint.messages))


async def test_after_the_answer_the_session_takes_messages_again(store: SQLiteStore) -> None:
    asked = await interrupted(call("ask", "a1", question="Who?"), store=store, session_id="s")
    await resume(agent, asked.checkpoint, "Alice", store=store, llm=ScriptedModel(["ok"]))
    result = assert_complete(await run(agent, message="more", store=store, session_id="s", llm=ScriptedModel(["sure"])))
    assert result.response == "sure"
