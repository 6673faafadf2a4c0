"""The host of a worker's activities: its agents, their tools and models, its store and cache, and its name."""

import base64
import contextlib
import itertools
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, cast
from uuid import uuid4

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.agents import ACCEPTED, Agent, ForeignAgent, Loop, adopted
from standfast.agents.samplers import with_samplers
from standfast.errors import DefinitionError, SessionConflictError, SessionStoreError, StoreBehindError
from standfast.llm import LLM, LLMAdapter, ToolDescription, tools_to_descriptions
from standfast.llm.providers import named
from standfast.messages import with_article
from standfast.pipelines import Pipeline
from standfast.runtime.repeating import retry_write
from standfast.runtime.restored_stores import begin_epoch, current_epoch, note_place
from standfast.stores.deletion import DELETED, NotedRun
from standfast.stores.kept_values import read_kept_object
from standfast.stores.protocol import RunningCall, Session, durable_store, has_deletion, has_waits
from standfast.temporal.activities.tools.handler_threads import HandlerThread
from standfast.temporal.wire import names
from standfast.temporal.wire.activity_types import CallReference, Located, WrittenOutcome
from standfast.temporal.wire.snapshots import Surroundings, ToolFacts, tool_facts
from standfast.temporal.wire.turn_records import CalledTool, TurnRecord, read_record, step_place
from standfast.tools import Duration, Tool, check_count, seconds

T = TypeVar("T")
LocatedT = TypeVar("LocatedT", bound=Located)

_LOG = logging.getLogger("standfast")

