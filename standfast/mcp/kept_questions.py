"""Keeps with a session what MCP servers have asked in it, the answers, and where their calls are to go on.

Everything is a list in the store's journal. An answer counts for one call: the call takes it before the server gets
it, and gives it back if the server has asked for more, or has not taken the call.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from standfast.messages import Message, ToolCall
from standfast.stores.kept_lists import append, length
from standfast.stores.kept_values import read_kept_object

_LONGEST_ROUND = 384 * 1024  # bytes of what a server wants to have back; without it the server starts again


def id_of(*what: Any) -> str:
    """Return an id of 12 hexadecimal digits."""
    whole = json.dumps(what, sort_keys=True, default=str)
    return hashlib.blake2b(whole.encode(), digest_size=6).hexdigest()


def is_id(text: str) -> bool:
    return len(text) == 12 and all(one in "0123456789abcdef" for one in text)


@dataclass(frozen=True, slots=True)
class Round:
    """What a server needs before a call goes on.

    Args:
        asked: by the server's keys, the questions for people: `{"message", "schema"}` each.
        given: by the server's keys, the other responses.
        state: what it wants to have back.
    """

    asked: dict[str, dict[str, Any]]
    given: dict[str, Any]
    state: str | None


class KeptQuestions:
    """What is kept with one session.

    Args:
        me: the call that takes answers, by its idempotency key, which is the same at every dispatch.
    """

    def __init__(self, store: Any, session_key: str, me: str = "") -> None:
        self._store, self._session_key, self._me = store, session_key, me

    def _place(self, name: str) -> str:
        """Return where something is kept: with its session, with which it is deleted."""
        return f"{self._session_key}/{int(name, 16)}"

    # --- questions ---

    async def ask(self, question: str, text: str, then: ToolCall | None) -> None:
        """Keep a question.

        Args:
            then: the call that goes on with the answer; None if only the model can tell whether it has to.
        """
        kept: dict[str, Any] = {"question": text}
        if then is not None:
            kept["then"] = {"name": then.name, "arguments": then.arguments}
        await self._store.save_reply(self._place(question), 0, json.dumps(kept))

    async def asked(self, question: str) -> dict[str, Any] | None:
        kept = await self._store.load_reply(self._place(question), 0) if is_id(question) else None
        return None if kept is None else read_kept_object("a question of an MCP server", kept)

    async def ask_person(self, question: str, tool_call_id: str) -> None:
        """Note the call whose result will be a person's answer."""
        place = self._place(question)
        await append(self._store, place, tool_call_id, await length(self._store, place))

    async def answer(self, question: str, messages: Sequence[Message]) -> str | None:
        """Return a person's answer: the result of a call that has asked, which only people make succeed.

        None if there is none, or another call has taken it.
        """
        place = self._place(question)
        free: set[str] = set()
        taken: dict[str, set[str]] = {}
        for number in range(1, await length(self._store, place)):
            entry = await self._store.load_reply(place, number) or ""
            if not entry.startswith("{"):
                free.add(entry)
                continue
            note = json.loads(entry)
            if "taken" in note and note["taken"] != self._me:
                taken[note["taken"]], free = free | taken.get(note["taken"], set()), set()
            elif "free" in note:
                free |= taken.pop(note["free"], set())
        answers = [one.content for one in messages if one.tool_call_id in free and one.status == "completed"]
        return answers[-1] if answers else None

    async def take(self, name: str) -> None:
        """Take the answer to a question, or a round: nobody else gets it."""
        await self._note(name, {"taken": self._me})

    async def give_back(self, name: str) -> None:
        await self._note(name, {"free": self._me})

    async def _note(self, name: str, note: dict[str, Any]) -> None:
        place = self._place(name)
        count = await length(self._store, place)
        await append(self._store, place, json.dumps({**note, "number": count}), count)

    # --- rounds ---

    async def keep_round(self, name: str, one: Round) -> None:
        kept = json.dumps({"asked": one.asked, "given": one.given, "state": one.state})
        if len(kept) <= _LONGEST_ROUND:
            place = self._place(name)
            await append(self._store, place, kept, await length(self._store, place))

    async def last_round(self, name: str) -> Round | None:
        """Return the last round, unless another call has taken it."""
        place, owner = self._place(name), None
        for number in reversed(range(await length(self._store, place))):
            kept = read_kept_object("a round of a call", await self._store.load_reply(place, number) or "{}")
            if "asked" in kept:
                return Round(kept["asked"], kept["given"], kept["state"]) if owner in (None, self._me) else None
            if owner is None:
                owner = kept.get("taken", "")
                if "free" in kept:
                    owner = self._me
        return None

    # --- calls that go on by themselves ---

    async def wait_for(self, tool_call_id: str, question: str) -> None:
        """Note that a call has ended with a question."""
        await self._store.save_reply(self._place(id_of("call", tool_call_id)), 0, question)

    async def waits_for(self, tool_call_id: str) -> str | None:
        found: str | None = await self._store.load_reply(self._place(id_of("call", tool_call_id)), 0)
        return found
