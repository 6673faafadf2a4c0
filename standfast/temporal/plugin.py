"""Turns any Temporal worker into one that runs agents: adds workflow types, activities and the converter."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import ReplayerConfig, Worker, WorkerConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from standfast.agents import LANES, Agent, ForeignAgent, Lane
from standfast.checkpoints import CheckpointKey, check_key
from standfast.errors import DefinitionError, InputError
from standfast.llm import LLM
from standfast.pipelines import Pipeline
from standfast.stores import SQLiteStore
from standfast.stores.protocol import has_partial_answers
from standfast.temporal.activities.gates.gate_activities import GateActivities
from standfast.temporal.activities.gates.posted_messages import PostedMessages
from standfast.temporal.activities.gates.webhooks import NoticeActivities, Webhook, bots_of, check_webhooks
from standfast.temporal.activities.models.model_activities import ModelActivities
from standfast.temporal.activities.runs.pipeline_activities import PipelineActivities
from standfast.temporal.activities.runs.run_activities import BoardActivities, ExportActivities, RunActivities
from standfast.temporal.activities.runs.stretches import Stretches
from standfast.temporal.activities.sessions.message_activities import SaidActivities
from standfast.temporal.activities.sessions.session_activities import SessionActivities
from standfast.temporal.activities.tools.tool_activities import ToolActivities
from standfast.temporal.activities.tools.toolsets import OpenToolsets
from standfast.temporal.activities.worker.activity_guards import HEARTBEAT_EVERY
from standfast.temporal.activities.worker.agent_host import AgentHost
from standfast.temporal.activities.worker.dead_workers import watch_for_lost_calls
from standfast.temporal.client.board.boards import keeping_board
from standfast.temporal.client.board.search_attributes import register_attributes
from standfast.temporal.client.converters import DATA_CONVERTER, client_of_worker, of_worker
from standfast.temporal.client.queues.queue_stores import check_queue, watching_queue
from standfast.temporal.client.queues.retention import check_retention, keeping_for
from standfast.temporal.client.starts import check_new
from standfast.temporal.wire.snapshots import GRACE
from standfast.temporal.workflows.run.agent_workflows import AgentRun
from standfast.temporal.workflows.run.pipeline_workflows import PipelineRun
from standfast.temporal.workflows.run.workflow_types import Unknown, workflow_type
from standfast.temporal.workflows.sdk.query_order import keep_order_beside_queries
from standfast.temporal.workflows.sdk.tolerant_runner import AgentWorkflowRunner
from standfast.temporal.workflows.sdk.worker_internals import add_activity, default_build_id, end_unstarted
from standfast.tools import Duration
from standfast.tools.checks import check_choice

DRAIN = 30.0  # seconds that a stopping worker allows for current work


async def check_machine(store: Any, client: Client) -> None:
    """Refuse a store that only this machine sees if other machines may reach the server.

    Workers elsewhere would have different files: they would begin sessions again, and repeat work.

    Raises:
        InputError: with advice.
    """
    target = client.service_client.config.target_host
    if not isinstance(store, SQLiteStore) or await asyncio.to_thread(_is_here, target):
        return
    raise InputError(
        f"{store!r} is a file on this machine, but the Temporal server {target} is not on it: workers on other "
        "machines would not see its sessions, and would run calls again. Use one store for all, such as "
        "postgres_store(…), or declare that all workers run here: single_machine=True"
    )


def _is_here(target: str) -> bool:
    """Whether an address belongs to this machine, so that a socket can bind it. An unknown address may belong to it."""
    host = target.rpartition(":")[0].strip("[]") or target
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return True  # the server is reached by other means, such as a name that only the SDK resolves
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: Any) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind(address)
        except OSError:
            return False
        return True


class StandfastPlugin(SimplePlugin):
    """Pass it to a `Worker` (or to the `Client` of the worker).

    Args:
        agents: each becomes a workflow type under its own name; agents among their tools must also be given. Agents of
            other frameworks are accepted; see `standfast.integrations`.
        pipelines: likewise; the agents of their steps must be given.
        store: a durable one, the same for all workers of these agents.
        llm: an adapter, or a function from an agent's `model` to one.
        tools: handlers by tool name, for tools declared without one.
        max_stored_messages: a session is pruned to this number of messages at the end of a run.
        webhooks: the addresses that are notified of waiting items, each a `Webhook`; the same for all workers.
        stream: models stream their answers, and the store passes the words on to viewers, such as the page. Histories
            contain no streamed words.
        store_patience: how long an activity waits for a store that refuses before people see the wait.
        checkpoint_key: a secret, as in `run`: exports are signed with it, and no other checkpoint begins a run.
        retention: the minimum time for which the store keeps calls, replies and partial answers of runs that Temporal
            has forgotten; a worker deletes older ones. None keeps them until `standfast store prune`.
        lane: of agents without their own; see `Agent`.
        single_machine: all workers run on this machine, although the Temporal server does not: otherwise a SQLite file
            is refused.

    Raises:
        DefinitionError: naming the agent or tool that is missing or duplicated.
        MemoryStoreNotDurableError: the store loses all data with its process.
        InputError: an agent's model is missing.
    """

    def __init__(
        self,
        *,
        agents: Iterable[Agent | ForeignAgent] = (),
        pipelines: Iterable[Pipeline] = (),
        store: Any,
        llm: LLM | None = None,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        max_stored_messages: int = 200,
        webhooks: Iterable[Webhook] = (),
        stream: bool = False,
        store_patience: Duration = "30s",
        checkpoint_key: CheckpointKey | None = None,
        retention: Duration | None = None,
        lane: Lane = "each",
        single_machine: bool = False,
    ) -> None:
        """Validate the class's arguments, and prepare the worker's parts."""
        self._single_machine, self._retention = single_machine, check_retention(retention, store)
        told, key = check_webhooks(webhooks), check_key(checkpoint_key)
        self._host = host = AgentHost(
            agents, pipelines, store, llm, dict(tools or {}), max_stored_messages, store_patience, key
        )
        self._posted = posted = PostedMessages(host.store, bots_of(told))
        tools_of = ToolActivities(host)
        self._toolsets = OpenToolsets(host, tools_of.activity)
        models = ModelActivities(host)
        parts = (
            RunActivities,
            SessionActivities,
            SaidActivities,
            ExportActivities,
            partial(PipelineActivities, check_new=check_new),
            GateActivities,
            partial(BoardActivities, posted=posted),
        )
        activities = [each for part in parts for each in part(host).all()]
        activities += [*models.all(), *Stretches(host, models, tools_of).all()]
        activities += [*tools_of.all(), *NoticeActivities(told, posted, host.store).all()]
        check_choice("lane", lane, LANES)
        host.notices, host.lane = bool(told), lane
        host.stream = _checked_stream(stream, store)
        super().__init__(
            "standfast.StandfastPlugin",
            data_converter=_converter,
            workflows=partial(
                _with_ours,
                [
                    *(workflow_type(AgentRun, name) for name in host.catalogue.agents),
                    *(workflow_type(PipelineRun, name) for name in host.catalogue.pipelines),
                ],
            ),
            activities=activities,
            workflow_runner=_runner,
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Add standfast's workflows and activities; the user's settings stay."""
        config = super().configure_worker(config)
        config["client"] = client_of_worker(config["client"])
        catalogue = self._host.catalogue
        longest = max(
            (catalogue.facts[name].timeout for name, tool in catalogue.tools.items() if tool.timeout),
            default=0.0,
        )
        ours: dict[str, tuple[Any, Any]] = {
            "graceful_shutdown_timeout": (timedelta(), timedelta(seconds=max(DRAIN, longest + GRACE))),
            "sticky_queue_schedule_to_start_timeout": (timedelta(seconds=10), timedelta(seconds=2)),
            "max_heartbeat_throttle_interval": (timedelta(seconds=60), timedelta(seconds=HEARTBEAT_EVERY)),
            # Otherwise the worker refuses to send data that the server would refuse, and the task is retried for ever:
            # an update of 3 MB, whose refusal repeats it, would wedge a run.
            "disable_payload_error_limit": (False, True),
            "max_eager_activity_reservations_per_workflow_task": (3, 16),
        }
        for name, (usual, value) in ours.items():
            if config.get(name, usual) == usual:
                config[name] = value  # type: ignore[literal-required]
        config["unsandboxed_workflow_runner"] = AgentWorkflowRunner(
            config.get("unsandboxed_workflow_runner"), config["workflows"]
        )
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Replay as a worker would run."""
        config = super().configure_replayer(config)
        config["data_converter"] = of_worker(config["data_converter"])
        config["unsandboxed_workflow_runner"] = AgentWorkflowRunner(
            config.get("unsandboxed_workflow_runner"), config["workflows"]
        )
        return config

    async def check_store(self, client: Client) -> None:
        """Check whether the store can be used with a server, as each worker does before it takes runs.

        Raises:
            StoreError: it cannot be used.
            InputError: it is a file that workers on other machines would not see.
        """
        if not self._single_machine:
            await check_machine(self._host.store, client)
        await self._host.check_store()

    async def check_queue(self, client: Client, task_queue: str, *, note: bool = True) -> None:
        """Check whether the workers of a task queue have this store, as each worker does before it takes runs.

        The first worker of a queue records its store in Temporal.

        Args:
            note: False only checks. A repeated check must not take a queue that is being moved.

        Raises:
            SessionStoreError: they have another store.
        """
        await check_queue(client, task_queue, self._host.store, note=note)

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002
        """Run the worker with a thread for handlers, and watch for calls of dead workers.

        Raises:
            StoreError: the store cannot be used; no run was taken.
            InputError: the store is a file that workers on other machines would not see.
            SessionStoreError: the workers of the task queue have another store; no run was taken.
        """
        client, task_queue = worker.client, worker.task_queue
        try:
            await self.check_store(client)
            await self.check_queue(client, task_queue)
        except BaseException:
            end_unstarted(worker)
            raise
        self._host.search, self._host.build = await register_attributes(client), _build_of(worker)
        keep_order_beside_queries(worker)
        misplaced = self._host.misplaced
        async with (
            self._host.serving(),
            watch_for_lost_calls(client, self._host),
            watching_queue(client, task_queue, self._host.store, misplaced),
            keeping_for(client, self._host.store, self._retention),
            keeping_board(client, self._host.store),
            self._posted.looking(client),
            self._toolsets.serving(partial(add_activity, worker)),
        ):
            await next(worker)


def _build_of(worker: Worker) -> str:
    """Return an identifier of a worker's code: the user's build id, or the SDK's digest of modules."""
    config = worker.config()
    deployment = config.get("deployment_config")
    if deployment is not None:
        return deployment.version.build_id
    return config.get("build_id") or default_build_id()


def _checked_stream(stream: bool, store: Any) -> bool:
    if stream and not has_partial_answers(store):
        raise DefinitionError(f"stream: {store!r:.80} cannot keep partial answers; see standfast.stores.PartialAnswers")
    return stream


def _with_ours(ours: Sequence[type], given: Sequence[type] | None) -> list[type]:
    """Add standfast's workflows, and a type for the runs of all others, unless the user has one."""
    workflows = [*(given or ()), *ours]
    if any(workflow._Definition.must_from_class(known).name is None for known in workflows):
        return workflows
    return [*workflows, Unknown]


def _converter(given: DataConverter | None) -> DataConverter:
    """Use pydantic's payloads, unless the user has chosen otherwise."""
    return DATA_CONVERTER if given in (None, DataConverter.default, pydantic_data_converter) else given


def _runner(given: WorkflowRunner | None) -> WorkflowRunner:
    """Let the sandbox of users' own workflows import standfast once, and not again for each of them."""
    if not isinstance(given, SandboxedWorkflowRunner):
        return given or SandboxedWorkflowRunner()
    return replace(given, restrictions=given.restrictions.with_passthrough_modules("standfast", "pydantic"))
