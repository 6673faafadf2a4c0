"""The budgets of a run and of its session, and whether they are spent."""

import math
from collections.abc import Iterable
from typing import Literal

from standfast.agents import Loop
from standfast.messages import Usage

SpentStatus = Literal["cost-budget-exhausted", "token-budget-exhausted"]


_MOST = 1e15  # how often; for a budget that is close to zero

Grants = tuple[int, int]
"""How often a person has let a run, and its session, use as much again."""


def spent_budget(loop: Loop, used: tuple[Usage | None, Usage | None], grants: Grants) -> SpentStatus | None:
    """Return how a run ends that, with its session, has used this much; None as long as it may continue."""
    for (cost, tokens), times in zip(_shares(loop, used), grants, strict=True):
        if cost >= 1 + times:
            return "cost-budget-exhausted"
        if tokens >= 1 + times:
            return "token-budget-exhausted"
    return None


def tokens_left(loop: Loop, used: Iterable[Usage | None], grants: Grants) -> int | None:
    """Return the tokens that a run may use before its budget of tokens is spent; None if it has none."""
    if (budget := loop.budget) is None:
        return None
    whole = math.ceil(budget.max * budget.stop_threshold * (1 + grants[0]))
    return whole - sum(usage.total_tokens for usage in used if usage is not None)


def more_grants(loop: Loop, used: tuple[Usage | None, Usage | None], grants: Grants) -> Grants:
    """Return the number of grants that raises the spent budgets above what was used."""
    run, session = (
        max(times, int(min(max(both), _MOST))) for both, times in zip(_shares(loop, used), grants, strict=True)
    )
    return run, session


def _shares(loop: Loop, used: tuple[Usage | None, Usage | None]) -> tuple[tuple[float, float], ...]:
    """Return the share of each budget that is used: of cost and of tokens."""
    budget = loop.budget
    limits = (
        (loop.cost_budget, None if budget is None else budget.max * budget.stop_threshold),
        (loop.session_cost_budget, loop.session_token_budget),
    )
    return tuple(
        (
            0 if cost is None or usage is None else (usage.cost or 0) / cost,
            0 if tokens is None or usage is None else usage.total_tokens / tokens,
        )
        for usage, (cost, tokens) in zip(used, limits, strict=True)
    )
