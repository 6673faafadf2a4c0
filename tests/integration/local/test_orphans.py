"""Stored calls without a result: some run again, and all are answered before anything else happens."""

import contextlib
import json
from typing import Annotated

import pytest
from pydantic import AfterValidator
from support.doubles import poster
from support.stores import Recorder, seed
from support.transcripts import DURABILITY, USER, asks, calls, kind_of, result_of, shape

from standfast import (
    Agent,
    InputError,
    InterruptedResponse,
    InterruptError,
    Loop,
    Message,
    NotHappened,
    assert_complete,
    resume,
    run,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel, crash_after_tool_results


def answers(call_id: str) -> Message:
    return Message(role="tool", content=f"posted {call_id}", tool_call_id=call_id, tool_name="post", status="completed")


@pytest.mark.parametrize(
    ("stored", "handled"),
    [
        pytest.param([USER, asks("a", "b")], ["a", "b"], id="no result"),
        pytest.param([USER, asks("a", "b"), answers("a")], ["b"], id="first result"),
        pytest.param([USER, asks("a", "b"), answers("b")], ["a"], id="second result"),
        pytest.param([USER, asks("a", "b", "c"), answers("c"), answers("a")], ["b"], id="results out of order"),
        pytest.param([USER, asks("a", "b"), answers("a"), answers("b")], [], id="all results"),
        pytest.param([USER], [], id="trailing user"),
    ],
)
async def test_a_resumed_run_handles_exactly_the_calls_without_a_result(
    store: SQLiteStore, stored: list[Message], handled: list[str]
) -> None:
    effects: list[str] = []
    recorder = Recorder(store)
    await seed(store, stored)
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=True)])
    await run(agent, llm=ScriptedModel(["done"]), store=recorder, session_id="s")
    repairs = [("append_messages_atomic", [f"result {call}" for call in handled])] if handled else []
    assert effects == handled
    assert recorder.writes == [*repairs, ("append_messages_atomic", ["assistant done"])]


async def test_safe_and_unsafe_orphans_of_one_turn_are_repaired_in_one_write_in_call_order(store: SQLiteStore) -> None:
    effects: list[str] = []

    @tool(safe_to_retry=True)
    async def look(text: str) -> str:
        """Look."""
        effects.append(f"look {text}")
        return "seen"

    recorder = Recorder(store)
    mixed = [*(asks("a").tool_calls or ()), *(asks("b", tool="look").tool_calls or ()), *(asks("c").tool_calls or ())]
    await seed(store, [USER, Message(role="assistant", tool_calls=tuple(mixed))])
    agent = Agent("poster", tools=[poster(effects), look])
    await run(agent, llm=ScriptedModel(["done"]), store=recorder, session_id="s")
    messages = await store.load_messages("s")
    assert recorder.writes[0] == ("append_messages_atomic", ["result a", "result b", "result c"])
    assert (effects, result_of(messages, "b")) == (["look b"], "seen")
    assert [kind_of(messages, call_id) for call_id in "ac"] == [DURABILITY] * 2


