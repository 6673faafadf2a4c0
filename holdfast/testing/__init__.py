"""Doubles and harnesses for tests of agents and stores."""

from holdfast.testing.crashes import (
    CrashedRun,
    CrashReport,
    SimulatedCrash,
    crash_after_tool_results,
    crash_everywhere,
)
from holdfast.testing.models import ModelCall, ScriptedModel
from holdfast.testing.stores import store_suite

__all__ = [
    "CrashReport",
    "CrashedRun",
    "ModelCall",
    "ScriptedModel",
    "SimulatedCrash",
    "crash_after_tool_results",
    "crash_everywhere",
    "store_suite",
]
