"""The records of runs that activities leave for each other in the store, and a cache of the latest."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, cast

from temporalio import activity

from standfast.agents import Agent
from standfast.errors import SessionConflictError, SessionStoreError, StoreBehindError
from standfast.messages import JSONObject
from standfast.runtime.restored_stores import begin_epoch, current_epoch
from standfast.stores.deletion import DELETED, NotedRun
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import DurableStore, Session, has_deletion
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import CallReference, Located, WrittenOutcome
from standfast.temporal.wire.turn_records import TurnRecord, read_record, step_place

LocatedT = TypeVar("LocatedT", bound=Located)

_LOG = logging.getLogger("standfast")

LIMIT = 64 * 1024 * 1024  # characters, of all transcripts together
RECORDS = 1_000  # of each kind
LONGEST = 1024 * 1024  # characters of a result

K = TypeVar("K")
V = TypeVar("V")


class Kept(Protocol):
    """A transcript, as far as the cache needs to know it; `size` is in characters."""

    session: Session
    size: int


class Recent(OrderedDict[K, V]):
    """The items that were set last."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > RECORDS:
            self.popitem(last=False)


class TranscriptCache:
    """The transcripts that were used last, as many as fit, and the records of the last turns.

    Attributes:
        records: of turns that this worker wrote, by run and number.
        results: outcomes of calls that it recorded, by scope and key; each is read and removed once.
        facts: the facts that runs recorded at their start, by run key.
        without_context: keys of runs that were opened without a context.
        located: the journal key, and the session if the workflow id contains it, by the workflow's run id.
    """

    def __init__(self) -> None:
        self._size = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.records: Recent[tuple[str, int], TurnRecord] = Recent()
        self.results: Recent[tuple[str, str], WrittenOutcome] = Recent()
        self.facts: Recent[str, Mapping[str, Any]] = Recent()
        self.without_context: Recent[str, bool] = Recent()
        self.located: Recent[str, Located] = Recent()

    def take(self, session_id: str) -> Kept | None:
        """Return the transcript of a session, and remove it from the cache: the caller may change it."""
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            self._size -= kept.size
        return kept

    def keep(self, transcript: Kept) -> None:
        self.take(transcript.session.id)
        self._kept[transcript.session.id] = transcript
        self._size += transcript.size
        while self._size > LIMIT:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size

    def forget(self, run: str) -> None:
        """Drop cached data of a run that the store may have lost."""
        for known in [key for key in self.records if key[0] == run]:
            del self.records[known]
        self.results.clear()

    def keep_result(self, scope: str, call_key: str, written: WrittenOutcome, size: int) -> None:
        if size <= LONGEST:
            self.results[scope, call_key] = written


