"""The Protocol of stores that keep standing approvals: decisions that people make in advance."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from standfast.agent_loop import StandingApproval
from standfast.messages import Record
from standfast.stores.protocol import DecisionRecord


class StandingFilter(Record):
    """Which standing approvals are wanted: those for which all that is given holds.

    Args:
        ids: those with one of these ids; none at all if empty.
        scope_keys: those with one of these; see `StandingApproval`.
        tenant_id: those of a tenant; an empty text is those without one.
        tenants: those of one of these tenants; none at all if empty.
        person: those of sessions that are this person's, and those that the person has given, as `person` returns it.
        run: those that were given in a run, by its journal key.
        in_force_at: those that have not ended by then and were not revoked.
    """

    ids: tuple[str, ...] | None = None
    agent: str | None = None
    tool: str | None = None
    scope_keys: tuple[str, ...] | None = None
    tenant_id: str | None = None
    tenants: tuple[str, ...] | None = None
    person: str | None = None
    run: str | None = None
    in_force_at: datetime | None = None


@runtime_checkable
class StandingApprovals(Protocol):
    """Keeps standing approvals, and whether they were revoked."""

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        """Record a decision and keep the standing approval that it gives, both or neither.

        One that is kept already stays as it is, also if it was revoked. A store in memory has no audit trail.
        """
        ...

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        """Return the standing approvals that are wanted, the last given first."""
        ...

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        """End a standing approval. One that was revoked before stays as it is."""
        ...

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        """Forget those that ended before, and return how many; `dry_run` only counts them."""
        ...


def is_wanted(wanted: StandingFilter, one: StandingApproval, people: Sequence[str]) -> bool:
    """Whether a standing approval is wanted.

    Args:
        people: the owner of its session and its giver, each as `person` returns it.
    """
    return (
        (wanted.ids is None or one.id in wanted.ids)
        and wanted.agent in (None, one.agent)
        and wanted.tool in (None, one.tool)
        and (wanted.scope_keys is None or one.scope_key in wanted.scope_keys)
        and wanted.tenant_id in (None, one.tenant_id or "")
        and (wanted.tenants is None or one.tenant_id in wanted.tenants)
        and (wanted.person is None or wanted.person in people)
        and wanted.run in (None, one.run)
        and (wanted.in_force_at is None or one.is_in_force(wanted.in_force_at))
    )
