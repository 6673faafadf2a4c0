"""In-memory stores: refused operations, stored data, and the end of their life."""

import pytest
from support.doubles import poster
from support.stores import Recorder
from support.transcripts import calls, shape

from standfast import Agent, AgentContext, MemoryStoreNotDurableError, assert_complete, memory_store, run
from standfast.testing import ScriptedModel


async def test_a_memory_store_refuses_a_session_that_it_does_not_know_before_anything_happens() -> None:
    started: list[AgentContext] = []
    model, memory = ScriptedModel(["done"]), memory_store()
    agent = Agent("poster", on_start=started.append)
    with pytest.raises(MemoryStoreNotDurableError, match="Session s is unknown to this memory store"):
        await run(agent, message="hi", llm=model, store=memory, session_id="s")
    assert (started, model.calls, await memory.list_sessions()) == ([], [], [])


async def test_a_memory_store_keeps_its_own_session_in_two_writes_at_the_end() -> None:
    recorder = Recorder(memory_store())
    agent = Agent("poster", tools=[poster([])])
    result = assert_complete(await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=recorder))
    assert result.session_id is not None
    assert recorder.writes == [
        ("save_session", []),
        ("append_messages", ["user hi", "calls c1", "result c1", "assistant done"]),
    ]


async def test_a_memory_store_continues_with_a_session_that_it_made() -> None:
    memory = memory_store()
    first = assert_complete(await run(Agent("poster"), message="hi", llm=ScriptedModel(["one"]), store=memory))
    model = ScriptedModel(["two"])
    await run(Agent("poster"), message="more", llm=model, store=memory, session_id=first.session_id)
    assert shape(model.calls[0].messages[1:]) == ["user hi", "assistant one", "user more"]


async def test_a_memory_store_forgets_a_session_with_its_object() -> None:
    first = assert_complete(await run(Agent("poster"), message="hi", llm=ScriptedModel(["one"]), store=memory_store()))
    with pytest.raises(MemoryStoreNotDurableError):
        await run(
            Agent("poster"),
            message="more",
            llm=ScriptedModel([]),
            store=memory_store(),
            session_id=first.session_id,
        )
