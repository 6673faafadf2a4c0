"""The host of a worker's activities: its catalogue, records, name and thread of handlers.

User code runs on one long-lived event loop, in that thread. A handler that blocks the worker's loop would stop its
heartbeats, and the server would treat live calls as lost (measured: 4 of 4). One loop serves all handlers for as long
as the worker lives. Database and HTTP clients belong to the loop on which they were made.
"""

import asyncio
import base64
import contextlib
import contextvars
import itertools
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from standfast.agents import ACCEPTED, Agent, ForeignAgent, Lane, Loop, adopted
from standfast.errors import DefinitionError, SessionStoreError
from standfast.llm import LLM, LLMAdapter, ToolDescription, tools_to_descriptions
from standfast.llm.providers import named
from standfast.messages import with_article
from standfast.pipelines import Pipeline
from standfast.runtime.restored_stores import current_epoch, note_place
from standfast.runtime.tasks import retry_write
from standfast.stores.protocol import RunningCall, durable_store, has_waits
from standfast.temporal.activities.worker.run_records import RunRecords
from standfast.temporal.wire import names
from standfast.temporal.wire.snapshots import Surroundings, ToolFacts, tool_facts
from standfast.temporal.wire.turn_records import CalledTool
from standfast.tools import Duration, Tool, check_count, seconds

T = TypeVar("T")


TRIES = 4  # to reach a worker that has an activity's agent and tool


class Catalogue:
    """The agents, pipelines, tools and models of one worker.

    Args:
        surroundings: returns the facts that a run needs about its namespace and its worker.

    Attributes:
        agents: by name, those that are served now.
        given: by name, as passed in, without the tools of their toolsets.
        facts: of tools, by name.
        called: the records of turns, by agent and tool.
        descriptions: of tools, by agent.
        waits: by the name of an agent that is not served yet: the reason.

    Raises:
        DefinitionError: naming the agent or tool that is missing or duplicated.
    """

    def __init__(
        self,
        agents: Iterable[Agent | ForeignAgent],
        pipelines: Iterable[Pipeline],
        llm: LLM | None,
        handlers: Mapping[str, Callable[..., Any]],
        surroundings: Callable[[], Surroundings],
    ) -> None:
        self._surroundings = surroundings
        self.agents: dict[str, Agent] = {}
        if isinstance(agents, Agent):
            raise DefinitionError("agents must be a list of agents")
        for given in map(adopted, agents):
            if not isinstance(given, Agent):
                raise DefinitionError(f"agents: {given!r:.80} is not {ACCEPTED}")
            for agent in (given, *dict.fromkeys(given.samplers.values())):
                self._add_agent(agent)
        self.given = dict(self.agents)
        self.tools: dict[str, Tool[..., Any]] = {}
        self.facts: dict[str, ToolFacts] = {}
        self.called: dict[Agent, dict[str, CalledTool]] = {}
        self.descriptions: dict[Agent, Sequence[ToolDescription]] = {}
        self.waits: dict[str, str] = {}
        self._handlers = handlers
        for agent in self.agents.values():
            self._check_handoffs(agent)
            self.add_tools(agent)
        self.pipelines: dict[str, Pipeline] = {}
        if isinstance(pipelines, Pipeline):
            raise DefinitionError("pipelines must be a list of pipelines")
        for pipeline in pipelines:
            self._add_pipeline(pipeline)
        if missing := sorted(handlers.keys() - self.tools.keys()):
            raise DefinitionError(f"tools: no agent has a tool named '{missing[0]}'")
        self._llm = llm
        self._check_models()
        self._adapters: dict[tuple[str, str | None], LLMAdapter] = {}

    def _add_agent(self, agent: Agent) -> None:
        for name in agent.names:  # runs continue under their agent's former name
            if name in self.agents:
                raise DefinitionError(f"agents: two are named '{name}'")
            self.agents[name] = agent

    def _check_models(self) -> None:
        for agent in self.agents.values():
            for model in (None, *agent.fallback_models):
                named(self._llm, agent, model)

    def _add_pipeline(self, pipeline: Pipeline) -> None:
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
                self._add_tool(f"Pipeline '{pipeline.name}'", step.run)

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
                self._add_tool(f"Agent '{agent.name}'", tool)
        for speaker in {agent, *agent.speakers.values()}:
            within = {item.name for item in speaker.tools if isinstance(item, Agent)}
            known = speaker.tool_map.items()
            self.descriptions[speaker] = tools_to_descriptions(speaker.tool_map)
            self.called[speaker] = {name: CalledTool.of(tool, agent=name in within) for name, tool in known}

    def _add_tool(self, owner: str, tool: Tool[..., Any]) -> None:
        name = tool.name
        if name == names.CALL_MODEL:
            raise DefinitionError(f"{owner}: a tool cannot be named {name!r}, an activity of standfast")
        given = tool.with_handler(self._handlers[name]) if name in self._handlers else tool
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
            {"name": name, "step": step, **self._surroundings()},
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


class HandlerThread:
    """A thread with an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="handlers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)  # a handler that blocks for ever must not keep the worker from exiting

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._run_until_stopped()
            for task in (tasks := asyncio.all_tasks(self._loop)):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _run_until_stopped(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):  # of a user function, whose caller gets the error
                continue
            return

    async def run(self, work: Coroutine[Any, Any, T], *, seconds: float | None = None) -> T:
        """Await a coroutine on the thread's loop. A cancel is passed on to the coroutine, and its end is awaited.

        Args:
            seconds: how long its end is awaited; then it is cancelled and abandoned, since it may ignore the cancel. A
                coroutine that could not begin because another blocks the thread does not begin later.

        Raises:
            asyncio.CancelledError: the coroutine was cancelled, and did not return a value despite that.
            RuntimeError: it raised an error that would end the worker.
            TimeoutError: it did not end in time.
        """
        here = asyncio.get_running_loop()
        ended: asyncio.Future[None] = here.create_future()
        until = None if seconds is None else here.time() + seconds
        context = contextvars.copy_context()
        task: asyncio.Task[T] | None = None

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(work, context=context)
            task.add_done_callback(end)

        def end(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # its loop was closed: nothing waits any more
                here.call_soon_threadsafe(tell)

        def tell() -> None:
            if not ended.done():
                ended.set_result(None)

        self._loop.call_soon_threadsafe(start)
        while not ended.done():
            try:
                await asyncio.wait({ended}, timeout=None if until is None else max(0.0, until - here.time()))
            except asyncio.CancelledError:
                self._loop.call_soon_threadsafe(lambda: task and task.cancel())
                continue
            if not ended.done():
                self._loop.call_soon_threadsafe(lambda: task and task.cancel())
                raise TimeoutError
        assert task is not None
        try:
            return task.result()
        except (KeyboardInterrupt, SystemExit) as error:  # signals sent by people come to the main thread
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def heartbeat_of(loop: asyncio.AbstractEventLoop) -> Callable[..., None]:
    """Return a function by which a handler sends heartbeats for its activity, from any thread."""
    context = contextvars.copy_context()

    def heartbeat(*details: Any) -> None:
        loop.call_soon_threadsafe(lambda: context.run(activity.heartbeat, *details))

    return heartbeat


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
        lane: of agents without their own.
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
        self.lane: Lane = "each"
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
