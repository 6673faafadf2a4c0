"""An MCP server that asks back, as a process: `python mcp_asking_server.py FILE [PORT]`; FILE records every effect.

If there is a `FILE.key`, it takes the state that it has given before it was started again.
"""

import sys
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, RequestStateSecurity, Resolve, Sample
from mcp.types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

effects = Path(sys.argv[1])
key = effects.with_suffix(".key")
security = RequestStateSecurity(keys=[key.read_text()], ttl=10**6) if key.exists() else None
server = MCPServer("asking", request_state_security=security)


class Sure(BaseModel):
    sure: bool


class Address(BaseModel):
    city: str
    number: int


async def whether_sure(amount: int) -> Elicit[Sure]:
    return Elicit(f"Really pay {amount} euros?", Sure)


async def where_to() -> Elicit[Address]:
    return Elicit("Where to?", Address)


async def thought(text: str) -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text=text))], max_tokens=100)


@server.tool()
def pay(amount: int, answer: Annotated[Sure, Resolve(whether_sure)]) -> str:
    """Pay."""
    with effects.open("a") as file:
        file.write(f"pay {amount} {answer.sure}\n")
    return f"paid {amount}"


@server.tool()
def send(answer: Annotated[Address, Resolve(where_to)]) -> str:
    """Send."""
    return f"sent to {answer.city} {answer.number}"


@server.tool()
def book(city: str, ctx: Context) -> str | InputRequiredResult:
    """Reserve, ask, and book what was reserved."""
    with effects.open("a") as file:
        if ctx.request_state is None:
            file.write(f"reserve {city}\n")
            form = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
            asked = ElicitRequest(params=ElicitRequestFormParams(message="Which seat?", requested_schema=form))
            return InputRequiredResult(input_requests={"seat": asked}, request_state=f"reserved {city}")
        answer = (ctx.input_responses or {})["seat"]
        assert isinstance(answer, ElicitResult)
        file.write(f"{ctx.request_state}, booked {(answer.content or {}).get('seat')}\n")
    return f"booked {city}"


@server.tool()
def think(text: str, answer: Annotated[CreateMessageResult, Resolve(thought)]) -> str:
    """Think."""
    block = answer.content
    assert isinstance(block, TextContent)
    return f"thought: {block.text}"


@server.tool()
def ponder(times: int, ctx: Context) -> str | InputRequiredResult:
    """Think several times."""
    if ctx.request_state is None:
        said = [SamplingMessage(role="user", content=TextContent(type="text", text="?"))]
        asked = CreateMessageRequest(params=CreateMessageRequestParams(messages=said, max_tokens=9))
        return InputRequiredResult(input_requests={str(one): asked for one in range(times)}, request_state="asked")
    answers = (ctx.input_responses or {}).values()
    return str([one.content.text for one in answers if isinstance(one, CreateMessageResult)])  # type: ignore[union-attr]


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.resource("notes://today", description="What is to be done.")
def today() -> str:
    """Return the notes."""
    return "Buy milk."


@server.resource("notes://{day}")
def notes(day: str) -> str:
    """Return the notes of a day."""
    return f"Notes of {day}."


@server.prompt()
def style(tone: str = "plain") -> str:
    """Say how to write."""
    return f"Write in a {tone} tone."


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
