"""Doubles and harnesses for tests of agents and stores."""

from typing import TYPE_CHECKING, Any

from standfast.runtime.processes import child_process, until_stopped
from standfast.testing.crashes import (
    CrashedRun,
    CrashReport,
    SimulatedCrash,
    crash_after_tool_results,
    crash_everywhere,
)
from standfast.testing.model_server import Fault, ModelServer, Reply, Request
from standfast.testing.models import ModelCall, ScriptedModel
from standfast.testing.stores import store_suite

__all__ = [
    "CrashReport",
    "CrashedRun",
    "DevServer",
    "Fault",
    "ModelCall",
    "ModelServer",
    "Reply",
    "Request",
    "ScriptedModel",
    "SimulatedCrash",
    "child_process",
    "crash_after_tool_results",
    "crash_everywhere",
    "dev_server",
    "store_suite",
    "time_skipping_server",
    "until_stopped",
]

if TYPE_CHECKING:
    from standfast.testing.servers import DevServer, dev_server, time_skipping_server


def __getattr__(name: str) -> Any:
    if name in {"DevServer", "dev_server", "time_skipping_server"}:  # imports temporalio only on demand
        from standfast.testing import servers

        return getattr(servers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
