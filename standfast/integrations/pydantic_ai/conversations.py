"""Stores pydantic-ai conversations as sessions: the beginning of each turn, its model's answers, and its end.

A turn is identified by the number of the message that begins it, and its contents by their place in it: the step of the
run, and the position of a call in the model's response. So every later run of the conversation finds the same entries.
"""

import hashlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from standfast.agents import Agent, AgentContext, AgentIdentity
from standfast.checkpoints import Question
from standfast.effects.kept_outcomes import Raised, read_kept
from standfast.effects.keys import EffectKey
from standfast.errors import InputError, ToolDurabilityError
from standfast.integrations.pydantic_ai.toolsets import read_result
from standfast.integrations.pydantic_ai.transcripts import messages_of
from standfast.local.sessions import open_log
from standfast.messages import JSONObject, Message, Record, ToolCall
from standfast.runtime.call_ledger import last_dispatch
from standfast.runtime.stored_gates import Whose, show_gates
from standfast.runtime.tasks import retry_write
from standfast.stores.protocol import Append, DurableStore, LedgerEntry, Session, session_id_of
from standfast.tools import Failed, Returned
from standfast.tools.calls import call_key, turn_scope

_BEGIN, _RESULTS, _END = 0, 1_000_000_000, 2_000_000_000  # beside the answers of a turn, in its journal
_PER_STEP = 1000  # calls, or requests: several if a response is continued, or an attempt is repeated

Prompt = str | Sequence[UserContent] | None


def key_of_call(scope: str, step: int, place: int, name: str, *, approved: bool = False) -> EffectKey:
    """Return the key of a call: the run's step that makes it, its position in the model's response, and its tool.

    An approved call has a different key, since the tool may have asked for approval itself, with other arguments.
    """
    entry = f"{name} approved" if approved else name
    return EffectKey(scope, entry, f"{scope}/{step}.{place}", step * _PER_STEP + place)


async def settled_result(store: DurableStore, scope: str, step: int, place: int, call: ToolCallPart) -> ToolReturnPart:
    """Return the outcome of a call, and keep it from beginning later; only the holder of its conversation may ask."""
    entries = [
        await _settled(store, key_of_call(scope, step, place, call.tool_name, approved=approved))
        for approved in (True, False)
    ]
    entry = next((one for one in entries if one.state != "abandoned"), entries[0])
    content: Any = None
    match None if entry.result is None else read_kept(entry.result):
        case Returned(kept):
            content = read_result(kept)
        case Raised(error) as raised:
            content = {"error": f"{raised.kind}: {error}"}
        case Failed(error):
            content = {"error": error}
        case _ if entry.state == "abandoned":
            content = {"error": "Not run: the next message came first"}
        case _:
            content = ToolDurabilityError(call.tool_name, call.tool_call_id).payload()
    return ToolReturnPart(call.tool_name, getattr(content, "return_value", content), call.tool_call_id)


async def _settled(store: DurableStore, key: EffectKey) -> LedgerEntry:
    dispatch = max(1, await last_dispatch(store, key.scope, key.place, key.name))
    entry = await store.settle(key.scope, call_key(key.place, key.name, dispatch))
    if entry.state == "abandoned":  # released, or never begun: also fence off the next claim
        entry = await store.settle(key.scope, call_key(key.place, key.name, dispatch + 1))
    return entry


class KeptTurn(Record):
    """A turn in the session's state.

    Args:
        number: of its first message.
        run_id: given by the caller, if any.
        is_over: whether it has ended.
        is_closed: whether another message ended it, so that it is not replayed.
    """

    number: int
    run_id: str | None = None
    is_over: bool = False
    is_closed: bool = False


class KeptTool(Record):
    """A tool whose calls wait for people; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JSONObject


class KeptGates(Record):
    """The calls of a step that wait for people, or waited, in the unfinished turn.

    Args:
        step: the last step whose calls needed approval.
        refused: by id, the reason why a call cannot run at all.
    """

    step: int
    calls: tuple[ToolCall, ...]
    tools: tuple[KeptTool, ...]
    refused: dict[str, str] = Field(default_factory=dict)

    def with_calls(self, calls: Sequence[ToolCall], tools: Sequence[KeptTool]) -> "KeptGates":
        """Return them with further calls of the same step."""
        ids = {call.id for call in calls}
        others = tuple(call for call in self.calls if call.id not in ids)
        named = {tool.name: tool for tool in (*self.tools, *tools)}
        return self.model_copy(update={"calls": (*others, *calls), "tools": tuple(named.values())})


class _Kept(Record):
    turns: tuple[KeptTurn, ...] = ()
    gates: KeptGates | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A caller's arguments for a run.

    Args:
        history: the messages to continue from; if empty, the conversation's messages.
        run_id: names the turn, so that it is not begun twice.
    """

    prompt: Prompt
    history: Sequence[ModelMessage]
    run_id: str | None


