"""Sends messages and decisions to runs, with any Temporal client. The `temporal` command can do all of this as well."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Unpack, overload
from uuid import uuid4

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from standfast.agent_loop import Decision
from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, PipelineResult, RunResult, StepResult, T
from standfast.durations import Duration
from standfast.errors import InputError, StandfastError
from standfast.events import Event
from standfast.messages import JSONObject, Tripped, Usage, check_message_id, explain
from standfast.pipeline_loop import typed_output
from standfast.pipelines import Branch, Pipeline, Stage
from standfast.runtime import outside_decisions
from standfast.runtime.inputs import Images
from standfast.runtime.retention import delete_session
from standfast.runtime.stored_gates import is_in_process
from standfast.stores.protocol import AgentStore, has_waits, session_key_of
from standfast.stores.waits import Board, WaitFilter, Waits
from standfast.temporal.client.board.boards import (
    WaitingFilters,
    WholeBoard,
    filter_of,
    kept_board,
    read_run,
    read_waiting,
)
from standfast.temporal.client.board.waiting_items import read_items, read_state, unreadable
from standfast.temporal.client.history.audits import Doing, OnRecord, do_on_record, doing_of, saying_who_was_first
from standfast.temporal.client.history.event_streams import RunEvents
from standfast.temporal.client.runs.descriptions import (
    NoWorkerError,
    answer,
    cancel_run,
    has_no_gates,
    listed,
    our_run,
    paused_by_operators,
    runs_query,
)
from standfast.temporal.client.runs.ended_runs import end_of
from standfast.temporal.client.runs.owners import Run
from standfast.temporal.client.sending import Signal, send
from standfast.temporal.client.starts import plain_images
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import check_sent_id
from standfast.temporal.wire.inputs import check_json, check_names
from standfast.tools.checks import seconds

_PATIENCE = timedelta(seconds=2)
_AT_ONCE = 32  # runs that are queried; with more, each answer would take too long


def run_result(agent: Agent[T], ended: Mapping[str, Any]) -> RunResult[T]:
    """Return the result of an agent's run. Its transcript is in the store.

    Raises:
        InputError: its answer does not fit the agent's `output`, or is too large to be in the result.
    """
    usage = None if ended["usage"] is None else Usage.model_validate(ended["usage"])
    output: Any = None
    if ended["status"] == "complete" and agent.output is not None:
        if "output" not in ended:
            why = f"its {ended['size']:,} bytes are" if "size" in ended else "it is"
            raise InputError(f"Session {ended['session_id']}: no output is in the result, {why} only in the store")
        try:
            output = agent.read_output(json.dumps(ended["output"]))
        except ValueError as error:
            raise InputError(f"Session {ended['session_id']}: the output does not match: {error}") from error
    place = Checkpoint(session_id=ended["session_id"], iterations=ended["iterations"], usage=usage or Usage())
    return RunResult(
        status=ended["status"],
        response=ended["response"],
        messages=(),
        iterations=ended["iterations"],
        checkpoint=place,
        session_id=ended["session_id"],
        usage=usage,
        output=output,
        error=ended.get("error"),
        tripped=None if "tripped" not in ended else Tripped(**ended["tripped"]),
    )


def pipeline_result(pipeline: Pipeline, ended: Mapping[str, Any]) -> PipelineResult:
    """Return the result of a pipeline's run.

    Raises:
        InputError: an output does not fit its present type, or they are together too large to be in the result.
    """
    if "left_out" in ended:
        raise InputError(ended["left_out"])
    stages = {stage.name: stage for stage in pipeline.stages}
    steps = {path: StepResult.model_validate(result) for path, result in ended["step_results"].items()}
    outputs = {
        name: typed_output(_chosen(stages[name], steps), value) if name in stages else value
        for name, value in ended["outputs"].items()
    }
    names = ("failed_step", "error_reason", "error", "run_key", "journal_key")
    more: dict[str, Any] = {name: ended.get(name) for name in names}
    return PipelineResult(status=ended["status"], step_results=steps, outputs=outputs, **more)


def _chosen(stage: Stage, steps: Mapping[str, StepResult]) -> Stage:
    """Return the step that a branch took, or any other stage itself."""
    if not isinstance(stage, Branch):
        return stage
    return next((step for step in stage.steps if f"{stage.name}/{step.name}" in steps), stage)


class RunsInProcess:
    """The in-process runs that have a store.

    Args:
        store: None if there is none; then there are no runs.
    """

    def __init__(self, store: object) -> None:
        self._store: Waits | None = store if has_waits(store) else None
        self._board = None if self._store is None else WholeBoard(self._store, on_temporal=False)

    async def waiting(self, wanted: WaitFilter, limit: int | None = None) -> list[JSONObject]:
        """Return their waiting items."""
        return [] if self._board is None else await read_waiting(self._board, wanted, limit=limit)

    async def pending(self, address: str) -> list[JSONObject]:
        """Return the waiting items of one run.

        Raises:
            InputError: the run does not exist.
        """
        board = await self.board(address)
        return await self.waiting(WaitFilter(namespace=board.namespace, workflow_id=address))

    async def board(self, address: str) -> Board:
        """Return the board of a run, which names its owner.

        Raises:
            InputError: the run does not exist.
        """
        if self._store is None:
            raise InputError(f"Run {address!r} is in a store: name it with --store, or give store=")
        return await outside_decisions.load_waiting(self._store, address)

    async def decide(self, address: str, decision: Mapping[str, Any]) -> None:
        """Record a decision; it takes effect when the run continues.

        Raises:
            InputError: it does not count.
            SessionConflictError: the run is active.
        """
        try:
            read = Decision.model_validate(decision)
        except ValidationError as error:
            raise InputError(f"decide: {explain(error)}") from error
        await outside_decisions.decide(self._store, address, read)


async def ask_all(client: Client, group: str | None, limit: int | None) -> list[JSONObject]:
    """Return the waiting items that the runs themselves report.

    Args:
        limit: the number of runs, the last started first; all if None.
    """
    query, few = runs_query(waiting=True, group=group), asyncio.Semaphore(_AT_ONCE)
    runs = [run.id async for run in client.list_workflows(query, limit=limit)]
    pending = await asyncio.gather(*(_pending_soon(client, run, few) for run in runs))
    return [{**item, "workflow_id": run} for run, items in zip(runs, pending, strict=True) for item in items]


async def _pending_soon(client: Client, workflow_id: str, few: asyncio.Semaphore) -> list[JSONObject]:
    """Query a run, but not for long: a queue without a worker must not hide the items of others."""
    try:
        async with few:
            return read_items(await answer(client, client.get_workflow_handle(workflow_id), names.PENDING, _PATIENCE))
    except InputError as error:
        return [unreadable(str(error))]
    except (RPCError, WorkflowQueryFailedError) as error:
        return [{"kind": "unreachable", "name": "", "message": f"no worker answers for this run: {error}"}]


class StandfastClient:
    """Sends messages to runs by their workflow ids; `StandfastClient(await connect())`.

    Every method that changes a run raises `InputError`, with the reason, if the change does not count. It raises
    `NotConfirmedError` if no worker has confirmed or refused the change in time. If a change is retried with the same
    `id`, it counts once.

    Args:
        store: the workers' store. Answers, messages, resumes, settlements and cancellations are put on its audit trail
            before they are done, and their outcome afterwards. An act that cannot be put there is not done, and raises
            `StoreError`. Decisions are recorded by the run itself.
        timeout: how long a worker may take to confirm a change, and to answer `status` and `pending`. Increase it where
            workers are slow or start late. `result` and `export` wait without a limit.
    """

    def __init__(self, client: Client, *, store: AgentStore | None = None, timeout: Duration = "10s") -> None:
        self.client, self._store, self._timeout = client, store, seconds(timeout, "StandfastClient: timeout")
        self._board: WholeBoard | None = None  # once it is known that the workers maintain it
        self.in_process = RunsInProcess(store)

    def run(self, workflow_id: str, run_id: str | None = None) -> Run:
        """Return the handle of a run, by default the last one of its workflow id."""
        return self.client.get_workflow_handle(workflow_id, run_id=run_id, result_type=JSONObject)

    @overload
    async def result(self, workflow_id: str, *, run_id: str | None = None) -> JSONObject: ...
    @overload
    async def result(self, workflow_id: str, of: Agent[T], *, run_id: str | None = None) -> RunResult[T]: ...
    @overload
    async def result(self, workflow_id: str, of: Pipeline, *, run_id: str | None = None) -> PipelineResult: ...
    async def result(self, workflow_id: str, of: Agent | Pipeline | None = None, *, run_id: str | None = None) -> Any:
        """Wait for a run's end and return its result.

        Args:
            of: the run's agent or pipeline: the result is then that of `run` or `run_pipeline`, with typed outputs. The
                transcript is in the store, so `messages` is empty. Without `of`, the result is plain JSON.

        Raises:
            StandfastError: it failed, or was cancelled or terminated.
            InputError: its output does not fit its type, or is only in the store.
        """
        try:
            ended = await end_of(self.client, workflow_id, run_id)
        except WorkflowFailureError as error:
            raise StandfastError(f"Run {workflow_id} failed: {error.cause}") from error
        match of:
            case Agent():
                return run_result(of, ended)
            case Pipeline():
                return pipeline_result(of, ended)
        return ended

    async def status(self, workflow_id: str, *, run_id: str | None = None) -> JSONObject:
        """Return the progress of a run, its waiting items, and the messages that it could not use."""
        return read_state(await self._query(workflow_id, names.STATUS, run_id))

    async def pending(self, workflow_id: str, *, run_id: str | None = None) -> list[JSONObject]:
        """Return the items of a run that wait for a person: kind, name, message, since, deadline.

        A user workflow does not have waiting items before it opens its first gate.
        """
        if is_in_process(workflow_id):
            return await self.in_process.pending(workflow_id)
        try:
            run = await our_run(self.client, workflow_id)
        except InputError:
            if not await has_no_gates(self.client, workflow_id):
                raise
            return []
        paused = paused_by_operators(run) if run_id in (None, run.run_id) else []
        if run_id in (None, run.run_id) and run.close_time is None and (shown := await self._on_board(run)) is not None:
            return [*shown, *paused]
        try:
            return [*read_items(await self._ask(workflow_id, names.PENDING, run_id)), *paused]
        except StandfastError:
            if not paused:
                raise
            return paused

    async def _on_board(self, run: WorkflowExecution) -> list[JSONObject] | None:
        """Return a run's items on the board; None if it does not write them there itself."""
        if (board := await self.board()) is None:
            return None
        return await read_run(board.store, self.client.namespace, run.id, run.raw_info.first_run_id or run.run_id)

    async def _query(self, workflow_id: str, name: str, run_id: str | None) -> Any:
        await our_run(self.client, workflow_id)
        return await self._ask(workflow_id, name, run_id)

    async def _ask(self, workflow_id: str, name: str, run_id: str | None) -> Any:
        try:
            return await answer(self.client, self.run(workflow_id, run_id), name, timedelta(seconds=self._timeout))
        except WorkflowQueryFailedError as error:
            raise StandfastError(f"Run {workflow_id} does not answer: {error}") from error
        except NoWorkerError as error:
            raise StandfastError(f"Run {workflow_id}: {error}") from error
        except RPCError as error:
            if error.status == RPCStatusCode.RESOURCE_EXHAUSTED:
                raise StandfastError(f"Run {workflow_id}: too many concurrent queries, try again later") from error
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                raise
            raise StandfastError(f"Run {workflow_id}: no worker has answered within {self._timeout:g} s") from error

    async def events(self, workflow_id: str, *, after: str | None = None) -> list[Event]:
        """Return the past events of a run, even after its end and without a worker.

        Args:
            after: as for `stream`.
        """
        return await RunEvents(self.client, self._store, workflow_id, after).so_far()

    async def stream(self, workflow_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield the past events of a run, then further events until its end; `RunEnded` is the last event.

        Leaving the iterator does not affect the run. With the workers' store (`store=`) and a worker that streams, the
        model's words arrive as `TextDelta`, without an id.

        Args:
            after: the id of an event: yields only later events, of the run that the event belongs to.

        Raises:
            InputError: the run or the event does not exist.
        """
        async with aclosing(RunEvents(self.client, self._store, workflow_id, after).follow()) as events:
            async for event in events:
                yield event

    async def waiting(
        self, *, limit: int | None = None, after: str | None = None, **filters: Unpack[WaitingFilters]
    ) -> list[JSONObject]:
        """Return the waiting items of the whole namespace, as `pending` does, each with its run.

        The item with the next deadline comes first. The items are read from the board in the workers' store, with or
        without a live worker. Without a store, or if the store lacks a board, each run is queried. Then the only filter
        is a group, and search attributes are needed.

        Args:
            limit: the number of items; without a board, the number of runs that are queried, the last started first.
                All if None.
            after: the `place` of the last item of the previous page.
            filters: see `WaitingFilters`.

        Raises:
            InputError: a filter is invalid, or needs a board.
        """
        wanted = filter_of(self.client.namespace, filters)
        if (board := await self.board()) is not None:
            return await read_waiting(board, wanted, after=after, limit=limit)
        if after is not None or any(value is not None for name, value in filters.items() if name != "group"):
            raise InputError("waiting: only a client with the workers' store, which has a board, can filter and page")
        return [*await self.in_process.waiting(wanted, limit), *await ask_all(self.client, wanted.group, limit)]

    async def count_waiting(self, **filters: Unpack[WaitingFilters]) -> dict[str, int]:
        """Return the number of waiting items, by kind; see `waiting`."""
        wanted = filter_of(self.client.namespace, filters)
        if (board := await self.board()) is not None:
            return await board.count_waits(wanted)
        return dict(Counter(item["kind"] for item in await self.waiting(**filters)))

    async def board(self) -> WholeBoard | None:
        """Return the board in the store; None if its workers maintain none."""
        if self._board is None:
            self._board = await kept_board(self._store, self.client.namespace)
        return self._board

    async def message(
        self,
        workflow_id: str,
        text: str,
        *,
        images: Images = (),
        message_id: str | None = None,
        by: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Send a message to a run; images are those of `start_agent`, 256 KiB in total.

        Args:
            message_id: identifies the message in its session, as in `start_agent`; `id` is its earlier name.
        """
        if None not in (message_id, id) and message_id != id:
            raise InputError(f"message: message_id={message_id!r:.80} and id={id!r:.80} differ: give one of them")
        if message_id is not None:
            id = check_message_id(message_id)  # noqa: A001
        data = {"text": text, "images": plain_images(images), "by": by}
        await self._send(workflow_id, names.MESSAGE, data, id)

    async def answer(
        self,
        workflow_id: str,
        text: str,
        *,
        tool_call_id: str | None = None,
        by: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Answer a call's question, or the first open one."""
        await self._send(workflow_id, names.ANSWER, {"text": text, "tool_call_id": tool_call_id, "by": by}, id)

    async def resume(
        self,
        workflow_id: str,
        action: Literal["retry", "abort", "skip"] = "retry",
        *,
        name: str | None = None,
        model: str | None = None,
        by: str | None = None,
        reason: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Let a paused run try again or give up, or skip a call or step that no worker has.

        Another attempt uses another model if one is given.

        Args:
            name: of the waiting item, as `pending` shows it. If omitted, all pauses try again or give up; to skip, name
                one call or step.
            reason: needed to skip: the model reads it.
        """
        data = {"action": action, "name": name, "model": model, "by": by, "reason": reason}
        await self._send(workflow_id, names.RESUME, data, id)

    async def resolve(
        self,
        workflow_id: str,
        tool_call_id: str,
        decision: Literal["happened", "not-happened", "leave"],
        *,
        result: Any = None,
        by: str | None = None,
        reason: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Settle a call of unknown outcome: it happened, with this result; it did not, and is run; or nobody knows."""
        data = {"tool_call_id": tool_call_id, "decision": decision, "by": by, "reason": reason}
        await self._send(workflow_id, names.RESOLVE, data, id, {"result": result} if decision == "happened" else {})

    async def decide(
        self,
        workflow_id: str,
        gate: str,
        decision: Literal["approve", "reject"],
        *,
        by: str | None = None,
        comment: str | None = None,
        digest: str | None = None,
        edit: Any = None,
        remember: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Approve or reject at a gate; `digest` is the one from `pending`, of the contents that the approver has seen.

        For an in-process run, the decision is recorded, and takes effect when the run continues.

        Args:
            remember: also approves later calls like this one; its keys are the fields of `Remember`.
        """
        if decision not in (names.APPROVE, names.REJECT):
            raise InputError(f'decide: decision must be "approve" or "reject", got {decision!r}')
        data = {"gate": gate, "by": by, "comment": comment, "digest": digest, "edit": edit, "remember": remember}
        if is_in_process(workflow_id):
            await self.in_process.decide(workflow_id, {**data, "decision": decision})
            return
        async with saying_who_was_first(self.client, self._store, workflow_id, gate, self.pending):
            await self._send(workflow_id, decision, data, id, called=names.DECIDE_UPDATE)

    async def cancel(
        self,
        workflow_id: str,
        *,
        by: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Cancel a run; its history records who did."""
        on = OnRecord(store=self._store, by=by, id=uuid4().hex if id is None else id)

        async def cancel(is_repeated: bool) -> None:
            run = await our_run(self.client, workflow_id)
            if is_repeated and run.status is WorkflowExecutionStatus.CANCELED:
                return
            if is_repeated and run.close_time is not None:
                raise StandfastError(f"Run {workflow_id} has ended, but was not cancelled")
            await cancel_run(self.client, workflow_id, by=by)

        await do_on_record(self.client, workflow_id, Doing("cancel"), on, cancel, is_new=id is None)

    async def delete_session(
        self,
        workflow_id: str,
        *,
        keep_decisions: bool = False,
        by: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Delete the session of a run that has ended, with all stored data of its runs.

        The audit trail records who deleted it.

        Args:
            keep_decisions: keeps who decided what and when, without comments and edits.

        Raises:
            InputError: the run lacks a session, or this client lacks a store.
            SessionNotFoundError: it was already deleted.
            SessionConflictError: a run is working on it.
        """
        seen = listed(await our_run(self.client, workflow_id))
        if "session_id" not in seen:
            raise InputError(f"The session of run {workflow_id} is unknown")
        if self._store is None:
            raise InputError("StandfastClient needs store=, the workers' store, to delete a session from it")
        key = session_key_of(seen.get("tenant_id"), seen["session_id"])
        await delete_session(self._store, key, keep_decisions=keep_decisions, by=by)

    async def export(self, workflow_id: str) -> Checkpoint:
        """Return a run as a checkpoint.

        With its store, the checkpoint continues in its session; elsewhere, cancel the run first.
        """
        exported = await self._send(workflow_id, names.EXPORT_UPDATE, {}, None)
        return Checkpoint.model_validate(exported["checkpoint"])

    async def _send(
        self,
        workflow_id: str,
        name: str,
        data: JSONObject,
        id: str | None,  # noqa: A002
        also: JSONObject | None = None,
        *,
        called: str | None = None,
    ) -> JSONObject:
        plain = {key: value for key, value in data.items() if value is not None} | (also or {})
        check_json(plain, called or name)
        check_names(plain, called or name)
        signal = Signal(
            name=name,
            called=called or name,
            data=plain,
            id=uuid4().hex if id is None else check_sent_id(id),
            is_repeated=id is not None,
            # An export waits without a limit until the run is between two actions.
            seconds=None if name == names.EXPORT_UPDATE else self._timeout,
        )

        async def shown() -> AsyncGenerator[JSONObject, None]:
            run = await our_run(self.client, workflow_id)
            with suppress(StandfastError):  # the store is away
                for item in await self._on_board(run) or ():
                    yield item
            with suppress(StandfastError):  # the run's answer is final
                for item in read_items(await self._ask(workflow_id, names.PENDING, None)):
                    yield item

        if (doing := doing_of(name, plain)) is None:
            return await send(self.client, workflow_id, signal, shown)
        on = OnRecord(store=self._store, by=plain.get("by"), id=signal.id)

        async def sent(is_repeated: bool) -> JSONObject:
            return await send(self.client, workflow_id, replace(signal, is_repeated=is_repeated), shown)

        return await do_on_record(self.client, workflow_id, doing, on, sent, is_new=id is None) or {}
