"""Tools: what a signature becomes, what a handler is given, and what one call comes to."""

import dataclasses
import datetime as dt
import enum
import functools
import json
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, RootModel
from typing_extensions import TypedDict

from holdfast import (
    DefinitionError,
    Happened,
    InputError,
    InterruptError,
    NotHappened,
    RetryableError,
    RetryPolicy,
    TerminalError,
    Tool,
    ToolContext,
    tool,
)
from holdfast.tools import Asked, Failed, Outcome, Returned, Terminated, Unknown, seconds

LIMIT = 1_024


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int = Field(ge=0, description="to the right")
    y: int = 0


class Node(BaseModel):
    children: list["Node"] = []


class Incomplete(BaseModel):
    later: "DeclaredNowhere"  # type: ignore[name-defined]  # noqa: F821


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: dt.date
    id: UUID
    color: Color
    pair: tuple[int, int]


class Keys(TypedDict):
    k: int


@dataclasses.dataclass
class Size:
    width: int
    unit: str = "cm"


class Opaque:
    pass


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
    """Add a number; as a dataclass that compares by value it has no hash."""

    number: int

    def __call__(self, x: int) -> int:
        return x + self.number


async def here(call: Callable[[], Any]) -> Any:
    return call()


async def attempt(subject: Tool[..., Any], arguments: Any = None, *, limit: int = LIMIT) -> Outcome:
    context = ToolContext(agent_name="greeter", tool_call_id="c1")
    return await subject.attempt({} if arguments is None else arguments, context, limit=limit, in_thread=here)


async def verified(subject: Tool[..., Any], arguments: Any = None) -> Outcome | None:
    context = ToolContext(agent_name="greeter", tool_call_id="c1")
    return await subject.ask_whether_it_happened(
        {} if arguments is None else arguments, context, limit=LIMIT, in_thread=here
    )


def properties(function: Callable[..., Any]) -> Any:
    return tool(function).input_schema["properties"]


def returning(value: Any, annotation: Any = Any) -> Tool[..., Any]:
    return Tool("give", description="Give it.", output=annotation, handler=lambda: value)


def raising(error: BaseException) -> Tool[..., Any]:
    def fail() -> None:
        raise error

    return Tool("fail", description="Fail.", handler=fail)


# --- declarations ---


def test_a_function_becomes_a_tool() -> None:
    @tool
    def get_issue(issue_id: str, depth: int = 1) -> dict[str, Any]:
        """Fetch an issue."""
        return {}

    assert (get_issue.name, get_issue.description) == ("get_issue", "Fetch an issue.")
    assert get_issue.input_schema == {
        "type": "object",
        "properties": {"issue_id": {"type": "string"}, "depth": {"type": "integer", "default": 1}},
        "required": ["issue_id"],
    }


def test_a_tool_has_effects_and_runs_alone_unless_told() -> None:
    @tool
    def post() -> None:
        """Post."""

    assert (post.safe_to_retry, post.parallel, post.timeout, post.retry, post.verify) == (
        False,
        False,
        None,
        None,
        None,
    )


def test_options_are_kept() -> None:
    policy = RetryPolicy(maximum_attempts=2)

    @tool(name="look-up", description="Look.", safe_to_retry=True, parallel=True, timeout="2h", retry=policy)
    def look() -> None:
        """Not this."""

    assert (look.name, look.description, look.safe_to_retry, look.parallel, look.timeout, look.retry) == (
        "look-up",
        "Look.",
        True,
        True,
        7_200,
        policy,
    )


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    @tool
    def look_up() -> None: ...

    assert look_up.description == "look_up"


def test_a_tool_without_arguments_has_an_empty_schema() -> None:
    assert Tool("look", description="Look.").input_schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["look", "_x", "A-b_9", "a" * 64])
def test_a_tool_may_be_named_as_providers_allow(name: str) -> None:
    assert Tool(name, description="d").name == name


