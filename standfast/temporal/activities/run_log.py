"""Logs the activities of runs, one line each: what a person on call needs, but never the content of a run.

The logger is `standfast.runs`. A line has ids, names, counts and outcomes. Arguments, messages and results may be
secret, and are never logged. Its fields are also `record.fields`, for handlers that write JSON.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, CancelledError

from standfast.temporal.wire import names

RUNS = logging.getLogger("standfast.runs")
OUTCOMES = ("returned", "failed", "asked", "terminated", "unknown", "cancelled")  # of a tool's call
_WORDS = {
    names.CALL_MODEL: "model",
    names.OPEN: "run begins",
    names.OPEN_PIPELINE: "run begins",
    names.FINISH: "run ends",
    names.DECIDE: "decision",
    names.SETTLE: "lost call",
    names.NOTIFY: "notice",
    names.SHOW: "board",
}
_COUNTER = "standfast_outcomes"


def log_returned(name: str, reference: object, begun: float, result: object) -> None:
    """Log an attempt of an activity that returned.

    Args:
        begun: the start time, by `time.monotonic`.
    """
    given, found = _fields_of(reference), _fields_of(result)
    level, more = logging.INFO, {}
    if name == names.CALL_MODEL:
        calls = ",".join(str(call[1]) for call in found.get("calls", ()))
        more = {"calls": calls} if calls else {}
        outcome = "refused" if "error" in found else "calls" if calls else "answered"
    elif name == names.FINISH:
        outcome = str(given.get("status"))
    elif name == names.DECIDE:
        refused = found["of"] if "receipt" in found else result
        outcome = "refused" if refused else str(given.get("decision"))
    elif name == names.SETTLE:
        outcome = next((one for one in OUTCOMES if one in found), "unknown" if "claimed" in found else "not run")
    elif name in (names.OPEN, names.OPEN_PIPELINE):
        outcome = "open"
        level = logging.INFO if "input" in given else logging.DEBUG
    elif name.startswith("standfast."):
        outcome, level = "done", logging.INFO if name == names.NOTIFY else logging.DEBUG
    else:
        outcome = next((one for one in OUTCOMES if one in found), "returned")
    _write(name, given, begun, outcome, logging.WARNING if outcome in ("unknown", "refused") else level, **more)


def log_raised(name: str, reference: object, begun: float, error: BaseException) -> None:
    """Log an attempt of an activity that raised: the first of a series, and then fewer and fewer."""
    attempt = activity.info().attempt
    kind = (error.type or "") if isinstance(error, ApplicationError) else type(error).__name__
    is_calm = isinstance(error, CancelledError) or not isinstance(error, Exception)
    seldom = attempt & (attempt - 1) == 0  # 1, 2, 4, 8, …: a store that is away for an hour does not fill a disk
    level = logging.DEBUG if not seldom else logging.INFO if is_calm else logging.WARNING
    _write(name, _fields_of(reference), begun, f"error:{kind}", level)


def _fields_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _write(name: str, reference: Mapping[str, Any], begun: float, outcome: str, level: int, **more: Any) -> None:
    what = _WORDS.get(name, name if name.startswith("standfast.") else "tool")
    if activity.in_activity():
        activity.metric_meter().create_counter(_COUNTER, "Attempts of activities, by their outcome").add(
            1, {"what": what, "name": name, "outcome": outcome}
        )
    if not RUNS.isEnabledFor(level):
        return
    fields = (
        _fields(name, reference, what) | more | {"outcome": outcome, "ms": round((time.monotonic() - begun) * 1000)}
    )
    RUNS.log(
        level,
        "%s",
        " ".join([what, *(f"{key}={value}" for key, value in fields.items())]),
        extra={"event": what, "fields": fields},
    )


def _fields(name: str, reference: Mapping[str, Any], what: str) -> dict[str, Any]:
    info = activity.info()
    kind, run = info.workflow_type or "", info.workflow_id or ""
    found: dict[str, Any] = {"run": run, "run_id": info.workflow_run_id or ""}
    if session := reference.get("session") or names.session_of(kind, run):
        found["session"] = session
    found |= {key: reference[key] for key in ("turn", "path", "gate") if key in reference}
    if what == "tool":
        found |= {"tool": name, "call": reference.get("position", 0)}
    return found | ({"attempt": info.attempt} if info.attempt > 1 else {})
