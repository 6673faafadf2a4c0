"""Streams: what `run_streaming` yields, in which order, and that it ends like `run`."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doubles import echo
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    AgentContext,
    Checkpoint,
    DefinitionError,
    InputError,
    LLMResponse,
    Loop,
    Message,
    RunResult,
    TerminalError,
    assert_complete,
    run,
    run_streaming,
    tool,
)
from standfast.events import CheckpointReached, Event, MessageAdded, RunEnded, TextDelta, ToolEnded, ToolStarted
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

agent = Agent("a", tools=[echo])


async def events_of(by: Agent = agent, **options: Any) -> list[Event]:
    options.setdefault("message", "go")
    return [event async for event in run_streaming(by, **options)]


def final(events: list[Event]) -> RunResult:
    last = events[-1]
    assert isinstance(last, RunEnded)
    return assert_complete(last.result)


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def deltas(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


# --- events ---


async def test_events_come_in_the_order_in_which_things_happen() -> None:
    events = await events_of(llm=ScriptedModel([asks_for(call("echo", "c1", text="x"), text="Look"), "Done"]))
    assert names(events) == [
        "RunStarted",
        "TurnStarted",
        "TextDelta",
        "TurnEnded",
        "MessageAdded",
        "MessageAdded",
        "ToolStarted",
        "ToolEnded",
        "MessageAdded",
        "TurnStarted",
        "TextDelta",
        "TurnEnded",
        "MessageAdded",
        "RunEnded",
    ]


async def test_the_last_event_has_the_result_that_run_returns() -> None:
    script: list[Any] = [asks_for(call("echo", "c1", text="x")), "Done it."]
    streamed = final(await events_of(llm=ScriptedModel(script)))
    assert streamed == assert_complete(await run(agent, message="go", llm=ScriptedModel(script)))


async def test_text_arrives_in_pieces_that_make_up_the_response() -> None:
    events = await events_of(llm=ScriptedModel(["It rains in Rome."]))
    assert deltas(events) == ["It ", "rains ", "in ", "Rome."]
    assert final(events).response == "It rains in Rome."


async def test_an_adapter_that_is_wrapped_streams() -> None:
    class Wrapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    model = ScriptedModel(["It rains."])
    assert deltas(await events_of(llm=Wrapped())) == ["It ", "rains."]


async def test_an_adapter_that_cannot_stream_gives_its_text_in_one_piece() -> None:
    class Plain:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> dict[str, Any]:
            return {"text": "all at once"}

    events = await events_of(llm=Plain())
    assert (deltas(events), final(events).response) == (["all at once"], "all at once")


async def test_an_answer_without_text_gives_no_piece() -> None:
    assert deltas(await events_of(llm=ScriptedModel([{}]))) == []


async def test_every_message_is_added_once_at_its_index(store: SQLiteStore) -> None:
    script: list[Any] = [asks_for(call("echo", "c1", text="x"), call("echo", "c2", text="y")), "Done"]
    events = await events_of(llm=ScriptedModel(script), store=store, session_id="s")
    added = [event for event in events if isinstance(event, MessageAdded)]
    assert [event.index for event in added] == [0, 1, 2, 3, 4]
    assert tuple(event.message for event in added) == final(events).messages


async def test_indexes_continue_where_the_session_ended(store: SQLiteStore) -> None:
    await run(agent, message="one", store=store, session_id="s", llm=ScriptedModel(["ok"]))
    events = await events_of(llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert [event.index for event in events if isinstance(event, MessageAdded)] == [2, 3]


async def test_a_message_is_stored_when_its_event_comes(store: SQLiteStore) -> None:
    script: list[Any] = [asks_for(call("echo", "c1", text="x")), "Done"]
    async for event in run_streaming(agent, message="go", llm=ScriptedModel(script), store=store, session_id="s"):
        if isinstance(event, MessageAdded):
            assert (await store.load_messages("s"))[event.index] == event.message


async def test_calls_and_their_results_are_told() -> None:
    events = await events_of(llm=ScriptedModel([asks_for(call("echo", "c1", text="x"), call("nope", "c2")), "Done"]))
    assert [event.call.id for event in events if isinstance(event, ToolStarted)] == ["c1", "c2"]
    ended = [event for event in events if isinstance(event, ToolEnded)]
    assert [(event.call.id, event.result) for event in ended] == [
        ("c1", final(events).messages[2]),
        ("c2", final(events).messages[3]),
    ]


async def test_every_call_that_started_has_ended_before_its_result_is_added() -> None:
    @tool(parallel=True)
    async def work(text: str) -> str:
        return text

    by = Agent("a", tools=[work])
    calls = [call("work", f"c{number}", text="x") for number in range(4)]
    seen = names(await events_of(by, llm=ScriptedModel([asks_for(*calls), "Done"])))
    assert seen.count("ToolStarted") == seen.count("ToolEnded") == 4
    last_end = len(seen) - 1 - seen[::-1].index("ToolEnded")
    assert seen[last_end + 1 : last_end + 5] == ["MessageAdded"] * 4


# --- checkpoints ---


def checkpoints(events: list[Event]) -> list[Checkpoint]:
    return [event.checkpoint for event in events if isinstance(event, CheckpointReached)]


async def test_a_checkpoint_comes_every_checkpoint_interval_iterations() -> None:
    by = Agent("a", tools=[echo], loop=Loop(checkpoint_interval=2))
    script: list[Any] = [asks_for(call("echo", f"c{number}", text="x")) for number in range(5)]
    events = await events_of(by, llm=ScriptedModel([*script, "Done"]))
    assert [checkpoint.iterations for checkpoint in checkpoints(events)] == [2, 4]


async def test_the_default_interval_is_five() -> None:
    script: list[Any] = [asks_for(call("echo", f"c{number}", text="x")) for number in range(6)]
    events = await events_of(llm=ScriptedModel([*script, "Done"]))
    assert [checkpoint.iterations for checkpoint in checkpoints(events)] == [5]


async def test_a_run_continues_from_a_checkpoint_of_a_stream() -> None:
    by = Agent("a", tools=[echo], loop=Loop(checkpoint_interval=1))
    events = await events_of(by, llm=ScriptedModel([asks_for(call("echo", "c1", text="x")), "Done"]))
    (checkpoint,) = checkpoints(events)
    text = checkpoint.model_dump_json()
    result = assert_complete(await run(by, checkpoint=text, llm=ScriptedModel(["Done again"])))
    assert (result.response, result.iterations) == ("Done again", 2)


async def test_no_checkpoint_comes_before_the_first_iteration() -> None:
    pending = [
        Message(role="user", content="go"),
        Message(role="assistant", tool_calls=(call("echo", "c1", text="x"),)),
    ]
    events = await events_of(message=None, messages=pending, llm=ScriptedModel(["Done"]))
    assert checkpoints(events) == []


# --- errors ---


async def test_a_failing_model_call_is_a_result_as_in_run() -> None:
    result = final(await events_of(llm=ScriptedModel([RuntimeError("down")])))
    assert (result.status, result.response, result.iterations) == ("error", "down", 1)


class Stream:
    """An adapter that streams these parts; an exception among them is raised."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> LLMResponse:
        raise AssertionError("the stream was not used")

    async def stream(self, messages: Any, tools: Any, **settings: Any) -> AsyncIterator[Any]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part


