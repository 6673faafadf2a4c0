"""Finds a key's run that began under another name of its pipeline: a key has one run."""

from temporalio.client import Client

from standfast.errors import SessionConflictError
from standfast.pipelines import Pipeline
from standfast.temporal.client.ended_runs import find_run
from standfast.temporal.client.owners import check_owner
from standfast.temporal.wire import names
from standfast.temporal.wire.inputs import Owner


async def check_new(client: Client, pipeline: Pipeline, workflow_id: str, name: str, who: Owner) -> None:
    """Refuse a run if its key has an earlier run that began under another name of the pipeline.

    Args:
        workflow_id, name: the run's workflow id, and its pipeline's name in it; the run need not exist yet.
        who: the owner who starts it.

    Raises:
        SessionAccessDeniedError: the earlier run belongs to another user.
        SessionConflictError: there is an earlier run; the error names it.
    """
    if (run := await earlier_run(client, pipeline, workflow_id, name, who)) is not None:
        raise has_run(pipeline.name, str(names.session_of(name, workflow_id)), run)


async def earlier_run(client: Client, pipeline: Pipeline, workflow_id: str, name: str, who: Owner) -> str | None:
    """Return the workflow id of the run because of which `check_new` refuses another; None if there is none.

    Raises:
        SessionAccessDeniedError: the earlier run belongs to another user.
    """
    key = names.session_of(name, workflow_id)
    others = [other for other in pipeline.names if other != name]
    if key is None or not others:
        return None
    found = await find_run(client, workflow_id)
    for other in others:
        run = names.workflow_id(other, key)
        before = await find_run(client, run)
        if before is not None and (found is None or before.start_time < found.start_time):
            await check_owner(client, run, None, key, who, what="Run")
            return run
    return None


def has_run(pipeline: str, key: str, workflow_id: str, *, other_input: bool = False) -> SessionConflictError:
    """Return the error for starting a run whose key already has one."""
    what = "with another input, " if other_input else ""
    text = f"Pipeline {pipeline} already has a run {key}, {what}in flight or ended: workflow {workflow_id}"
    return SessionConflictError(f"{text}. To run it again give another run_key, and restart_of= to use its results")
