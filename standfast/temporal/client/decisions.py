"""Decides at several gates, each for itself: one that is refused does not keep the others from being decided."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.runtime.stored_gates import RECORDED, is_in_process
from standfast.temporal.client.audits import outcome_of
from standfast.temporal.client.clients import StandfastClient

MOST = 100  # gates that people decide at once on the page and by the API
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """A gate that somebody has chosen, with the digest of what they were shown.

    Args:
        id: identifies the decision: with the same id it counts once.
    """

    workflow_id: str
    gate: str
    digest: str | None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a decision.

    Args:
        outcome: "done" if it counts, "refused" if it does not, "unknown" if it was sent and nobody has said in time.
        error: why, unless it counts.
    """

    choice: Choice
    outcome: Literal["done", "refused", "unknown"]
    error: Exception | None = None

    @property
    def note(self) -> str | None:
        """When it takes effect, if that is not now."""
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
    """Decide in the same way at each gate, on what was shown of it, and return what came of each, in their order.

    Args:
        admit: raises for a run that whoever decides may not see.
        given: what else `StandfastClient.decide` takes.
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
