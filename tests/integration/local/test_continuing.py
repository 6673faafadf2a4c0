"""Continuing from a transcript or a checkpoint: finished work stays finished, pending work comes first."""

import json
from typing import Any

import pytest
from support.notebooks import Notebook, assistant, note, noted, user
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    InterruptError,
    Loop,
    Message,
    ToolCall,
    Usage,
    assert_complete,
    is_interrupted,
    memory_store,
    run,
    run_streaming,
    tool,
)
from standfast.events import RunEnded
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- nothing to do ---


async def test_a_finished_transcript_gives_its_response_without_calling_the_model() -> None:
    model = ScriptedModel([])
    result = assert_complete(await run(Agent("a"), messages=[user("hi"), assistant("hello")], llm=model))
    assert (result.status, result.response, result.iterations) == ("complete", "hello", 0)
    assert result.messages == (user("hi"), assistant("hello"))
    assert model.calls == []


async def test_what_a_finished_run_returned_can_be_fed_to_it_again() -> None:
    notebook = Notebook()
    first = assert_complete(await run(notebook.agent, message="go", llm=ScriptedModel([asks_for(note("1")), "done"])))
    again = assert_complete(await run(notebook.agent, messages=first.messages, llm=ScriptedModel([])))
    assert (again.response, again.messages, notebook.texts) == (first.response, first.messages, ["1"])


async def test_the_checkpoint_of_a_finished_run_finishes_again() -> None:
    first = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel(["done"])))
    again = assert_complete(await run(Agent("a"), checkpoint=first.checkpoint, llm=ScriptedModel([])))
    assert (again.response, again.iterations, again.checkpoint) == ("done", 1, first.checkpoint)


async def test_a_finished_transcript_is_read_by_the_output_type() -> None:
    agent = Agent("a", output=dict[str, int])
    result = assert_complete(await run(agent, messages=[user("hi"), assistant('{"n": 1}')], llm=ScriptedModel([])))
    assert result.output == {"n": 1}


async def test_a_transcript_that_ends_with_the_user_is_answered() -> None:
    model = ScriptedModel(["hello"])
    result = assert_complete(await run(Agent("a"), messages=[user("hi")], llm=model))
    assert (result.response, len(model.calls)) == ("hello", 1)


async def test_a_message_continues_from_a_finished_transcript() -> None:
    model = ScriptedModel(["fine"])
    result = assert_complete(
        await run(Agent("a"), messages=[user("hi"), assistant("hello")], message="how are you?", llm=model)
    )
    assert [message.content for message in result.messages] == ["hi", "hello", "how are you?", "fine"]


async def test_a_message_continues_from_a_checkpoint() -> None:
    first = assert_complete(await run(Agent("a"), message="hi", llm=ScriptedModel(["hello"])))
    result = assert_complete(
        await run(Agent("a"), checkpoint=first.checkpoint, message="more", llm=ScriptedModel(["fine"]))
    )
    assert [message.content for message in result.messages] == ["hi", "hello", "more", "fine"]


# --- pending calls ---


async def test_pending_calls_run_before_the_one_model_call_that_follows() -> None:
    notebook, model = Notebook(), ScriptedModel(["done"])
    pending = [user("go"), assistant("", note("1"), note("2"))]
    result = assert_complete(await run(notebook.agent, messages=pending, llm=model))
    assert (notebook.texts, len(model.calls), result.iterations) == (["1", "2"], 1, 1)
    assert result.messages == (
        *pending,
        noted("1", status="completed"),
        noted("2", status="completed"),
        assistant("done"),
    )


async def test_only_calls_without_a_result_are_run() -> None:
    notebook = Notebook()
    calls = [note("1"), note("2"), note("3")]
    pending = [user("go"), assistant("", *calls), noted("2")]
    result = assert_complete(await run(notebook.agent, messages=pending, llm=ScriptedModel(["done"])))
    assert notebook.texts == ["1", "3"]
    assert [message.tool_call_id for message in result.messages if message.role == "tool"] == ["c1", "c2", "c3"]


async def test_the_model_sees_the_results_in_call_order_whatever_was_given_first() -> None:
    notebook, model = Notebook(), ScriptedModel(["done"])
    pending = [user("go"), assistant("", note("1"), note("2"), note("3")), noted("3"), noted("2")]
    await run(notebook.agent, messages=pending, llm=model)
    seen = [message.tool_call_id for message in model.calls[0].messages if message.role == "tool"]
    assert seen == ["c1", "c2", "c3"]


async def test_a_turn_with_all_its_results_continues_with_the_model() -> None:
    notebook, model = Notebook(), ScriptedModel(["done"])
    pending = [user("go"), assistant("", note("1"), note("2")), noted("1"), noted("2")]
    await run(notebook.agent, messages=pending, llm=model)
    assert (notebook.texts, len(model.calls)) == ([], 1)


async def test_an_answer_with_text_and_calls_is_not_finished() -> None:
    notebook = Notebook()
    pending = [user("go"), assistant("working on it", note("1"))]
    result = assert_complete(await run(notebook.agent, messages=pending, llm=ScriptedModel(["done"])))
    assert (notebook.texts, result.response) == (["1"], "done")


