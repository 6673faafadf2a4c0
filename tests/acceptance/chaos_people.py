"""People of a chaos test: they decide, answer, send messages, and record what they were told."""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from temporalio.service import RPCError

from standfast import InputError, StandfastError
from standfast.temporal import StandfastClient

TELLERS = ("ada", "bob")


@dataclass(slots=True)
class Books:
    """The reports that people received during the chaos.

    Args:
        approved, rejected: calls, by those whose decision was said to count.
        amounts: by call and amount, who approved it, shown it or by an edit, and was told that this counts.
        refused: calls at which a decision was said not to count, and why.
        unsure: calls about which someone was told that it is not confirmed.
        said: messages that were said to be accepted, each once however often it was sent.
        answered: the calls of answers that were said to count, by text; no two have the same.
        not_answers: the calls of answers that were said not to count, by text.
        unanswered: calls that a cancelled run left without a result.
        notes: the events in order, for the person who must find out why.
    """

    approved: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    amounts: defaultdict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    refused: list[tuple[str, str]] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    answered: dict[str, str] = field(default_factory=dict)
    not_answers: dict[str, str] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class People:
    """People who look after runs while processes die.

    Args:
        word: returns a new word each time: "#" and a number.
    """

    def __init__(self, client: StandfastClient, books: Books, chance: random.Random, word: Callable[[], str]) -> None:
        self.client, self._books, self._chance, self._word = client, books, chance, word

    async def look_after(self, workflow_id: str, item: Mapping[str, Any]) -> None:
        """Do what a run waits for: decide, answer or let it try again."""
        match item["kind"]:
            case "approval":
                await self.decide(workflow_id, item)
            case "question":
                people = self._chance.choice((1, 1, 2))  # at once
                await asyncio.gather(*(self.answer(workflow_id, item["name"]) for _ in range(people)))
            case "pause":
                self._books.notes.append(f"{workflow_id} is paused: {item['message']}")
                with contextlib.suppress(StandfastError, RPCError):
                    await self.client.resume(workflow_id)

    async def decide(self, workflow_id: str, item: Mapping[str, Any]) -> None:
        """Decide on what a run asks, one in five times against it, and half the time with another amount."""
        approve, books, call, by = self._chance.random() < 0.8, self._books, item["name"], self._chance.choice(TELLERS)
        edit = amount = (item.get("arguments") or {}).get("amount")
        if approve and amount is not None:
            edit = int(self._word()[1:]) if self._chance.random() < 0.5 else amount
        options = {} if edit == amount else {"edit": {"amount": edit}}
        decision: Literal["approve", "reject"] = "approve" if approve else "reject"
        try:
            await self.client.decide(workflow_id, call, decision, by=by, digest=item["digest"], **options)
        except InputError as error:
            books.refused.append((call, str(error)))
        except (StandfastError, RPCError) as error:
            books.unsure.add(call)
            books.notes.append(f"{call}: it is unknown whether it was decided, {error}")
        except asyncio.CancelledError:  # it may have been sent
            books.unsure.add(call)
            raise
        else:
            (books.approved if approve else books.rejected)[call] += 1
            if approve and amount is not None:
                books.amounts[call, edit].add(by)
            books.notes.append(f"{call}: {decision} by {by}, {amount} {options}")

    async def answer(self, workflow_id: str, call: str) -> None:
        """Answer a call's question, one in five times without asking for the outcome of the answer."""
        text, books = f"answer {self._word()}.", self._books
        if self._chance.random() < 0.2:
            with contextlib.suppress(RPCError):  # it has ended
                handle = self.client.client.get_workflow_handle(workflow_id)
                await handle.signal("answer", {"text": text, "tool_call_id": call})
            return
        try:
            await self.client.answer(workflow_id, text, tool_call_id=call, by="ada")
        except InputError as error:
            books.not_answers[text] = call
            books.notes.append(f"{call}: {text} is refused, {error}")
        except (StandfastError, RPCError) as error:
            books.notes.append(f"{call}: {text} is not confirmed, {error}")
        else:
            books.answered[text] = call
            books.notes.append(f"{call}: {text} counts")

    async def say(self, case: str, workflow_id: str) -> None:
        """Say something more to a run, twice if it has an id: the first time may have come to nothing, or have not."""
        text, books = f"{case}: look {self._word()}", self._books
        message_id = self._chance.choice((None, text))
        for _ in range(1 if message_id is None else 2):
            with contextlib.suppress(StandfastError, RPCError):
                await self.client.message(workflow_id, text, message_id=message_id)
                books.said.add(text)
                books.notes.append(f"{case}: said {text}, id {message_id}")
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
