"""An operator's acts on an activity, as with the `temporal` command and Temporal Web."""

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.workflowservice.v1 import (
    PauseActivityRequest,
    ResetActivityRequest,
    UnpauseActivityRequest,
    UpdateActivityOptionsRequest,
)
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError


@dataclass(frozen=True, slots=True)
class OperatedActivity:
    """An activity of a run that an operator acts on."""

    client: Client
    workflow_id: str
    activity_id: str

    async def fail(self, *, kind: str = "ByHand", retried: bool = False) -> None:
        await self._handle.fail(ApplicationError("by hand", type=kind, non_retryable=not retried))

    async def fail_to_be_retried(self) -> None:
        await self.fail(retried=True)

    async def complete(self, value: Any = None) -> None:
        await self._handle.complete(value)

    async def complete_with_junk(self) -> None:
        await self.complete({"junk": [1]})

    async def pause(self) -> None:
        await self.client.workflow_service.pause_activity(PauseActivityRequest(**self._name, reason="lunch"))

    async def unpause(self) -> None:
        with contextlib.suppress(RPCError):  # an attempt has ended it
            await self.client.workflow_service.unpause_activity(UnpauseActivityRequest(**self._name))

    async def pause_for_a_while(self) -> None:
        await self.pause()
        try:
            await asyncio.sleep(1)
        finally:
            await self.unpause()

    async def reset(self) -> None:
        await self.client.workflow_service.reset_activity(ResetActivityRequest(**self._name))

    async def time_out(self) -> None:
        brief = Duration()
        brief.FromTimedelta(timedelta(seconds=0.5))
        options = ActivityOptions(
            start_to_close_timeout=brief, schedule_to_close_timeout=brief, heartbeat_timeout=brief
        )
        paths = ["start_to_close_timeout", "schedule_to_close_timeout", "heartbeat_timeout"]
        await self.client.workflow_service.update_activity_options(
            UpdateActivityOptionsRequest(**self._name, activity_options=options, update_mask=FieldMask(paths=paths))
        )

    @property
    def _handle(self) -> Any:
        return self.client.get_async_activity_handle(
            workflow_id=self.workflow_id, run_id=None, activity_id=self.activity_id
        )

    @property
    def _name(self) -> dict[str, Any]:
        return {"namespace": "default", "execution": {"workflow_id": self.workflow_id}, "id": self.activity_id}
