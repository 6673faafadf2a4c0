"""A history that cannot be replayed is kept for the reader, since the server forgets it with the test."""

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from acceptance.replays import failed_replays
from acceptance.temporal_world import World
from standfast.temporal.workflows.run.agent_workflows import AgentRun


async def test_a_history_that_does_not_replay_is_kept_in_a_file(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await world.worker("w", pace=0)
    run = await world.start("case", "look")
    await run.result()
    assert await failed_replays(world, 7) == []

    async def does_nothing(self: AgentRun) -> dict[str, object]:
        return {}

    monkeypatch.setattr(AgentRun, "drive", does_nothing)
    monkeypatch.setenv("CHAOS_HISTORIES", str(tmp_path / "kept"))
    (failure,) = await failed_replays(world, 7)
    (path,) = (tmp_path / "kept").iterdir()
    assert f"seed 7, see {path}:" in failure
    kept = WorkflowHistory.from_json(run.id, path.read_text())
    assert list(kept.events) == list((await run.fetch_history()).events)
