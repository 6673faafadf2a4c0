"""Arguments are checked before a handler runs, and its return value or exception becomes a result."""

import json
import math
from typing import Any

import pytest
from pydantic import BaseModel
from support.doubles import ask
from support.transcripts import asks_for, call, contents, error
from typing_extensions import TypedDict

from standfast import Agent, InterruptError, Loop, Tool, ToolContext, is_interrupted, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


async def test_arguments_of_the_wrong_type_are_refused_before_the_handler() -> None:
    ran: list[int] = []

    @tool
    async def double(number: int) -> int:
        ran.append(number)
        return number * 2

    result = await ask(Agent("a", tools=[double]), call("double", "c1", number="many"))
    assert ran == []
    assert error(result).startswith('Invalid input for tool "double": number:')
    assert result.status == "complete"


async def test_extra_arguments_are_dropped_and_the_rest_converted_and_filled_in() -> None:
    seen: list[Any] = []

    @tool
    async def book(seats: int, name: str = "nobody") -> None:
        seen.append((seats, name))

    await ask(Agent("a", tools=[book]), call("book", "c1", seats="2", color="red"))
    assert seen == [(2, "nobody")]


async def test_a_model_as_input_reaches_the_handler_as_its_first_argument() -> None:
    class Order(BaseModel):
        item: str
        count: int = 1

    seen: list[Any] = []

    async def handler(order: Order, context: ToolContext) -> str:
        seen.append((order, context.tool_call_id))
        return "ok"

    order_tool = Tool("order", description="Order.", input=Order, handler=handler)
    await ask(Agent("a", tools=[order_tool]), call("order", "c1", item="tea", more=1))
    assert seen == [(Order(item="tea"), "c1")]


async def test_a_result_that_misses_the_output_type_is_an_error() -> None:
    @tool
    async def count() -> int:
        return "many"  # type: ignore[return-value]

    result = await ask(Agent("a", tools=[count]), call("count", "c1"))
    assert error(result).startswith('Tool "count" returned invalid output: ')


async def test_extra_keys_of_a_result_are_dropped() -> None:
    class Issue(TypedDict):
        id: str

    @tool
    async def get_issue() -> Issue:
        return {"id": "I-1", "secret": 1}  # type: ignore[typeddict-unknown-key]

    result = await ask(Agent("a", tools=[get_issue]), call("get_issue", "c1"))
    assert contents(result) == ['{"id":"I-1"}']


@pytest.mark.parametrize(
    ("value", "content"),
    [("text", "text"), ("", ""), (None, "null"), (5, "5"), ([1], "[1]"), ({"a": 1}, '{"a":1}'), (b"x", '"x"')],
)
async def test_a_text_is_recorded_unchanged_and_anything_else_as_json(value: Any, content: str) -> None:
    @tool
    async def give() -> Any:
        return value

    assert contents(await ask(Agent("a", tools=[give]), call("give", "c1"))) == [content]


@pytest.mark.parametrize("value", [object, {"a": object}, {object}, b"\xff", {"a": "\ud800"}], ids=repr)
async def test_a_result_that_is_not_json_is_an_error_that_says_it_ran(value: Any) -> None:
    @tool
    async def give() -> Any:
        return value

    result = await ask(Agent("a", tools=[give]), call("give", "c1"))
    assert error(result).startswith('Tool "give" ran, but its result was lost')


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [math.nan]}], ids=repr)
async def test_what_a_result_becomes_is_strict_json(value: Any) -> None:
    @tool
    async def give() -> Any:
        return value

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for content in contents(await ask(Agent("a", tools=[give]), call("give", "c1"))):
        json.loads(content, parse_constant=refuse)


async def test_a_result_that_contains_itself_is_an_error() -> None:
    @tool
    async def give() -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    result = await ask(Agent("a", tools=[give]), call("give", "c1"))
    assert error(result).startswith('Tool "give" ran, but its result was lost')


async def test_a_result_over_the_limit_is_an_error_that_names_the_limit() -> None:
    @tool
    async def give(size: int) -> str:
        return "é" * size

    agent = Agent("a", tools=[give], loop=Loop(max_message_bytes=2_000))
    result = await ask(agent, call("give", "c1", size=1_000), call("give", "c2", size=1_001))
    assert contents(result)[0] == "é" * 1_000
    assert error(result, 1) == (
        'Tool "give" ran, but its result was lost: 2,002 bytes, more than max_message_bytes=2,000'
    )


async def test_an_error_over_the_limit_is_cut() -> None:
    @tool
    async def give() -> None:
        raise ValueError("x" * 50_000)

    agent = Agent("a", tools=[give], loop=Loop(max_message_bytes=2_000))
    result = await ask(agent, call("give", "c1"))
    assert len(contents(result)[0]) < 2_500
    assert error(result).startswith("xxx")


async def test_what_a_handler_raises_can_be_stored_whatever_it_says(store: SQLiteStore) -> None:
    @tool
    async def give() -> None:
        raise ValueError("a\0b\ud800")

    result = await ask(Agent("a", tools=[give]), call("give", "c1"), store=store, session_id="s")
    assert error(result) == "a\ufffdb\ufffd"
    assert await store.load_messages("s") == list(result.messages)


@pytest.mark.parametrize("question", [None, 42])
async def test_a_question_that_is_not_a_text_is_asked_as_text(question: Any) -> None:
    @tool
    async def work() -> None:
        raise InterruptError(question)

    asked = await run(Agent("a", tools=[work]), message="go", llm=ScriptedModel([asks_for(call("work", "c1"))]))
    assert is_interrupted(asked)
    assert asked.question == str(question)


async def test_an_exception_that_cannot_be_printed_is_an_error_of_its_call() -> None:
    class Unprintable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError("no")

    @tool
    async def work() -> None:
        raise Unprintable

    result = await ask(Agent("a", tools=[work]), call("work", "c1"))
    assert (result.status, error(result)) == ("complete", "Unprintable")
