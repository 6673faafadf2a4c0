"""Operators replace the results of activities in the saved histories with anything: no workflow task fails."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.exceptions import FailureError
from temporalio.worker import ExecuteWorkflowInput, Interceptor, Replayer, WorkflowInboundInterceptor
from test_replays import HISTORIES, OF_USERS, plugin_of, saved_history

JUNK: list[Any] = [
    None, True, -1, 10**30, 1e308, 1.5, "", "x", "\x00", "P1D", "2026-01-01T00:00:00", [], [[]], [None], ["x"], [5],
    {}, {"": None}, {"a": {"b": [1]}}, "complete", [["a", "b"]], {"status": "complete"}, {"dispatch": 1},
]  # fmt: skip
RESULTS, CHANGES = 3, 3  # that are tried of each history, and of each of these results


class Recorder(Interceptor):
    """Notes the errors that fail a workflow task and not the run."""

    def __init__(self) -> None:
        self.raised: list[str] = []

    def workflow_interceptor_class(self, input: Any) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        raised = self.raised

        class Recording(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
                try:
                    return await super().execute_workflow(input)
                except FailureError:
                    raise
                except Exception as error:
                    raised.append(repr(error))
                    raise

        return Recording


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where something can be put in a value."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*place, key))


def changed(value: Any, place: tuple[Any, ...], junk: Any) -> Any:
    if not place:
        return junk
    value = copy.copy(value)
    value[place[0]] = changed(value[place[0]], place[1:], junk)
    return value


def results(events: list[HistoryEvent]) -> Iterator[tuple[int, int, Any]]:
    """Yield the results of activities: where they are, where the next task of the workflow begins, and what it is."""
    for number, event in enumerate(events):
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            begins = (after for after in range(number, len(events))
                      if events[after].event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)  # fmt: skip
            payloads = event.activity_task_completed_event_attributes.result.payloads
            if (end := next(begins, None)) is not None and payloads:
                yield number, end, json.loads(payloads[0].data or b"null")


@pytest.mark.slow(but=10)
@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_no_result_that_is_put_in_fails_a_workflows_task(path: Path) -> None:
    history, chance, recorder = saved_history(path), random.Random(path.stem), Recorder()
    options: dict[str, Any] = {"plugins": [plugin_of(history)], "interceptors": [recorder]}
    replayer, events = Replayer(workflows=list(OF_USERS.values()), **options), list(history.events)
    found = list(results(events))
    for number, end, value in chance.sample(found, min(len(found), RESULTS)):
        within = list(places(value))
        for place in [(), *(chance.choice(within) for _ in range(CHANGES))]:
            junk, put_in = chance.choice(JUNK), copy.deepcopy(events[number])
            payload = put_in.activity_task_completed_event_attributes.result.payloads[0]
            payload.data, payload.metadata["encoding"] = json.dumps(changed(value, place, junk)).encode(), b"json/plain"
            tried = WorkflowHistory(history.workflow_id, [*events[:number], put_in, *events[number + 1 : end + 1]])
            await replayer.replay_workflow(tried, raise_on_replay_failure=False)
            assert not recorder.raised, (number, place, junk)