class RunRecords:
    """The records of runs in a worker's store.

    Attributes:
        epoch: of the store; see `restored_stores`.
    """

    def __init__(self, store: DurableStore) -> None:
        self._store, self.cache, self.epoch = store, TranscriptCache(), 0

    async def located(self, reference: LocatedT) -> LocatedT:
        """Return a reference with its session and journal key; a history has them only if its ids do not include them.

        A run that continues as new passes its journal key to its first activity, which keeps it under the workflow's
        run id.
        """
        info, told = activity.info(), cast(Located, reference).get("run")
        here = info.workflow_run_id or ""
        known = self.cache.located.get(here)
        if known is None:
            run = told or await self._store.load_reply(f"{here}/run", 0) or here
            if "input" not in reference:  # it is open, and its store has the record
                await self.check_run(run)
            if told is not None and told != here:
                if has_deletion(self._store):  # of that record alone; its run is noted with its session
                    of = NotedRun(journal_key=here, namespace=info.namespace, workflow_id=info.workflow_id or "")
                    await self._store.note_run(of)
                await self._store.save_reply(f"{here}/run", 0, told)
            known = Located(run=run)
            session = names.session_of(info.workflow_type or "", info.workflow_id or "")
            if session is not None:
                known["session"] = session
            self.cache.located[here] = known
        return cast(LocatedT, {**known, **reference})

    async def check_run(self, run: str) -> str:
        """Return what was recorded when a run was opened.

        Raises:
            SessionStoreError: nothing was recorded, so this worker has another store than the run.
            SessionConflictError: the run's session was deleted since.
        """
        opened = await self._store.load_reply(f"{run}/open", 0)
        if opened is None:
            raise SessionStoreError(
                f"Run {run} is not in the store {await self._store.identity()} ({self._store!r}) of this worker: it "
                "was opened with another one, or the store was restored from a backup that is older than the run. "
                "The run continues on a worker whose store still has it"
            )
        return not_deleted(run, opened)

    async def load_kept(self, run: str, turn: int) -> str:
        """Return the stored record of a turn.

        Raises:
            StoreBehindError: there is none, so the store has lost it.
        """
        kept = await self._store.load_reply(run, turn)
        if kept is None:
            raise await self.behind(run, f"its turn {turn} is missing")
        return kept

    async def behind(self, run: str, what: str) -> StoreBehindError:
        """Return the error of a store that is behind a run, and begin a new epoch of the store, unless one has begun.

        Args:
            what: the data that the run knows and the store lacks.

        Raises:
            StandfastError: the run has another store, or its records were deleted.
        """
        self.cache.forget(run)
        await self.check_run(run.partition("/")[0])
        survived = await self._last_record(run)
        if (0 if survived is None else survived.epoch) >= await current_epoch(self._store):
            self.epoch = await begin_epoch(self._store)
            _LOG.error("The store %r is behind run %s: %s", self._store, run, what)
        return StoreBehindError(
            f"The store {self._store!r} is older than run {run}: {what}. It was restored from a backup, or has lost "
            "writes. Restore a newer copy, and the run continues automatically. Or accept the loss: abort the run "
            "(resume with the action abort), and start its session again, which continues from the stored data. Calls "
            "that the store knows nothing of are then reported to the model as calls with an unknown outcome, and are "
            "not repeated"
        )

    async def _last_record(self, run: str) -> TurnRecord | None:
        """Return the record of the last stored turn of a run."""
        last, turn = None, 1
        while (kept := await self._store.load_reply(run, turn)) is not None:
            last, turn = (turn, kept), turn + 1
        return None if last is None else read_record(run, *last)

    async def record_of(self, reference: CallReference) -> TurnRecord:
        """Return the record of a turn, or of a pipeline's step that calls a tool."""
        run = reference["run"]
        if "path" in reference:
            place = step_place(run, reference["path"])
            return read_record(place, 0, await self.load_kept(place, 0))
        return await self.load_record(run, reference["turn"])

    async def load_record(self, run: str, turn: int) -> TurnRecord:
        """Return the record of a turn."""
        known = self.cache.records.get((run, turn))
        if known is None:
            known = read_record(run, turn, await self.load_kept(run, turn))
        return known

    async def load_opened(self, run: str) -> JSONObject:
        """Return the facts that steer a run, as recorded when the run was opened."""
        opened = read_kept_object("what steers this run", await self.check_run(run))
        self.note_context(run, opened)
        return opened

    def note_context(self, run: str, opened: Mapping[str, Any]) -> None:
        """Note whether a run was opened without a context, which then need not be looked up again."""
        if not opened.keys() & {"context", "context_before"}:
            self.cache.without_context[run] = True

    async def load_context(self, agent: Agent, run: str, turn: int | None = None) -> str | None:
        """Return the context of a run, as recorded when the run was opened; None if the agent has none.

        Args:
            turn: of a call. An earlier run asked for the calls of turn 0, in its own context.
        """
        if agent.context is None or run in self.cache.without_context:
            return None
        opened = await self.load_opened(run)
        return (opened.get("context_before") if turn == 0 else None) or opened.get("context")


def not_deleted(run: str, opened: str) -> str:
    """Return what was recorded when a run was opened.

    Raises:
        SessionConflictError: its session was deleted since, so the run does not continue, and begins nothing new.
    """
    if opened == DELETED:
        raise SessionConflictError(f"The session of run {run} was deleted; start another run")
    return opened
