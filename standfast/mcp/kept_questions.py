"""Stores the questions of MCP servers with a session, the answers, and the points where their calls continue.

Everything is a list in the store's journal. An answer counts for one call. The call takes the answer before the server
gets it. The call returns the answer if the server has asked for more, or has not accepted the call.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from standfast.messages import JSONObject, Message, ToolCall
from standfast.stores.kept_values import append, length, read_kept_object

_LONGEST_ROUND = 384 * 1024  # bytes of the state that a server wants back; without the state, the server starts again


def id_of(*what: Any) -> str:
    """Return an id of 12 hexadecimal digits."""
    whole = json.dumps(what, sort_keys=True, default=str)
    return hashlib.blake2b(whole.encode(), digest_size=6).hexdigest()


def is_id(text: str) -> bool:
    return len(text) == 12 and all(one in "0123456789abcdef" for one in text)


@dataclass(frozen=True, slots=True)
class Round:
    """The server's requirements before a call continues.

    Args:
        asked: the questions for people, by the server's keys: `{"message", "schema"}` each.
        given: the other responses, by the server's keys.
        state: the state that the server wants back.
    """

    asked: dict[str, JSONObject]
    given: JSONObject
    state: str | None


class KeptQuestions:
    """The rows stored with one session.

    Args:
        me: the call that takes answers, by its idempotency key, which is the same for every dispatch.
    """

    def __init__(self, store: Any, session_key: str, me: str = "") -> None:
        self._store, self._session_key, self._me = store, session_key, me

    def _place(self, name: str) -> str:
        """Return the place of a row: with its session, so that it is deleted with the session."""
        return f"{self._session_key}/{int(name, 16)}"

    # --- questions ---

    async def ask(self, question: str, text: str, then: ToolCall | None) -> None:
        """Store a question.

        Args:
            then: the call that continues with the answer; None if only the model can tell whether a call must follow.
        """
        kept: JSONObject = {"question": text}
        if then is not None:
            kept["then"] = {"name": then.name, "arguments": then.arguments}
        await self._store.save_reply(self._place(question), 0, json.dumps(kept))

    async def asked(self, question: str) -> JSONObject | None:
        kept = await self._store.load_reply(self._place(question), 0) if is_id(question) else None
        return None if kept is None else read_kept_object("a question of an MCP server", kept)

    async def ask_person(self, question: str, tool_call_id: str) -> None:
        """Note the call that will have a person's answer as its result."""
        place = self._place(question)
        await append(self._store, place, tool_call_id, await length(self._store, place))

    async def answer(self, question: str, messages: Sequence[Message]) -> str | None:
        """Return a person's answer: the result of a call that has asked. Only people make such a call succeed.

        None if there is no answer, or another call has taken it.
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
        """Take the answer to a question, or a round. No other call gets it."""
        await self._note(name, {"taken": self._me})

    async def give_back(self, name: str) -> None:
        await self._note(name, {"free": self._me})

    async def _note(self, name: str, note: JSONObject) -> None:
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

    # --- calls that continue automatically ---

    async def wait_for(self, tool_call_id: str, question: str) -> None:
        """Note that a call has ended with a question."""
        await self._store.save_reply(self._place(id_of("call", tool_call_id)), 0, question)

    async def waits_for(self, tool_call_id: str) -> str | None:
        found: str | None = await self._store.load_reply(self._place(id_of("call", tool_call_id)), 0)
        return found
