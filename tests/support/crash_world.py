"""The parts of the crash tests' agents: tools, their effects, and scripted models."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from standfast import (
    Agent,
    Happened,
    InterruptError,
    Message,
    NotHappened,
    RetryableError,
    RetryPolicy,
    TerminalError,
    Tool,
    ToolContext,
    tool,
)


class World:
    """What tools do outside of standfast, kept apart by the database that the run writes to."""

    def __init__(self) -> None:
        self.effects: dict[str, Counter[str]] = {}
        self._now = ""

    def enter(self, name: str) -> None:
        self._now = name
        self.effects.setdefault(name, Counter())

    def do(self, effect: str) -> None:
        self.effects[self._now][effect] += 1

    def has(self, effect: str) -> bool:
        return self.effects[self._now][effect] > 0


WORLD = World()


@tool(safe_to_retry=True)
async def look(text: str = "") -> str:
    """Look something up."""
    return f"seen {text}"


@tool(safe_to_retry=True, parallel=True)
async def peek(text: str = "") -> str:
    """Look something up beside others."""
    await asyncio.sleep(0)
    return f"seen {text}"


@tool
async def post(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Post a text."""
    WORLD.do(ctx.idempotency_key)
    return f"posted {text}"


@tool(parallel=True)
async def send(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Send a text beside others."""
    WORLD.do(ctx.idempotency_key)
    await asyncio.sleep(0)
    return f"sent {text}"


@tool
def write(text: str = "") -> dict[str, Any]:
    """Write a text, in a plain function."""
    return {"written": text}


@tool
async def ask(text: str = "Go on?") -> str:
    """Ask a person."""
    raise InterruptError(text)


@tool(parallel=True)
async def confirm(text: str = "Really?") -> str:
    """Ask a person beside other calls."""
    raise InterruptError(text)


@tool
async def fail(text: str = "") -> str:
    """Fail."""
    raise ValueError("no luck")


@tool(safe_to_retry=True)
async def fail_safely(text: str = "") -> str:
    """Fail without effects."""
    raise ValueError("no luck")


@tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.001, maximum_attempts=2))
async def busy(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Succeed the second time."""
    if ctx.attempt == 1:
        raise RetryableError("busy", retry_after=0)
    return "at last"


@tool
async def busy_with_effects(text: str = "") -> str:
    """Ask for another try, which it does not get."""
    raise RetryableError("busy", retry_after=0)


@tool
async def give_up(text: str = "") -> str:
    """Fail for good."""
    raise TerminalError("account closed")


@tool
async def cancel_itself(text: str = "") -> str:
    """Be cancelled from within."""
    raise asyncio.CancelledError


@tool
async def answer_wrongly(text: str = "") -> int:
    """Return what it should not."""
    return "many"  # type: ignore[return-value]


@tool(safe_to_retry=True)
async def read_much(text: str = "") -> str:
    """Return a long text with odd characters."""
    return "ÿ🙂\0" * 20_000


async def was_transferred(text: str = "", ctx: ToolContext = ToolContext()) -> Happened | NotHappened:  # noqa: B008
    return Happened("found") if WORLD.has(ctx.idempotency_key) else NotHappened()


@tool(verify=was_transferred)
async def transfer(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Transfer, and be able to look whether that happened."""
    WORLD.do(ctx.idempotency_key)
    return "transferred"


@tool(verify=lambda text="": None)
async def transfer_blindly(text: str = "") -> str:
    """Transfer, and never know."""
    return "transferred"


missing: Tool[..., Any] = Tool("missing", description="A tool without a handler.")


class Letter(BaseModel):
    to: Annotated[str, Field(min_length=1)]


async def mail_letter(letter: Letter, ctx: ToolContext) -> str:
    WORLD.do(ctx.idempotency_key)
    return f"mailed to {letter.to}"


mail = Tool("mail", description="Mail a letter.", input=Letter, output=str, handler=mail_letter)

poster = Agent("poster", instructions="poster", tools=[post], description="Posts.")
reader = Agent("reader", instructions="reader", tools=[look])
doubter = Agent("doubter", instructions="doubter", tools=[ask])


@tool
async def delegate(text: str, ctx: ToolContext) -> str:
    """Let another agent post."""
    return (await ctx.agents.invoke(poster, message=text))["response"]


@tool(safe_to_retry=True)
async def research(text: str, ctx: ToolContext) -> str:
    """Let another agent read."""
    return (await ctx.agents.invoke(reader, message=text))["response"]


@tool
async def doubt(text: str, ctx: ToolContext) -> str:
    """Let another agent ask."""
    return (await ctx.agents.invoke(doubter, message=text))["response"]


Turn = str | Mapping[str, Any]


def calling(*names: str, **arguments: Any) -> dict[str, Any]:
    """Return an answer that calls tools, without ids: the loop makes them."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name in names]}


def scripted(turns: Sequence[Turn], **others: Sequence[Turn]) -> Callable[[list[Message], list[Any]], Turn]:
    """Return a model that answers the n-th time by the n-th turn, each agent (told by its instructions) its own."""

    def answer(messages: list[Message], tools: list[Any]) -> Turn:
        mine = others.get(messages[0].content, turns)
        said = sum(message.role == "assistant" for message in messages)
        return mine[min(said, len(mine) - 1)]

    return answer
