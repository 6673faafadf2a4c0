"""Replays what runs have done: whoever comes to a run with a cold cache does it, and a run that cannot is wedged."""

from collections.abc import Iterable

from temporalio.worker import Replayer

from acceptance.temporal_world import World
from holdfast import Agent
from holdfast.temporal import HoldfastPlugin
from holdfast.temporal.client import Run
from holdfast.testing import ScriptedModel


async def failed_replays(world: World, runs: Iterable[Run]) -> list[str]:
    """Return why histories of runs do not replay, those of all runs of each chain."""
    agents = [Agent(name) for name in ("teller", "stopper", "failer")]  # bare: a workflow reads what was recorded
    plugin = HoldfastPlugin(agents=agents, store=world.store, llm=ScriptedModel([]))
    replayer, failures = Replayer(workflows=[], plugins=[plugin]), []
    for run in runs:
        run_id = run.first_execution_run_id
        assert run_id is not None
        while run_id:
            history = await world.client.get_workflow_handle(run.id, run_id=run_id).fetch_history()
            run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
            found = await replayer.replay_workflow(history, raise_on_replay_failure=False)
            if found.replay_failure is not None:
                failures.append(f"{run.id}: {found.replay_failure}")
    return failures
