"""Writes the log of a worker or the page to standard error, one line per record, as text or as JSON."""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

from standfast.cli.commands import SDK_LOG
from standfast.cli.outputs import shown
from standfast.messages import JSONObject

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")
_STOPS = "temporalio.worker._worker"  # the logger in which the SDK reports that a worker stops


class _Safe(logging.Formatter):
    """Writes each message on one line, whatever models and servers have put into it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name in the base class
        record.message = shown(record.message.replace("\n", "\\n"))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return shown(super().formatException(ei))


class _Json(logging.Formatter):
    """Writes a record as one JSON object: `time` (UTC), `level`, `logger`, `message`, and the record's own fields.

    A run's lines have further fields, such as `event`, `run`, `session`, `tool`, `outcome` and `ms`; a traceback is in
    `exception`.
    """

    def format(self, record: logging.LogRecord) -> str:
        data: JSONObject = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if event := getattr(record, "event", None):
            data |= {"event": event} | getattr(record, "fields", {})
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return json.dumps(data, default=str)


def log_safely(which: logging.Filter, form: LogFormat = "text", level: str = "info") -> None:
    """Let this process write its log to standard error.

    Args:
        which: filters out records that must not be written.
        level: the lowest level that is written, one of `LEVELS`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Safe("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(which)
    logging.basicConfig(level=level.upper(), handlers=[handler])


class OfTheSDK(logging.Filter):
    """Reports once a minute that the server does not answer; the SDK reports it for each poller and attempt.

    The SDK's lines about a stopping worker are left out, since the command reports that itself.
    """

    _told = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        from standfast.temporal.client.connections import reason_of

        if record.name == _STOPS and record.levelno == logging.INFO:
            return False
        if record.name != SDK_LOG or " retried " not in record.msg:
            return True
        if record.created < self._told + 60:
            return False
        self._told = record.created
        record.msg = f"The Temporal server does not answer: {reason_of(record.msg)}. Retrying until it does"
        return True