@pytest.mark.parametrize("name", ["", "1a", "-a", "a b", "é", "a\n", "a.b", "a" * 65, None, 5])
def test_a_tool_name_that_a_provider_refuses_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool name must match") as caught:
        Tool(name, description="d")
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("description", ["", "   ", "\n", None, 5])
def test_an_empty_description_is_refused(description: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': description must be a non-empty string"):
        Tool("look", description=description)


@pytest.mark.parametrize("option", ["safe_to_retry", "parallel"])
@pytest.mark.parametrize("value", ["yes", 1, 0, None])
def test_a_flag_that_is_no_boolean_is_refused(option: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"Tool 'look': {option} must be True or False, got {value!r}"):
        Tool("look", description="d", **{option: value})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="idempotent"):
        tool(idempotent=True)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("thing", [5, "look", None])
def test_what_is_no_function_becomes_no_tool(thing: Any) -> None:
    with pytest.raises(DefinitionError, match=f"needs a function, got {thing!r}"):
        tool()(thing)


@pytest.mark.parametrize("option", ["handler", "verify"])
def test_what_cannot_be_called_is_no_handler(option: str) -> None:
    with pytest.raises(DefinitionError, match=f"Tool 'look': {option} must be callable, got 5"):
        Tool("look", description="d", **{option: 5})  # type: ignore[arg-type]


def test_a_retry_policy_needs_safe_to_retry() -> None:
    with pytest.raises(DefinitionError, match="Tool 'post': retry needs safe_to_retry=True"):
        Tool("post", description="d", retry=RetryPolicy())


def test_a_retry_that_is_no_policy_is_refused() -> None:
    with pytest.raises(DefinitionError, match="retry must be a RetryPolicy, got 3"):
        Tool("look", description="d", safe_to_retry=True, retry=3)  # type: ignore[arg-type]


def test_a_tool_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tool("look", description="d").safe_to_retry = True  # type: ignore[misc]


def test_a_schema_that_somebody_changes_is_not_the_schema_of_the_tool() -> None:
    @tool
    def look(x: int) -> None:
        """Look."""

    look.input_schema["properties"]["x"]["type"] = "string"

    assert look.input_schema["properties"] == {"x": {"type": "integer"}}


def test_with_handler_leaves_the_first_tool_alone() -> None:
    first: Tool[..., Any] = Tool("look", description="d", timeout=5, safe_to_retry=True)
    second = first.with_handler(lambda: "seen")

    assert first.handler is None
    assert (second(), second.name, second.timeout, second.safe_to_retry) == ("seen", "look", 5, True)


@pytest.mark.parametrize("handler", [5, "look", None])
def test_what_cannot_be_called_is_not_injected(handler: Any) -> None:
    with pytest.raises(InputError, match="Tool 'look': the handler given for it is not callable"):
        Tool("look", description="d").with_handler(handler)


async def test_an_injected_handler_wins() -> None:
    @tool
    def look(x: int) -> str:
        """Look."""
        return "declared"

    assert await attempt(look.with_handler(lambda x: f"injected {x}"), {"x": "1"}) == Returned("injected 1")


def test_a_tool_is_called_like_its_function() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert (add(1), add(1, 1), add(a=2, b=3)) == (3, 2, 5)


async def test_an_async_tool_is_awaited_like_its_function() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert await add(1, 2) == 3


def test_a_tool_without_a_handler_cannot_be_called() -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': has no handler"):
        Tool("look", description="d")()


# --- schemas ---


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (Any, {}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, None], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP007
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (dt.date, {"type": "string", "format": "date"}),
        (
            Annotated[int, Field(ge=1, le=5, description="a few")],
            {"type": "integer", "minimum": 1, "maximum": 5, "description": "a few"},
        ),
        (Annotated[str, Field(pattern="^a", max_length=3)], {"type": "string", "pattern": "^a", "maxLength": 3}),
        (Annotated[int, "not for the model"], {"type": "integer"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (Size, {"$ref": "#/$defs/Size"}),
        (Keys, {"$ref": "#/$defs/Keys"}),
        (Color, {"$ref": "#/$defs/Color"}),
        (list[Node], {"type": "array", "items": {"$ref": "#/$defs/Node"}}),
    ],
    ids=str,
)
def test_an_annotation_becomes_a_schema(annotation: Any, schema: dict[str, Any]) -> None:
    def look(value: Any) -> None: ...

    look.__annotations__["value"] = annotation

    assert properties(look) == {"value": schema}


