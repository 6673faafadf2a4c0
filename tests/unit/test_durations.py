"""Durations: every accepted form is read in the same way."""

import importlib
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from standfast import Agent, Approval, InputError, Loop, ModelError, RetryableError, RetryPolicy, Tool, tool
from standfast.errors import StandfastError
from standfast.llm import AnthropicMessages, OpenAICompatible, OpenAIResponses
from standfast.mcp import MCPToolset
from standfast.stores import sqlite_store
from standfast.temporal import ApprovalLinks, StandfastClient, StandfastPlugin
from standfast.testing import ScriptedModel

PACKAGES = ("standfast", "standfast.llm", "standfast.mcp", "standfast.stores", "standfast.temporal", "standfast.web")
A_DURATION = re.compile(r"(^|_)(timeout|interval|patience|valid|retry_after|remind_every|delay|wait|lifetime)$")
NOT_GIVEN = {  # but counted in iterations, or told by an event; or passed on to what is in the table
    "pydantic_ai_model.timeout",  # its library is not here: tests/providers
    "Loop.checkpoint_interval", "Approval.on_timeout", "ModelRetried.delay", "ShownWait.wait",
    "UserClient.timeout", "approval.timeout", "approval.on_timeout", "approval.remind_every",
}  # fmt: skip


def declared(value: Any) -> Tool[..., Any]:
    @tool(timeout=value)
    def work() -> str:
        """Work."""
        return "done"

    return work


def plugin(value: Any) -> Any:
    store = sqlite_store("unused.db")
    return StandfastPlugin(agents=[Agent("a")], store=store, llm=ScriptedModel([]), store_patience=value)


def anthropic(value: Any) -> Any:
    return AnthropicMessages(model="m", api_key="k", timeout=value)._options["timeout"]


def first_interval(value: Any) -> Any:
    return RetryPolicy(initial_interval=value, maximum_interval="7d").initial_interval


def compatible(value: Any) -> Any:
    return OpenAICompatible(model="m", base_url="http://localhost:1/v1", timeout=value)._timeout.read


def client(value: Any) -> Any:
    return StandfastClient(None, timeout=value)._timeout  # type: ignore[arg-type]


def links(value: Any) -> Any:
    return ApprovalLinks(page="https://runs.example.com", secret="x" * 20, by="ada", valid=value).valid


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "Tool.timeout": lambda value: declared(value).timeout,
    "tool.timeout": lambda value: declared(value).timeout,
    "MCPToolset.timeout": lambda value: MCPToolset("https://example.com/mcp", timeout=value).timeout,
    "RetryPolicy.initial_interval": first_interval,
    "RetryPolicy.maximum_interval": lambda value: RetryPolicy(maximum_interval=value).maximum_interval,
    "Approval.timeout": lambda value: Approval(timeout=value).timeout,
    "Approval.remind_every": lambda value: Approval(remind_every=value).remind_every,
    "Loop.answer_timeout": lambda value: Loop(answer_timeout=value).answer_timeout,
    "ModelError.retry_after": lambda value: ModelError("busy", retry_after=value).retry_after,
    "RetryableError.retry_after": lambda value: RetryableError(retry_after=value).retry_after,
    "AnthropicMessages.timeout": anthropic,
    "OpenAIResponses.timeout": lambda value: OpenAIResponses(model="m", api_key="k", timeout=value)._options["timeout"],
    "OpenAICompatible.timeout": compatible,
    "StandfastPlugin.store_patience": lambda value: plugin(value)._host.store_patience,
    "StandfastClient.timeout": client,
    "ApprovalLinks.valid": links,
}  # fmt: skip


@pytest.mark.parametrize("value", ["2m", 120, 120.0, timedelta(minutes=2)], ids=repr)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_takes_a_duration_in_every_form(setting: str, value: Any) -> None:
    assert SETTINGS[setting](value) == 120.0


WRONG = ["two minutes", "2 m", "", -1, timedelta(seconds=-1), float("nan"), float("inf"), True, b"2m", [2]]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_not_a_duration_is_refused_and_named(setting: str, value: Any) -> None:
    with pytest.raises(StandfastError, match=rf'{setting.rpartition(".")[2]} must be like "30s"'):
        SETTINGS[setting](value)


@pytest.mark.parametrize("setting", SETTINGS)
def test_only_an_error_may_say_at_once(setting: str) -> None:
    if setting.endswith("retry_after"):
        assert SETTINGS[setting](0) == 0.0
    else:
        with pytest.raises(StandfastError, match="above 0"):
            SETTINGS[setting](0)


def test_an_error_that_a_handler_raises_wrongly_is_an_error_of_input() -> None:
    with pytest.raises(InputError):
        RetryableError(retry_after="soon")


def test_the_table_has_every_public_setting() -> None:
    found = set()
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            made = getattr(package, name)
            if inspect.isfunction(made) or (inspect.isclass(made) and inspect.isfunction(made.__init__)):
                found |= {f"{name}.{one}" for one in inspect.signature(made).parameters if A_DURATION.search(one)}
    assert found - NOT_GIVEN == SETTINGS.keys() - {"tool.timeout"}
