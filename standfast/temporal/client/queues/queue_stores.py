"""Records in Temporal which store a task queue's workers have, so that no worker with another store takes their runs.

The note is a workflow that never begins. Its id is derived from the queue, so only one of two workers that start at
once writes it. The note lasts for as long as the sessions may, even without workers, until an operator terminates it.
"""

import asyncio
import json
import logging
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

from temporalio.api.common.v1 import Memo, Payload, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import InputError, SessionStoreError
from standfast.runtime.tasks import repeating
from standfast.stores.protocol import DurableStore
from standfast.temporal.wire import names

_LOG = logging.getLogger("standfast")
LOOK_EVERY = 30.0  # seconds; one request, for a note that was removed or a server that has lost it
_MEMO = "store"
_LISTED_WITHIN = 2.0  # seconds; a note appears in the server's list a moment after it is written
_LISTED_EVERY = 0.1
_NAMED = 5  # stores in an error
_USUAL = ("localhost:7233", "127.0.0.1:7233")  # of the `temporal` command
_NEVER = timedelta(days=36_500)  # without a delay its first task would be a backlog, and backlogs raise alarms


async def check_queue(client: Client, task_queue: str, store: DurableStore, *, note: bool = True) -> None:
    """Check that a queue has this store.

    Args:
        note: records the store if the queue has none yet.

    Raises:
        SessionStoreError: the queue has another.
    """
    try:
        if note:
            await _note(client, task_queue, await store.identity())
        await check_noted(client, task_queue, store)
    except RPCError as error:  # such as a worker that may start no workflows
        level = logging.WARNING if note else logging.DEBUG  # once, and not at every check
        _LOG.log(level, "Workers with another store would go unnoticed on queue %s: %s", task_queue, error.message)


@asynccontextmanager
async def watching_queue(
    client: Client, task_queue: str, store: DurableStore, misplaced: dict[str, str]
) -> AsyncIterator[None]:
    """Check from time to time whether the queue still has this store; if not, put the reason into `misplaced`."""
    misplaced.pop(task_queue, None)

    async def look() -> None:
        try:
            await check_noted(client, task_queue, store)
        except SessionStoreError as error:
            if task_queue not in misplaced:
                _LOG.error("%s", error)
            misplaced[task_queue] = str(error)
        else:
            misplaced.pop(task_queue, None)

    failed = f"The store of queue {task_queue} could not be looked up"
    async with repeating(look, LOOK_EVERY, failed, first=LOOK_EVERY, expected=RPCError):
        yield


async def _note(client: Client, task_queue: str, identity: str) -> None:
    """Record the store of a queue that has none yet."""
    request = StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=names.queue_store_id(task_queue),
        workflow_type=WorkflowType(name=names.QUEUE_STORE),
        task_queue=TaskQueue(name=names.QUEUE_STORE),  # which no worker polls
        identity=client.identity,
        request_id=uuid4().hex,
        # Unencoded, whatever codec the client has: each worker must be able to read it.
        memo=Memo(fields={_MEMO: Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(identity).encode())}),
    )
    request.workflow_start_delay.FromTimedelta(_NEVER)
    try:
        await client.workflow_service.start_workflow_execution(request, retry=True)
    except RPCError as error:
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise


async def noted_store(client: Client, task_queue: str) -> str | None:
    """Return the identity of the store recorded for a queue; None if none is."""
    execution = WorkflowExecution(workflow_id=names.queue_store_id(task_queue))
    request = DescribeWorkflowExecutionRequest(namespace=client.namespace, execution=execution)
    try:
        found = await client.workflow_service.describe_workflow_execution(request, retry=True)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None
    info = found.workflow_execution_info
    if info.status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
        return None
    return _noted(info.memo)


async def noted_stores(client: Client) -> dict[str, str]:
    """Return the identity of the store recorded for each task queue of the namespace."""
    query = f"WorkflowType = '{names.QUEUE_STORE}' AND ExecutionStatus = 'Running'"
    found = {run.id.removeprefix(names.queue_store_id("")): run async for run in client.list_workflows(query)}
    noted = {queue: _noted(run.raw_info.memo) for queue, run in found.items()}
    return {queue: identity for queue, identity in noted.items() if identity is not None}


def _noted(memo: Memo) -> str | None:
    return str(json.loads(memo.fields[_MEMO].data)) if _MEMO in memo.fields else None


async def check_read_store(client: Client, store: DurableStore, where: str, task_queue: str | None = None) -> list[str]:
    """Check that a store is the workers' store, before it is read or written for people.

    Args:
        where: the store's address, for the error.
        task_queue: the queue whose workers have it; any queue of the namespace if None.

    Returns:
        The task queues whose workers have another store, so that their runs are not in this one.

    Raises:
        InputError: no worker has it, and workers have another.
    """
    identity = await store.identity()
    noted: dict[str, str] = {}
    for _ in range(round(_LISTED_WITHIN / _LISTED_EVERY)):
        if task_queue is None:
            noted = await noted_stores(client)
        elif (its := await noted_store(client, task_queue)) is not None:
            noted = {task_queue: its}
        if not noted or identity in noted.values():
            return sorted(queue for queue, other in noted.items() if other != identity)
        if task_queue is not None:
            break
        await asyncio.sleep(_LISTED_EVERY)
    others = ", ".join(f"{other} (task queue '{queue}')" for queue, other in sorted(noted.items())[:_NAMED])
    if (more := len(noted) - _NAMED) > 0:
        others += f" and those of {more} more task queues"
    raise InputError(
        f"{where} is the store {identity}, and the workers of namespace {client.namespace} have another one: {others}. "
        "Name theirs with --store or STANDFAST_STORE, or their application with --app"
    )


async def check_noted(client: Client, task_queue: str, store: DurableStore) -> None:
    """Check that a store is the one recorded for a queue, if there is one.

    Raises:
        SessionStoreError: the queue has another.
    """
    noted, identity = await noted_store(client, task_queue), await store.identity()
    if noted not in (None, identity):
        raise SessionStoreError(
            f"Task queue '{task_queue}' has the store {noted}, and this worker has another one, {identity} "
            f"({store!r}), where the queue's sessions would begin again. If this is another application, give it its "
            "own task queue (task_queue=, or --task-queue). Otherwise give it the queue's store. To move the queue to "
            f"the store {identity}, {how_to_move(client, task_queue)}"
        )


def how_to_move(client: Client, task_queue: str) -> str:
    """Return advice on moving a queue to the workers of another store."""
    where = "" if client.namespace == "default" else f"--namespace {shlex.quote(client.namespace)} "
    note, address = shlex.quote(names.queue_store_id(task_queue)), client.service_client.config.target_host
    at = "" if address in _USUAL else f" --address {shlex.quote(address)}"
    return f"stop all its workers and run: temporal workflow terminate {where}--workflow-id {note}{at}"
