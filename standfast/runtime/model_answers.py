"""Calls a model through its adapter, whole or streamed, and compresses the messages that it sees.

Usage that no message has (of agents that a call runs, of answers that were cut off) is noted in the store.
"""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar
from uuid import uuid4

from typing_extensions import TypeIs

from standfast.agent_loop import last_answer
from standfast.agents import Agent, ContextCompression
from standfast.errors import ModelError, StandfastError, StoreError
from standfast.events import AnswerDelta, ReasoningDelta, TextDelta
from standfast.extras import install
from standfast.llm import LLMAdapter, StreamingLLMAdapter, ToolDescription
from standfast.llm.prices import note_usage_before, usage_before
from standfast.llm.reasoning import spoken, within
from standfast.messages import LLMResponse, Message, Usage, clean_text, error_text
from standfast.runtime.tasks import retry_write
from standfast.stores.protocol import AgentStore, Ledger, has_ledger
from standfast.tools import Tool

T = TypeVar("T")

_LOG = logging.getLogger("standfast")
_NOTHING_SAID = "Your last answer was empty. Answer, or call a tool."
CANCELLED_WITHIN = "The model call was cancelled from within"


def called_agents(scope: str, call_id: str) -> str:
    """Return the place of notes about the agents that a call runs; `scope` is the prefix of its turn's keys."""
    return f"{scope}/{call_id}/agents"


def cut_answers(run: str, turn: int) -> str:
    """Return the place of notes about answers of a turn that were cut off."""
    return f"{run}/cut/{turn}"


class UsageNotes:
    """Adds notes at one place, and remembers those that are there."""

    def __init__(self, store: Ledger, place: str) -> None:
        self._store, self._place = store, place
        self._known: dict[int, str] = {}

    async def session(self, session: str) -> bool:
        """Note the session of an agent, and return whether it is new here. All its usage counts."""
        while (note := await self._store.load_reply(self._place, number := len(self._known))) is not None:
            self._known[number] = note
        if session in self._known.values():
            return False
        await self._add(session)
        return True

    async def usage(self, usage: Usage) -> None:
        """Note a usage. A store that refuses the note only makes the count too low."""
        note = json.dumps({"id": uuid4().hex, "usage": usage.plain()})
        try:
            await retry_write(lambda: self._add(note), tries=3)
        except StoreError as error:
            _LOG.warning("Usage is not noted, and may not be counted: %s", error)

    async def _add(self, note: str) -> None:
        while note not in self._known.values():  # others add notes at the same time
            number = len(self._known)
            self._known[number] = await self._store.save_reply(self._place, number, note)


async def noted_usage(store: AgentStore | None, place: str) -> Usage | None:
    """Return the usage that is noted at a place; None if there is none."""
    if store is None or not has_ledger(store):
        return None
    number, total = 0, None
    while (note := await store.load_reply(place, number)) is not None:
        number += 1
        if note.startswith("{"):
            total = Usage.of(json.loads(note)["usage"]) + total
            continue
        session = await store.load_session(note)
        if session is not None and session.usage is not None:
            total = session.usage + total
    return total


def note_failure(agent: Agent, model: str | None, error: Exception) -> None:
    """Log the reason why a model could not be called, with a traceback unless the fault is a provider's."""
    after, trace = agent.model_after(model), None if isinstance(error, ModelError | OSError) else error
    which = model or agent.model or "its model"
    then = "" if after is None else f"; next is {after}"
    _LOG.warning("Agent %s: %s could not be called: %s%s", agent.name, which, error_text(error), then, exc_info=trace)


def note_cost(agent: Agent, model: str | None, response: LLMResponse, noted: set[tuple[str, str]]) -> None:
    """Warn once that a budget in dollars has no effect, because the model's price is unknown."""
    loop, usage = agent.loop, response.usage
    if (loop.cost_budget, loop.session_cost_budget) == (None, None) or response.cost is not None:
        return
    which = model or agent.model or "its model"
    if (usage is None or usage.cost is None) and (agent.name, which) not in noted:
        noted.add((agent.name, which))
        needs = "" if find_spec("genai_prices") else f"{install('prices')}, or "
        text = f"Agent %s has a cost budget, but the price of %s is unknown: {needs}give the model's adapter price="
        _LOG.warning(text, agent.name, which)


async def answer(
    adapter: LLMAdapter,
    view: list[Message],
    tools: Sequence[ToolDescription],
    settings: Mapping[str, Any],
    tell: Callable[[AnswerDelta], None] | None,
    max_thoughts: int,
) -> LLMResponse:
    """Return an adapter's answer; an answer with neither text nor calls is requested once more.

    Args:
        max_thoughts: bytes of earlier thoughts that are sent back.
        tell: receives the thoughts and the text while they arrive, or at the end if the adapter cannot stream; None
            without listeners.

    Raises:
        ModelError: its `chat` is not async, or returns no answer, or the provider aborted it.
    """
    view = within(view, max_thoughts)
    told = set[type[AnswerDelta]]()
    response = await _answer(adapter, view, tools, settings, None if tell is None else partial(_tell, tell, told))
    if not response.is_empty or getattr(adapter, "may_answer_nothing", False):
        return response
    # Without a hint, a model that believes it is done returns nothing again. The transcript does not contain the hint.
    hinted = [*view, Message(role="user", content=_NOTHING_SAID)]
    if tell is not None:
        for kind in told:
            tell(kind("", offset=0))  # the empty answer is in no transcript: its thoughts are void
    try:
        again = (await _answer(adapter, hinted, tools, settings, tell)).after(response.used)
    except BaseException as error:
        note_usage_before(error, response.used)
        raise
    return again.model_copy(update={"stop_reason": "empty"}) if again.is_empty else again


