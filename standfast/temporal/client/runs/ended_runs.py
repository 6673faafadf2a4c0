"""Finds a run, and how it ended: for Temporal a reset ends it, and another run continues it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
)
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.exceptions import TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import StandfastError
from standfast.llm.provider_errors import may_pass
from standfast.messages import JSONObject, error_text
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import remembered_id
from standfast.time_limits import time_limit

_RESETTER = "history-resetter"  # the server's identity when a reset terminates the run that it resets
_ANSWER = 3.0  # seconds in which a worker answers


async def find_run(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    """Return the server's description of the last run of a workflow id; None if there is none."""
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None


async def next_run(client: Client, workflow_id: str, run_id: str) -> str | None:
    """Return the run that continues one that continued as new, or was reset; the run itself if it is open."""
    run, last = client.get_workflow_handle(workflow_id, run_id=run_id), client.get_workflow_handle(workflow_id)
    over, latest = await run.describe(), await last.describe()
    if over.status == WorkflowExecutionStatus.RUNNING:
        return run_id
    if over.status == WorkflowExecutionStatus.CONTINUED_AS_NEW:
        closing = run.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT)
        async for event in closing:
            return event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    is_reset = over.status == WorkflowExecutionStatus.TERMINATED and latest.run_id != run_id
    return latest.run_id if is_reset and latest.raw_info.first_run_id == over.raw_info.first_run_id else None


async def end_of(client: Client, workflow_id: str, run_id: str | None = None) -> JSONObject:
    """Wait for the result of a run, by default the last one.

    A reset ends a run for Temporal, and another run continues it: then this waits for the result of that run.

    Raises:
        WorkflowFailureError: it failed, or was cancelled or terminated.
    """
    run_id = run_id or (await client.get_workflow_handle(workflow_id).describe()).run_id
    while True:
        try:
            result: JSONObject = await client.get_workflow_handle(workflow_id, run_id=run_id).result()
        except WorkflowFailureError as error:
            if not isinstance(error.cause, TerminatedError):
                raise
            if (run_id := await next_run(client, workflow_id, str(run_id))) is None:
                raise
        else:
            return result


async def cancelled_end(client: Client, workflow_id: str) -> None:
    """Cancel an open run, and wait for its end."""
    with suppress(RPCError):  # it has ended
        await client.get_workflow_handle(workflow_id).cancel()
    with suppress(WorkflowFailureError):
        await end_of(client, workflow_id)


class UnreadableError(StandfastError):
    """A run's history, or a signal in it, cannot be read. Another attempt may succeed."""