async def test_a_pending_call_to_a_tool_that_is_gone_is_answered_with_not_found() -> None:
    pending = [user("go"), assistant("", call("gone", "c1"))]
    result = assert_complete(await run(Agent("a"), messages=pending, llm=ScriptedModel(["done"])))
    assert json.loads(result.messages[2].content)["error"].startswith('Tool "gone" not found')


async def test_a_pending_call_with_arguments_that_are_not_json_is_not_run() -> None:
    notebook = Notebook()
    pending: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "name": "note", "arguments": '{"text": '}]},
    ]
    result = assert_complete(await run(notebook.agent, messages=pending, llm=ScriptedModel(["done"])))
    assert notebook.texts == []
    assert result.messages[2].status == "failed"


async def test_iterations_are_counted_from_the_start_of_a_run_over_messages() -> None:
    notebook = Notebook(loop=Loop(max_iterations=2))
    model = ScriptedModel([asks_for(note(str(number))) for number in range(4)])
    first = assert_complete(await run(notebook.agent, message="go", llm=model))
    second = assert_complete(await run(notebook.agent, messages=first.messages, llm=model))
    assert [(result.status, result.iterations) for result in (first, second)] == [("max-iterations", 2)] * 2
    assert notebook.texts == ["0", "1", "2", "3"]


async def test_iterations_are_counted_on_over_checkpoints() -> None:
    notebook = Notebook(loop=Loop(max_iterations=2))
    model = ScriptedModel([asks_for(note("1")), asks_for(note("2"))])
    first = assert_complete(await run(notebook.agent, message="go", llm=model))
    second = assert_complete(await run(notebook.agent, checkpoint=first.checkpoint, llm=ScriptedModel([])))
    assert (second.status, second.iterations) == ("max-iterations", 2)


async def test_the_same_call_succeeds_when_its_transcript_is_fed_again_after_a_decision() -> None:
    approved: set[str] = set()

    @tool
    async def deploy(version: str) -> str:
        if version not in approved:
            raise InterruptError(f"Deploy {version}?")
        return f"deployed {version}"

    agent = Agent("a", tools=[deploy])
    asked = await run(agent, message="go", llm=ScriptedModel([asks_for(call("deploy", "c1", version="1.2"))]))
    assert is_interrupted(asked)
    approved.add("1.2")
    model = ScriptedModel(["done"])
    result = assert_complete(await run(agent, messages=asked.checkpoint.messages, llm=model))
    assert result.messages[2].content == "deployed 1.2"
    assert len(model.calls) == 1


# --- the vocabulary ---


async def test_messages_may_be_dicts_and_messages_mixed() -> None:
    model = ScriptedModel(["ok"])
    mixed: list[Any] = [{"role": "user", "content": "one"}, assistant("two"), {"role": "user", "content": "three"}]
    result = assert_complete(await run(Agent("a"), messages=mixed, llm=model))
    assert [(message.role, message.content) for message in result.messages] == [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
        ("assistant", "ok"),
    ]


async def test_the_list_of_the_caller_is_left_alone() -> None:
    notebook = Notebook()
    given = [user("go"), assistant("", note("1"), note("2")), noted("2")]
    before = list(given)
    await run(notebook.agent, messages=given, llm=ScriptedModel(["done"]))
    assert given == before


async def test_system_messages_of_a_transcript_are_left_out() -> None:
    model = ScriptedModel(["ok"])
    given = [Message(role="system", content="You are a pirate."), user("hi")]
    result = assert_complete(await run(Agent("a", instructions="Be brief."), messages=given, llm=model))
    assert [message.content for message in model.calls[0].messages] == ["Be brief.", "hi"]
    assert [message.role for message in result.messages] == ["user", "assistant"]


@pytest.mark.parametrize(("is_error", "status"), [(True, "failed"), (False, "completed")])
async def test_older_results_say_is_error_instead_of_status(is_error: bool, status: str) -> None:
    given: list[Any] = [
        {"role": "user", "content": "go"},
        assistant("", note("1")),
        {"role": "tool", "content": "1", "tool_call_id": "c1", "tool_name": "note", "is_error": is_error},
    ]
    result = assert_complete(await run(Notebook().agent, messages=given, llm=ScriptedModel(["ok"])))
    assert result.messages[2] == noted("1", status=status)


@pytest.mark.parametrize(
    "message",
    [
        user("hi"),
        Message(role="assistant", content="x", usage=Usage(input_tokens=1, output_tokens=2), cost=0.5),
        assistant("", note("1"), ToolCall(id="c2", name="note", arguments="no json")),
        noted("1", status="cancelled"),
    ],
    ids=["user", "answer", "calls", "result"],
)
def test_a_message_survives_json_unchanged(message: Message) -> None:
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert Message.model_validate(json.loads(json.dumps(message.model_dump()))) == message


