"""The Protocol of stores that keep standing approvals: decisions that people make in advance."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from standfast.agent_loop import StandingApproval
from standfast.messages import Record
from standfast.stores.protocol import DecisionRecord


class StandingFilter(Record):
    """A filter for standing approvals: all given conditions must hold.

    Args:
        ids: the approval has one of these ids; none match if empty.
        scope_keys: the approval has one of these keys; see `StandingApproval`.
        tenant_id: the approval's tenant; an empty text means no tenant.
        tenants: the approval belongs to one of these tenants; none match if empty.
        person: the session belongs to this person, or this person gave the approval, as `person` returns it.
        run: the run in which the approval was given, by its journal key.
        in_force_at: the approval has not ended by then and was not revoked.
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
    """Stores standing approvals, and whether they were revoked."""

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        """Record a decision and store the standing approval that it gives, both or neither.

        A stored approval is unchanged, even if it was revoked. A memory store does not have an audit trail.
        """
        ...

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        """Return the matching standing approvals, the last given first."""
        ...

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        """End a standing approval. An already revoked one is unchanged."""
        ...

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        """Delete the approvals that ended before, and return their number. `dry_run` only counts them."""
        ...


def is_wanted(wanted: StandingFilter, one: StandingApproval, people: Sequence[str]) -> bool:
    """Whether a standing approval matches a filter.

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
