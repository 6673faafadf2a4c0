"""Transcripts that cannot be continued are refused before anything happens."""

from typing import Any

import pytest
from support.notebooks import Notebook, assistant, note, noted, user

from standfast import Agent, Checkpoint, InputError, Message, ToolCall, assert_complete, run
from standfast.stores import Session, SQLiteStore
from standfast.testing import ScriptedModel


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"messages": []},
        {"messages": [Message(role="system", content="Be brief.")]},
        {"checkpoint": {}},
        {"checkpoint": Checkpoint()},
    ],
    ids=["nothing", "no messages", "only a system message", "empty dict", "empty checkpoint"],
)
async def test_nothing_to_continue_from_is_refused_without_a_model_call(given: dict[str, Any]) -> None:
    model = ScriptedModel([])
    with pytest.raises(InputError):
        await run(Agent("a"), llm=model, **given)
    assert model.calls == []


async def test_a_session_without_messages_is_refused_without_a_message(store: SQLiteStore) -> None:
    await store.save_session(Session(id="s", agent_name="a"))
    model = ScriptedModel(["to whom?"])
    with pytest.raises(InputError):
        await run(Agent("a"), store=store, session_id="s", llm=model)
    assert model.calls == []


BROKEN: dict[str, list[Any]] = {
    "a result with nothing before it": [noted("1")],
    "a result after the user": [user("go"), noted("1")],
    "a result of no call": [user("go"), assistant("", note("1")), noted("2")],
    "a result given twice": [user("go"), assistant("", note("1")), noted("1"), noted("1")],
    "a result without an id": [user("go"), assistant("", note("1")), Message(role="tool", content="x")],
    "a result in a later turn": [user("go"), assistant("", note("1")), user("well?"), noted("1")],
    "the user between call and result": [user("go"), assistant("", note("1")), user("well?")],
    "an answer after unanswered calls": [user("go"), assistant("", note("1")), assistant("done")],
    "two calls with one id": [user("go"), assistant("", note("1"), note("1"))],
    "a call without an id": [user("go"), assistant("", ToolCall(name="note"))],
    "calls of the user": [Message(role="user", content="go", tool_calls=(note("1"),))],
    "an unknown role": [{"role": "wizard", "content": "x"}],
    "no role": [{"content": "x"}],
    "content that is not a text": [{"role": "user", "content": 5}],
    "something else": [5],
}


@pytest.mark.parametrize("messages", BROKEN.values(), ids=BROKEN)
async def test_a_broken_transcript_is_refused_before_anything_happens(store: SQLiteStore, messages: list[Any]) -> None:
    notebook, model = Notebook(), ScriptedModel(["never"])
    for given in ({"messages": messages}, {"checkpoint": {"messages": messages}}):
        with pytest.raises(InputError):
            await run(notebook.agent, llm=model, store=store, session_id="s", **given)
    assert (notebook.texts, model.calls, await store.load_session("s")) == ([], [], None)


async def test_a_text_is_not_a_transcript() -> None:
    with pytest.raises(InputError):
        await run(Agent("a"), messages="hello", llm=ScriptedModel(["never"]))  # type: ignore[arg-type]


async def test_the_refusal_names_the_message() -> None:
    with pytest.raises(InputError, match=r"messages\[0\]: Expected an assistant message before tool results"):
        await run(Agent("a"), messages=[noted("1")], llm=ScriptedModel([]))


async def test_a_message_beside_unanswered_calls_is_refused() -> None:
    notebook = Notebook()
    with pytest.raises(InputError, match="c1"):
        await run(notebook.agent, messages=[user("go"), assistant("", note("1"))], message="hi", llm=ScriptedModel([]))
    assert notebook.texts == []


async def test_messages_and_a_checkpoint_together_are_refused() -> None:
    with pytest.raises(InputError, match="not both"):
        await run(Agent("a"), messages=[user("hi")], checkpoint=Checkpoint(), llm=ScriptedModel([]))


async def test_messages_for_a_session_that_has_some_are_refused(store: SQLiteStore) -> None:
    first = assert_complete(await run(Agent("a"), message="hi", store=store, session_id="s", llm=ScriptedModel(["ok"])))
    with pytest.raises(InputError, match="its own messages"):
        await run(Agent("a"), messages=[user("other")], store=store, session_id="s", llm=ScriptedModel(["never"]))
    assert await store.load_messages("s") == list(first.messages)