async def was_refused(client: Client, workflow_id: str, run_id: str, sent_id: str) -> bool:
    """Whether the sender of a signal, which a reset has sent to this run again, learned that it does not count.

    A run before the reset has refused the signal, or was terminated before it took the signal. If that history no
    longer exists, the signal counts.

    Raises:
        UnreadableError: this is unknown.
    """
    was_cut_off, name = False, None
    try:
        while (found := await _base_of(client, workflow_id, run_id, sent_id)) is not None:
            run_id, name = found[0], found[1] or name
            run = client.get_workflow_handle(workflow_id, run_id=run_id)
            fate = await fate_of_signal(client, run, sent_id, name)
            if not fate.is_there:
                if fate.unread is not None:
                    raise fate.unread
                break
            if fate.is_taken:
                async with time_limit(_ANSWER):
                    told = await run.query(names.OUTCOME, sent_id)
                return bool(told) and "refused" in told and ("again" not in told or "early" in told)
            was_cut_off |= fate.is_cut_off
    except WorkflowQueryFailedError:
        pass
    except (RPCError, TimeoutError) as error:
        if not isinstance(error, RPCError) or error.status != RPCStatusCode.NOT_FOUND:
            what = f"Run {workflow_id}: an earlier run ({run_id}) cannot be read"
            raise UnreadableError(f"{what}: {error_text(error)}") from error
    return was_cut_off


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a signal in a run.

    Args:
        is_there: the run was sent the signal.
        is_taken: the run then completed a workflow task.
        is_cut_off: the run was terminated, or timed out.
        unread: the error of an unreadable signal whose sender has learned its outcome; it may be this signal.
    """

    is_there: bool
    is_taken: bool
    is_cut_off: bool
    unread: UnreadableError | None


async def fate_of_signal(client: Client, run: WorkflowHandle[Any, Any], sent_id: str, name: str | None = None) -> Fate:
    """Return the fate of a signal in a run. Signals with other names than a given one are not mistaken for it.

    While a signal cannot be read, no workflow task completes. If it was then dropped by a reset, its sender has learned
    nothing of it.
    """
    is_there, is_taken, is_cut_off = False, False, False
    unread, told = None, None
    async for event in run.fetch_history_events():
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                is_taken, told = is_there, unread
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
                is_cut_off = event.workflow_execution_terminated_event_attributes.identity != _RESETTER
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT:
                is_cut_off = True
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                try:
                    if await _has_id(client, event, sent_id):
                        is_there, is_taken = True, False
                except UnreadableError as error:
                    if name in (None, event.workflow_execution_signaled_event_attributes.signal_name):
                        unread = error
            case _:
                pass
    return Fate(is_there, is_taken, is_cut_off, unread if is_cut_off else told)


async def _base_of(client: Client, workflow_id: str, run_id: str, sent_id: str) -> tuple[str, str | None] | None:
    """Return the run that was reset to become this one, or an earlier one, before the signal; None without a reset.

    Its second part is the signal's name, if this run has the signal.
    """
    base, before, name = None, "", None
    async for event in client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
        failed = event.workflow_task_failed_event_attributes
        before = before or event.workflow_execution_started_event_attributes.continued_execution_run_id
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            base = failed.base_run_id
            continue
        with suppress(UnreadableError):  # the earlier run also has this signal, if it precedes the reset
            if await _has_id(client, event, sent_id):
                name = event.workflow_execution_signaled_event_attributes.signal_name
                break
    if base is None and before:
        earlier = await _base_of(client, workflow_id, before, sent_id)
        return earlier and (earlier[0], name or earlier[1])
    return None if base is None else (base, name)


async def _has_id(client: Client, event: HistoryEvent, sent_id: str) -> bool:
    if event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        return False
    payloads = event.workflow_execution_signaled_event_attributes.input.payloads
    found = [value.get("id") for value in await read_signal(client.data_converter, payloads) if isinstance(value, dict)]
    return any(isinstance(one, str) and remembered_id(one) == remembered_id(sent_id) for one in found)


async def read_signal(converter: DataConverter, payloads: Sequence[Payload]) -> Sequence[Any]:
    """Return a signal's values; none if no handler could read them, whoever sent them.

    Raises:
        UnreadableError: the codec or the external storage is unavailable, or the storage lacks an object.
    """
    try:
        return await converter.decode(payloads)
    except Exception as error:  # of any kind: of the codec, or of invalid data
        if converter.external_storage is not None and any(map(_is_stored, payloads)):
            raise UnreadableError(f"The external storage does not return a payload: {error_text(error)}") from error
    codec, decoded = converter.payload_codec, payloads
    try:
        decoded = payloads if codec is None else await codec.decode(payloads)
    except Exception as error:
        if codec is None or may_pass(error.__cause__ or error) or not await _works(codec):
            raise UnreadableError(f"The codec is unavailable: {error_text(error)}") from error
        return ()  # it refuses data written by others
    try:
        return converter.payload_converter.from_payloads(decoded)
    except Exception:  # such data reached no handler
        return ()


def _is_stored(payload: Payload) -> bool:
    """Whether a payload refers to data in an external storage."""
    said = payload.metadata
    return (
        "__temporal_external_storage_reference" in said
        or said.get("encoding") == b"json/external-storage-reference"
        or said.get("messageType", b"").endswith(b".ExternalStorageReference")
    )


async def _works(codec: PayloadCodec) -> bool:
    """Whether a codec can read a value that it has just written."""
    try:
        return bool(await codec.decode(await codec.encode([Payload(metadata={"encoding": b"binary/null"})])))
    except Exception:  # whatever the user's code raises
        return False
