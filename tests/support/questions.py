"""Tools and an agent that ask a person, and a run that ends with their question."""

from typing import Any

from standfast import Agent, InterruptedResponse, InterruptError, Tool, ToolCall, is_interrupted, run, tool
from standfast.testing import ScriptedModel
from support.doubles import echo
from support.transcripts import asks_for


@tool
async def ask(question: str) -> str:
    """Ask the user."""
    raise InterruptError(question)


@tool
async def ask_user(question: str) -> str:
    """Ask the user."""
    raise InterruptError(question)


def asking() -> Tool[..., Any]:
    @tool
    async def ask(text: str) -> str:
        """Ask a person."""
        raise InterruptError(f"{text}?")

    return ask


agent = Agent("clerk", tools=[ask, echo])


async def interrupted(*calls: ToolCall, by: Agent = agent, **options: Any) -> InterruptedResponse:
    """Run an agent whose model asks for these calls, at least one of which asks a person."""
    options.setdefault("llm", ScriptedModel([asks_for(*calls)]))
    result = await run(by, message="go", **options)
    assert is_interrupted(result)
    return result
