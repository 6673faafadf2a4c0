"""Runs of an earlier version continue with this one: their histories replay without a difference."""

import json
from pathlib import Path
from typing import Any

import pytest
from later_recordings import RECORDINGS, Escalating, Rounds
from recordings import Release
from temporalio.client import WorkflowHistory

from standfast import Agent, pipeline, sqlite_store
from standfast.temporal import StandfastPlugin
from standfast.temporal.client.history import replays
from standfast.temporal.client.history.replays import differences
from standfast.temporal.wire import names
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.testing import ScriptedModel

FOLDER = Path(__file__).parent
OF_USERS = {"Release": Release, "Rounds": Rounds, "Escalating": Escalating}
HISTORIES = sorted(FOLDER.glob("*.json"))


def saved_history(path: Path) -> WorkflowHistory:
    saved = json.loads(path.read_text())
    return WorkflowHistory.from_json(saved["id"], saved["history"])


def plugin_of(history: WorkflowHistory) -> StandfastPlugin:
    """Return what a worker of today replays a history with."""
    started = history.events[0].workflow_execution_started_event_attributes
    # Bare definitions: a workflow reads what was recorded, never what its agent is today.
    name, bare = started.workflow_type.name, Agent("bare")
    is_pipeline = names.PIPELINE_MEMO in started.memo.fields
    agents = [bare] if is_pipeline or name in OF_USERS else [Agent(name)]
    pipelines = [pipeline(name).step("other", agent=bare).build()] if is_pipeline else []
    return StandfastPlugin(agents=agents, pipelines=pipelines, store=sqlite_store(":memory:"), llm=ScriptedModel([]))


async def differing(path: Path) -> list[str]:
    """Return how a replay differs from a saved history."""
    history = saved_history(path)
    return await differences(history, plugin_of(history), workflows=list(OF_USERS.values()))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_saved_history_replays(path: Path) -> None:
    assert not [found for found in await differing(path) if found.startswith("[")]  # what the SDK says


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_nobody_is_told_anything_else_in_a_replay(path: Path) -> None:
    assert await differing(path) == []


def test_what_later_versions_tell_beside_what_they_told_is_known_by_name() -> None:
    """A new deadline's outcome also reaches the webhooks of runs in flight, so that readers of a notice see it."""
    of_questions = (("questions", "unknown"),)
    assert {
        "standfast.notify": (("item", "then"), ("run",)),
        "standfast.decide": (("sent",),),
        "standfast.keep": (("messages", "message_id"),),
        "call_model": (("say", "message_id"),),
        **dict.fromkeys(("standfast.commit", "standfast.export", "standfast.finish"), of_questions),
    } == replays._ADDED


@pytest.mark.parametrize("change", [{"name": "other"}, {"more": 1}, {"message": None}])
async def test_beside_what_is_added_nothing_may_change_come_or_go(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    original = Waiting.plain
    monkeypatch.setattr(
        Waiting,
        "plain",
        lambda waiting: {key: one for key, one in (original(waiting) | change).items() if one is not None},
    )
    (key,) = change
    found = await differing(FOLDER / "told.json")
    assert [f"item.{key} was" in one and "then" not in one for one in found] == [True] * len(found) != []


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
        "approvals_stayed",
        *RECORDINGS,
    }
