"""Replays what runs have done: whoever comes to a run with a cold cache does it, and a run that cannot is wedged."""

from temporalio.api.enums.v1 import EventType
from temporalio.worker import Replayer

from acceptance.temporal_worker import Outside
from acceptance.temporal_world import World
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel


async def failed_replays(world: World) -> list[str]:
    """Return why histories of a world's runs do not replay: of all that were ever begun on its task queue."""
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
            failures.append(f"{run.id}, run {run.run_id}: {found.replay_failure}, of {' '.join(kinds)}")
    return failures
