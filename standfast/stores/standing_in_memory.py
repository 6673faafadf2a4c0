"""Standing approvals in memory, until the process ends."""

from datetime import datetime

from standfast.agent_loop import StandingApproval
from standfast.messages import person
from standfast.stores.protocol import DecisionRecord
from standfast.stores.standing_approvals import StandingFilter, is_wanted


class StandingInMemory:
    """The `StandingApprovals` of a memory store. It does not have an audit trail, so the number of uses is unknown."""

    def __init__(self) -> None:
        self._standing: dict[str, StandingApproval] = {}

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        self._standing.setdefault(approval.id, approval)

    async def standing_approvals(self, wanted: StandingFilter, *, limit: int | None = None) -> list[StandingApproval]:
        found = [
            one
            for one in self._standing.values()
            if is_wanted(wanted, one, [person(one.user_id), person(one.given_by)])
        ]
        found.sort(key=lambda one: one.id)
        return sorted(found, key=lambda one: one.created_at, reverse=True)[:limit]

    async def revoke_standing_approval(self, approval_id: str, *, at: datetime, by: str | None) -> None:
        one = self._standing.get(approval_id)
        if one is not None and one.revoked_at is None:
            self._standing[approval_id] = one.model_copy(update={"revoked_at": at, "revoked_by": by})

    async def forget_standing_approvals(self, before: datetime, *, dry_run: bool = False) -> int:
        over = [one.id for one in self._standing.values() if one.expires_at < before]
        for one in () if dry_run else over:
            del self._standing[one]
        return len(over)

    def forget_of_session(self, session_id: str) -> None:
        """Delete the approvals for a deleted session. Approvals for all runs of its agent stay."""
        kept = self._standing.items()
        self._standing = {key: one for key, one in kept if one.session != session_id or not one.scope_key}
