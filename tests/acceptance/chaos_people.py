"""People of a chaos: they decide, answer and say more, and keep books of what they were told."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from temporalio.service import RPCError

from standfast import InputError, StandfastError
from standfast.temporal import StandfastClient


@dataclass(slots=True)
class Books:
    """What people were told while it went on.

    Args:
        approved, rejected: calls, by those whose decision was said to count.
        refused: calls at which a decision was said not to count, and why.
        unsure: calls about which somebody was told that it is not confirmed.
        said: messages that were said to be accepted.
        answered: the calls of answers that were said to count, by text; no two have the same.
        not_answers: the calls of answers that were said not to count, by text.
        unanswered: calls that a cancelled run left without a result.
        notes: what happened, in order, for whoever has to find out why.
    """

    approved: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    answered: dict[str, str] = field(default_factory=dict)
    not_answers: dict[str, str] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class People:
    """People who look after runs, whoever dies meanwhile.

    Args:
        word: returns a word that nobody has said before.
    """

    def __init__(self, client: StandfastClient, books: Books, chance: random.Random, word: Callable[[], str]) -> None:
        self.client, self._books, self._chance, self._word = client, books, chance, word

    async def decide(self, workflow_id: str, call: str, digest: str) -> None:
        """Decide on what a run asks, one in five times against it."""
        approve, books = self._chance.random() < 0.8, self._books
        try:
            await self.client.decide(workflow_id, call, "approve" if approve else "reject", by="ada", digest=digest)
        except InputError as error:
            books.refused.append((call, str(error)))
        except (StandfastError, RPCError) as error:
            books.unsure.add(call)
            books.notes.append(f"{call}: nobody knows whether it was decided, {error}")
        except asyncio.CancelledError:  # it may have been sent
            books.unsure.add(call)
            raise
        else:
            (books.approved if approve else books.rejected)[call] += 1
            books.notes.append(f"{call}: {'approved' if approve else 'rejected'}")

    async def answer(self, workflow_id: str, call: str) -> None:
        """Answer a call's question, one in five times without asking what became of the answer."""
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
        """Say something more to a run."""
        text, books = f"{case}: look {self._word()}", self._books
        with contextlib.suppress(StandfastError, RPCError):
            await self.client.message(workflow_id, text)
            books.said.append(text)
            books.notes.append(f"{case}: said {text}")
