"""Schemas that providers enforce: closed records only; no schema is enforced with a different meaning."""

from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from standfast.llm.strict_schemas import held_schema


class Part(BaseModel):
    name: str = Field(description="What it is called.", min_length=1)
    size: int = Field(3, ge=0)


class Report(BaseModel):
    kind: Literal["a", "b"]
    parts: list[Part] = []
    by: str | None = None
    on: date
    price: Decimal = Decimal(0)


class Tree(BaseModel):
    children: "list[Tree]" = []


class Nested(BaseModel):
    tree: Tree


class Counts(BaseModel):
    counts: dict[str, int]


class Anything(BaseModel):
    value: Any


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Pair(BaseModel):
    both: tuple[int, str]


class Empty(BaseModel):
    pass


def schema_of(kind: Any) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()


def test_a_record_is_closed_and_all_of_it_required() -> None:
    held = held_schema(schema_of(Report), recursive=False)
    assert held is not None
    assert held["required"] == ["kind", "parts", "by", "on", "price"]
    assert held["properties"]["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert held["properties"]["by"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert held["properties"]["on"] == {"type": "string", "format": "date"}
    assert held["properties"]["price"] == {"anyOf": [{"type": "number"}, {"type": "string"}]}  # its pattern looks ahead
    assert held["$defs"]["Part"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "What it is called."},
            "size": {"type": "integer", "minimum": 0},
        },
        "required": ["name", "size"],
        "additionalProperties": False,
    }


def test_a_record_without_fields_is_held_empty() -> None:
    held = held_schema(schema_of(Empty), recursive=False)
    assert held == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@pytest.mark.parametrize("kind", [Counts, Anything, Open, Pair, dict[str, int], list[int], int, Report | Part])
def test_what_would_be_held_to_something_else_is_not_held(kind: Any) -> None:
    assert held_schema(schema_of(kind), recursive=True) is None


def test_a_schema_that_refers_to_itself_is_held_by_those_who_know_that() -> None:
    assert held_schema(schema_of(Nested), recursive=False) is None
    held = held_schema(schema_of(Nested), recursive=True)
    assert held is not None
    assert held["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
