"""Stores with one fault each in their standing approvals. The store suite finds all of them."""

from datetime import UTC, datetime
from typing import Any

from standfast.stores import DecisionRecord, SQLiteStore, StandingApproval, StandingFilter


class GivesInTwoSteps(SQLiteStore):
    """One that forgets the decision."""

    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        await super().give_standing_approval(approval, record.model_copy(update={"remembered": None}))


class GivesWhatWasRevoked(SQLiteStore):
    async def give_standing_approval(self, approval: StandingApproval, record: DecisionRecord) -> None:
        await self._do(lambda db: db.execute("DELETE FROM standing_approvals WHERE id = ?", (approval.id,)).rowcount)
        await super().give_standing_approval(approval, record)


class FindsThoseOfAllTenants(SQLiteStore):
    async def standing_approvals(self, wanted: StandingFilter, **options: Any) -> list[StandingApproval]:
        anybodys = wanted.model_copy(update={"tenant_id": wanted.tenant_id or None})
        return await super().standing_approvals(anybodys, **options)


class FindsWhatWasRevoked(SQLiteStore):
    async def standing_approvals(self, wanted: StandingFilter, **options: Any) -> list[StandingApproval]:
        found = await super().standing_approvals(wanted.model_copy(update={"in_force_at": None}), **options)
        return [one for one in found if wanted.in_force_at is None or wanted.in_force_at < one.expires_at]


class KeepsThoseOfDeletedSessions(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        found = await self.standing_approvals(StandingFilter())
        await super().delete_session(session_id, keep_decisions=keep_decisions)
        for one in found:
            record = DecisionRecord(journal_key="r", gate="g", at=datetime.now(UTC), decision="approve", key=one.id)
            await self.give_standing_approval(one, record)
