"""Activities that are held where an operator can act on them: before they start work, or before they report."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


@dataclass
class Hold:
    """The first attempt at an activity of a run, which goes no further until `go_on` is set; then it is `over`.

    Args:
        after: the number of activities of this type in the run that are not held.
        is_done: it has done its work, and holds its report back.
        beats: it sends heartbeats, and so learns that its run has ended.
        is_local: the run first tries it in its workflow task, and elsewhere after that has failed.
    """

    activity: str
    is_done: bool = False
    is_local: bool = False
    after: int = 0
    beats: bool = True
    inside: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    activity_id: str = ""


class Holding(Interceptor):
    """Holds activities of runs, by the id of the workflow and the type of the activity."""

    def __init__(self) -> None:
        self.holds: dict[tuple[str, str], Hold] = {}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Held(next, self.holds)


class _Held(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, holds: dict[tuple[str, str], Hold]) -> None:  # noqa: A002
        super().__init__(next)
        self._holds = holds

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        info = activity.info()
        hold = self._holds.get((str(info.workflow_id), info.activity_type))
        if hold is None or hold.inside.is_set():
            return await self.next.execute_activity(input)
        if info.is_local:
            if hold.is_local:
                raise ApplicationError("its store is away", type="StoreAway", non_retryable=True)
            return await self.next.execute_activity(input)
        if hold.after:
            hold.after -= 1
            return await self.next.execute_activity(input)
        hold.activity_id = info.activity_id
        if hold.is_done:
            result = await self.next.execute_activity(input)
        hold.inside.set()
        while not hold.go_on.is_set():
            if hold.beats:
                activity.heartbeat()
            await asyncio.sleep(0.1)
        try:
            return result if hold.is_done else await self.next.execute_activity(input)
        finally:
            hold.over.set()