def _tell(tell: Callable[[AnswerDelta], None], told: set[type[AnswerDelta]], piece: AnswerDelta) -> None:
    """Pass on a piece of an answer, and note its kind."""
    told.add(type(piece))
    tell(piece)


async def _answer(
    adapter: LLMAdapter,
    view: list[Message],
    tools: Sequence[ToolDescription],
    settings: Mapping[str, Any],
    tell: Callable[[AnswerDelta], None] | None,
) -> LLMResponse:
    if tell is None:
        response = await _chat(adapter, view, tools, settings)
    else:
        response = await _streamed(adapter, view, tools, settings, tell)
    if response.is_broken:
        text = f"The provider cut off its answer ({response.stop_reason})"
        raise ModelError(text, transient=True, usage=response.used)
    return response


async def noting_cut(asking: Awaitable[T], note: Callable[[Usage], None]) -> T:
    """Await a model call. If it is cut off, note what its provider had reported by then."""
    try:
        return await asking
    except BaseException as error:
        if (used := usage_before(error)) is not None:
            note(used)
        raise


async def _chat(
    adapter: LLMAdapter, view: list[Message], tools: Sequence[ToolDescription], settings: Mapping[str, Any]
) -> LLMResponse:
    asked: Any = adapter.chat(view, tools, **settings)
    if not isinstance(asked, Awaitable):
        raise ModelError(f"{type(adapter).__name__}.chat must be async: write `async def chat`")
    return LLMResponse.read(await asked)


async def _streamed(
    adapter: LLMAdapter,
    view: list[Message],
    tools: Sequence[ToolDescription],
    settings: Mapping[str, Any],
    tell: Callable[[AnswerDelta], None],
) -> LLMResponse:
    if not _streams(adapter):
        response = await _chat(adapter, view, tools, settings)
        for piece in spoken(response):
            tell(_delta(piece))
        return response
    whole: LLMResponse | Mapping[str, Any] | None = None
    has_thoughts = False
    parts = adapter.stream(view, tools, **settings)
    try:
        async for part in parts:
            if isinstance(part, str | ReasoningDelta):
                tell(delta := _delta(part))
                has_thoughts = has_thoughts or isinstance(delta, ReasoningDelta)
            else:
                whole = part
    finally:
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()
    if whole is None:
        raise StandfastError("The adapter's stream ended without the complete answer as its last value")
    response = LLMResponse.read(whole)
    if not has_thoughts and response.reasoning is not None and (thoughts := response.reasoning.text):
        tell(_delta(ReasoningDelta(thoughts)))
    return response


def _delta(piece: str | ReasoningDelta) -> AnswerDelta:
    """Return the event of an adapter's piece."""
    return TextDelta(clean_text(piece)) if isinstance(piece, str) else ReasoningDelta(clean_text(piece.text))


def _streams(adapter: object) -> TypeIs[StreamingLLMAdapter]:
    # Not by `isinstance`, which from Python 3.12 on does not see the methods of an object that wraps an adapter.
    return callable(getattr(adapter, "stream", None))


async def compressed(rule: ContextCompression | None, messages: Sequence[Message]) -> list[Message] | None:
    """Return the messages that the model sees instead of `messages`; None if there are not too many.

    Raises:
        ModelError: the rule returned an unusable value.
    """
    if rule is None or not rule.applies_to(messages):
        return None
    result = rule.compress(tuple(messages))
    shorter = await result if isinstance(result, Awaitable) else result
    if not shorter:
        raise ModelError("Context compression returned empty message array")
    if not all(isinstance(message, Message) for message in shorter):
        raise ModelError("Context compression must return messages")
    return list(shorter)


async def following_calls(
    tools: Mapping[str, Tool[..., Any]], messages: Sequence[Message], session_key: str
) -> LLMResponse | None:
    """Return an answer with the following calls, instead of calling the model; None if the model must be called.

    Args:
        messages: the transcript. After a new user message, the model must be called.
    """
    if all(tool.then is None for tool in tools.values()) or (last := last_answer(messages)) is None:
        return None
    results = {message.tool_call_id: message for message in messages[last + 1 :]}
    found = []
    for call in messages[last].tool_calls or ():
        tool, result = tools.get(call.name), results.get(call.id)
        if tool is not None and tool.then is not None and result is not None:
            found.append(await tool.then(call, result, session_key))
    calls = tuple(call for call in found if call is not None)
    return LLMResponse(tool_calls=calls) if calls else None
