"""An SDK with other internals costs a warning, not the worker."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import activity

from standfast.temporal.workflows.sdk.query_order import keep_order_beside_queries
from standfast.temporal.workflows.sdk.worker_internals import add_activity, default_build_id, end_unstarted


@activity.defn
async def charge() -> None: ...


def without_build_id(worker: Any) -> None:
    assert default_build_id() == ""


@pytest.mark.parametrize(
    ("use", "lost"),
    [
        (keep_order_beside_queries, "does not replay"),
        (lambda worker: add_activity(worker, charge), "cannot be added to a running worker"),
        (end_unstarted, "may not end by itself"),
        (without_build_id, "without a build id"),
    ],
    ids=["the order beside queries", "added activities", "a refused start", "a build id"],
)
def test_a_worker_of_another_sdk_runs_without_what_standfast_cannot_reach(
    use: Any, lost: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "temporalio.worker._worker", None)
    with caplog.at_level(logging.WARNING, logger="standfast"):
        use(SimpleNamespace(_bridge_worker=SimpleNamespace(poll_workflow_activation=None)))
    (record,) = caplog.records
    assert "has other internals than standfast knows" in record.getMessage()
    assert lost in record.getMessage()


def test_a_worker_of_this_sdk_has_the_internals(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing() -> None: ...

    bridge = SimpleNamespace(
        poll_workflow_activation=nothing, complete_workflow_activation=nothing, request_workflow_eviction=nothing
    )
    worker: Any = SimpleNamespace(
        _bridge_worker=bridge, _activity_worker=SimpleNamespace(_activities={}), _shutdown_complete_event=set()
    )
    keep_order_beside_queries(worker)
    add_activity(worker, charge)
    assert default_build_id()
    assert bridge.poll_workflow_activation is not nothing
    assert list(worker._activity_worker._activities) == ["charge"]
    assert not caplog.records
