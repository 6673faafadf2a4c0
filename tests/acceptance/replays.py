"""Replays the histories of runs, as a worker with a cold cache does. A run that cannot be replayed is wedged."""

import os
import random
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from acceptance.temporal_worker import Outside
from acceptance.temporal_world import World
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel


def chosen_seed() -> int:
    """Return the seed of a test's random choices: `CHAOS_SEED`, or another each time."""
    return int(os.environ.get("CHAOS_SEED", "0")) or random.randrange(1, 2**32)


async def failed_replays(world: World, seed: int | None = None) -> list[str]:
    """Return why histories of a world's runs do not replay: of all that were ever begun on its task queue.

    Each is kept as JSON, in the folder that `CHAOS_HISTORIES` names or in the world's.
    """
    outside = Outside(world.folder, "nobody")
    plugin = StandfastPlugin(
        agents=outside.agents(), pipelines=outside.pipelines(), store=world.store, llm=ScriptedModel([])
    )
    replayer, failures = Replayer(workflows=[], plugins=[plugin]), []
    async for run in world.client.list_workflows(f'TaskQueue = "{world.queue}"'):
        history = await world.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        found = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if found.replay_failure is not None:
            kinds = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]
            kept = keep_history(world, seed, run.run_id, history)
            failures.append(f"{run.id}, seed {seed}, see {kept}: {found.replay_failure}, of {' '.join(kinds)}")
    return failures


def keep_history(world: World, seed: int | None, run: str, history: WorkflowHistory) -> Path:
    """Write a history as JSON; return the file."""
    folder = Path(os.environ.get("CHAOS_HISTORIES") or world.folder / "histories")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{seed or 'no-seed'}-{run.replace('/', '-')}.json"
    path.write_text(history.to_json())
    return path