@dataclass(slots=True)
class Conversation:
    """A session that this run holds."""

    store: DurableStore
    session: Session
    turns: tuple[KeptTurn, ...]
    gates: KeptGates | None

    @property
    def key(self) -> str:
        return self.session.key

    @property
    def name(self) -> str:
        return session_id_of(self.session.id)

    async def take_up(self, given: Given) -> "Turn":
        """Return the turn that a run continues, or the one that it begins.

        An unfinished turn continues if the caller passes the message that began it, or none. Before another message it
        is closed: the outcomes of its open calls are looked up, and none of them can begin any more.

        Raises:
            InputError: a run_id has a different message from the one that began its turn; or another message ended it.
        """
        last = self.turns[-1] if self.turns else None
        turn = next((one for one in self.turns if given.run_id is not None and one.run_id == given.run_id), None)
        if turn is None and last is not None and (not last.is_over or _asks_nothing(given)):
            turn = last
        if turn is None:
            return await self._begin(given)
        begun, asked = json.loads(await self._load(turn.number, _BEGIN)), _dump_prompt(given.prompt)
        if asked is not None and asked != begun["prompt"]:
            if turn.run_id is not None and turn.run_id == given.run_id:
                raise InputError(
                    f"Conversation {self.name} has a run with run_id {given.run_id!r}, which began with another message"
                )
            await self._close(turn)
            return await self._begin(given)
        if turn.is_closed:
            raise InputError(
                f"Conversation {self.name}: another message ended this turn before it was done, so it cannot "
                "continue. Send that message again, or a new one"
            )
        return Turn(self, turn, begun["prompt"], await self._history_before(turn), is_resumed=True)

    async def _close(self, turn: KeptTurn) -> None:
        """End a turn in its current state."""
        scope, answers = turn_scope(self.key, turn.number), [answer async for answer in self.answers(turn.number)]
        messages = _load_messages([one for _, answer in answers for one in answer["said"]])
        shown = len(messages)
        if answers:
            step, last = answers[-1][0], JSON_CODEC.load(ModelResponse, answers[-1][1]["response"])
            settled = [
                await settled_result(self.store, scope, step, place, call) for place, call in enumerate(last.tool_calls)
            ]
            messages += [last, *([ModelRequest(parts=settled)] if settled else [])]
        closed = turn.model_copy(update={"is_closed": True})
        await Turn(self, closed, None, [], _shown=shown).end(messages)

    async def answers(self, number: int) -> AsyncIterator[tuple[int, Any]]:
        """Return the model's answers in a turn, each with its step."""
        for step in itertools.count(1):
            for attempt in range(_PER_STEP):
                kept = json.loads(await self._load(number, step * _PER_STEP + attempt))
                if kept is None and attempt == 0:
                    return
                if kept is None:
                    break
                yield step, kept

    async def _begin(self, given: Given) -> "Turn":
        number, prompt = self.session.last_seq + 1, _dump_prompt(given.prompt)
        earlier = await self._history_before(None)
        history = JSON_CODEC.dump(list[ModelMessage], list(given.history)) if given.history else None
        if history == JSON_CODEC.dump(list[ModelMessage], earlier):
            history = None
        turn = KeptTurn(number=number, run_id=given.run_id)
        said = Message(role="user", content=_text(given.prompt), by=self.session.user_id)
        begun = {"prompt": prompt, "history": history}
        await self.write((said,), (*self.turns, turn), number, _BEGIN, json.dumps(begun))
        return Turn(self, turn, prompt, list(given.history) or earlier)

    async def _history_before(self, turn: KeptTurn | None) -> list[ModelMessage]:
        """Return the messages of the turns before one, or of all, starting from the last turn with a given history."""
        kept = list[Any]()
        number = None if turn is None else turn.number
        if number is not None:
            begun = json.loads(await self._load(number, _BEGIN))
            if begun["history"] is not None:
                return _load_messages(begun["history"])
        for one in reversed([one for one in self.turns if number is None or one.number < number]):
            if not one.is_over:
                continue
            kept = [*json.loads(await self._load(one.number, _END))["messages"], *kept]
            begun = json.loads(await self._load(one.number, _BEGIN))
            if begun["history"] is not None:
                kept = [*begun["history"], *kept]
                break
        return _load_messages(kept)

    async def _load(self, number: int, place: int) -> str:
        return await self.store.load_reply(turn_scope(self.key, number), place) or "null"

    async def write(
        self, messages: Sequence[Message], turns: tuple[KeptTurn, ...], number: int, place: int, reply: str
    ) -> str:
        """Write an entry of a turn and messages of the transcript, both or neither; return the stored entry."""
        is_end = place == _END
        gates = None if is_end else self.gates
        state = _Kept(turns=turns, gates=gates).model_dump_json()
        questions = None if is_end else self.session.questions
        change = {"state": state, "questions": questions, "usage": self.session.used_by(messages)}
        session = self.session.model_copy(update=change)
        key, seq = turn_scope(self.key, number), self.session.last_seq
        append = Append(session, messages, write_key=f"{number}.{place}", expected_seq=seq)
        kept = await retry_write(
            lambda: self.store.append_reply([append], journal_key=key, turn=place, reply=reply), tries=4
        )
        if is_end and self.session.questions:  # even if another message has arrived instead of a decision
            await show_gates(self.store, Whose.of_session(session), ())
        if kept == reply:
            self.session = session.model_copy(update={"last_seq": seq + len(messages)})
            self.turns, self.gates = turns, gates
        return kept

    async def keep_gates(self, gates: KeptGates, questions: Sequence[Question]) -> None:
        """Store the current gates of a turn."""
        state = _Kept(turns=self.turns, gates=gates).model_dump_json()
        session = self.session.model_copy(update={"state": state, "questions": tuple(questions) or None})
        seq = self.session.last_seq
        await retry_write(lambda: self.store.append_messages_atomic(session.id, [], session, expected_seq=seq), tries=4)
        self.session, self.gates = session, gates


