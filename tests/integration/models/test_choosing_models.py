"""The environment alone decides which model the application's worker uses."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from standfast import DefinitionError, LLMResponse, Message
from standfast.llm import adapter_for, tools_to_descriptions
from standfast.testing import ScriptedModel
from workflows import AGENTS, models
from workflows.models import SmallTriage, choose_model
from workflows.scripted import ScriptedTriage
from workflows.triage import triage

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
SERVER = {"OPENAI_COMPATIBLE_BASE_URL": "http://me:secret@models.example:8080/v1"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a setting nor the small model."""
    for name in ("STANDFAST_MODEL", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", *KEYS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(models, "_small_is_installed", lambda: False)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "none, rules decide"),
        ({"OPENAI_API_KEY": " "}, "none, rules decide"),
        ({"OPENAI_API_KEY": "secret"}, "openai:gpt-5-mini"),
        ({"OPENAI_API_KEY": "secret", "STANDFAST_MODEL": "openai:gpt-5"}, "openai:gpt-5"),
        ({"ANTHROPIC_API_KEY": "secret", "STANDFAST_MODEL": "scripted"}, "none, rules decide"),
        ({**SERVER, "OPENAI_API_KEY": "secret", "STANDFAST_MODEL": "openai-compatible:big"}, "openai-compatible:big"),
    ],
)
async def test_one_line_says_which_model_it_is_and_no_secret(
    environment: dict[str, str], line: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.INFO, "workflows.models"):
        async with choose_model() as model:
            assert hasattr(model, "chat")
    (said,) = caplog.messages
    assert said.startswith(f"Model: {line}")
    assert "secret" not in said


@pytest.mark.parametrize("keys", [KEYS, KEYS[:1]])
async def test_with_the_key_of_their_provider_agents_have_the_models_that_they_name(
    keys: Sequence[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in keys:
        monkeypatch.setenv(name, "k")
    with caplog.at_level(logging.INFO, "workflows.models"):
        async with choose_model() as model:
            assert [adapter_for(model, agent).provider for agent in AGENTS] == ["anthropic"] * len(AGENTS)  # type: ignore[attr-defined]
    assert caplog.messages == ["Model: anthropic:claude-sonnet-4-6"]


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"STANDFAST_MODEL": "big"}, "STANDFAST_MODEL=big must be scripted, local or <provider>:<model>"),
        ({"STANDFAST_MODEL": "nobody:big"}, 'Unsupported LLM provider: "nobody"'),
        ({"STANDFAST_MODEL": "openai-compatible:big"}, "OPENAI_COMPATIBLE_BASE_URL"),
        ({"STANDFAST_MODEL": "local"}, "examples/local_model.py"),
    ],
)
async def test_what_cannot_be_used_is_said(
    environment: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DefinitionError, match=what):
        async with choose_model():
            pass


async def test_a_provider_whose_sdk_is_missing_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(DefinitionError, match=r"pip install 'standfast\[anthropic\]'"):
        async with choose_model():
            pass


@pytest.mark.parametrize("issue", ["ISSUE-119", "ISSUE-140"])
async def test_the_small_model_makes_the_first_call_and_rules_have_the_last_word(issue: str) -> None:
    made = {"tool_calls": [{"name": "get_issue", "arguments": {"issue_id": issue}}], "usage": {"input_tokens": 9}}
    small = ScriptedModel([made])
    chosen = SmallTriage(small)
    messages = [Message(role="user", content="ISSUE-119 came in")]
    tools = tools_to_descriptions(triage.tool_map)
    answer = await chosen.chat(messages, tools)
    assert answer.usage is not None
    assert answer.usage.input_tokens == 9
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("get_issue", {"issue_id": "ISSUE-119"})]
    (asked,) = small.calls
    assert [tool.name for tool in asked.tools] == ["get_issue"]

    called = Message(role="assistant", content="", tool_calls=answer.tool_calls)
    no_issue = Message(role="tool", content="{}", tool_call_id=answer.tool_calls[0].id, tool_name="get_issue")
    closing: Any = await chosen.chat([*messages, called, no_issue], tools)
    scripted: LLMResponse = await ScriptedTriage().chat([*messages, called, no_issue], tools)
    assert closing.text.splitlines()[:-1] == scripted.text.splitlines()[:-1]
    assert "a small model only found the issue" in closing.text
    assert len(small.calls) == 1
