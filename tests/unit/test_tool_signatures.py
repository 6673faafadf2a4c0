"""Signatures: the schemas that they become, and the reading of arguments."""

import datetime as dt
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, RootModel
from support.tools import Color, Keys, Node, Opaque, Point, Size, attempt, properties, returning
from typing_extensions import TypedDict

from standfast import DefinitionError, InputError, Tool, ToolContext, tool
from standfast.tools import Failed, Returned


class Incomplete(BaseModel):
    later: "DeclaredNowhere"  # type: ignore[name-defined]  # noqa: F821


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


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
def test_input_that_is_not_an_object_is_refused(model: Any) -> None:
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
        (opaque, "payload", "cannot become a JSON schema"),
        (callback, "payload", "cannot become a JSON schema"),
        (nested_opaque, "payload", "cannot become a JSON schema"),
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


class Checked(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("annotation", "is_plain"),
    [
        (str, True),
        (Annotated[str, Field(pattern="^a", max_length=4)], True),
        (dict[str, list[int | None]], True),
        (Literal["a", "b"], True),
        (Annotated[str, AfterValidator(str.strip)], False),
        (list[Annotated[str, AfterValidator(str.strip)]], False),
        (Annotated[str, PlainSerializer(str.strip)], False),
        (Annotated[str, Field(default_factory=str)], False),
        (Checked, False),
        (Annotated[dict[str, Any], AfterValidator(dict)], False),
    ],
    ids=str,
)
def test_arguments_are_read_at_once_if_no_code_of_a_users_reads_them(annotation: Any, is_plain: bool) -> None:
    for name in ("text", "metadata", "type"):
        fields = TypedDict("fields", {name: annotation})  # type: ignore[operator, misc]
        assert Tool("look", description="Look.", input=fields).reads_at_once is is_plain


@pytest.mark.parametrize(
    ("annotation", "value", "at_once"),
    [
        (str, "a", True),
        (Any, {"rows": [1, None, "a", 0.5]}, True),
        (Any, list(range(1_001)), False),
        (Any, Checked(text="a"), False),
        (Any, iter("ab"), False),
        (list[str], iter("ab"), False),
        (Checked, {"text": "a"}, False),
        (Annotated[str, AfterValidator(str.strip)], "a", False),
    ],
    ids=lambda item: str(item) if isinstance(item, bool) else type(item).__name__,
)
def test_a_result_is_written_at_once_if_it_is_short_and_no_code_of_a_users_writes_it(
    annotation: Any, value: object, at_once: bool
) -> None:
    assert returning(value, annotation).writes_at_once(value) is at_once


STYLES = {
    "google": """
        Refund an order.

        In full.

        Args:
            order_id (dict[str, tuple(int)], optional): the order: its number
                and no more
            amount: US dollars

        Returns:
            str: amount: what was paid
        """,
    "numpy": """
        Refund an order.

        In full.

        Parameters
        ----------
        order_id : str, optional
            the order: its number
            and no more
        amount, fee : float
            US dollars

        Returns
        -------
        amount : str
            what was paid
        """,
    "sphinx": """
        Refund an order.

        In full.

        :param dict[str, int] order_id: the order: its number
            and no more
        :type amount: float
        :param amount: US dollars
        :returns: amount: what was paid
        :raises ValueError: amount: is below zero
        """,
}


@pytest.mark.parametrize("style", STYLES)
def test_docstrings_describe_parameters_in_each_style(style: str) -> None:
    def refund(order_id: str, amount: float, fee: Annotated[float, Field(description="mine")] = 0) -> str:
        return ""

    refund.__doc__ = STYLES[style]
    made = tool(refund)
    described = {name: schema.get("description") for name, schema in made.input_schema["properties"].items()}
    assert made.description == "Refund an order.\n\nIn full."
    assert described == {"order_id": "the order: its number and no more", "amount": "US dollars", "fee": "mine"}


@pytest.mark.parametrize(
    "text",
    [
        "Look up :param nothing.", "Args: all of them.", "Parameters\nare many.", "---\nParameters", "A\n---\ntext",
        ":note: this is not a field",
    ],
)  # fmt: skip
def test_text_that_only_looks_like_a_section_is_the_description(text: str) -> None:
    def look(a: int) -> None: ...

    look.__doc__ = text
    assert tool(look).description == text
    assert "description" not in properties(look)["a"]


@pytest.mark.parametrize(
    "text",
    [
        "Args:",
        "x\n\nParameters\n---",
        ":param:",
        ":param a:",
        "Args:\n a:",
        "Parameters\n---\na",
        "\n",
        "Args:\n\n\n: a",
    ],
)
def test_a_docstring_that_is_cut_off_describes_nothing(text: str) -> None:
    def look(a: int) -> None: ...

    look.__doc__ = text
    assert "description" not in properties(look)["a"]
    assert tool(look).description == ("x" if text.startswith("x") else "look")
