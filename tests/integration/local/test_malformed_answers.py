"""Malformed model answers: no malformed call runs, and every text can be stored."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.doubles import echo
from support.transcripts import asks_for, call, error_of, tool_results

from standfast import Agent, Checkpoint, Loop, Message, Tool, assert_complete, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

DEEP = '{"text": ' + "[" * 100 + "]" * 100 + "}"


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


MALFORMED: dict[str, list[Any]] = {
    "unknown tool": [{"id": "c1", "name": "nope", "arguments": {}}],
    "empty name": [{"id": "c1", "name": "", "arguments": {"text": "x"}}],
    "no name": [{"id": "c1", "arguments": {"text": "x"}}],
    "name with spaces": [{"id": "c1", "name": "echo ", "arguments": {"text": "x"}}],
    "name with a newline": [{"id": "c1", "name": "echo\n", "arguments": {"text": "x"}}],
    "name with NUL and surrogate": [{"id": "c1", "name": "ec\0ho\ud800", "arguments": {"text": "x"}}],
    "name of a megabyte": [{"id": "c1", "name": "e" * 1_000_000, "arguments": {"text": "x"}}],
    "name that is a number": [{"id": "c1", "name": 7, "arguments": {"text": "x"}}],
    "no arguments": [{"id": "c1", "name": "echo"}],
    "arguments of null": [{"id": "c1", "name": "echo", "arguments": None}],
    "arguments that are not JSON": [{"id": "c1", "name": "echo", "arguments": '{"text": "x"'}],
    "arguments with single quotes": [{"id": "c1", "name": "echo", "arguments": "{'text': 'x'}"}],
    "arguments that are a list": [{"id": "c1", "name": "echo", "arguments": ["x"]}],
    "arguments that are a number": [{"id": "c1", "name": "echo", "arguments": 5}],
    "arguments that are text in JSON": [{"id": "c1", "name": "echo", "arguments": '"{\\"text\\": 1}"'}],
    "arguments that miss the schema": [{"id": "c1", "name": "echo", "arguments": {"text": ["x"]}}],
    "arguments nested deeply as text": [{"id": "c1", "name": "echo", "arguments": DEEP}],
    "arguments nested deeply": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "more": nested(100)}}],
    "arguments nested very deeply": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "more": nested(5_000)}}],
    "arguments nested very deeply as text": [{"id": "c1", "name": "echo", "arguments": "[" * 100_000}],
    "arguments with NaN": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "n": float("nan")}}],
    "arguments with NaN as text": [{"id": "c1", "name": "echo", "arguments": '{"text": "x", "n": NaN}'}],
    "arguments with infinity as text": [{"id": "c1", "name": "echo", "arguments": '{"text": "x", "n": 1e999}'}],
    "arguments with a lone surrogate": [{"id": "c1", "name": "echo", "arguments": {"text": "\ud800"}}],
    "arguments with an escaped surrogate": [{"id": "c1", "name": "echo", "arguments": '{"text": "\\ud800"}'}],
    "arguments with a raw surrogate": [{"id": "c1", "name": "echo", "arguments": '{"text": "\ud800"}'}],
    "arguments with a raw NUL": [{"id": "c1", "name": "echo", "arguments": '{"text": "a\0b"}'}],
    "arguments with a long integer": [{"id": "c1", "name": "echo", "arguments": '{"n": ' + "9" * 5_000 + "}"}],
    "arguments that cannot be JSON": [{"id": "c1", "name": "echo", "arguments": {"text": {1, 2}}}],
    "text instead of a call": ["echo(x)"],
    "null instead of a call": [None],
    "a megabyte that is not JSON": [{"id": "c1", "name": "echo", "arguments": "x" * 1_000_000}],
}


async def carried_through(store: SQLiteStore, answer: Mapping[str, Any]) -> tuple[list[str], list[Message]]:
    """Run one malformed answer on a store, check what must always hold, and return what ran and the results."""
    ran: list[str] = []

    @tool(name="echo")
    async def heard(text: str) -> str:
        ran.append(text)
        return text

    agent = Agent("a", tools=[heard])
    model = ScriptedModel([answer, "done"])
    result = assert_complete(await run(agent, message="go", session_id="s", store=store, llm=model))
    assert (result.status, result.response) == ("complete", "done")
    requested = [requested.id for message in result.messages for requested in message.tool_calls or ()]
    assert [message.tool_call_id for message in tool_results(result.messages)] == requested
    assert len(set(requested)) == len(requested)
    assert all(requested)
    assert await store.load_messages("s") == list(result.messages)
    text = json.dumps([message.model_dump(mode="json") for message in result.messages], allow_nan=False)
    assert [Message.model_validate(message) for message in json.loads(text)] == list(result.messages)
    assert Checkpoint.model_validate_json(result.checkpoint.model_dump_json()) == result.checkpoint
    again = assert_complete(await run(agent, session_id="s", store=store, llm=ScriptedModel([])))
    assert again.messages == result.messages
    return ran, tool_results(result.messages)


@pytest.mark.parametrize("calls", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_call_is_answered_with_an_error_and_never_run(store: SQLiteStore, calls: list[Any]) -> None:
    ran, results = await carried_through(store, {"tool_calls": calls})
    assert ran == []
    assert [message.status for message in results] == ["failed"]
    assert error_of(results[0]) != ""


@pytest.mark.parametrize(
    "ids", [["c", "c", "c"], ["", "", ""], [None, "c", "c"], ["a\0b", "\ud800", "x" * 5_000], [1, 1, 2]], ids=str
)
async def test_calls_with_duplicate_missing_or_unusable_ids_run_once_each(store: SQLiteStore, ids: list[Any]) -> None:
    calls = [{"id": given, "name": "echo", "arguments": {"text": f"x{n}"}} for n, given in enumerate(ids)]
    ran, results = await carried_through(store, {"tool_calls": calls})
    assert ran == ["x0", "x1", "x2"]
    assert [message.content for message in results] == ["x0", "x1", "x2"]


@pytest.mark.parametrize("name", ["", "echo "])
async def test_a_malformed_name_never_becomes_the_name_of_a_tool(name: str) -> None:
    ran: list[str] = []

    def named(tool_name: str) -> Tool[..., Any]:
        return Tool(tool_name, description="Never meant.", handler=lambda: ran.append(tool_name))

    agent = Agent("a", tools=[named(name) for name in ("invalid_", "invalid__", "invalid_echo_", "echo")])
    answer = {"tool_calls": [{"id": "c1", "name": name, "arguments": {}}]}
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel([answer, "done"])))
    assert (ran, [message.status for message in tool_results(result.messages)]) == ([], ["failed"])


async def test_an_id_that_an_earlier_turn_used_is_replaced(store: SQLiteStore) -> None:
    model = ScriptedModel([asks_for(call("echo", "c", text="1")), asks_for(call("echo", "c", text="2")), "done"])
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", session_id="s", store=store, llm=model))
    requested = [requested.id for message in result.messages for requested in message.tool_calls or ()]
    assert len(set(requested)) == 2
    assert [message.tool_call_id for message in tool_results(result.messages)] == requested


async def test_two_hundred_calls_in_a_turn_are_run_up_to_the_limit_and_all_answered(store: SQLiteStore) -> None:
    calls = [{"id": f"c{n}", "name": "echo", "arguments": {"text": f"x{n}"}} for n in range(200)]
    ran, results = await carried_through(store, {"tool_calls": calls})
    assert ran == [f"x{n}" for n in range(64)]
    assert [message.status for message in results] == ["completed"] * 64 + ["failed"] * 136
    assert "max_tool_calls" in error_of(results[64])


@pytest.mark.parametrize("text", ["x" * 1_000_000, "a\0b", "\ud800 alone", "\ud83d\ude00", "\r\n\u2028"])
async def test_whatever_text_a_model_writes_can_be_stored(store: SQLiteStore, text: str) -> None:
    ran, _ = await carried_through(
        store, {"text": text, "tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}]}
    )
    assert ran == ["x"]
    stored = (await store.load_messages("s"))[1].content
    assert len(stored) >= len(text) - 1
    assert "\0" not in stored


async def test_an_answer_longer_than_a_message_may_be_is_cut_and_says_so() -> None:
    agent = Agent("a", loop=Loop(max_message_bytes=2_000))
    result = assert_complete(await run(agent, message="go", llm=ScriptedModel(["é" * 5_000])))
    assert result.status == "complete"
    assert result.response.startswith("é" * 1_000)
    assert "2,000 of 10,000 bytes" in result.response
    assert result.messages[-1].content == result.response


async def test_arguments_longer_than_a_message_may_be_are_refused_and_not_run() -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> None:
        ran.append(text)

    agent = Agent("a", tools=[post], loop=Loop(max_message_bytes=2_000))
    model = ScriptedModel([asks_for(call("post", "c1", text="x" * 5_000)), "done"])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert ran == []
    assert "max_message_bytes" in error_of(tool_results(result.messages)[0])


async def test_a_nul_in_the_arguments_reaches_the_handler_as_the_model_wrote_it(store: SQLiteStore) -> None:
    answer = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": '{"text": "a\\u0000b"}'}]}
    ran, results = await carried_through(store, answer)
    assert ran == ["a\0b"]
    assert results[0].content == "a\ufffdb"


async def test_arguments_that_json_writes_differently_are_stored_as_they_are_run(store: SQLiteStore) -> None:
    answer = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x", "pair": (1, 2)}}]}
    await carried_through(store, answer)


@pytest.mark.parametrize("cost", [float("nan"), float("inf")])
async def test_a_cost_that_is_not_a_number_is_stored_as_none(store: SQLiteStore, cost: float) -> None:
    await carried_through(store, {"text": "x", "tool_calls": [{"id": "c1", "name": "nope"}], "cost": cost})
    assert [message.cost for message in await store.load_messages("s")] == [None] * 4


async def test_a_message_of_the_user_is_cleaned_of_what_no_database_takes(store: SQLiteStore) -> None:
    result = assert_complete(
        await run(Agent("a"), message="a\0b\ud800", session_id="s", store=store, llm=ScriptedModel(["ok"]))
    )
    assert result.messages[0].content == "a\ufffdb\ufffd"
    assert await store.load_messages("s") == list(result.messages)
