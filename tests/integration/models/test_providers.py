"""Every provider, by its own SDK where it has one, against a server that speaks its format: what is sent, what an
answer means, what each fault is, and that streams come to the same.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from standfast import Agent, DefinitionError, Image, LLMResponse, Message, ToolCall, Usage, run, tool
from standfast.llm import LLMAdapter, ToolDescription, create_adapter
from standfast.messages import Reasoning
from standfast.testing import ModelServer

PROVIDERS = ["openai", "anthropic", "cloudflare", "minimax", "openai-compatible"]
PATHS = {"openai": "/v1/responses", "anthropic": "/v1/messages"}
HI = [Message(role="user", content="hi")]
ECHO = ToolDescription(
    name="echo",
    description="Return the text.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
CALLS = (ToolCall(id="c1", name="echo", arguments={"text": "a"}), ToolCall(id="c2", name="echo", arguments={}))
USAGE = Usage(input_tokens=100, output_tokens=7, cached_tokens=60)


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["chat", "stream"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def adapter(provider: str, server: ModelServer, **options: Any) -> LLMAdapter:
    # Anthropic's SDK brings the version in its paths.
    base_url = f"http://{server.address}" if provider == "anthropic" else server.url
    return create_adapter(provider=provider, model="m", api_key="key", base_url=base_url, **options)


async def ask(
    model: Any, way: str, messages: Sequence[Message] = HI, tools: Sequence[ToolDescription] = (), **settings: Any
) -> tuple[LLMResponse, list[str]]:
    """Return a whole answer, and the pieces of its text."""
    if way == "chat":
        answer = await model.chat(messages, tools, **settings)
        return answer, [answer.text]
    parts = [part async for part in model.stream(messages, tools, **settings)]
    return parts[-1], parts[:-1]


@asynccontextmanager
async def served(provider: str, *script: Any, **options: Any) -> AsyncIterator[tuple[ModelServer, Any]]:
    async with ModelServer(*script) as server:
        yield server, adapter(provider, server, **options)


# --- requests -----------------------------------------------------------------------------------------------------


async def test_a_request_goes_where_it_belongs_with_the_key(provider: str) -> None:
    async with served(provider, "hello") as (server, model):
        await ask(model, "chat")
    (request,) = server.requests
    assert request.path == PATHS.get(provider, "/v1/chat/completions")
    assert request.body["model"] == "m"
    header = "x-api-key" if provider == "anthropic" else "authorization"
    assert request.headers[header].removeprefix("Bearer ") == "key"
    assert request.headers.get("anthropic-version") == ("2023-06-01" if provider == "anthropic" else None)


async def test_without_tools_and_system_a_request_has_no_key_for_them(provider: str) -> None:
    async with served(provider, "hello") as (server, model):
        await ask(model, "chat", tool_choice="auto")
    assert server.requests[0].body.keys() & {"tools", "tool_choice", "system", "instructions"} == set()


async def test_settings_are_passed_through(provider: str) -> None:
    async with served(provider, "hello") as (server, model):
        await ask(model, "chat", temperature=0.5, max_tokens=50)
    body = server.requests[0].body
    assert body["temperature"] == 0.5
    assert body["max_output_tokens" if provider == "openai" else "max_tokens"] == 50


async def test_a_choice_of_tools_is_written_as_the_provider_wants_it(provider: str) -> None:
    async with served(provider, "a", "b") as (server, model):
        for choice in ("required", {"name": "echo"}):
            await ask(model, "chat", tools=[ECHO], tool_choice=choice)
    written = [request.body["tool_choice"] for request in server.requests]
    assert written == {
        "openai": ["required", {"type": "function", "name": "echo"}],
        "anthropic": [{"type": "any"}, {"type": "tool", "name": "echo"}],
    }.get(provider, ["required", {"type": "function", "function": {"name": "echo"}}])


CONVERSATION = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="hi"),
    Message(role="system", content="Hurry."),
    Message(role="assistant", content="I look.", tool_calls=CALLS),
    Message(role="tool", content="A", tool_call_id="c1", tool_name="echo", status="completed"),
    Message(role="tool", content="no", tool_call_id="c2", tool_name="echo", status="failed"),
    Message(role="user", content="and?"),
]


async def test_a_conversation_of_anthropic() -> None:
    async with served("anthropic", "hello") as (server, model):
        await ask(model, "chat", CONVERSATION, [ECHO])
    body = server.requests[0].body
    assert body["system"] == "Be brief.\n\nHurry."
    assert body["tools"] == [
        {"name": "echo", "description": "Return the text.", "input_schema": dict(ECHO.input_schema)}
    ]
    assert body["messages"] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "a"}},
                {"type": "tool_use", "id": "c2", "name": "echo", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "A"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no", "is_error": True},
            ],
        },
        {"role": "user", "content": "and?"},
    ]
    assert body["cache_control"] == {"type": "ephemeral"}


async def test_a_conversation_of_openai() -> None:
    async with served("openai", "hello") as (server, model):
        await ask(model, "chat", CONVERSATION, [ECHO])
    body = server.requests[0].body
    assert body["instructions"] == "Be brief.\n\nHurry."
    assert body["input"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "echo", "arguments": '{"text": "a"}'},
        {"type": "function_call", "call_id": "c2", "name": "echo", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "A"},
        {"type": "function_call_output", "call_id": "c2", "output": "no"},
        {"role": "user", "content": "and?"},
    ]
    assert (body["store"], body["include"]) == (False, ["reasoning.encrypted_content"])
    assert body["tools"][0] == {
        "type": "function", "name": "echo", "description": "Return the text.", "parameters": dict(ECHO.input_schema),
        "strict": False,
    }  # fmt: skip


async def test_a_result_that_names_no_call_is_not_sent_to_anthropic() -> None:
    async with served("anthropic") as (server, model):
        with pytest.raises(ValueError, match="a tool message has no tool_call_id"):
            await ask(model, "chat", [*HI, Message(role="tool", content="A")])
    assert server.requests == []


async def test_images_are_sent_beside_the_text(provider: str) -> None:
    pictures = (Image(url="https://x/a.png"), Image(data="AAAA", media_type="image/png"))
    async with served(provider, "a cat") as (server, model):
        await ask(model, "chat", [Message(role="user", content="What is it?", images=pictures)])
    body = server.requests[0].body
    (message,) = body["input"] if provider == "openai" else body["messages"]
    inline = "data:image/png;base64,AAAA"
    assert message["content"] == {
        "openai": [
            {"type": "input_image", "image_url": "https://x/a.png"},
            {"type": "input_image", "image_url": inline},
            {"type": "input_text", "text": "What is it?"},
        ],
        "anthropic": [
            {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "text", "text": "What is it?"},
        ],
    }.get(
        provider,
        [
            {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
            {"type": "image_url", "image_url": {"url": inline}},
            {"type": "text", "text": "What is it?"},
        ],
    )


# --- answers ------------------------------------------------------------------------------------------------------


async def test_an_answer_is_text(provider: str, way: str) -> None:
    async with served(provider, LLMResponse(text="Hello, it is me.", usage=USAGE)) as (_, model):
        answer, pieces = await ask(model, way)
    assert (answer.text, answer.tool_calls, answer.not_whole) == ("Hello, it is me.", (), None)
    assert "".join(pieces) == answer.text
    assert len(pieces) == (1 if way == "chat" else 4)
    assert answer.usage == USAGE


async def test_an_answer_is_several_calls(provider: str, way: str) -> None:
    async with served(provider, LLMResponse(text="I look.", tool_calls=CALLS)) as (_, model):
        answer, _ = await ask(model, way, tools=[ECHO])
    assert (answer.text, answer.tool_calls) == ("I look.", CALLS)


CHAT_STOPS = {"max-tokens": "length", "content-filter": "content_filter"}
STOPS = {
    "openai": {"max-tokens": "max_output_tokens", "refusal": "refusal", "content-filter": "content_filter"},
    "anthropic": {"max-tokens": "max_tokens", "refusal": "refusal"},
}


@pytest.mark.parametrize(
    ("name", "stop", "word"),
    [(name, stop, word) for name in PROVIDERS for stop, word in STOPS.get(name, CHAT_STOPS).items()],
)
async def test_why_an_answer_is_not_whole_is_said_in_one_word(name: str, stop: str, word: str, way: str) -> None:
    async with served(name, LLMResponse(text="I", stop_reason=word)) as (_, model):
        answer, _ = await ask(model, way)
    assert (answer.text, answer.not_whole) == ("I", stop)


THOUGHTS = {
    "openai": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    "anthropic": {"type": "thinking", "thinking": "Hm.", "signature": "Eo8C"},
}


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_thoughts_are_kept_and_sent_back_unchanged(name: str, way: str) -> None:
    thought = Reasoning(provider=name, blocks=(THOUGHTS[name],))
    first = LLMResponse(text="I look.", tool_calls=CALLS[:1], reasoning=thought)
    async with served(name, first, "done") as (server, model):
        answer, _ = await ask(model, way, tools=[ECHO])
        assert answer.reasoning is not None
        assert answer.reasoning.blocks == thought.blocks
        said = Message(role="assistant", content="I look.", tool_calls=CALLS[:1], reasoning=answer.reasoning)
        done = Message(role="tool", content="A", tool_call_id="c1", tool_name="echo", status="completed")
        await ask(model, way, [*HI, said, done], [ECHO])
    body = server.requests[1].body
    sent = body["input"][1] if name == "openai" else body["messages"][1]["content"][0]
    assert sent == THOUGHTS[name]


async def test_thoughts_of_another_provider_are_not_sent(provider: str) -> None:
    other = Reasoning(provider="another", blocks=({"type": "thinking", "thinking": "secret"},))
    async with served(provider, "done") as (server, model):
        await ask(model, "chat", [*HI, Message(role="assistant", content="yes", reasoning=other), *HI])
    assert "secret" not in json.dumps(server.requests[0].body)


async def test_json_tool_mode_asks_for_calls_in_text(provider: str, way: str) -> None:
    reply = '{"tool": "echo", "arguments": {"text": "a"}}'
    async with served(provider, reply, tool_mode="json") as (server, model):
        answer, _ = await ask(model, way, tools=[ECHO])
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("echo", {"text": "a"})]
    assert "tools" not in server.requests[0].body
    assert "anyOf" in json.dumps(server.requests[0].body)


# --- choosing -----------------------------------------------------------------------------------------------------

KEYS = {
    "openai": ["OPENAI_API_KEY"], "anthropic": ["ANTHROPIC_API_KEY"], "minimax": ["MINIMAX_API_KEY"],
    "cloudflare": ["CLOUDFLARE_ACCOUNT_ID", "CLOUDFLARE_API_TOKEN"],
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_a_missing_key_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in KEYS[name]:
        monkeypatch.delenv(variable, raising=False)
    for variable in KEYS[name]:
        with pytest.raises(DefinitionError, match=variable):
            create_adapter(provider=name, model="m")
        monkeypatch.setenv(variable, "x")
    assert create_adapter(provider=name, model="m")


def test_an_unknown_provider_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(DefinitionError) as refused:
        create_adapter(provider="x", model="m")
    assert (
        str(refused.value)
        == f'Unsupported LLM provider: "x". Supported: {", ".join([*PROVIDERS, "any-llm", "pydantic-ai"])}'
    )


def test_a_server_of_ones_own_needs_its_address() -> None:
    with pytest.raises(DefinitionError, match="no address: set OPENAI_COMPATIBLE_BASE_URL, or pass base_url="):
        create_adapter(provider="openai-compatible", model="m")


async def test_a_server_of_ones_own_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer("hello") as server:
        monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "its key")
        await run(Agent("a", model="openai-compatible:m"), message="hi")
    assert server.requests[0].headers["authorization"] == "Bearer its key"


def test_a_key_of_the_environment_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "its key")
    model: Any = create_adapter(provider="openai-compatible", model="m", base_url="http://127.0.0.1:1/v1")
    assert model._headers == {}


async def test_a_model_named_with_its_provider_needs_no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool
    async def echo(text: str) -> str:
        """Return the text."""
        return text

    script = [LLMResponse(tool_calls=CALLS[:1]), "done"]
    async with ModelServer(*script) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://{server.address}")
        result: Any = await run(Agent("a", model="anthropic:claude-sonnet-4-6", tools=[echo]), message="hi")
    assert (result.status, result.response) == ("complete", "done")
    assert [request.body["model"] for request in server.requests] == ["claude-sonnet-4-6"] * 2


@pytest.mark.slow(but=1)
async def test_the_example_runs_on_every_provider_with_other_variables_alone(provider: str) -> None:
    script = [LLMResponse(tool_calls=(ToolCall(id="c1", name="weather", arguments={"city": "Oslo"}),)), "A raincoat."]
    variables = {name: "x" for names in KEYS.values() for name in names}
    at = f"{provider.upper().replace('-', '_')}_BASE_URL"
    async with ModelServer(*script) as server:
        base_url = f"http://{server.address}" if provider == "anthropic" else server.url
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).parents[3] / "examples" / "any_model.py"),
            env={**os.environ, **variables, "MODEL": f"{provider}:m", at: base_url},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
    assert "rain in Oslo, 9 degrees" in said.decode()
    assert "assistant: A raincoat." in said.decode()
    assert len(server.requests) == 2
