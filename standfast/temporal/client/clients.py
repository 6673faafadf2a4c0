"""Sends messages and decisions to runs, with any Temporal client. The `temporal` command can do all of it, too."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Unpack, overload
from uuid import uuid4

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from standfast.agents import Agent
from standfast.checkpoints import Checkpoint, PipelineResult, RunResult, T
from standfast.durations import Duration
from standfast.errors import InputError, StandfastError
from standfast.events import Event
from standfast.messages import check_message_id
from standfast.pipelines import Pipeline
from standfast.runtime.deletion import delete_session
from standfast.runtime.inputs import Images
from standfast.runtime.stored_gates import is_in_process
from standfast.stores.protocol import AgentStore, session_key_of
from standfast.temporal.client.asked_runs import ask_all
from standfast.temporal.client.audits import Doing, OnRecord, do_on_record, doing_of, saying_who_was_first
from standfast.temporal.client.boards import (
    WaitingFilters,
    WholeBoard,
    filter_of,
    kept_board,
    read_run,
    read_waiting,
)
from standfast.temporal.client.event_streams import RunEvents
from standfast.temporal.client.in_process import RunsInProcess
from standfast.temporal.client.items import read_items, read_state
from standfast.temporal.client.operator_pauses import paused_by_operators
from standfast.temporal.client.owners import Run
from standfast.temporal.client.run_ends import end_of
from standfast.temporal.client.runs import NoWorkerError, answer, cancel_run, has_no_gates, listed, our_run
from standfast.temporal.client.sending import Signal, send
from standfast.temporal.client.starts import plain_images
from standfast.temporal.client.typed_results import pipeline_result, run_result
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import check_sent_id
from standfast.temporal.wire.limits import check_json, check_names
from standfast.tools.checks import seconds


class StandfastClient:
    """Speaks to runs by their workflow ids; `StandfastClient(await connect())`.

    Every method that changes something raises `InputError`, with the reason, if the change does not count, and
    `NotConfirmedError` if no worker has said in time whether it does. Tried again with the same `id`, it counts once.

    Args:
        store: the workers' store. Answers, messages, resumes, settlements and cancellations are put on its audit trail
            before they are done, and their outcome afterwards; an act that cannot be put there is not done, and raises
            `StoreError`. Decisions are recorded by the run itself.
        timeout: how long a worker may take to say whether a change counts, and to answer `status` and `pending`: make
            it longer where workers are slow or start late. `result` and `export` wait for as long as it takes.
    """

    def __init__(self, client: Client, *, store: AgentStore | None = None, timeout: Duration = "10s") -> None:
        self.client, self._store, self._timeout = client, store, seconds(timeout, "StandfastClient: timeout")
        self._board: WholeBoard | None = None  # once it is known that the workers look after it
        self.in_process = RunsInProcess(store)

    def run(self, workflow_id: str, run_id: str | None = None) -> Run:
        """Return the handle of a run, the last of its workflow id if none is named."""
        return self.client.get_workflow_handle(workflow_id, run_id=run_id, result_type=dict[str, Any])

    @overload
    async def result(self, workflow_id: str, *, run_id: str | None = None) -> dict[str, Any]: ...
    @overload
    async def result(self, workflow_id: str, of: Agent[T], *, run_id: str | None = None) -> RunResult[T]: ...
    @overload
    async def result(self, workflow_id: str, of: Pipeline, *, run_id: str | None = None) -> PipelineResult: ...
    async def result(self, workflow_id: str, of: Agent | Pipeline | None = None, *, run_id: str | None = None) -> Any:
        """Wait for a run's end and return its result.

        Args:
            of: the agent or pipeline that runs: then the result is what `run` or `run_pipeline` returns, with typed
                outputs. The transcript is in the store, so `messages` is empty. Without it the result is plain JSON.

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

    async def status(self, workflow_id: str, *, run_id: str | None = None) -> dict[str, Any]:
        """Return how far a run is, what it waits for, and which messages it could not use."""
        return read_state(await self._query(workflow_id, names.STATUS, run_id))

    async def pending(self, workflow_id: str, *, run_id: str | None = None) -> list[dict[str, Any]]:
        """Return the items of a run that wait for a person: kind, name, message, since, deadline.

        Nothing waits in a workflow of your own that has not asked at a gate yet.
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

    async def _on_board(self, run: WorkflowExecution) -> list[dict[str, Any]] | None:
        """Return the items that the board has of a run; None if it does not write them there itself."""
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
                raise StandfastError(f"Run {workflow_id}: too many ask it at the same time, ask again later") from error
            if error.status not in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                raise
            raise StandfastError(f"Run {workflow_id}: no worker has answered within {self._timeout:g} s") from error

    async def events(self, workflow_id: str, *, after: str | None = None) -> list[Event]:
        """Return what has happened in a run so far, also in one that has ended; nothing is asked of a worker.

        Args:
            after: as for `stream`.
        """
        return await RunEvents(self.client, self._store, workflow_id, after).so_far()

    async def stream(self, workflow_id: str, *, after: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield what has happened in a run and what happens now, until it has ended; `RunEnded` is the last event.

        Leaving it does nothing to the run. With the workers' store (`store=`) and a worker that streams, the model's
        words come as `TextDelta`, which have no id.

        Args:
            after: the id of an event: only those after it, of the run that it belongs to.

        Raises:
            InputError: there is no such run, or no such event of it.
        """
        async with aclosing(RunEvents(self.client, self._store, workflow_id, after).follow()) as events:
            async for event in events:
                yield event

    async def waiting(
        self, *, limit: int | None = None, after: str | None = None, **filters: Unpack[WaitingFilters]
    ) -> list[dict[str, Any]]:
        """Return the items that wait in the whole namespace, as `pending`, each with its run: the next deadline first.

        They are read from the board in the workers' store, whether a worker lives or not. Without a store, or with one
        that has no board, each run is asked: then only a group can be wanted, and search attributes are needed.

        Args:
            limit: the number of items; of runs that are asked without a board, the last started first. All if None.
            after: the `place` of the last item of the page before.
            filters: see `WaitingFilters`.

        Raises:
            InputError: a filter cannot be used, or only with a board.
        """
        wanted = filter_of(self.client.namespace, filters)
        if (board := await self.board()) is not None:
            return await read_waiting(board, wanted, after=after, limit=limit)
        if after is not None or any(value is not None for name, value in filters.items() if name != "group"):
            raise InputError("waiting: only a client with the workers' store, which has a board, can filter and page")
        return [*await self.in_process.waiting(wanted, limit), *await ask_all(self.client, wanted.group, limit)]

    async def count_waiting(self, **filters: Unpack[WaitingFilters]) -> dict[str, int]:
        """Return the number of items that wait, by kind; see `waiting`."""
        wanted = filter_of(self.client.namespace, filters)
        if (board := await self.board()) is not None:
            return await board.count_waits(wanted)
        return dict(Counter(item["kind"] for item in await self.waiting(**filters)))

    async def board(self) -> WholeBoard | None:
        """Return the board in the store; None if there is none that its workers look after."""
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
        """Say something to a run; images are those of `start_agent`, 256 KiB in all.

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
        """Answer a question: the one of a call, or the first that is open."""
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
        """Let a paused run try again, with another model if given, or give up; or skip what no worker has.

        Args:
            name: of what waits, as `pending` shows it. Without it all that is paused tries again or gives up; one call
                or step is skipped.
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
        """Approve or reject at a gate; `digest` is the one that `pending` gave with what was looked at.

        At a run in process the decision is recorded, and takes effect when the run goes on.

        Args:
            remember: approves later calls like this one, too; its keys are the fields of `Remember`.
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
        """Cancel a run; its history says who did."""
        on = OnRecord(store=self._store, by=by, id=uuid4().hex if id is None else id)

        async def cancel(is_repeated: bool) -> None:
            run = await our_run(self.client, workflow_id)
            if is_repeated and run.status is WorkflowExecutionStatus.CANCELED:
                return
            if is_repeated and run.close_time is not None:
                raise StandfastError(f"Run {workflow_id} has ended, and not by being cancelled")
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
        """Delete the session of a run that has ended, with all that its runs have kept; who did is on the audit trail.

        Args:
            keep_decisions: keeps who has decided what and when, without comments and edits.

        Raises:
            InputError: the run has no session, or this client has no store.
            SessionNotFoundError: it was deleted before.
            SessionConflictError: a run is at work on it.
        """
        seen = listed(await our_run(self.client, workflow_id))
        if "session_id" not in seen:
            raise InputError(f"It is not known which session run {workflow_id} has")
        if self._store is None:
            raise InputError("StandfastClient needs store=, the workers' store, to delete a session from it")
        key = session_key_of(seen.get("tenant_id"), seen["session_id"])
        await delete_session(self._store, key, keep_decisions=keep_decisions, by=by)

    async def export(self, workflow_id: str) -> Checkpoint:
        """Return a run as a checkpoint. With its store it goes on in its session; elsewhere, cancel the run first."""
        exported = await self._send(workflow_id, names.EXPORT_UPDATE, {}, None)
        return Checkpoint.model_validate(exported["checkpoint"])

    async def _send(
        self,
        workflow_id: str,
        name: str,
        data: dict[str, Any],
        id: str | None,  # noqa: A002
        also: dict[str, Any] | None = None,
        *,
        called: str | None = None,
    ) -> dict[str, Any]:
        plain = {key: value for key, value in data.items() if value is not None} | (also or {})
        check_json(plain, called or name)
        check_names(plain, called or name)
        signal = Signal(
            name=name,
            called=called or name,
            data=plain,
            id=uuid4().hex if id is None else check_sent_id(id),
            is_repeated=id is not None,
            # An export waits until the run is between two actions, for as long as that takes.
            seconds=None if name == names.EXPORT_UPDATE else self._timeout,
        )

        async def shown() -> AsyncGenerator[dict[str, Any], None]:
            run = await our_run(self.client, workflow_id)
            with suppress(StandfastError):  # the store is away
                for item in await self._on_board(run) or ():
                    yield item
            with suppress(StandfastError):  # what the run has said stands
                for item in read_items(await self._ask(workflow_id, names.PENDING, None)):
                    yield item

        if (doing := doing_of(name, plain)) is None:
            return await send(self.client, workflow_id, signal, shown)
        on = OnRecord(store=self._store, by=plain.get("by"), id=signal.id)

        async def sent(is_repeated: bool) -> dict[str, Any]:
            return await send(self.client, workflow_id, replace(signal, is_repeated=is_repeated), shown)

        return await do_on_record(self.client, workflow_id, doing, on, sent, is_new=id is None) or {}
