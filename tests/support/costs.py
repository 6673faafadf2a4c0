"""Counts what a run costs: not in seconds, which differ from machine to machine, but in what takes them."""

import asyncio
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.runtime import BUFFERED_METRIC_KIND_COUNTER, MetricBuffer

import standfast

OURS = str(Path(standfast.__file__).parent)
# Newer versions of Python do not count a comprehension as a call. Left out, it counts the same everywhere.
INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Costs:
    """What this process does between two calls of `taken`.

    Calls into the library are counted in this thread, and in those that begin in the meantime.
    """

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._modules = set[str]()

    def taken(self) -> Counter[str]:
        """Return the counts so far, and begin again."""
        counts = self._counts.copy()
        counts["modules"] = len(self._modules)
        self._counts.clear()
        self._modules.clear()
        return counts

    @contextmanager
    def counting(self, monkeypatch: pytest.MonkeyPatch) -> Iterator["Costs"]:
        connect, loop = sqlite3.connect, asyncio.BaseEventLoop
        wake, hand_over = loop.call_soon_threadsafe, loop.run_in_executor

        def traced(*args: Any, **options: Any) -> sqlite3.Connection:
            db = connect(*args, **options)
            db.set_trace_callback(self._count_statement)
            return db

        def counted_wake(*args: Any, **options: Any) -> Any:
            self._counts["hand-overs"] += 1
            return wake(*args, **options)

        def counted_hand_over(*args: Any) -> Any:
            self._counts["hand-overs"] += 1
            return hand_over(*args)

        monkeypatch.setattr(sqlite3, "connect", traced)
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted_wake)
        monkeypatch.setattr(loop, "run_in_executor", counted_hand_over)
        threading.setprofile(self._count_call)
        sys.setprofile(self._count_call)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _count_statement(self, statement: str) -> None:
        self._counts["statements"] += 1
        self._counts["commits"] += statement == "COMMIT"

    def _count_call(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and code.co_name not in INLINED:
            self._counts["calls"] += 1
            self._modules.add(code.co_filename)


def history_costs(history: Sequence[HistoryEvent]) -> Counter[str]:
    """Return what a run costs its server."""
    kinds = Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history)
    return Counter(
        {
            "events": len(history),
            "bytes of history": sum(event.ByteSize() for event in history),
            "workflow tasks": kinds["WORKFLOW_TASK_COMPLETED"],
            "activities": kinds["ACTIVITY_TASK_SCHEDULED"],
            "local activities and patches": kinds["MARKER_RECORDED"],
            "timers": kinds["TIMER_STARTED"],
            "search attribute upserts": kinds["UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"],
        }
    )


def requests(buffer: MetricBuffer) -> int:
    """Return how many requests the SDK has sent to the server since the last time, long polls among them."""
    names = ("temporal_request", "temporal_long_request")
    return sum(
        int(update.value)
        for update in buffer.retrieve_updates()
        if update.metric.kind == BUFFERED_METRIC_KIND_COUNTER and update.metric.name in names
    )
