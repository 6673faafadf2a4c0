"""A session keeps its last messages, and pruning never separates a call from its results."""

from typing import Any

import pytest
from support.doubles import poster
from support.questions import asking
from support.stores import seed
from support.transcripts import USER, calls, shape

from standfast import Agent, InputError, Message, is_interrupted, resume, run
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_a_session_keeps_its_last_turns(store: SQLiteStore) -> None:
    for text in ("one", "two", "three"):
        await run(
            Agent("poster"),
            message=text,
            llm=ScriptedModel([f"re {text}"]),
            store=store,
            session_id="s",
            max_stored_messages=4,
        )
    assert shape(await store.load_messages("s")) == ["user two", "assistant re two", "user three", "assistant re three"]


async def test_a_session_keeps_two_hundred_messages_unless_told_otherwise(store: SQLiteStore) -> None:
    turn = [USER, Message(role="assistant", content="yes")]
    await seed(store, turn * 100)
    await run(Agent("poster"), message="more", llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert (len(messages), shape(messages[-2:])) == (200, ["user more", "assistant done"])


async def test_numbers_continue_after_pruning_and_the_next_run_is_not_a_conflict(store: SQLiteStore) -> None:
    numbers = []
    for text in ("one", "two", "three"):
        await run(
            Agent("poster"),
            message=text,
            llm=ScriptedModel(["ok"]),
            store=store,
            session_id="s",
            max_stored_messages=2,
        )
        session = await store.load_session("s")
        assert session is not None
        numbers.append(session.last_seq)
    assert numbers == [2, 4, 6]


async def test_pruning_never_parts_a_call_from_its_result(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[poster([])])
    script: list[Any] = [calls("c1"), calls("c2"), "done"]
    await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s", max_stored_messages=3)
    assert shape(await store.load_messages("s")) == [
        "user hi",
        "calls c1",
        "result c1",
        "calls c2",
        "result c2",
        "assistant done",
    ]


async def test_pruning_leaves_a_waiting_question_answerable(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    await run(agent, message="one", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    waiting = await run(
        agent,
        message="two",
        llm=ScriptedModel([calls("c1", tool="ask")]),
        store=store,
        session_id="s",
        max_stored_messages=2,
    )
    assert is_interrupted(waiting)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    assert shape(await store.load_messages("s")) == ["user two", "calls c1", "result c1", "assistant done"]


@pytest.mark.parametrize("limit", [0, -1, "4", None])
async def test_a_limit_on_messages_that_is_not_a_positive_number_is_refused_before_anything_is_written(
    store: SQLiteStore, limit: Any
) -> None:
    model = ScriptedModel(["done"])
    with pytest.raises(InputError, match="max_stored_messages"):
        await run(Agent("poster"), message="hi", llm=model, store=store, session_id="s", max_stored_messages=limit)
    assert (model.calls, await store.load_session("s")) == ([], None)
