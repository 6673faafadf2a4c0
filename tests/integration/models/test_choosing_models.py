"""Which model the application's worker takes, by its environment alone."""

import logging
from typing import Any

import pytest

from standfast import DefinitionError, LLMResponse, Message
from standfast.llm import tools_to_descriptions
from standfast.testing import ScriptedModel
from workflows import models
from workflows.models import SmallTriage, choose_model
from workflows.scripted import ScriptedTriage
from workflows.triage import triage

SERVER = {"STANDFAST_MODEL_URL": "http://me:secret@models.example:8080/v1", "STANDFAST_MODEL": "big"}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a setting nor the small model."""
    for name in ("STANDFAST_MODEL", "STANDFAST_MODEL_URL", "STANDFAST_MODEL_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(models, "_small_is_installed", lambda: False)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "none, rules decide"),
        ({"OPENAI_API_KEY": " "}, "none, rules decide"),
        ({"OPENAI_API_KEY": "k"}, "gpt-5-mini at api.openai.com"),
        ({"OPENAI_API_KEY": "k", "STANDFAST_MODEL": "gpt-5"}, "gpt-5 at api.openai.com"),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://gate.example/v1"}, "gpt-5-mini at gate.example"),
        ({"OPENAI_API_KEY": "k", "STANDFAST_MODEL": "scripted"}, "none, rules decide"),
        (SERVER, "big at models.example"),
        ({**SERVER, "OPENAI_API_KEY": "k"}, "big at models.example"),
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


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"STANDFAST_MODEL": "big"}, "STANDFAST_MODEL_URL"),
        ({"STANDFAST_MODEL_URL": "http://models.example/v1"}, "set STANDFAST_MODEL as well"),
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
