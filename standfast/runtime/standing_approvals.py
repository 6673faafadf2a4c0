"""Finds, gives and ends standing approvals. Only the store has them: nothing is cached elsewhere."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from standfast.agent_loop import CallPlace, Decision, Gate, StandingApproval, in_advance, standing_of, standing_problem
from standfast.agents import Agent
from standfast.checkpoints import Question
from standfast.errors import InputError
from standfast.messages import ToolCall
from standfast.runtime.users_functions import normal_arguments
from standfast.stores.protocol import StandingApprovals, StandingFilter, has_standing_approvals

Gives = tuple[StandingApprovals, StandingApproval]


async def decided_in_advance(
    store: object, questions: Sequence[Question], calls: Sequence[ToolCall], place: CallPlace
) -> list[Question]:
    """Return gates that open, each with the decisions that people have made in advance.

    The store is queried only for tools whose approvals can be remembered.

    Args:
        place: of the calls; each has its own tool.
    """
    tools = {call.id: call.name for call in calls}
    found: list[Question] = []
    for question in questions:
        gate = Gate.read(question.gate or {})
        if gate.policy and has_standing_approvals(store):
            here = replace(place, tool=tools[gate.name])
            wanted = StandingFilter(
                agent=here.agent,
                tool=here.tool,
                tenant_id=here.tenant_id or "",
                scope_keys=tuple(here.scope_keys.values()),
                in_force_at=gate.since,
            )
            gate = in_advance(gate, await store.standing_approvals(wanted), here)
            question = question.model_copy(update={"gate": gate.plain()})
        found.append(question)
    return found


async def standing_refusal(store: object, decision: Decision, gate: Gate, place: CallPlace) -> str | None:
    """Return why a decision was not made in advance, as it claims; None if it was, or does not claim so."""
    if decision.standing is None:
        return None
    found = await _load(store, decision.standing)
    return standing_problem(found, decision, gate, place)


async def given_by(
    store: object, agent: Agent, decision: Decision, gate: Gate, place: CallPlace, at: datetime
) -> Gives | None:
    """Return the standing approval that a decision gives, with the store for it; None if it gives none.

    It covers arguments like the approved ones: if they were edited, like the edited ones.

    Raises:
        InputError: it cannot be given.
    """
    if decision.remember is None:
        return None
    if not has_standing_approvals(store):
        raise InputError(f"gate {gate.name}: remember: the run has no store for standing approvals")
    arguments = gate.asked_arguments
    if decision.edit is not None:
        arguments = await normal_arguments(agent.tool_map[place.tool], decision.edit)
    return store, standing_of(decision, gate, place, arguments, at)


async def revoke(store: StandingApprovals, approval_id: str, by: str | None) -> StandingApproval:
    """End a standing approval for all gates that are still undecided, and return it.

    Raises:
        InputError: there is none with this id.
    """
    if await _load(store, approval_id) is not None:
        await store.revoke_standing_approval(approval_id, at=datetime.now(UTC), by=by)
    if (found := await _load(store, approval_id)) is None:
        raise no_standing_approval(approval_id)
    return found


def no_standing_approval(approval_id: str) -> InputError:
    """Return the error for a standing approval that does not exist, or that the person may not see."""
    return InputError(f"There is no standing approval {approval_id!r:.80}; `standfast standing list` shows them")


async def _load(store: object, approval_id: str) -> StandingApproval | None:
    if not has_standing_approvals(store):
        return None
    return next(iter(await store.standing_approvals(StandingFilter(ids=(approval_id,)))), None)
