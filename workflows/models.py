"""The model behind this application's agents: the one that the environment names, else the best that is there.

| the environment | the model |
|---|---|
| `STANDFAST_MODEL=scripted` | none: rules, see `scripted` |
| `STANDFAST_MODEL=local` | a small one on this machine, see `SmallTriage` |
| `STANDFAST_MODEL=<provider>:<model>` | that one for all agents, such as openai:gpt-5 or openai-compatible:qwen3 |
| `ANTHROPIC_API_KEY` | those that the agents name |
| `OPENAI_API_KEY` | openai:gpt-5-mini for all agents |
| none of these | the small one if it is installed, else rules |
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
    """Yield the model for all agents, or None where each has the one that it names; log which it is.

    Raises:
        DefinitionError: the environment names a model that cannot be used.
    """
    name = _setting("STANDFAST_MODEL")
    if name == "local" and not _small_is_installed():
        raise DefinitionError("STANDFAST_MODEL=local needs two more packages: examples/local_model.py says which")
    keys = _setting("ANTHROPIC_API_KEY") or _setting("OPENAI_API_KEY")
    if name == "local" or (not name and not keys and _small_is_installed()):
        async with _small() as model:
            yield model
    else:
        yield named_model()


def named_model() -> LLMAdapter | None:
    """Return the model for all agents without starting any; None where each agent has the one that it names.

    Raises:
        DefinitionError: the environment names a model that cannot be used, or one that would have to be started.
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
    """Rules, but for the first call, which a small model makes: it finds the issue in what the user says.

    More is beyond 135 million parameters. Given the agent as it is, SmolLM2 sent mail to made-up addresses, or read one
    issue until its context was full; asked for nothing but search words, it wrote "query.description". Asked to
    read the issue that the user names, it was right in 10 of 10 cases. Its call counts if it is the one of the rules.
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
            _LOG.warning("The small model made another first call than the rules, whose call counts")
        return decided.model_copy(update={"usage": answer.usage})


def _small_is_installed() -> bool:
    try:
        from examples.local_model import is_installed
    except ImportError:  # where this application is installed, its examples need not be
        return False
    return is_installed()


@asynccontextmanager
async def _small() -> AsyncIterator[SmallTriage]:
    from examples.local_model import local_model

    async with local_model(max_tokens=60) as model:
        _LOG.info("Model: smollm2 on this machine, for the first call; rules decide the rest (%s)", HINT)
        yield SmallTriage(model)
