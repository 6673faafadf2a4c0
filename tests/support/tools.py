"""Types for schemas and states, a function's schema, a tool that returns a value, and one attempt of a tool."""

import dataclasses
import enum
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from standfast import Tool, ToolContext, tool
from standfast.tools import InThread, Outcome

LIMIT = 1_024


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int = Field(ge=0, description="to the right")
    y: int = 0


class Node(BaseModel):
    children: list["Node"] = []


class Keys(TypedDict):
    k: int


@dataclasses.dataclass
class Size:
    width: int
    unit: str = "cm"


class Counter(BaseModel):
    count: int = 0
    seen: list[str] = []


class Opaque:
    pass


async def here(call: Callable[[], Any]) -> Any:
    return call()


def written(subject: Tool[..., Any]) -> Callable[[Any, int], Awaitable[Outcome]]:
    async def write(value: object, limit: int) -> Outcome:
        return subject.write_result(value, limit)

    return write


async def attempt(
    subject: Tool[..., Any],
    arguments: Any = None,
    *,
    limit: int = LIMIT,
    approved: str | None = None,
    safe_to_retry: bool | None = None,
    in_thread: InThread = here,
) -> Outcome:
    context, given = ToolContext(agent_name="greeter", tool_call_id="c1"), {} if arguments is None else arguments
    return await subject.attempt(
        given,
        context,
        limit=limit,
        read=here,
        write=written(subject),
        in_thread=in_thread,
        approved=approved,
        safe_to_retry=safe_to_retry,
    )


def properties(function: Callable[..., Any]) -> Any:
    return tool(function).input_schema["properties"]


def returning(value: Any, annotation: Any = Any) -> Tool[..., Any]:
    return Tool("give", description="Give it.", output=annotation, handler=lambda: value)