def test_nested_types_are_described_once() -> None:
    def look(a: Point, b: Point | None = None, color: Color = Color.RED) -> None: ...

    definitions = tool(look).input_schema["$defs"]

    assert sorted(definitions) == ["Color", "Point"]
    assert definitions["Point"]["properties"]["x"]["description"] == "to the right"
    assert definitions["Color"]["enum"] == ["red", "blue"]


def test_an_argument_without_an_annotation_takes_anything() -> None:
    def look(a, b=2):  # type: ignore[no-untyped-def]
        ...

    assert properties(look) == {"a": {}, "b": {"default": 2}}


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        (None, {"default": None}),
        (Color.RED, {"default": "red"}),
        (Point(x=1), {"default": {"x": 1, "y": 0}}),
        ((1, 2), {"default": [1, 2]}),
        (object(), {}),
        (b"\xff", {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_default_is_shown_as_far_as_json_can(default: Any, shown: dict[str, Any]) -> None:
    def look(a: Any = default) -> None: ...

    assert properties(look) == {"a": shown}


@pytest.mark.parametrize("default", [float("nan"), [float("inf")], "\ud800"], ids=ascii)
def test_a_schema_is_strict_json_whatever_the_default(default: Any) -> None:
    def look(a: Any = default) -> None: ...

    assert json.dumps(properties(look), allow_nan=False, ensure_ascii=False).encode() == b'{"a": {}}'


async def test_an_argument_that_is_left_out_is_the_default_of_the_function_itself() -> None:
    unique = object()

    def look(a: Any = unique) -> bool:
        return a is unique

    assert await attempt(tool(look)) == Returned("true")


def test_argument_descriptions_come_from_the_docstring() -> None:
    @tool
    def look(a: int, b: str = "", c: Annotated[int, Field(description="mine")] = 1, d: int = 2) -> None:
        """Look up: at once.

        A second paragraph.

        Args:
            a: the first
                goes on: here
            b (str, optional): the second. Note: not a third
            c: not this
            unknown: nobody

        Returns:
            d: nothing

        Raises:
            d: always
        """

    described = {name: schema.get("description") for name, schema in look.input_schema["properties"].items()}

    assert look.description == "Look up: at once.\n\nA second paragraph."
    assert described == {"a": "the first goes on: here", "b": "the second. Note: not a third", "c": "mine", "d": None}


def test_any_parameter_name_is_an_argument() -> None:
    def look(schema: int, json: int, model_config: int, _x: int, self_: int, copy: int, validate: int) -> None: ...

    assert list(properties(look)) == ["schema", "json", "model_config", "_x", "self_", "copy", "validate"]


async def test_any_parameter_name_reaches_the_handler() -> None:
    def look(self: int, cls: int, args: int, kwargs: int, func: int, handler: int, keywords: int, _x: int) -> list[int]:
        return [self, cls, args, kwargs, func, handler, keywords, _x]

    names = ["self", "cls", "args", "kwargs", "func", "handler", "keywords", "_x"]

    assert await attempt(tool(look), {name: place for place, name in enumerate(names)}) == Returned("[0,1,2,3,4,5,6,7]")


def test_an_alias_is_what_the_model_sees() -> None:
    def look(since: Annotated[int, Field(alias="from")]) -> None: ...

    assert properties(look) == {"from": {"type": "integer"}}


@pytest.mark.parametrize(
    "model",
    [Point, Size, Keys, Node, dict[str, int], RootModel[dict[str, int]]],
    ids=lambda m: getattr(m, "__name__", ""),
)
def test_the_schema_of_a_tool_is_of_type_object(model: Any) -> None:
    assert Tool("look", description="d", input=model).input_schema["type"] == "object"


@pytest.mark.parametrize("model", [int, list[int], Color, Any, RootModel[int], Point | Size, str])
def test_input_that_is_no_object_is_refused(model: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': input must describe a JSON object"):
        Tool("look", description="d", input=model)


def positional_only(a: int, /) -> None: ...
def positional_context(ctx: ToolContext, /, a: int) -> None: ...
def rest(*args: int) -> None: ...
def keywords(**options: int) -> None: ...
def field_default(a: int = Field(3)) -> None: ...
def opaque(a: int, payload: Opaque) -> None: ...
def callback(a: int, payload: Callable[[int], int]) -> None: ...
def nested_opaque(a: int, payload: list[Opaque]) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter", "rule"),
    [
        (positional_only, "a", "must be passable by its name"),
        (positional_context, "ctx", "must be passable by its name"),
        (rest, "args", "must be passable by its name"),
        (keywords, "options", "must be passable by its name"),
        (field_default, "a", "has a Field as its default"),
        (opaque, "payload", "cannot become a schema"),
        (callback, "payload", "no JSON schema"),
        (nested_opaque, "payload", "cannot become a schema"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_parameter_that_a_model_cannot_fill_is_refused(
    function: Callable[..., Any], parameter: str, rule: str
) -> None:
    with pytest.raises(DefinitionError, match=rule) as caught:
        tool(function)
    assert f"Tool '{function.__name__}'" in str(caught.value)
    assert f"'{parameter}'" in str(caught.value)


@pytest.mark.parametrize("annotation", [Opaque, Awaitable[str], 5, "DeclaredNowhere", Incomplete], ids=str)
def test_an_output_that_cannot_be_checked_is_refused(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': output"):
        Tool("look", description="d", output=annotation)


@pytest.mark.parametrize("annotation", [Opaque, 5, "DeclaredNowhere", Incomplete, Callable[[], int]], ids=str)
def test_an_input_that_cannot_be_checked_is_refused_in_one_line(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': input") as caught:
        Tool("look", description="d", input=annotation)
    assert "\n" not in str(caught.value)


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


# --- arguments ---


@tool
def shout(text: str, times: Annotated[int, Field(ge=1)] = 1) -> str:
    """Shout."""
    return text.upper() * times


async def test_arguments_are_converted_and_further_ones_are_dropped() -> None:
    assert await attempt(shout, {"text": "a", "times": "2", "volume": 11}) == Returned("AA")


async def test_a_tool_may_forbid_further_arguments() -> None:
    assert await attempt(Tool("look", description="d", input=Closed, handler=str), {"x": 1, "y": 2}) == Failed(
        'Invalid input for tool "look": y: Extra inputs are not permitted'
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"text": 5}, "text: Input should be a valid string"),
        ({}, "text: Field required"),
        ({"text": "a", "times": 0}, "times: Input should be greater than or equal to 1"),
        (
            {"text": None, "times": 0},
            "text: Input should be a valid string; times: Input should be greater than or equal to 1",
        ),
        ("not JSON", "not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "a JSON array instead of an object"),
        ('{"text": NaN}', "not valid JSON: NaN is not JSON"),
    ],
    ids=str,
)
async def test_wrong_arguments_are_answered_with_what_is_wrong(arguments: Any, error: str) -> None:
    assert await attempt(shout, arguments) == Failed(f'Invalid input for tool "shout": {error}')


async def test_wrong_arguments_do_not_reach_the_handler() -> None:
    reached: list[Any] = []
    subject = Tool("look", description="d", input=Point, handler=reached.append)
    await attempt(subject, {"x": -1})

    assert reached == []


async def test_text_that_is_an_object_is_read() -> None:
    assert await attempt(shout, '{"text": "a"}') == Returned("A")


@given(st.text(st.characters(), max_size=40))
def test_no_text_of_arguments_raises_anything_but_an_input_error(text: str) -> None:
    try:
        value = shout.read_arguments(text)
    except InputError as error:
        assert str(error).startswith('Invalid input for tool "shout": ')  # noqa: PT017
    else:
        assert isinstance(value["text"], str)


async def test_a_handler_that_changes_its_arguments_changes_nothing_else() -> None:
    @tool
    def change(options: dict[str, Any], rows: list[Any]) -> None:
        """Change both."""
        options["nested"]["x"] = 1
        rows[0].append(1)

    arguments: dict[str, Any] = {"options": {"nested": {}}, "rows": [[]]}
    await attempt(change, arguments)

    assert arguments == {"options": {"nested": {}}, "rows": [[]]}


# --- results ---


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text as it is", "text as it is"),
        ('{"a": 1}', '{"a": 1}'),
        ("a\0\ud800", "a\ufffd\ufffd"),
        (None, "null"),
        (True, "true"),
        (5, "5"),
        ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'),
        (Point(x=1), '{"x":1,"y":0}'),
        (Size(1), '{"width":1,"unit":"cm"}'),
        ((1, 2), "[1,2]"),
        (dt.date(2020, 1, 1), '"2020-01-01"'),
        (Decimal("1.5"), '"1.5"'),
        (Color.RED, '"red"'),
        (b"bytes", '"bytes"'),
        (float("nan"), "null"),
        ([float("inf")], "[null]"),
    ],
    ids=ascii,
)
async def test_a_result_is_text_as_it_is_or_json(value: Any, content: str) -> None:
    assert await attempt(returning(value)) == Returned(content)


@pytest.mark.parametrize(
    ("annotation", "value", "content"),
    [
        (Point, {"x": "1", "secret": "s"}, '{"x":1,"y":0}'),
        (Size, {"width": 1, "secret": "s"}, '{"width":1,"unit":"cm"}'),
        (list[Point], [{"x": 1, "secret": "s"}], '[{"x":1,"y":0}]'),
        (Optional[Point], None, "null"),  # noqa: UP045
        (Point | str, "text", "text"),
        (None, None, "null"),
    ],
    ids=str,
)
async def test_a_result_is_read_by_the_output_and_extra_keys_are_stripped(
    annotation: Any, value: Any, content: str
) -> None:
    assert await attempt(returning(value, annotation)) == Returned(content)


async def test_extra_fields_of_a_subclass_are_stripped() -> None:
    class Secret(Point):
        secret: str = "s"

    assert await attempt(returning(Secret(x=1), Point)) == Returned('{"x":1,"y":0}')


async def test_the_return_annotation_is_the_output() -> None:
    @tool
    def look() -> Point:
        """Look."""
        return {"x": 1, "secret": "s"}  # type: ignore[return-value]

    assert await attempt(look) == Returned('{"x":1,"y":0}')


@pytest.mark.parametrize(
    ("annotation", "value", "error"),
    [
        (Point, {"x": "one"}, "x: Input should be a valid integer, unable to parse string as an integer"),
        (str, 5, "value: Input should be a valid string"),
        (None, 5, "value: Input should be None"),
    ],
    ids=str,
)
async def test_a_result_that_does_not_match_the_output_fails(annotation: Any, value: Any, error: str) -> None:
    assert await attempt(returning(value, annotation)) == Failed(f'Tool "give" returned invalid output: {error}')


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), Opaque, len, b"\xff", ["\ud800"], cycle(), deep(), ValueError("x")],
    ids=["object", "class", "function", "bytes", "lone surrogate", "cycle", "deep", "error"],
)
async def test_a_result_that_is_no_json_is_lost_with_an_error(value: Any) -> None:
    outcome = await attempt(returning(value))

    assert isinstance(outcome, Failed)
    assert outcome.error.startswith('Tool "give" ran, but its result was lost: it is no JSON')
    assert not outcome.raised