@dataclass(slots=True)
class Turn:
    """A turn of a conversation that a run executes, for the first time or again.

    Args:
        prompt: the initial message, as JSON.
        history: the messages before it.
        is_resumed: whether another run began it.
    """

    conversation: Conversation
    kept: KeptTurn
    prompt: Any
    history: list[ModelMessage]
    is_resumed: bool = False
    _requests: dict[int, int] = field(default_factory=dict)
    _shown: int | None = None

    @property
    def scope(self) -> str:
        """The place of its calls in the ledger."""
        return turn_scope(self.conversation.key, self.kept.number)

    async def keep_result(self, step: int, place: int, result: Any) -> None:
        """Store the result of a call that was run elsewhere, as JSON; the first result stays."""
        at = _RESULTS + step * _PER_STEP + place
        await self.conversation.store.save_reply(self.scope, at, json.dumps(result))

    async def load_result(self, step: int, place: int) -> Any:
        """Return the result that `keep_result` stored; None if there is none."""
        kept = await self.conversation.store.load_reply(self.scope, _RESULTS + step * _PER_STEP + place)
        return None if kept is None else json.loads(kept)

    async def keep_verdict(self, step: int, call_id: str, verdict: str) -> str:
        """Store the verdict on a call, as JSON, for as long as the turn can be replayed; return the stored one."""
        return await self.conversation.store.save_reply(self._verdict_key(step, call_id), 0, verdict)

    async def load_verdict(self, step: int, call_id: str) -> str | None:
        """Return the verdict that `keep_verdict` stored."""
        return await self.conversation.store.load_reply(self._verdict_key(step, call_id), 0)

    def _verdict_key(self, step: int, call_id: str) -> str:
        return f"{self.scope}/verdicts/{step}/{hashlib.blake2b(call_id.encode(), digest_size=16).hexdigest()}"

    async def told(self, step: int) -> dict[str, ToolReturnPart] | None:
        """Return what the model has read about a step's calls, by id; None before it has answered."""
        kept = await self.conversation.store.load_reply(self.scope, (step + 1) * _PER_STEP)
        if kept is None:
            return None
        parts = [part for message in _load_messages(json.loads(kept)["said"]) for part in message.parts]
        return {part.tool_call_id: part for part in parts if isinstance(part, ToolReturnPart)}

    async def last_calls(self) -> tuple[int, list[str]]:
        """Return the ids of the calls in the model's last answer, and its step."""
        answers = [answer async for answer in self.conversation.answers(self.kept.number)]
        if not answers:
            return 0, []
        step, answer = answers[-1]
        response: ModelResponse = JSON_CODEC.load(ModelResponse, answer["response"])
        return step, [call.tool_call_id for call in response.tool_calls]

    def user_prompt(self) -> Prompt:
        """Return the message that began it."""
        return None if self.prompt is None else JSON_CODEC.load(UserPromptPart, self.prompt).content

    def next_request(self, step: int) -> int:
        """Return the place of a model request in the turn."""
        count = self._requests.get(step, 0)
        self._requests[step] = count + 1
        return step * _PER_STEP + min(count, _PER_STEP - 1)

    async def load_answer(self, place: int, messages: Sequence[ModelMessage]) -> ModelResponse | None:
        """Return the model's answer at a place, if it exists."""
        kept = await self.conversation.store.load_reply(self.scope, place)
        if kept is None:
            return None
        self._shown = len(messages)
        response: ModelResponse = JSON_CODEC.load(ModelResponse, json.loads(kept)["response"])
        return response

    async def keep_answer(self, place: int, response: ModelResponse, messages: Sequence[ModelMessage]) -> None:
        """Store the model's answer, and add the new messages to the transcript.

        Raises:
            SessionConflictError: another writer has written to the session since.
            StoreError: the store does not answer.
        """
        said = self._since_last(messages)
        self._shown = len(messages)
        kept = {"said": JSON_CODEC.dump(list[ModelMessage], said), "response": JSON_CODEC.dump(ModelResponse, response)}
        conversation = self.conversation
        shown = messages_of([*_unshown(said), response])
        await conversation.write(shown, conversation.turns, self.kept.number, place, json.dumps(kept))

    async def end(self, messages: Sequence[ModelMessage]) -> None:
        """Store all messages of the turn, from which the next one continues."""
        if self.kept.is_over:
            return
        reply = json.dumps({"messages": JSON_CODEC.dump(list[ModelMessage], list(messages))})
        turns = tuple(
            self.kept.model_copy(update={"is_over": True}) if one.number == self.kept.number else one
            for one in self.conversation.turns
        )
        new = messages_of(_unshown(self._since_last([*self.history, *messages])))
        await self.conversation.write(new, turns, self.kept.number, _END, reply)

    def _since_last(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return the messages since the last request, starting with its answer."""
        return list(messages[len(self.history) if self._shown is None else self._shown :])


@asynccontextmanager
async def open_conversation(
    store: DurableStore, agent: Agent, session_id: str, *, user_id: str | None, tenant_id: str | None
) -> AsyncIterator[Conversation]:
    """Open a conversation for one run, which then holds its session.

    Raises:
        InputError: a malformed id, or the session of another agent.
        SessionAccessDeniedError: it belongs to another user or tenant.
        SessionConflictError: another run holds it.
    """
    who = AgentContext(AgentIdentity(agent.name, agent.name), None, user_id, tenant_id)
    async with open_log(store, agent, session_id, create=True, who=who) as log:
        session = log.session
        if not log.is_new and not session.state.startswith('{"turns":'):
            raise InputError(
                f"Session {session_id_of(session.id)} is not a conversation of pydantic-ai: give this one another "
                "conversation_id"
            )
        kept = _Kept() if log.is_new else _Kept.model_validate_json(session.state)
        yield Conversation(store, session, kept.turns, kept.gates)


def _asks_nothing(given: Given) -> bool:
    return given.prompt is None and not given.history


def _unshown(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return the messages that the transcript lacks; an answer is in it since it was stored."""
    return messages[1:] if messages and isinstance(messages[0], ModelResponse) else messages


def _dump_prompt(prompt: Prompt) -> Any:
    """Return a message as JSON, identical for the same message."""
    if prompt is None:
        return None
    part = JSON_CODEC.dump(UserPromptPart, UserPromptPart(prompt))
    return {**part, "timestamp": "1970-01-01T00:00:00Z"}


def _load_messages(kept: Any) -> list[ModelMessage]:
    messages: list[ModelMessage] = JSON_CODEC.load(list[ModelMessage], kept)
    return messages


def _text(prompt: Prompt) -> str:
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(one if isinstance(one, str) else f"[{getattr(one, 'kind', 'content')}]" for one in prompt)
