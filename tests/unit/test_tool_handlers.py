"""Handlers: accepted callables, and how they get their arguments and context."""

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable
from typing import Annotated, Any, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict
from support.tools import Color, Keys, Node, Point, Size, attempt, properties, returning

from standfast import DefinitionError, Tool, ToolContext, tool
from standfast.tools import Failed, Returned


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: dt.date
    id: UUID
    color: Color
    pair: tuple[int, int]


class Multiplier:
    """Multiply by a factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, x: int, ctx: ToolContext) -> str:
        return f"{x * self.factor} for {ctx.tool_call_id}"


class AsyncMultiplier(Multiplier):
    """Multiply by a factor, later."""

    async def __call__(self, x: int, ctx: ToolContext) -> str:  # type: ignore[override]
        return f"{x * self.factor} for {ctx.tool_call_id}"


@dataclasses.dataclass
class Adder:
    """Add a number; a dataclass that compares by value is unhashable."""

    number: int

    def __call__(self, x: int) -> int:
        return x + self.number


# --- kinds of handlers ---


def times(x: int, factor: int, ctx: ToolContext) -> str:
    """Multiply."""
    return f"{x * factor} for {ctx.tool_call_id}"


async def times_async(x: int, factor: int, ctx: ToolContext) -> str:
    """Multiply, later."""
    return f"{x * factor} for {ctx.tool_call_id}"


def times_awaitable(x: int, ctx: ToolContext) -> Any:
    """Give a coroutine without being one."""
    return times_async(x, 3, ctx)


KINDS: dict[str, Callable[..., Any]] = {
    "lambda": lambda x, ctx=None: f"{int(x) * 3} for c1",
    "callable object": Multiplier(3),
    "async callable object": AsyncMultiplier(3),
    "bound method": Multiplier(3).__call__,
    "partial": functools.partial(times, factor=3),
    "async partial": functools.partial(times_async, factor=3),
    "plain function that gives a coroutine": times_awaitable,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_any_callable_can_be_a_tool(kind: str) -> None:
    assert await attempt(tool(name="times")(KINDS[kind]), {"x": 2}) == Returned("6 for c1")


@pytest.mark.parametrize("kind", KINDS)
async def test_any_callable_can_be_injected(kind: str) -> None:
    @tool(name="times")
    def declared(x: int) -> str:
        """Multiply."""
        return ""

    assert await attempt(declared.with_handler(KINDS[kind]), {"x": 2}) == Returned("6 for c1")


def test_a_partial_has_the_types_of_its_function() -> None:
    subject = tool(name="times")(functools.partial(times, factor=3))

    assert subject.input_schema["properties"]["x"] == {"type": "integer"}
    assert "ctx" not in subject.input_schema["properties"]


def test_a_partial_is_described_by_its_function() -> None:
    assert tool(name="times")(functools.partial(times, factor=3)).description == "Multiply."


def test_a_callable_object_is_named_and_described_by_its_class() -> None:
    subject = tool(Multiplier(3))

    assert (subject.name, subject.description) == ("Multiplier", "Multiply by a factor.")


async def test_a_handler_needs_no_hash() -> None:
    assert await attempt(tool(name="add")(Adder(2)), {"x": 1}) == Returned("3")


@pytest.mark.parametrize(("builtin", "content"), [(dict, "{}"), (int, "0"), (str, "")])
async def test_a_builtin_without_a_signature_is_called_without_arguments(builtin: Any, content: str) -> None:
    assert await attempt(Tool("make", description="d", handler=builtin)) == Returned(content)


async def test_a_wrapped_function_keeps_its_schema_and_runs_wrapped() -> None:
    def look(x: int) -> str:
        """Look."""
        return f"{x}"

    @functools.wraps(look)
    def wrapped(*args: Any, **kwargs: Any) -> str:
        return f"wrapped {look(*args, **kwargs)}"

    subject = tool(wrapped)

    assert subject.input_schema["properties"] == {"x": {"type": "integer"}}
    assert await attempt(subject, {"x": "1"}) == Returned("wrapped 1")


# --- explicit tools ---


async def takes_value(value: Point) -> str:
    return f"{value.x}"


def takes_value_and_context(value: Point, context: ToolContext) -> str:
    return f"{value.x} for {context.tool_call_id}"


def takes_two_without_annotations(value, context):  # type: ignore[no-untyped-def]
    return f"{value.x} for {context.tool_call_id}"


def takes_context_by_keyword(value: Point, *, context: ToolContext) -> str:
    return f"{value.x} for {context.tool_call_id}"


def takes_context_first(context: ToolContext, value: Point) -> str:
    return f"{value.x} for {context.tool_call_id}"


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (takes_value, "1"),
        (takes_value_and_context, "1 for c1"),
        (takes_two_without_annotations, "1 for c1"),
        (takes_context_by_keyword, "1 for c1"),
        (takes_context_first, "1 for c1"),
        (functools.partial(takes_value_and_context), "1 for c1"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_an_explicit_tool_passes_the_value_and_the_context(handler: Callable[..., Any], result: str) -> None:
    assert await attempt(Tool("look", description="d", input=Point, handler=handler), {"x": "1"}) == Returned(result)


async def test_a_bound_default_is_not_mistaken_for_the_context() -> None:
    def look(value: Point, factor: int = 3) -> int:
        return value.x * factor

    assert await attempt(Tool("look", description="d", input=Point, handler=look), {"x": 2}) == Returned("6")


@pytest.mark.parametrize(
    ("model", "arguments", "value"),
    [
        (Point, {"x": "1", "extra": 1}, Point(x=1)),
        (Size, {"width": "1", "extra": 1}, Size(1)),
        (Keys, {"k": "1", "extra": 1}, {"k": 1}),
        (Node, {"children": [{}]}, Node(children=[Node()])),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (
            Strict,
            {
                "day": "2020-01-01",
                "id": "12345678-1234-5678-1234-567812345678",
                "color": "red",
                "pair": [1, 2],
            },
            Strict(
                day=dt.date(2020, 1, 1),
                id=UUID("12345678123456781234567812345678"),
                color=Color.RED,
                pair=(1, 2),
            ),
        ),
    ],
    ids=["model", "dataclass", "typed dict", "recursive model", "dict", "strict model"],
)
def test_arguments_are_read_by_the_input(model: Any, arguments: dict[str, Any], value: Any) -> None:
    assert Tool("look", description="d", input=model).read_arguments(arguments) == value


async def test_a_tool_without_input_is_called_without_arguments() -> None:
    assert await attempt(returning("seen"), {"extra": 1}) == Returned("seen")


async def test_a_tool_without_input_may_take_the_context() -> None:
    def look(context: ToolContext) -> str:
        return context.tool_call_id

    assert await attempt(Tool("look", description="d", handler=look)) == Returned("c1")


async def test_a_call_of_a_tool_without_a_handler_fails() -> None:
    assert await attempt(Tool("look", description="d")) == Failed(
        'Tool "look" has no handler. Give it one when it is declared, or pass tools={"look": handler} to run().'
    )


# --- the context ---


def context_first(ctx: ToolContext, a: int) -> str:
    return f"{a} for {ctx.tool_call_id}"


def context_between(a: int, c: Optional[ToolContext] = None, b: int = 2) -> str:  # noqa: UP045
    return f"{a} for {c and c.tool_call_id}"


def context_by_keyword(a: int, *, run: "ToolContext | None" = None) -> str:
    return f"{a} for {run and run.tool_call_id}"


def context_annotated(a: int, ctx: Annotated[ToolContext, "x"]) -> str:
    return f"{a} for {ctx.tool_call_id}"


async def context_async(a: int, ctx: ToolContext) -> str:
    return f"{a} for {ctx.tool_call_id}"


@pytest.mark.parametrize(
    "function", [context_first, context_between, context_by_keyword, context_annotated, context_async]
)
async def test_a_parameter_annotated_tool_context_is_passed_in(function: Callable[..., Any]) -> None:
    assert await attempt(tool(function), {"a": "1"}) == Returned("1 for c1")


@pytest.mark.parametrize(
    "function", [context_first, context_between, context_by_keyword, context_annotated, context_async]
)
def test_the_context_is_hidden_from_the_model(function: Callable[..., Any]) -> None:
    assert set(properties(function)) - {"b"} == {"a"}


async def test_a_model_cannot_fill_in_the_context() -> None:
    assert await attempt(tool(context_between), {"a": 1, "c": {"tool_call_id": "forged"}}) == Returned("1 for c1")


async def test_an_injected_handler_gets_the_context_by_its_annotation() -> None:
    def declared(a: int) -> str:
        """Declared without a context."""
        return ""

    assert await attempt(tool(declared).with_handler(context_first), {"a": 1}) == Returned("1 for c1")


def test_a_context_made_by_a_test_has_no_run() -> None:
    assert (ToolContext().tool_call_id, ToolContext().attempt, ToolContext().session_id) == ("", 1, None)


async def test_a_context_made_by_a_test_cannot_invoke_agents() -> None:
    with pytest.raises(Exception, match="'helper' cannot be invoked: this context has no run"):
        await ToolContext().agents.invoke("helper", message="hi")


def test_heartbeat_does_nothing_in_process() -> None:
    assert ToolContext().heartbeat(1, "two") is None  # type: ignore[func-returns-value]


def test_only_one_parameter_is_the_context() -> None:
    def look(one: ToolContext, two: ToolContext) -> None: ...

    with pytest.raises(DefinitionError, match="Tool 'look': only one parameter can be the ToolContext"):
        tool(look)