async def test_a_stored_session_can_be_taken_out_as_json_and_finished_without_a_store(store: SQLiteStore) -> None:
    notebook = Notebook(loop=Loop(max_iterations=1))
    model = ScriptedModel([asks_for(note("1"))])
    first = assert_complete(await run(notebook.agent, message="go", store=store, session_id="s", llm=model))
    exported = json.dumps([message.model_dump() for message in first.messages])
    second = assert_complete(await run(notebook.agent, messages=json.loads(exported), llm=ScriptedModel(["done"])))
    assert (second.status, second.response, notebook.texts) == ("complete", "done", ["1"])


# --- into and beside a store ---


async def test_a_transcript_can_be_continued_in_a_new_session(store: SQLiteStore) -> None:
    notebook = Notebook()
    pending = [user("go"), assistant("", note("1"), note("2")), noted("1")]
    result = assert_complete(
        await run(notebook.agent, messages=pending, store=store, session_id="s", llm=ScriptedModel(["done"]))
    )
    assert notebook.texts == ["2"]
    assert await store.load_messages("s") == list(result.messages)
    again = assert_complete(await run(notebook.agent, store=store, session_id="s", llm=ScriptedModel([])))
    assert again.messages == result.messages


async def test_a_finished_transcript_can_be_put_into_a_session(store: SQLiteStore) -> None:
    given = [user("hi"), assistant("hello")]
    await run(Agent("a"), messages=given, store=store, session_id="s", llm=ScriptedModel([]))
    assert await store.load_messages("s") == given


@pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "surrogate"])
async def test_a_transcript_is_cleaned_of_what_no_database_takes(store: SQLiteStore, text: str) -> None:
    given = [{"role": "user", "content": text}]
    result = assert_complete(
        await run(Agent("a"), messages=given, store=store, session_id="s", llm=ScriptedModel(["ok"]))
    )
    assert result.messages[0].content == text.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert await store.load_messages("s") == list(result.messages)


async def test_a_checkpoint_names_the_session_that_continues(store: SQLiteStore) -> None:
    first = assert_complete(await run(Agent("a"), message="hi", store=store, llm=ScriptedModel(["ok"])))
    second = assert_complete(
        await run(Agent("a"), checkpoint=first.checkpoint, message="more", store=store, llm=ScriptedModel(["sure"]))
    )
    assert second.session_id == first.session_id
    assert await store.load_messages(first.session_id or "") == list(second.messages)


async def test_a_checkpoint_of_a_lost_session_makes_it_again(store: SQLiteStore) -> None:
    first = assert_complete(await run(Agent("a"), message="hi", store=store, session_id="s", llm=ScriptedModel(["ok"])))
    await store.delete_session("s")
    second = assert_complete(
        await run(
            Agent("a"),
            checkpoint=first.checkpoint.model_copy(update={"session_id": None}),
            session_id="s",
            message="more",
            store=store,
            llm=ScriptedModel(["sure"]),
        )
    )
    assert [message.content for message in second.messages] == ["hi", "ok", "more", "sure"]
    assert await store.load_messages("s") == list(second.messages)


async def test_the_checkpoint_of_a_failed_first_run_can_be_tried_again(store: SQLiteStore) -> None:
    failed = assert_complete(
        await run(Agent("a"), message="hi", store=store, session_id="s", llm=ScriptedModel([RuntimeError("down")]))
    )
    result = assert_complete(
        await run(Agent("a"), checkpoint=failed.checkpoint, store=store, llm=ScriptedModel(["hello"]))
    )
    assert [message.content for message in result.messages] == ["hi", "hello"]


async def test_the_checkpoint_of_a_failed_later_run_does_not_answer_with_the_earlier_response(
    store: SQLiteStore,
) -> None:
    await run(Agent("a"), message="one?", store=store, session_id="s", llm=ScriptedModel(["first answer"]))
    failed = assert_complete(
        await run(Agent("a"), message="two?", store=store, session_id="s", llm=ScriptedModel([RuntimeError("down")]))
    )
    assert failed.status == "error"
    result = assert_complete(
        await run(Agent("a"), checkpoint=failed.checkpoint, store=store, llm=ScriptedModel(["second answer"]))
    )
    assert (result.response, [message.content for message in result.messages]) == (
        "second answer",
        ["one?", "first answer", "two?", "second answer"],
    )


async def test_a_stream_continues_from_messages_like_a_run() -> None:
    notebook = Notebook()
    pending = [user("go"), assistant("", note("1"))]
    events = [event async for event in run_streaming(notebook.agent, messages=pending, llm=ScriptedModel(["done"]))]
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert (assert_complete(ended.result).response, notebook.texts) == ("done", ["1"])


@pytest.mark.parametrize("durable", [True, False])
async def test_a_first_run_that_failed_can_be_tried_again_from_its_checkpoint(
    store: SQLiteStore, durable: bool
) -> None:
    used: Any = store if durable else memory_store()
    given = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": "?"},
    ]
    down = ScriptedModel([RuntimeError("down")])
    failed = assert_complete(await run(Agent("a"), messages=given, store=used, llm=down))
    assert failed.checkpoint.session_id is None
    again = assert_complete(await run(Agent("a"), checkpoint=failed.checkpoint, store=used, llm=ScriptedModel(["!"])))
    assert (again.response, again.checkpoint.session_id) == ("!", again.session_id)
