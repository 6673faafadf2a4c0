"""Agents of every shape are stopped at every store write and every handler, and continued by a new process."""

from pathlib import Path

import pytest
from support.crash_scenarios import SCENARIOS, Files, Scenario, crash
from support.crash_world import WORLD

from standfast.testing import CrashReport


def check(folder: Path, scenario: Scenario, report: CrashReport) -> None:
    assert report.double_executions == []
    assert report.lost_messages == []
    assert {run.result and run.result.status for run in report.runs} <= scenario.statuses
    effects = [WORLD.effects[str(path)] for path in Files(folder).paths()]
    assert max((count for each in effects for count in each.values()), default=1) == 1
    assert [run.stopped_at for run in report.runs][-1] == ()


@pytest.mark.slow(but=6)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_a_run_stopped_anywhere_doubles_no_effect_and_loses_no_message(folder: Path, scenario: Scenario) -> None:
    check(folder, scenario, await crash(folder, scenario))


SHORT = {name: scenario for name, scenario in SCENARIOS.items() if not scenario.is_long}


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("scenario", SHORT.values(), ids=SHORT)
async def test_a_run_stopped_twice_doubles_no_effect_and_loses_no_message(folder: Path, scenario: Scenario) -> None:
    report = await crash(folder, scenario, crashes=2)
    check(folder, scenario, report)
    assert {len(run.stopped_at) for run in report.runs} == {0, 1, 2}
