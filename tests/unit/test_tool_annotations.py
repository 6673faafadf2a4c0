"""Annotations are strings here; a tool reads them like others, including names of a function's local types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import pytest
from pydantic import BaseModel, Field
from support.tools import attempt

from standfast import DefinitionError, Tool, ToolContext, tool
from standfast.tools import Returned

if TYPE_CHECKING:
    from decimal import Decimal


class Point(BaseModel):
    x: int


@tool
def move(point: Point, by: Annotated[Optional[int], Field(description="steps")] = None) -> Point:  # noqa: UP045
    """Move."""
    return Point(x=point.x + (by or 1))


@tool
def sign(ctx: ToolContext, text: str) -> str:
    """Sign."""
    return f"{text} for {ctx.tool_call_id}"


def test_texts_become_schemas() -> None:
    assert move.input_schema["properties"] == {
        "point": {"$ref": "#/$defs/Point"},
        "by": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "description": "steps"},
    }


async def test_arguments_and_results_are_read_by_them() -> None:
    assert await attempt(move, {"point": {"x": "1"}}) == Returned('{"x":2}')


async def test_the_context_is_passed_in() -> None:
    assert await attempt(sign, {"text": "hi"}) == Returned("hi for c1")


async def test_types_local_to_a_function_are_found() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def twice(value: Local) -> list[Local]:
        """Give it twice."""
        return [value, value]

    assert await attempt(twice, {"value": {"x": "1"}}) == Returned('[{"x":1},{"x":1}]')


async def test_types_local_to_a_function_are_found_with_options() -> None:
    class Local(BaseModel):
        x: int

    @tool(safe_to_retry=True)
    async def twice(value: Local) -> list[Local]:
        """Give it twice."""
        return [value, value]

    assert await attempt(twice, {"value": {"x": "1"}}) == Returned('[{"x":1},{"x":1}]')


async def test_the_context_is_passed_in_next_to_types_local_to_a_function() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def show(value: Local, ctx: ToolContext) -> str:
        """Show."""
        return f"{value.x} for {ctx.tool_call_id}"

    assert await attempt(show, {"value": {"x": "1"}}) == Returned("1 for c1")


async def test_an_injected_handler_gets_the_context_next_to_types_that_cannot_be_found() -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return ""

    def injected(amount: Decimal, ctx: ToolContext) -> str:
        return f"{amount} for {ctx.tool_call_id}"

    assert await attempt(pay.with_handler(injected), {"amount": 1}) == Returned("1 for c1")


def test_a_type_that_cannot_be_found_is_refused() -> None:
    def pay(amount: Decimal) -> None:
        """Pay."""

    with pytest.raises(DefinitionError, match="Tool 'pay': an annotation cannot be resolved: name 'Decimal'"):
        tool(pay)


async def test_an_explicit_tool_passes_the_context_by_its_annotation() -> None:
    def show(value: Point, ctx: ToolContext) -> str:
        return f"{value.x} for {ctx.tool_call_id}"

    assert await attempt(Tool("show", description="d", input=Point, handler=show), {"x": 1}) == Returned("1 for c1")
