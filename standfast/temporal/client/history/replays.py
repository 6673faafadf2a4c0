"""Replays a history and compares its commands, and their payloads, with those of this version.

The SDK's replay alone compares only the kinds of commands. It ignores the inputs of activities, of children and of the
next run of a chain, though a renamed key breaks those.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.converter import PayloadConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from standfast.temporal.client.connections import reason_of
from standfast.temporal.client.converters import DATA_CONVERTER
from standfast.temporal.wire import names

_SHOWN = 200  # characters of a value
_LOCAL = "core_local_activity"
# Arguments that this version adds to an earlier version's, by activity. They may only be added: they may not replace
# other arguments.
_ADDED: dict[str, tuple[tuple[str, ...], ...]] = {
    # The effect of the deadline, and the key of the run. Only the recipients of the notice read them.
    names.NOTIFY: (("item", "then"), ("run",)),
    # The id of a decision's signal, by which the activity finds the reply to its sender before a reset.
    names.DECIDE: (("sent",),),
    # The ids of messages, by which the session detects stored messages.
    names.KEEP: (("messages", "message_id"),),
    names.CALL_MODEL: (("say", "message_id"),),
    # That a question is about a call of unknown outcome. The store keeps it beside the question's text.
    **dict.fromkeys((names.COMMIT, names.EXPORT, names.FINISH), (("questions", "unknown"),)),
}


@dataclass(frozen=True, slots=True)
class Said:
    """A command of a workflow: an activity or child that it started, its next run, or its result.

    Args:
        told: the payload, as JSON; None where a history does not have it.
    """

    kind: str
    name: str
    told: Any

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.name)))


async def differences(history: WorkflowHistory, plugin: SimplePlugin, *, workflows: Sequence[type] = ()) -> list[str]:
    """Return how a replay of a history differs from it; empty if the run continues as it began.

    Args:
        plugin: a `StandfastPlugin` with the agent or pipeline of the history's type.
        workflows: the user's own workflow types.
    """
    recorder = _Recorder()
    replayer = Replayer(workflows=workflows, plugins=[plugin], interceptors=[recorder])
    replayed = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    found = [] if replayed.replay_failure is None else [reason_of(str(replayed.replay_failure))]
    before, now = ([_untold(said, history) for said in given] for given in (_recorded(history), recorder.said))
    return [*found, *_compared(before, now, is_whole=not found)]


def _compared(before: list[Said], now: list[Said], *, is_whole: bool) -> Iterator[str]:
    for kind in dict.fromkeys(said.kind for said in (*before, *now)):
        then, today = ([said for said in given if said.kind == kind] for given in (before, now))
        for number, (old, new) in enumerate(zip(then, today, strict=False), 1):
            if old.name != new.name:
                yield f"{kind} {number} was {old.name}, and now is {new.name}"
                break  # later commands also differ
            if old.told is not None and old.told != (told := _without_added(new, old)):
                yield f"{old} ({number}): {_difference(old.told, told, '')}"
        else:
            if is_whole and len(today) < len(then):
                yield f"{then[len(today)]} ({len(today) + 1}) is missing now"


def _without_added(new: Said, old: Said) -> Any:
    """Return the current arguments, without those that `_ADDED` lists and the history lacks."""
    told = new.told
    for path in _ADDED.get(new.name, ()):
        told = _without_path(told, old.told, path)
    return told


def _without_path(value: Any, before: Any, path: tuple[str, ...]) -> Any:
    key, *rest = path
    if isinstance(value, list) and isinstance(before, list) and len(value) == len(before):
        return [_without_path(one, other, path) for one, other in zip(value, before, strict=True)]
    if not isinstance(value, dict) or not isinstance(before, dict) or key not in value:
        return value
    if rest:
        return {**value, key: _without_path(value[key], before.get(key), tuple(rest))}
    return value if key in before else {name: one for name, one in value.items() if name != key}


def _difference(old: Any, new: Any, path: str) -> str:
    """Describe where two values first differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            here = f"{path}.{key}" if path else str(key)
            if key not in new:
                return f"{here} was {_shown(old[key])}, and is now missing"
            if key not in old:
                return f"{here} was missing, and now is {_shown(new[key])}"
            if old[key] != new[key]:
                return _difference(old[key], new[key], here)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            if one != other:
                return _difference(one, other, f"{path}[{index}]")
    return f"{path or 'it'} was {_shown(old)}, and now is {_shown(new)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- what a history has ---


def _recorded(history: WorkflowHistory) -> Iterator[Said]:
    for event in history.events:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                activity = event.activity_task_scheduled_event_attributes
                yield Said("activity", activity.activity_type.name, _read(activity.input))
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                marker = event.marker_recorded_event_attributes
                if marker.marker_name == _LOCAL:
                    data = json.loads(marker.details["data"].payloads[0].data)
                    yield Said("local activity", data["activity_type"], None)
            case EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                child = event.start_child_workflow_execution_initiated_event_attributes
                yield Said("child", child.workflow_type.name, [child.workflow_id, *_read(child.input)])
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                new = event.workflow_execution_continued_as_new_event_attributes
                yield Said("next run", "", _read(new.input))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                yield Said("result", "", _read(event.workflow_execution_completed_event_attributes.result))


def _untold(said: Said, history: WorkflowHistory) -> Said:
    """Return a command without the journal key, if it is an activity of a run that was reset.

    A replay gives that run the id of the previous run, by which activities find their data. Activities get the journal
    key only where it differs, so in the history most of them have an extra argument. Activities of gates get the key in
    both.
    """
    if said.kind != "activity" or not any(map(_is_reset, history.events)):
        return said
    return replace(said, told=[_without({"run": history.run_id}, one) for one in said.told])


def _is_reset(event: HistoryEvent) -> bool:
    cause = event.workflow_task_failed_event_attributes.cause
    return cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW


def _without(items: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: one for key, one in value.items() if key not in items or items[key] != one}


def _read(payloads: Payloads) -> list[Any]:
    return [_plain(value) for value in DATA_CONVERTER.payload_converter.from_payloads(payloads.payloads)]


def _plain(value: Any) -> Any:
    """Return a value as a history has it."""
    converter: PayloadConverter = DATA_CONVERTER.payload_converter
    (payload,) = converter.to_payloads([value])
    return converter.from_payloads([payload])[0]


# --- what a replay says ---


class _Recorder(Interceptor):
    """Notes the commands of a workflow during its replay."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        said = self.said

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Noting(outbound, said))

            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
                result = await super().execute_workflow(input)
                said.append(Said("result", "", [_plain(result)]))
                return result

        return Inbound


class _Noting(WorkflowOutboundInterceptor):
    def __init__(self, outbound: WorkflowOutboundInterceptor, said: list[Said]) -> None:
        super().__init__(outbound)
        self._said = said

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        self._said.append(Said("activity", input.activity, [_plain(one) for one in input.args]))
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        self._said.append(Said("local activity", input.activity, None))
        return super().start_local_activity(input)

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> workflow.ChildWorkflowHandle[Any, Any]:  # noqa: A002
        told = [input.id, *(_plain(one) for one in input.args)]
        self._said.append(Said("child", input.workflow, told))
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # noqa: A002
        self._said.append(Said("next run", "", [_plain(one) for one in input.args]))
        super().continue_as_new(input)
