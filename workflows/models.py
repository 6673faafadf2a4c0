"""Chooses the model for this application's agents: the environment's, else the best available one.

| the environment | the model |
|---|---|
| `STANDFAST_MODEL=scripted` | none: rules, see `scripted` |
| `STANDFAST_MODEL=local` | a small model on this machine, see `SmallTriage` |
| `STANDFAST_MODEL=<provider>:<model>` | this model for all agents, such as openai:gpt-5 or openai-compatible:qwen3 |
| `ANTHROPIC_API_KEY` | each agent's own |
| `OPENAI_API_KEY` | openai:gpt-5-mini for all agents |
| none of these | the small model if it is installed, else rules |
"""

import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from standfast import DefinitionError, LLMResponse, Message
from standfast.llm import LLMAdapter, ToolDescription, create_adapter
from workflows import AGENTS
from workflows.scripted import SIGNATURE, ScriptedTriage

OPENAI_MODEL = "openai:gpt-5-mini"
HINT = "set ANTHROPIC_API_KEY or OPENAI_API_KEY, or STANDFAST_MODEL=<provider>:<model>, for a model that decides"

_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def choose_model() -> AsyncIterator[LLMAdapter | None]:
    """Yield the model for all agents, or None if each uses its own; log the choice.

    Raises:
        DefinitionError: the environment names an unusable model.
    """
    name = _setting("STANDFAST_MODEL")
    if name == "local" and not _small_is_installed():
        raise DefinitionError("STANDFAST_MODEL=local needs two more packages: see examples/local_model.py")
    keys = _setting("ANTHROPIC_API_KEY") or _setting("OPENAI_API_KEY")
    if name == "local" or (not name and not keys and _small_is_installed()):
        async with _small() as model:
            yield model
    else:
        yield named_model()


def named_model() -> LLMAdapter | None:
    """Return the model for all agents, or None if each uses its own, without starting a local model.

    Raises:
        DefinitionError: the environment names an unusable model, or the local one.
    """
    name = _setting("STANDFAST_MODEL")
    if name == "local":
        raise DefinitionError("STANDFAST_MODEL=local is for worker.py, which starts that model")
    if name and name != "scripted":
        return _adapter(name)
    if not name and _setting("ANTHROPIC_API_KEY"):
        for own in sorted({str(agent.model) for agent in AGENTS}):
            _adapter(own)
        return None
    return _adapter(OPENAI_MODEL) if not name and _setting("OPENAI_API_KEY") else _scripted()


def _setting(name: str) -> str:
    return os.environ.get(name, "").strip()


def _adapter(name: str) -> LLMAdapter:
    provider, separator, model = name.partition(":")
    if not separator:
        raise DefinitionError(f"STANDFAST_MODEL={name} must be scripted, local or <provider>:<model>")
    try:
        adapter = create_adapter(provider=provider, model=model)
    except ImportError as error:
        raise DefinitionError(str(error)) from error
    _LOG.info("Model: %s", name)
    return adapter


def _scripted() -> ScriptedTriage:
    _LOG.info("Model: none, rules decide (%s)", HINT)
    return ScriptedTriage()


class SmallTriage(ScriptedTriage):
    """Rules decide everything except the first call: a small model finds the issue in the user's message.

    More is beyond 135 million parameters. With the full agent, SmolLM2 sent mail to made-up addresses, or read one
    issue until its context was full. Asked only for search words, it wrote "query.description". Asked to read the
    issue that the user names, it was right in 10 of 10 cases. Its call counts only if the rules agree.
    """

    def __init__(self, model: LLMAdapter) -> None:
        self._model = model

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        decided = await super().chat(messages, tools)
        if not decided.tool_calls:
            text = decided.text.replace(SIGNATURE, "(Rules decided this; a small model only found the issue.)")
            return decided.model_copy(update={"text": text})
        (call,) = decided.tool_calls
        if call.name != "get_issue":
            return decided
        asked = [
            Message(role="system", content="Use a tool to read the issue that the user names."),
            *[message for message in messages if message.role == "user"][-1:],
        ]
        offered = [tool for tool in tools if tool.name == "get_issue"]
        answer = LLMResponse.read(await self._model.chat(asked, offered, temperature=0))
        if [(made.name, made.arguments) for made in answer.tool_calls] != [(call.name, call.arguments)]:
            _LOG.warning("The small model's first call differs from the rules', whose call counts")
        return decided.model_copy(update={"usage": answer.usage})


def _small_is_installed() -> bool:
    try:
        from examples.local_model import is_installed
    except ImportError:  # the application may be installed without the examples
        return False
    return is_installed()


@asynccontextmanager
async def _small() -> AsyncIterator[SmallTriage]:
    from examples.local_model import local_model

    async with local_model(max_tokens=60) as model:
        _LOG.info("Model: smollm2 on this machine, for the first call; rules decide the rest (%s)", HINT)
        yield SmallTriage(model)
