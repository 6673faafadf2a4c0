"""Adapters: valid answers, and refused ones."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from support.doubles import echo

from standfast import Agent, InputError, LLMResponse, Loop, Usage, assert_complete, run
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


class PlainAdapter:
    """Answers with a plain dict."""

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> Mapping[str, Any]:
        if messages[-1].role == "tool":
            return {"text": f"it said {messages[-1].content}", "usage": {"input_tokens": 2, "output_tokens": 1}}
        return {"tool_calls": [{"id": "c1", "name": "echo", "arguments": '{"text": "ping"}'}]}


class ObjectAdapter:
    """Answers with an LLMResponse."""

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> LLMResponse:
        return LLMResponse(text="hello", stop_reason="end_turn")


async def test_an_adapter_may_answer_with_a_plain_dict() -> None:
    result = assert_complete(await run(Agent("a", tools=[echo]), message="go", llm=PlainAdapter()))
    assert (result.status, result.response, result.usage) == (
        "complete",
        "it said ping",
        Usage(input_tokens=2, output_tokens=1),
    )


async def test_an_adapter_may_answer_with_an_llm_response() -> None:
    assert assert_complete(await run(Agent("a"), message="go", llm=ObjectAdapter())).response == "hello"


async def test_llm_may_be_a_function_from_the_agents_model_to_an_adapter() -> None:
    asked: list[str | None] = []

    def choose(model: str | None) -> ObjectAdapter:
        asked.append(model)
        return ObjectAdapter()

    result = assert_complete(await run(Agent("a", model="anthropic:claude-sonnet-4-6"), message="go", llm=choose))
    assert (asked, result.response) == (["anthropic:claude-sonnet-4-6"], "hello")


@pytest.mark.parametrize("answer", [None, 5, "text", [], {"answer": "x"}, {"text": 5}, {"tool_calls": 5}])
async def test_an_answer_that_is_not_an_llm_response_ends_the_run_with_error(answer: Any) -> None:
    class Broken:
        async def chat(self, messages: Any, tools: Any, **settings: Any) -> Any:
            return answer

    result = assert_complete(await run(Agent("a"), message="go", llm=Broken()))
    assert (result.status, result.iterations) == ("error", 1)
    assert "LLMResponse" in result.response


@pytest.mark.parametrize("tokens", ["many", -1, 1.5, 10**400], ids=["text", "negative", "part", "endless"])
async def test_invalid_usage_counts_as_none(store: SQLiteStore, tokens: Any) -> None:
    answer = {"text": "ok", "usage": {"input_tokens": tokens}}
    agent = Agent("a", loop=Loop(token_budget=1_000))
    result = assert_complete(await run(agent, message="go", store=store, session_id="s", llm=ScriptedModel([answer])))
    assert (result.status, result.usage) == ("complete", None)
    assert await store.load_messages("s") == list(result.messages)


async def test_a_model_call_that_is_cancelled_from_within_ends_the_run_with_error() -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=ScriptedModel([asyncio.CancelledError()])))
    assert (result.status, result.iterations) == ("error", 1)


class Synchronous:
    def chat(self, messages: Any, tools: Any) -> dict[str, str]:
        return {"text": "hi"}


class Silent:
    async def chat(self, messages: Any, tools: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("adapter", "error"),
    [
        (Synchronous(), "Synchronous.chat must be async"),
        (Silent(), "The adapter returned None: that is neither an LLMResponse"),
    ],
    ids=["not async", "nothing returned"],
)
async def test_an_adapter_that_is_none_is_named_in_the_result(adapter: Any, error: str) -> None:
    result = assert_complete(await run(Agent("a"), message="go", llm=adapter))
    assert result.status == "error"
    assert (result.error or "").startswith(error)


NO_ADAPTERS: dict[str, Any] = {
    "text": "openai:gpt-5",
    "class": Silent,
    "method": Silent().chat,
    "function of nothing": lambda: Silent(),
    "number": 5,
}


async def test_a_models_name_or_a_model_of_pydantic_ai_is_refused_with_where_it_belongs() -> None:
    theirs = type("TestModel", (), {"__module__": "pydantic_ai.models.test"})()
    for given, said in (
        ("openai:gpt-5", r"Agent\(…, model=…\)"),
        (theirs, r"standfast\.llm\.pydantic_ai_model\(model\)"),
    ):
        with pytest.raises(InputError, match=f"llm must be an object .*; .*{said}"):
            await run(Agent("a"), message="go", llm=given)


async def test_a_provider_that_is_unknown_is_named_as_that() -> None:
    with pytest.raises(InputError, match="calls 'gemini:pro', but there is no provider 'gemini': name one as"):
        await run(Agent("a", model="gemini:pro"), message="go")
    with pytest.raises(InputError, match="calls 'gpt-5', which names no provider: name one as"):
        await run(Agent("a", model="gpt-5"), message="go")


@pytest.mark.parametrize("llm", [*NO_ADAPTERS.values()], ids=NO_ADAPTERS)
async def test_a_value_that_is_not_an_adapter_is_refused_with_what_to_pass(llm: Any) -> None:
    with pytest.raises(InputError, match="llm must be"):
        await run(Agent("a"), message="go", llm=llm)