async def test_a_safe_orphan_that_raises_is_stored_as_its_error_after_one_call(store: SQLiteStore) -> None:
    started: list[str] = []

    @tool(safe_to_retry=True)
    async def post(text: str) -> str:
        """Post a text."""
        started.append(text)
        raise ValueError("service is down")

    await seed(store, [USER, asks("c1")])
    await run(Agent("poster", tools=[post]), llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert started == ["c1"]
    assert json.loads(result_of(await store.load_messages("s"), "c1")) == {"error": "service is down"}


async def test_an_orphan_of_a_tool_that_is_gone_is_a_durability_error(store: SQLiteStore) -> None:
    await seed(store, [USER, asks("c1", tool="gone")])
    await run(Agent("poster", tools=[poster([])]), llm=ScriptedModel(["done"]), store=store, session_id="s")
    payload = json.loads(result_of(await store.load_messages("s"), "c1"))
    assert (payload["kind"], payload["toolName"]) == (DURABILITY, "gone")


async def test_orphans_are_answered_before_the_new_message(store: SQLiteStore) -> None:
    await seed(store, [USER, asks("c1")])
    recorder, model = Recorder(store), ScriptedModel(["done"])
    await run(Agent("poster", tools=[poster([])]), message="and now?", llm=model, store=recorder, session_id="s")
    assert recorder.writes == [
        ("append_messages_atomic", ["result c1"]),
        ("append_messages_atomic", ["user and now?", "assistant done"]),
    ]
    assert shape(model.calls[0].messages[1:]) == ["user hi", "calls c1", "result c1", "user and now?"]


async def test_orphans_are_answered_without_asking_the_model_when_the_model_fails(store: SQLiteStore) -> None:
    effects: list[str] = []
    await seed(store, [USER, asks("c1")])
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=True)])
    await run(agent, message="more", llm=ScriptedModel([RuntimeError("down")]), store=store, session_id="s")
    await run(agent, message="more", llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert effects == ["c1"]
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "user more", "assistant done"]


async def test_a_call_left_unanswered_before_a_later_message_never_reaches_the_model_unchanged(
    store: SQLiteStore,
) -> None:
    await seed(store, [USER, asks("c1"), Message(role="user", content="and now?")])
    model = ScriptedModel(["done"])
    with contextlib.suppress(InputError):
        await run(Agent("poster", tools=[poster([])]), llm=model, store=store, session_id="s")
    assert [shape(call.messages[1:4]) for call in model.calls] in ([], [["user hi", "calls c1", "result c1"]])


async def test_an_orphan_that_asks_waits_for_its_answer_instead_of_taking_the_new_message(store: SQLiteStore) -> None:
    @tool(safe_to_retry=True)
    async def post(text: str) -> str:
        """Ask for leave."""
        raise InterruptError("May I?")

    await seed(store, [USER, asks("c1")])
    agent = Agent("poster", tools=[post])
    with pytest.raises(InputError, match="May I\\?"):
        await run(agent, message="more", llm=ScriptedModel([]), store=store, session_id="s")
    waiting = await run(agent, llm=ScriptedModel([]), store=store, session_id="s")
    assert isinstance(waiting, InterruptedResponse)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert result_of(await store.load_messages("s"), "c1") == "yes"


async def test_calls_that_ran_under_a_higher_limit_are_not_reported_as_not_run(store: SQLiteStore) -> None:
    effects: list[str] = []
    before = Agent("poster", tools=[poster(effects)])
    after = Agent("poster", tools=[poster(effects)], loop=Loop(max_tool_calls=1))
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(
            before,
            message="hi",
            llm=ScriptedModel([calls("c1", "c2")]),
            store=crash_after_tool_results(store),
            session_id="s",
        )
    await run(after, llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert (effects, kind_of(messages, "c1"), kind_of(messages, "c2")) == (["c1", "c2"], DURABILITY, DURABILITY)


async def test_calls_that_run_after_all_are_fenced_together(store: SQLiteStore) -> None:
    effects: list[str] = []

    async def never(text: str) -> NotHappened:
        return NotHappened()

    agent = Agent("poster", tools=[poster(effects, verify=never, parallel=True)])
    await seed(store, [USER, asks("c1", "c2")])
    result = assert_complete(await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s"))
    assert (sorted(effects), result.status) == (["c1", "c2"], "complete")


async def test_a_validator_that_raises_on_resume_does_not_wedge_the_session(store: SQLiteStore) -> None:
    def refuse(value: str) -> str:
        raise KeyError(value)

    @tool(safe_to_retry=True)
    async def post(text: Annotated[str, AfterValidator(refuse)]) -> str:
        """Post."""
        return text

    await seed(store, [USER, asks("c1")])
    agent = Agent("poster", tools=[post])
    result = assert_complete(await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s"))
    assert result.response == "done"
    assert "Invalid input" in result_of(await store.load_messages("s"), "c1")