@pytest.mark.parametrize("value", ["x" * LIMIT, "é" * (LIMIT // 2)])
async def test_a_result_may_be_as_long_as_the_limit(value: str) -> None:
    assert await attempt(returning(value)) == Returned(value)


@pytest.mark.parametrize(
    ("value", "size"), [("x" * 1_025, "1,025"), ("é" * 513, "1,026"), (["x" * 1_021], "1,025")], ids=["a", "é", "JSON"]
)
async def test_a_longer_result_is_lost_with_an_error_that_names_the_limit(value: Any, size: str) -> None:
    assert await attempt(returning(value)) == Failed(
        f'Tool "give" ran, but its result was lost: {size} bytes, more than max_message_bytes=1,024'
    )


# --- errors ---


class Silent(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("an error without a text")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no such issue"), Failed("no such issue", raised=True)),
        (ValueError(), Failed("ValueError", raised=True)),
        (ValueError(5), Failed("5", raised=True)),
        (TimeoutError(), Failed("TimeoutError", raised=True)),
        (ValueError("a\0\ud800"), Failed("a\ufffd\ufffd", raised=True)),
        (InputError("not this"), Failed("not this", raised=True)),
        (ExceptionGroup("two", [ValueError("a")]), Failed("two (1 sub-exception)", raised=True)),
        (Silent(), Failed("Silent", raised=True)),
        (RetryableError("busy"), Failed("busy", raised=True, retryable=True)),
        (RetryableError("busy", retry_after=30), Failed("busy", raised=True, retryable=True, retry_after=30)),
        (RetryableError(""), Failed("RetryableError", raised=True, retryable=True)),
        (InterruptError("Who?"), Asked("Who?")),
        (InterruptError("Who\0?"), Asked("Who\ufffd?")),
        (InterruptError(5), Asked("5")),  # type: ignore[arg-type]
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_a_handler_raises_becomes_an_outcome(error: Exception, outcome: Outcome) -> None:
    assert await attempt(raising(error)) == outcome


async def test_a_terminal_error_is_kept_whole() -> None:
    error = TerminalError("gone", 404, {"issue": 42})

    assert await attempt(raising(error)) == Terminated(error)


async def test_an_error_of_an_async_handler_is_the_same() -> None:
    async def fail() -> None:
        raise ValueError("no such issue")

    assert await attempt(Tool("fail", description="d", handler=fail)) == Failed("no such issue", raised=True)


async def test_an_interrupt_from_the_keyboard_is_no_outcome() -> None:
    with pytest.raises(KeyboardInterrupt):
        await attempt(raising(KeyboardInterrupt()))


async def test_a_tool_cannot_end_the_process() -> None:
    assert await attempt(raising(SystemExit(2))) == Failed("2", raised=True)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), RuntimeError("x")], ids=repr)
async def test_whatever_a_validator_raises_the_arguments_are_invalid(error: Exception) -> None:
    def refuse(value: int) -> int:
        raise error

    @tool
    def look(x: Annotated[int, AfterValidator(refuse)]) -> None: ...

    outcome = await attempt(look, {"x": 1})
    assert isinstance(outcome, Failed)
    assert (outcome.error.startswith('Invalid input for tool "look"'), outcome.raised) == (True, False)


async def test_whatever_a_serializer_raises_the_result_is_lost_and_the_run_is_not() -> None:
    def refuse(value: int) -> int:
        raise KeyError("x")

    @tool
    def look() -> Annotated[int, PlainSerializer(refuse)]:
        return 1

    assert isinstance(await attempt(look), Failed)


@pytest.mark.parametrize("error", [ValueError("x" * 5_000), RetryableError("é" * 5_000), InterruptError("x" * 5_000)])
async def test_an_error_or_question_longer_than_the_limit_is_cut(error: Exception) -> None:
    outcome = await attempt(raising(error))
    text = outcome.question if isinstance(outcome, Asked) else getattr(outcome, "error", "")

    assert len(text.encode()) < LIMIT + 100


# --- durations and retries ---


@pytest.mark.parametrize(
    ("duration", "result"),
    [
        ("30s", 30),
        ("15m", 900),
        ("2h", 7_200),
        ("7d", 604_800),
        ("1w", 604_800),
        (5, 5),
        (0.5, 0.5),
        (dt.timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_a_text_or_seconds_or_a_timedelta(duration: Any, result: float) -> None:
    assert seconds(duration, "timeout") == result


@pytest.mark.parametrize(
    "duration",
    [
        "", "7", "7days?", "-1s", "0s", "30s\n", " 30s", "1.5h", "30S", "9999999999s", "s", 0, -1, True, None, [],
        b"30s", float("nan"), float("inf"), 10**400, dt.timedelta(0), dt.timedelta(-1),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_anything_else_is_no_duration(duration: Any) -> None:
    with pytest.raises(DefinitionError, match=r'timeout must be like "30s", "15m", "2h", "7d", "1w"'):
        seconds(duration, "timeout")


def test_a_wrong_timeout_names_the_tool() -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': timeout must be like"):
        Tool("look", description="d", timeout="soon")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"maximum_attempts": 0}, "maximum_attempts"),
        ({"maximum_attempts": True}, "maximum_attempts"),
        ({"maximum_attempts": 2.5}, "maximum_attempts"),
        ({"maximum_attempts": "5"}, "maximum_attempts"),
        ({"maximum_attempts": None}, "maximum_attempts"),
        ({"backoff_coefficient": 0.5}, "backoff_coefficient"),
        ({"backoff_coefficient": float("nan")}, "backoff_coefficient"),
        ({"backoff_coefficient": "2"}, "backoff_coefficient"),
        ({"initial_interval": 0}, "initial_interval"),
        ({"initial_interval": "soon"}, "initial_interval"),
        ({"maximum_interval": float("inf")}, "maximum_interval"),
    ],
    ids=str,
)
def test_a_wrong_retry_policy_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(DefinitionError, match=rf"retry\.{field} must be"):
        RetryPolicy(**options)


def test_an_unknown_option_of_a_retry_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="attempts"):
        RetryPolicy(attempts=3)  # type: ignore[call-arg]


def test_delays_grow_up_to_the_longest() -> None:
    assert [RetryPolicy().delay(attempt) for attempt in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_intervals_may_be_texts() -> None:
    policy = RetryPolicy(initial_interval="2s", backoff_coefficient=3, maximum_interval="1m")

    assert [policy.delay(attempt) for attempt in range(1, 6)] == [2, 6, 18, 54, 60]


@pytest.mark.parametrize("coefficient", [2, 2.0])
def test_a_delay_too_large_for_a_number_is_the_longest(coefficient: float) -> None:
    assert RetryPolicy(backoff_coefficient=coefficient).delay(100_000) == 30


WRONG = Failed("wrong arguments")
RAISED = Failed("raised", raised=True)
RETRYABLE = Failed("busy", raised=True, retryable=True)
LATER = Failed("busy", raised=True, retryable=True, retry_after=7)
POLICY = RetryPolicy(initial_interval=2, maximum_attempts=3)


@pytest.mark.parametrize(
    ("options", "failed", "attempt_number", "delay"),
    [
        ({}, RAISED, 1, None),
        ({}, RETRYABLE, 1, None),
        ({}, LATER, 1, None),
        ({"safe_to_retry": True}, WRONG, 1, None),
        ({"safe_to_retry": True}, RAISED, 1, None),
        ({"safe_to_retry": True}, RETRYABLE, 1, 1),
        ({"safe_to_retry": True}, RETRYABLE, 4, 8),
        ({"safe_to_retry": True}, RETRYABLE, 5, None),
        ({"safe_to_retry": True}, LATER, 1, 7),
        ({"safe_to_retry": True}, LATER, 5, None),
        ({"safe_to_retry": True, "retry": POLICY}, WRONG, 1, None),
        ({"safe_to_retry": True, "retry": POLICY}, RAISED, 1, 2),
        ({"safe_to_retry": True, "retry": POLICY}, RETRYABLE, 2, 4),
        ({"safe_to_retry": True, "retry": POLICY}, LATER, 2, 7),
        ({"safe_to_retry": True, "retry": POLICY}, RAISED, 3, None),
        ({"safe_to_retry": True, "retry": RetryPolicy(maximum_attempts=1)}, RETRYABLE, 1, None),
    ],
)
def test_when_a_failed_call_is_tried_again(
    options: dict[str, Any], failed: Failed, attempt_number: int, delay: float | None
) -> None:
    assert Tool("look", description="d", **options).next_delay(failed, attempt_number) == delay


# --- verify ---


def verifying(verify: Callable[..., Any] | None, output: Any = Any) -> Tool[..., Any]:
    return Tool("post", description="d", input=Point, output=output, handler=lambda point: None, verify=verify)


def give(verdict: Any) -> Callable[..., Any]:
    return lambda point: verdict


def fail(point: Point) -> None:
    raise ValueError("no network")


def ask(point: Point) -> None:
    raise InterruptError("Did it happen?")


async def look_async(point: Point, context: ToolContext) -> Happened:
    return Happened(f"{point.x} for {context.tool_call_id}")


@pytest.mark.parametrize(
    ("verify", "outcome"),
    [
        (None, Unknown()),
        (give(None), Unknown()),
        (give(NotHappened()), None),
        (give(Happened()), Returned("null")),
        (give(Happened({"id": 1})), Returned('{"id":1}')),
        (look_async, Returned("1 for c1")),
        (give(True), Unknown("verify returned bool instead of Happened, NotHappened or None")),
        (give("yes"), Unknown("verify returned str instead of Happened, NotHappened or None")),
        (fail, Unknown("verify failed: no network")),
        (ask, Unknown("verify failed: Did it happen?")),
        (lambda: None, Unknown("verify failed: <lambda>() takes 0 positional arguments but 1 was given")),
    ],
    ids=[
        "none",
        "cannot tell",
        "not happened",
        "happened",
        "result",
        "async",
        "bool",
        "text",
        "fails",
        "asks",
        "arity",
    ],
)
async def test_verify_settles_an_unknown_outcome(verify: Any, outcome: Outcome | None) -> None:
    assert await verified(verifying(verify), {"x": 1}) == outcome


async def test_what_verify_found_is_checked_by_the_output() -> None:
    subject = verifying(give(Happened({"x": "1", "secret": "s"})), Point)

    assert await verified(subject, {"x": 1}) == Returned('{"x":1,"y":0}')


async def test_verify_of_a_function_takes_its_parameters() -> None:
    def happened(text: str, ctx: ToolContext) -> Happened:
        return Happened(f"{text} for {ctx.tool_call_id}")

    @tool(verify=happened)
    def post(text: str) -> str:
        """Post."""
        return ""

    assert await verified(post, {"text": "hi"}) == Returned("hi for c1")


async def test_arguments_that_cannot_be_read_leave_the_outcome_unknown() -> None:
    assert await verified(verifying(give(NotHappened())), {"x": -1}) == Unknown(
        'verify failed: Invalid input for tool "post": x: Input should be greater than or equal to 0'
    )


def test_only_one_parameter_is_the_context() -> None:
    def look(one: ToolContext, two: ToolContext) -> None: ...

    with pytest.raises(DefinitionError, match="Tool 'look': only one parameter can be the ToolContext"):
        tool(look)


@pytest.mark.parametrize("thing", [Tool("look", description="d"), dict, 5], ids=lambda thing: type(thing).__name__)
def test_what_is_no_function_is_no_tool(thing: Any) -> None:
    with pytest.raises(DefinitionError, match="@tool needs a function"):
        tool(thing)