TRIES = 4  # to reach a worker that has an activity's agent and tool

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
        located: the journal key, and the session if the workflow id contains it, by the workflow's run id.
    """

    def __init__(self) -> None:
        self._size = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.records: Recent[tuple[str, int], TurnRecord] = Recent()
        self.results: Recent[tuple[str, str], WrittenOutcome] = Recent()
        self.facts: Recent[str, Mapping[str, Any]] = Recent()
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


class AgentHost:
    """The agents of one worker.

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
        self.agents: dict[str, Agent] = {}
        if isinstance(agents, Agent):
            raise DefinitionError("agents must be a list of agents")
        for given in map(adopted, agents):
            if not isinstance(given, Agent):
                raise DefinitionError(f"agents: {given!r:.80} is not {ACCEPTED}")
            for name, agent in with_samplers(given):  # runs continue under their agent's former name
                if name in self.agents:
                    raise DefinitionError(f"agents: two are named '{name}'")
                self.agents[name] = agent
        self.given = dict(self.agents)  # as passed in, without the tools of their toolsets
        self.tools: dict[str, Tool[..., Any]] = {}
        self.facts: dict[str, ToolFacts] = {}  # of tools, by name
        self.called: dict[Agent, dict[str, CalledTool]] = {}  # the records of turns, by agent and tool
        self.descriptions: dict[Agent, Sequence[ToolDescription]] = {}  # of tools, by agent
        self._handlers = handlers
        for agent in self.agents.values():
            self._check_handoffs(agent)
            self.add_tools(agent)
        self.pipelines: dict[str, Pipeline] = {}
        if isinstance(pipelines, Pipeline):
            raise DefinitionError("pipelines must be a list of pipelines")
        for pipeline in pipelines:
            self._add_pipeline(pipeline, handlers)
        if missing := sorted(handlers.keys() - self.tools.keys()):
            raise DefinitionError(f"tools: no agent has a tool named '{missing[0]}'")
        self._llm = llm
        self._check_models(llm)
        check_count("max_stored_messages", max_stored_messages, 1)
        self.max_stored_messages = max_stored_messages
        self.store_patience = seconds(store_patience, "store_patience")  # an activity waits for the store, unseen
        self._adapters: dict[tuple[str, str | None], LLMAdapter] = {}
        self.cache = TranscriptCache()
        self.thread: HandlerThread  # while a worker serves
        self._workers = 0
        self._start, self._attempts = uuid4().hex, itertools.count()
        self.in_hand: set[bytes] = set()  # the task tokens of activities that run
        self.scope = ""  # of the store's holds
        self.epoch, self._has_noted_place = 0, False  # of the store; see `restored_stores`
        self.is_known = False  # the worker holds its name, so that other workers can tell whether it is alive
        self.search, self.build = False, ""  # the build of the code distinguishes a deploy from a restart
        self.stream = False  # models stream their answers, for viewers
        self.notices = False  # the worker has webhooks
        self.waits: dict[str, str] = {}  # by the name of an agent that is not served yet: the reason
        self.misplaced: dict[str, str] = {}  # by task queue: the reason why its runs must not be opened with this store

    @property
    def worker(self) -> str:
        """A new name for every start of a process: its holder is alive, and no other worker takes it over."""
        return f"worker_{socket.gethostname()[:64]}_{os.getpid()}_{self._start[:12]}_{self.scope}"

    @property
    def surroundings(self) -> Surroundings:
        """The facts that a run needs to know about its namespace and its worker."""
        found: Surroundings = {"search": self.search, "receipts": True, "wakes": True, "attaches": True}
        if has_waits(self.store):
            found["board"] = True
        return {**found, "notices": True} if self.notices else found

    def _check_models(self, llm: LLM | None) -> None:
        for agent in self.agents.values():
            for model in (None, *agent.fallback_models):
                named(llm, agent, model)

    async def check_store(self) -> None:
        """Write to the store, so that a worker whose store is not writable does not take runs.

        Raises:
            StoreError: it cannot be written to.
        """
        await retry_write(partial(self.store.end_call, self.worker), tries=3)  # an unknown call: nothing changes
        self.epoch = await current_epoch(self.store)

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

    def _add_pipeline(self, pipeline: Pipeline, handlers: Mapping[str, Callable[..., Any]]) -> None:
        if not isinstance(pipeline, Pipeline):
            kind = with_article(type(pipeline).__name__)
            raise DefinitionError(f"pipelines: expected a Pipeline, got {kind}; end a builder with .build()")
        for name in pipeline.names:
            if name in self.pipelines or name in self.agents:
                raise DefinitionError(f"pipelines: two workflows are named '{name}'")
            self.pipelines[name] = pipeline
        for step in pipeline.every_step():
            if step.agent is not None and self.agents.get(step.agent.name) is not step.agent:
                raise DefinitionError(
                    f"Pipeline '{pipeline.name}' uses the agent '{step.agent.name}', which agents= does not give"
                )
            if step.run is not None:
                self._add_tool(f"Pipeline '{pipeline.name}'", step.run, handlers)

    def _check_handoffs(self, agent: Agent) -> None:
        for target in agent.handoffs:
            name = target if isinstance(target, str) else target.name
            if (self.given.get(name) is not target) if isinstance(target, Agent) else name not in self.given:
                raise DefinitionError(f"Agent '{agent.name}' hands over to '{name}', which agents= does not give")

    def add_tools(self, agent: Agent) -> None:
        children = {item.name: item for item in agent.tools if isinstance(item, Agent)}
        also = {item.name: item for toolset in agent.toolsets for item in toolset.agents}
        for name, child in {**also, **children}.items():
            if self.given.get(name) is not child:
                raise DefinitionError(f"Agent '{agent.name}' uses the agent '{name}', which agents= does not give")
        for name, tool in agent.tool_map.items():
            if name not in children:
                self._add_tool(f"Agent '{agent.name}'", tool, self._handlers)
        for speaker in {agent, *agent.speakers.values()}:
            within = {item.name for item in speaker.tools if isinstance(item, Agent)}
            known = speaker.tool_map.items()
            self.descriptions[speaker] = tools_to_descriptions(speaker.tool_map)
            self.called[speaker] = {name: CalledTool.of(tool, agent=name in within) for name, tool in known}

    def _add_tool(self, owner: str, tool: Tool[..., Any], handlers: Mapping[str, Callable[..., Any]]) -> None:
        name = tool.name
        if name == names.CALL_MODEL:
            raise DefinitionError(f"{owner}: a tool cannot be named {name!r}, an activity of standfast")
        given = tool.with_handler(handlers[name]) if name in handlers else tool
        if given.handler is None:
            raise DefinitionError(
                f"{owner}: its tool '{name}' has no handler; declare it with one, or give "
                f'tools={{"{name}": handler}} to the plugin'
            )
        known = self.tools.get(name)
        if known is not None and known is not tool and known.handler is not given.handler:
            raise DefinitionError(
                f"{owner}: another tool of this worker is also named '{name}'; on Temporal a tool's name is the "
                "name of its activity"
            )
        self.tools[name], self.facts[name] = given, tool_facts(given)

    def agent(self) -> Agent:
        """Return the agent of the workflow that runs this activity."""
        return self.here("agent", activity.info().workflow_type or "", self.agents)

    def speaker(self, name: str | None) -> Agent:
        """Return an agent of the conversation that the workflow's agent has begun, as it speaks there."""
        agent = self.agent()
        return agent.speaking(self.here("agent", name, {**agent.speakers, agent.name: agent}).name if name else "")

    def caller(self, name: str | None) -> Agent:
        """Return the caller of a tool: the agent that asks for it, or the pipeline as an agent of its name."""
        of = activity.info().workflow_type or ""
        return Agent(of) if of in self.pipelines else self.speaker(name)

    def pipeline(self) -> Pipeline:
        """Return the pipeline of the workflow that runs this activity."""
        return self.here("pipeline", activity.info().workflow_type or "", self.pipelines)

    @property
    def max_message_bytes(self) -> int:
        """The agent's limit; the default if this worker does not have the agent."""
        agent = self.agents.get(activity.info().workflow_type or "")
        return (Loop() if agent is None else agent.loop).max_message_bytes

    def tool(self, name: str) -> Tool[..., Any]:
        return self.here("tool", name, self.tools)

    def here(self, kind: str, name: str, known: Mapping[str, T]) -> T:
        if name in known:
            return known[name]
        usual = f"This worker has no {kind} '{name}'; it has {', '.join(known) or 'none'}"
        raise self.not_here(name, self.waits.get(name, usual))

    def not_here(self, name: str, text: str, *, step: str | None = None) -> ApplicationError:
        """Return the error of an activity that needs an agent, tool or step that this worker does not have.

        The error is not final: another worker of the queue may have it, or this one after the next deploy.
        """
        info = activity.info()
        return ApplicationError(
            text,
            {"name": name, "step": step, **self.surroundings},
            type=names.NOT_HERE,
            category=ApplicationErrorCategory.BENIGN,  # not worth a traceback at every attempt
            next_retry_delay=timedelta(seconds=min(0.25 * info.attempt, 5)),
            # Then the run itself waits, so that people see it.
            non_retryable=info.attempt >= TRIES and info.activity_type not in (names.OPEN, names.OPEN_PIPELINE),
        )

    def adapter(self, agent: Agent, model: str | None) -> LLMAdapter:
        """Return the adapter for an agent, or for the model that a person chose instead of its own."""
        if agent.adapter is not None:
            return named(None, agent, model)
        if self._llm is not None:
            return self._llm if hasattr(self._llm, "chat") else named(self._llm, agent, model)
        key = (agent.name, model)
        if key not in self._adapters:  # provider adapters are made once
            self._adapters[key] = named(None, agent, model)
        return self._adapters[key]

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
            worker=self.worker,
            task_token=base64.b64encode(info.task_token).decode(),
            workflow_id=info.workflow_id or "",
            run_id=info.workflow_run_id or "",
        )

    def has_in_hand(self, call: RunningCall) -> bool:
        """Whether this worker still runs the activity of a call."""
        return base64.b64decode(call.task_token) in self.in_hand

    # --- records that activities leave for each other ---

    async def located(self, reference: LocatedT) -> LocatedT:
        """Return a reference with its session and journal key; a history has them only if its ids do not include them.

        A run that continues as new passes its journal key to its first activity, which keeps it under the workflow's
        run id.
        """
        info, told = activity.info(), cast(Located, reference).get("run")
        here = info.workflow_run_id or ""
        known = self.cache.located.get(here)
        if known is None:
            run = told or await self.store.load_reply(f"{here}/run", 0) or here
            if "input" not in reference:  # it is open, and its store has the record
                await self.check_run(run)
            if told is not None and told != here:
                if has_deletion(self.store):  # of that record alone; its run is noted with its session
                    of = NotedRun(journal_key=here, namespace=info.namespace, workflow_id=info.workflow_id or "")
                    await self.store.note_run(of)
                await self.store.save_reply(f"{here}/run", 0, told)
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
        opened = await self.store.load_reply(f"{run}/open", 0)
        if opened is None:
            raise SessionStoreError(
                f"Run {run} is not in the store {await self.store.identity()} ({self.store!r}) of this worker: it "
                "was opened with another one, or the store was restored from a backup that is older than the run. "
                "The run continues on a worker whose store still has it"
            )
        return not_deleted(run, opened)

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

    async def load_kept(self, run: str, turn: int) -> str:
        """Return the stored record of a turn.

        Raises:
            StoreBehindError: there is none, so the store has lost it.
        """
        kept = await self.store.load_reply(run, turn)
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
        if (0 if survived is None else survived.epoch) >= await current_epoch(self.store):
            self.epoch = await begin_epoch(self.store)
            _LOG.error("The store %r is behind run %s: %s", self.store, run, what)
        return StoreBehindError(
            f"The store {self.store!r} is older than run {run}: {what}. It was restored from a backup, or has lost "
            "writes. Restore a newer copy, and the run continues automatically. Or accept the loss: abort the run "
            "(resume with the action abort), and start its session again, which continues from the stored data. Calls "
            "that the store knows nothing of are then reported to the model as calls with an unknown outcome, and are "
            "not repeated"
        )

    async def _last_record(self, run: str) -> TurnRecord | None:
        """Return the record of the last stored turn of a run."""
        last, turn = None, 1
        while (kept := await self.store.load_reply(run, turn)) is not None:
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

    async def load_opened(self, run: str) -> dict[str, Any]:
        """Return the facts that steer a run, as recorded when the run was opened."""
        return read_kept_object("what steers this run", await self.check_run(run))

    async def load_context(self, agent: Agent, run: str, turn: int | None = None) -> str | None:
        """Return the context of a run, as recorded when the run was opened; None if the agent has none.

        Args:
            turn: of a call. An earlier run asked for the calls of turn 0, in its own context.
        """
        if agent.context is None:
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
