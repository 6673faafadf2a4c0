"""Stores with one fault each in their deletion. The store suite finds all of them."""

from datetime import UTC, datetime
from typing import Any

from standfast.stores import Dropped, NotedRun, SQLiteStore


class KeepsWhatRunsHaveKept(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        await self._do(lambda db: db.execute("DELETE FROM agent_sessions WHERE id = ?", (session_id,)).rowcount)


class ForgetsItsFences(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        await super().delete_session(session_id, keep_decisions=keep_decisions)
        await self._do(lambda db: db.execute("DELETE FROM tool_ledger").rowcount)


class FencesAsIfNothingHadRun(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        await super().delete_session(session_id, keep_decisions=keep_decisions)
        await self._do(lambda db: db.execute("UPDATE tool_ledger SET state = 'abandoned', owner = NULL").rowcount)


class LetsOwnersFinish(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        await super().delete_session(session_id, keep_decisions=keep_decisions)
        await self._do(lambda db: db.execute("UPDATE tool_ledger SET owner = 'me' WHERE state = 'claimed'").rowcount)


class DeletesByBeginning(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        for one in await self.list_sessions():
            if one.id.startswith(session_id):
                await super().delete_session(one.id, keep_decisions=keep_decisions)


class KeepsComments(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        decisions = [row for key in await self.list_records() for row in await self.load_decisions(key)]
        await super().delete_session(session_id)
        for row in decisions if keep_decisions else ():
            await self.record_decision(row)


class DeletesWhoDeleted(SQLiteStore):
    async def delete_session(self, session_id: str, *, keep_decisions: bool = False) -> None:
        await super().delete_session(session_id, keep_decisions=keep_decisions)
        await self._do(lambda db: db.execute("DELETE FROM gate_decisions WHERE decision = 'delete'").rowcount)


class DeletesOnlyTheCaller(SQLiteStore):
    async def note_run(self, run: NotedRun) -> None:
        await super().note_run(run.model_copy(update={"workflow_id": run.workflow_id.replace("/", "|")}))


class NotesOneRun(SQLiteStore):
    async def note_run(self, run: NotedRun) -> None:
        if run.session_id is None or not await self.find_runs(session_id=run.session_id):
            await super().note_run(run)


class ListsWithoutRegardToCase(SQLiteStore):
    async def list_records(self, after: str = "", *, limit: int = 500) -> list[str]:
        keys = sorted(await super().list_records(), key=str.lower)
        return [key for key in keys if key.lower() > after.lower()][:limit]


class DropsWhatIsYoung(SQLiteStore):
    async def drop_records(self, name: str, *, before: datetime, **options: Any) -> Dropped:
        return await super().drop_records(name, before=datetime.max.replace(tzinfo=UTC), **options)


class DropsInADryRun(SQLiteStore):
    async def drop_records(self, name: str, **options: Any) -> Dropped:
        return await super().drop_records(name, **options | {"dry_run": False})


class DropsOpenCalls(SQLiteStore):
    async def drop_records(self, name: str, *, below: int | None = None, **options: Any) -> Dropped:
        return await super().drop_records(name, below=None if below is None else below + 1, **options)


class DropsByBeginning(SQLiteStore):
    async def drop_records(self, name: str, **options: Any) -> Dropped:
        found = await super().drop_records(name, **options)
        if found.replies and not options.get("dry_run"):
            await self._do(lambda db: db.execute("DELETE FROM model_replies WHERE run_key LIKE ? || '%'", (name,)))
        return found
