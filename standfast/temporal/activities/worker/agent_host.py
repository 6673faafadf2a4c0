"""The host of a worker's activities: its catalogue, records, name and thread of handlers."""

import base64
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from temporalio import activity

from standfast.agents import Agent, ForeignAgent
from standfast.errors import SessionStoreError
from standfast.llm import LLM
from standfast.pipelines import Pipeline
from standfast.runtime.repeating import retry_write
from standfast.runtime.restored_stores import current_epoch, note_place
from standfast.stores.protocol import RunningCall, durable_store, has_waits
from standfast.temporal.activities.tools.handler_threads import HandlerThread
from standfast.temporal.activities.worker.catalogue import Catalogue
from standfast.temporal.activities.worker.run_records import RunRecords
from standfast.temporal.wire.snapshots import Surroundings
from standfast.tools import Duration, check_count, seconds


class WorkerIdentity:
    """The name of a worker, new for every start of a process, and the activities that it runs.

    Attributes:
        scope: of the store's holds.
        is_known: the worker holds its name, so that other workers can tell whether it is alive.
        in_hand: the task tokens of activities that run.
    """

    def __init__(self) -> None:
        self._start, self._attempts = uuid4().hex, itertools.count()
        self.scope, self.is_known = "", False
        self.in_hand: set[bytes] = set()

    @property
    def name(self) -> str:
        """The name: its holder is alive, and no other worker takes it over."""
        return f"worker_{socket.gethostname()[:64]}_{os.getpid()}_{self._start[:12]}_{self.scope}"

    def owner(self) -> str:
        """Return a name for an attempt that is unique among all processes."""
        return f"{self._start}.{next(self._attempts)}"

    def running(self, owner: str) -> RunningCall | None:
        """Return the record of this activity while it runs; None if this worker's death could not be detected."""
        if not self.is_known or not self.scope:
            return None
        info = activity.info()
        return RunningCall(
            owner=owner,
            worker=self.name,
            task_token=base64.b64encode(info.task_token).decode(),
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
        )

    def has_in_hand(self, call: RunningCall) -> bool:
        """Whether this worker still runs the activity of a call."""
        return base64.b64decode(call.task_token) in self.in_hand


class AgentHost:
    """The parts that the activities of a worker share.

    Attributes:
        search: the namespace has search attributes for waiting items.
        build: of the code; it distinguishes a deploy from a restart.
        stream: models stream their answers, for viewers.
        notices: the worker has webhooks.
        misplaced: by task queue, the reason why its runs must not be opened with this store.

    Raises:
        DefinitionError: naming the agent or tool that is missing or duplicated.
    """

    def __init__(
        self,
        agents: Iterable[Agent | ForeignAgent],
        pipelines: Iterable[Pipeline],
        store: Any,
        llm: LLM | None,
        handlers: Mapping[str, Callable[..., Any]],
        max_stored_messages: int,
        store_patience: Duration,
        checkpoint_key: bytes | None = None,
    ) -> None:
        self.checkpoint_key = checkpoint_key
        self.store = durable_store(store)
        self.records, self.identity = RunRecords(self.store), WorkerIdentity()
        self.catalogue = Catalogue(agents, pipelines, llm, handlers, lambda: self.surroundings)
        check_count("max_stored_messages", max_stored_messages, 1)
        self.max_stored_messages = max_stored_messages
        self.store_patience = seconds(store_patience, "store_patience")  # an activity waits for the store, unseen
        self.thread: HandlerThread  # while a worker serves
        self._workers, self._has_noted_place = 0, False
        self.search, self.build, self.stream, self.notices = False, "", False, False
        self.misplaced: dict[str, str] = {}

    @property
    def surroundings(self) -> Surroundings:
        """The facts that a run needs to know about its namespace and its worker."""
        found: Surroundings = {"search": self.search, "receipts": True, "wakes": True, "attaches": True}
        if has_waits(self.store):
            found["board"] = True
        return {**found, "notices": True} if self.notices else found

    async def check_store(self) -> None:
        """Write to the store, so that a worker whose store is not writable does not take runs.

        Raises:
            StoreError: it cannot be written to.
        """
        await retry_write(partial(self.store.end_call, self.identity.name), tries=3)  # an unknown call: nothing changes
        self.records.epoch = await current_epoch(self.store)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run user code for as long as a worker needs it; several workers of one process share the thread."""
        self._workers += 1
        if self._workers == 1:
            self.thread = HandlerThread()
            self.thread.start()
        try:
            yield
        finally:
            self._workers -= 1
            if not self._workers:
                self.thread.stop()

    @property
    def is_last(self) -> bool:
        """Whether no other worker of this process serves the same agents."""
        return self._workers <= 1

    async def check_queue(self) -> None:
        """Check that the runs of this activity's queue may begin with this worker's store, and note the store's place.

        Raises:
            SessionStoreError: the queue has another store.
        """
        if (why := self.misplaced.get(activity.info().task_queue)) is not None:
            raise SessionStoreError(why)
        if not self._has_noted_place:
            await note_place(self.store)
            self._has_noted_place = True
