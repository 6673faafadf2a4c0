"""Runs that an earlier version began go on with this one: their histories are replayed, and nothing may differ."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from holdfast import Agent, pipeline, sqlite_store
from holdfast.temporal import HoldfastPlugin
from holdfast.testing import ScriptedModel

HISTORIES = sorted(Path(__file__).parent.glob("*.json"))


@pytest.fixture
def replayer(tmp_path: Path) -> Iterator[Replayer]:
    # Bare agents: a workflow reads what was recorded, never what its agent is today.
    agents = [Agent(name) for name in ("clerk", "helper", "patient", "careful")]
    bare = pipeline("gated").step("other", agent=agents[0]).build()
    store = sqlite_store(tmp_path / "unused.db")
    plugin = HoldfastPlugin(agents=agents, pipelines=[bare], store=store, llm=ScriptedModel([]))
    yield Replayer(workflows=[], plugins=[plugin])
    assert not (tmp_path / "unused.db").exists()


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_saved_history_replays(path: Path, replayer: Replayer) -> None:
    saved = json.loads(path.read_text())
    await replayer.replay_workflow(WorkflowHistory.from_json(saved["id"], saved["history"]))


def test_there_are_histories_of_every_kind_of_run() -> None:
    assert {path.stem for path in HISTORIES} >= {
        "tools",
        "question",
        "cancelled",
        "retried",
        "child",
        "child_1",
        "long",
        "gates",
        "gates_moved",
        "approvals",
        "approvals_moved",
    }