async def test_a_stream_that_breaks_off_ends_the_run_with_error_and_adds_nothing(store: SQLiteStore) -> None:
    events = await events_of(llm=Stream("It ", RuntimeError("cut")), store=store, session_id="s")
    assert (deltas(events), final(events).status, final(events).response) == (["It "], "error", "cut")
    assert await store.load_session("s") is None


async def test_a_stream_without_a_whole_answer_ends_the_run_with_error() -> None:
    result = final(await events_of(llm=Stream("It ", "rains")))
    assert result.status == "error"
    assert "complete answer" in result.response


async def test_a_stream_may_end_with_a_plain_dict() -> None:
    events = await events_of(llm=Stream("It ", "rains", {"text": "It rains"}))
    assert (deltas(events), final(events).response) == (["It ", "rains"], "It rains")


async def test_pieces_are_cleaned_like_the_answer() -> None:
    events = await events_of(llm=Stream("a\0b", LLMResponse(text="a\0b")))
    assert (deltas(events), final(events).response) == (["a\ufffdb"], "a\ufffdb")


async def test_what_run_raises_the_stream_raises_at_its_first_step() -> None:
    with pytest.raises(InputError, match="nothing to run"):
        await anext(run_streaming(agent, llm=ScriptedModel([])))


async def test_an_agent_without_a_model_is_refused_by_the_stream_too() -> None:
    with pytest.raises(InputError, match="pass llm="):
        await events_of()


async def test_a_terminal_error_is_raised_after_the_events_before_it() -> None:
    @tool
    async def charge() -> None:
        raise TerminalError("blocked", 402)

    by = Agent("a", tools=[charge], on_terminal_tool_error="fail")
    seen: list[Event] = []

    async def read() -> None:
        async for event in run_streaming(by, message="go", llm=ScriptedModel([asks_for(call("charge", "c1"))])):
            seen.append(event)  # noqa: PERF401

    with pytest.raises(TerminalError, match="blocked") as caught:
        await read()
    assert caught.value.status_code == 402
    begin = ["RunStarted", "TurnStarted", "TurnEnded"]
    assert names(seen) == [*begin, "MessageAdded", "MessageAdded", "ToolStarted", "ToolEnded", "MessageAdded"]


async def test_what_a_hook_raises_is_raised_by_the_stream() -> None:
    def broken(context: AgentContext) -> None:
        raise DefinitionError("no")

    with pytest.raises(DefinitionError, match="no"):
        await events_of(Agent("a", on_start=broken), llm=ScriptedModel(["never"]))


async def test_events_of_invoked_agents_stay_inside() -> None:
    child = Agent("child")
    by = Agent("a", tools=[child])
    model = ScriptedModel([asks_for(call("child", "c1", message="hi")), "inner words", "outer words"])
    events = await events_of(by, llm=model)
    assert "".join(deltas(events)) == "outer words"
    assert names(events).count("RunEnded") == 1
