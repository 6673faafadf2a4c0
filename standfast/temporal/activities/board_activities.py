"""Writes the runs' waiting items to the store, for people who look without asking a worker."""

from datetime import datetime
from typing import Any

from temporalio import activity

from standfast.errors import SessionStoreError
from standfast.stores.capabilities import has_waits
from standfast.stores.waits import Board
from standfast.temporal.activities.activity_guards import Guard
from standfast.temporal.activities.agent_host import AgentHost
from standfast.temporal.activities.json_activities import json_activity
from standfast.temporal.activities.posted_messages import PostedMessages
from standfast.temporal.wire import names
from standfast.temporal.wire.boards import ShowReference, wait_of


class BoardActivities:
    """Writes the boards of runs."""

    def __init__(self, host: AgentHost, posted: PostedMessages) -> None:
        self._host, self._posted = host, posted

    def all(self) -> list[Any]:
        return [self.show]

    @json_activity(names.SHOW)
    async def show(self, reference: ShowReference) -> list[str]:
        """Store exactly the items that a run waits for; return the keys of items missing from the store."""
        with Guard(self._host, beats=False):
            store, info = self._host.store, activity.info()
            if (why := self._host.misplaced.get(info.task_queue)) is not None:
                raise SessionStoreError(why)
            if info.workflow_type in self._host.agents or info.workflow_type in self._host.pipelines:
                await self._host.check_run(reference["run"])  # a user's workflow does not record its store
            if not has_waits(store):
                raise SessionStoreError(
                    f"The store {store!r:.80} of this worker has no board; see standfast.stores.Waits"
                )
            board = Board(
                namespace=info.namespace,
                workflow_id=info.workflow_id or "",
                run_id=info.workflow_run_id or "",
                first_run_id=reference["first_run"],
                journal_key=reference["run"],
                agent=info.workflow_type or "",
                task_queue=info.task_queue,
                at=datetime.fromisoformat(reference["at"]),
                session=reference.get("session"),
                tenant_id=reference.get("tenant_id"),
                user_id=reference.get("user_id"),
                parent=reference.get("parent"),
            )
            put = [wait_of(shown, key, board) for key, shown in reference["put"]]
            missing = await store.show_waits(board, put, reference["keep"])
            self._posted.look(reference["run"], board.workflow_id)
            return missing
