"""Deploys that rename a pipeline: its keys and runs in flight continue under the new name."""

from functools import partial
from typing import Any

import pytest
from support.temporal_runs import Run, Temporal, check_healthy, failure, pending, result, until, waiting

from standfast import (
    Approval,
    DefinitionError,
    InputError,
    Pipeline,
    SessionConflictError,
    Step,
    pipeline,
    run_pipeline,
    tool,
)
from standfast.temporal import start_pipeline


def named(name: str, effects: list[str], **options: Any) -> Pipeline:
    @tool
    async def send(number: int) -> str:
        """Send."""
        effects.append(f"sent {number}")
        return "sent"

    first = Step("first", run=send, input=lambda ctx: {"number": 1})
    last = Step("last", run=send, input=lambda ctx: {"number": 2})
    return pipeline(name, **options).step(first).step("check", approval=Approval(message="Go on?")).step(last).build()


async def started(temporal: Temporal, name: Any, **options: Any) -> Run:
    options = {"input": {}, "run_key": temporal.session(), "task_queue": temporal.name, **options}
    return await start_pipeline(temporal.client, name, **options)


async def parked(temporal: Temporal, version: Pipeline) -> Run:
    async with temporal.worker(pipelines=[version]):
        run = await started(temporal, version)
        assert [item["name"] for item in await pending(run)] == ["check"]
    return run


async def test_a_run_in_flight_continues_under_the_name_that_its_pipeline_had(temporal: Temporal) -> None:
    effects: list[str] = []
    run = await parked(temporal, named("line", effects))
    async with temporal.worker(pipelines=[named("flow", effects, formerly=["line"])]):
        await temporal.people.decide(run.id, "check", "approve", by="ada")
        assert (await result(run))["status"] == "complete"
    assert effects == ["sent 1", "sent 2"]
    await check_healthy(run)


async def test_a_key_that_had_a_run_under_the_former_name_has_no_second_one(temporal: Temporal) -> None:
    effects: list[str] = []
    run = await parked(temporal, named("line", effects))
    renamed = named("flow", effects, formerly=["line"])
    async with temporal.worker(pipelines=[renamed]):
        assert (await started(temporal, renamed)).id == run.id  # it is the same start
        with pytest.raises(SessionConflictError, match=f"already has a run .*, with another input.*workflow {run.id}"):
            await started(temporal, renamed, input={"other": 1})
        # By its name alone, as the command does.
        refused = await failure(await started(temporal, "flow"))
        assert (refused.type, f"workflow {run.id}" in refused.message) == ("SessionConflictError", True)
        assert effects == ["sent 1"]
        assert (await started(temporal, renamed, run_key=temporal.session("other"))).id.startswith("flow/")


async def test_a_run_is_started_again_from_one_that_was_made_under_the_former_name(temporal: Temporal) -> None:
    effects: list[str] = []
    await parked(temporal, named("line", effects))
    async with temporal.worker(pipelines=[named("flow", effects, formerly=["line"])]):
        again = await started(
            temporal, "flow", input=None, run_key=temporal.session("again"),
            restart_of=temporal.session(), restart_from="check",
        )  # fmt: skip
        await pending(again)
        await temporal.people.decide(again.id, "check", "approve", by="ada")
        assert (await result(again))["status"] == "complete"
    assert effects == ["sent 1", "sent 2"]


async def test_without_its_former_name_the_run_of_a_renamed_pipeline_is_shown(temporal: Temporal) -> None:
    run = await parked(temporal, named("line", []))
    async with temporal.worker(pipelines=[named("flow", [])]):
        await run.signal("approve", {"gate": "check", "by": "ada"})
        await until(partial(_waits_for_a_worker, run))


async def _waits_for_a_worker(run: Run) -> bool:
    return any(item["kind"] == "worker" for item in await waiting(run))


async def test_in_process_a_run_continues_under_the_new_name_of_its_pipeline(temporal: Temporal) -> None:
    effects: list[str] = []
    options: dict[str, Any] = {"store": temporal.store, "run_key": temporal.session()}
    assert (await run_pipeline(named("line", effects), input={}, **options)).status == "pending"
    decided = [{"gate": "check", "decision": "approve", "by": "ada"}]
    renamed = named("flow", effects, formerly=["line"])
    with pytest.raises(InputError, match="there is no run"):
        await run_pipeline(named("flow", effects), decisions=decided, **options)
    assert (await run_pipeline(renamed, decisions=decided, **options)).status == "complete"
    # Back under the old name it is the same run, and has ended.
    assert (await run_pipeline(named("line", effects), **options)).status == "complete"
    assert effects == ["sent 1", "sent 2"]


async def test_in_process_a_run_in_flight_under_the_former_name_is_not_begun_beside_it(temporal: Temporal) -> None:
    key, effects = temporal.session(), list[str]()
    assert await temporal.store.hold(f"line/{key}")
    with pytest.raises(SessionConflictError, match="in flight"):
        await run_pipeline(named("flow", effects, formerly=["line"]), input={}, store=temporal.store, run_key=key)
    await temporal.store.let_go(f"line/{key}")
    assert await temporal.store.hold(f"flow/{key}")  # nothing was left held
    assert effects == []


@pytest.mark.parametrize("formerly", ["line", ["Line"], [5], ["flow"], ["b", "b"], 5])
def test_former_names_that_cannot_be_are_refused(formerly: Any) -> None:
    with pytest.raises(DefinitionError, match="Pipeline 'flow': formerly"):
        named("flow", [], formerly=formerly)


async def test_two_pipelines_of_a_worker_do_not_share_a_former_name(temporal: Temporal) -> None:
    with pytest.raises(DefinitionError, match="two workflows are named 'line'"):
        async with temporal.worker(pipelines=[named("line", []), named("flow", [], formerly=["line"])]):
            pass
