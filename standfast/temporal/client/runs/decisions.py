"""Decides on several gates independently: a refused decision does not block the others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.runtime.stored_gates import RECORDED, is_in_process
from standfast.temporal.client.clients import StandfastClient
from standfast.temporal.client.history.audits import outcome_of

MOST = 100  # gates that people decide at once on the page and with the API
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """A gate that a person has chosen, with the digest of the contents shown.

    Args:
        id: identifies the decision: with the same id it counts once.
    """

    workflow_id: str
    gate: str
    digest: str | None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """The outcome of a decision.

    Args:
        outcome: "done" if it counts, "refused" if it does not, "unknown" if it was sent but not confirmed in time.
        error: the reason, unless it counts.
    """

    choice: Choice
    outcome: Literal["done", "refused", "unknown"]
    error: Exception | None = None

    @property
    def note(self) -> str | None:
        """The time at which it takes effect, if that is not now."""
        return RECORDED if self.outcome == "done" and is_in_process(self.choice.workflow_id) else None

    @property
    def why(self) -> str | None:
        return None if self.error is None else str(self.error)


async def decide_each(
    people: StandfastClient,
    choices: Sequence[Choice],
    decision: Literal["approve", "reject"],
    *,
    admit: Callable[[str], Awaitable[None]] | None = None,
    **given: Any,
) -> list[Decided]:
    """Decide in the same way on each gate, based on its shown contents; return the outcomes in the same order.

    Args:
        admit: raises for a run that the person who decides may not see.
        given: further arguments of `StandfastClient.decide`.
    """
    few = asyncio.Semaphore(_AT_ONCE)

    async def decide(choice: Choice) -> Decided:
        try:
            async with few:
                if admit is not None:
                    await admit(choice.workflow_id)
                where = (choice.workflow_id, choice.gate, decision)
                await people.decide(*where, digest=choice.digest, id=choice.id, **given)
        except (StandfastError, RPCError) as error:
            return Decided(choice, outcome_of(error), error)
        return Decided(choice, "done")

    return list(await asyncio.gather(*map(decide, choices)))
