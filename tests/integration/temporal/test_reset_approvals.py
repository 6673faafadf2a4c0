"""Gates of user workflows after a reset: earlier decisions are found, and each gate finds its own."""

import contextlib
from functools import partial
from typing import Any

import pytest
from support.own_workflows import Beside, NewRelease, Release, Rounds, Staged, Weekly
from support.resets import reset, resets, tasks
from support.temporal_runs import Run, Temporal, chain, check_healthy, events, refusals, result, until, waiting
from temporalio.client import WorkflowQueryFailedError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from standfast import Agent, InputError
from standfast.temporal import StandfastPlugin
from standfast.testing import ScriptedModel

WORKFLOWS = [Release, Rounds, Staged, Beside, Weekly]


def plugin(temporal: Temporal) -> StandfastPlugin:
    return StandfastPlugin(agents=[Agent("other")], store=temporal.store, llm=ScriptedModel([]))


def worker(temporal: Temporal, **options: Any) -> Worker:
    options = {"task_queue": temporal.name, "workflows": WORKFLOWS, **options}
    return Worker(temporal.client, plugins=[plugin(temporal)], **options)


async def start(temporal: Temporal, workflow_type: str, *args: Any) -> Run:
    """Start a workflow, and return this run of it, which a reset does not change."""
    started: Run = await temporal.client.start_workflow(
        workflow_type, args=args, id=temporal.session(), task_queue=temporal.name
    )
    return one_run(temporal, started.result_run_id)


def one_run(temporal: Temporal, run_id: str | None) -> Run:
    found: Run = temporal.client.get_workflow_handle(temporal.session(), run_id=run_id)
    return found


async def asked(run: Run, count: int = 1) -> list[dict[str, Any]]:
    """Return the waiting items as soon as the workflow has so many; before its first gate it cannot be asked."""

    async def enough() -> list[dict[str, Any]]:
        with contextlib.suppress(WorkflowQueryFailedError):
            found = await waiting(run)
            return found if len(found) >= count else []
        return []

    found: list[dict[str, Any]] = await until(enough)
    return found


async def check_replays(temporal: Temporal, run: Run) -> None:
    """Check that no task failed, and that the history replays, even without the plugin."""
    await check_healthy(run)
    history = await run.fetch_history()
    for plugins in ([], [plugin(temporal)]):
        replayer = Replayer(workflows=WORKFLOWS, plugins=plugins, workflow_runner=UnsandboxedWorkflowRunner())
        await replayer.replay_workflow(history)


async def ends_after_resets(temporal: Temporal, run: Run, **options: Any) -> list[Any]:
    """Return the results after a reset to each workflow task of a run, without further decisions."""
    ends = []
    async for again in resets(temporal, run, **options):
        ends.append(await result(again))
        await check_replays(temporal, again)
    return ends


async def until_approved_by(run: Run, people: list[str]) -> None:
    async def is_so() -> bool:
        return (await asked(run))[0]["approved_by"] == people

    await until(is_so)


async def approve_by_update(temporal: Temporal, run: Run, by: str) -> None:
    """Approve as other programs do. Nothing of an update is in a history before the task that accepts it."""
    await run.execute_update("decide", {"gate": "ship", "decision": "approve", "by": by})


async def approve_by_client(temporal: Temporal, run: Run, by: str) -> None:
    await temporal.people.decide(run.id, "ship", "approve", by=by)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("approve", [approve_by_client, approve_by_update])
async def test_a_gate_that_was_decided_is_not_asked_again_whichever_task_the_workflow_is_reset_to(
    temporal: Temporal, approve: Any
) -> None:
    async with worker(temporal):
        run = await start(temporal, "Release", "Ship?")
        await asked(run)
        for by in ("ada", "bob"):
            await approve(temporal, run, by)
        first = await result(run)
        assert first["by"] == ["ada", "bob"]
        ends = await ends_after_resets(temporal, run)
        assert ends == [first] * len(ends)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("approve", [approve_by_client, approve_by_update])
@pytest.mark.parametrize("cached", [1000, 0])
async def test_a_person_who_has_approved_of_two_neither_needs_to_approve_again_nor_counts_twice_after_resets_of_resets(
    temporal: Temporal, approve: Any, cached: int
) -> None:
    async with worker(temporal, max_cached_workflows=cached):
        run = await start(temporal, "Release", "Ship?")
        await asked(run)
        await approve(temporal, run, "ada")
        async for again in resets(temporal, run):
            await until_approved_by(again, ["ada"])
        run = await reset(temporal, again, 0)
        await until_approved_by(run, ["ada"])
        await approve(temporal, run, "bob")
        assert (await result(run))["by"] == ["ada", "bob"]
        await check_replays(temporal, run)


async def test_a_gate_that_shows_something_else_since_then_is_asked_again(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal, "Release", "Ship?")
        (before,) = await asked(run)
        await approve_by_client(temporal, run, "ada")
    again = await reset(temporal, run, 0)
    elsewhere = await temporal.elsewhere()
    async with Worker(elsewhere.client, task_queue=temporal.name, workflows=[NewRelease], plugins=[plugin(temporal)]):
        (now,) = await asked(again)
        assert (now["message"], now["approved_by"]) == ("Really?", [])
        assert now["digest"] != before["digest"]
        for by in ("ada", "bob"):
            await approve_by_client(temporal, run, by)
        assert (await result(again))["by"] == ["ada", "bob"]


async def in_round(run: Run, number: int) -> dict[str, Any]:
    """Return what waits as soon as it is the gate of a round, counted from 0."""

    async def is_there() -> bool:
        return await run.query("rounds") == number

    await until(is_there)
    (item,) = await asked(run)
    return item


async def decide_rounds(temporal: Temporal, run: Run, *verdicts: tuple[Any, str]) -> None:
    """Decide at one gate after the other, from the first on."""
    for number, (verdict, by) in enumerate(verdicts):
        item = await in_round(run, number)
        await temporal.people.decide(run.id, "review", verdict, by=by, digest=item["digest"])


def verdicts_of(end: Any) -> list[tuple[str, list[str]]]:
    return [(gate["status"], gate["by"]) for gate in end["gates"]]


ROUNDS = [("approve", "ada"), ("reject", "bob"), ("approve", "eve")]
DECIDED = [("approved", ["ada"]), ("rejected", ["bob"]), ("approved", ["eve"])]


@pytest.mark.slow
@pytest.mark.parametrize("with_messages", [False, True])
async def test_each_gate_of_one_name_has_its_own_verdict_after_a_reset(temporal: Temporal, with_messages: bool) -> None:
    async with worker(temporal):
        run = await start(temporal, "Rounds", [None, None, None])
        await decide_rounds(temporal, run, *ROUNDS)
        assert verdicts_of(await result(run)) == DECIDED
        ends = await ends_after_resets(temporal, run, with_messages=with_messages)
        assert [verdicts_of(end) for end in ends] == [DECIDED] * len(ends)


@pytest.mark.slow
async def test_a_gate_that_nobody_has_decided_yet_has_no_verdict_of_another_one_of_its_name(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal, "Rounds", [None, None, None])
        await decide_rounds(temporal, run, *ROUNDS[:2])
        before = await in_round(run, 2)
        async for again in resets(temporal, run):
            item = await in_round(again, 2)
            assert item["digest"] == before["digest"]
        await temporal.people.decide(run.id, "review", "approve", by="eve", digest=item["digest"])
        assert verdicts_of(await result(again)) == DECIDED
        await check_replays(temporal, again)


@pytest.mark.slow
async def test_a_gate_whose_time_ran_out_has_no_verdict_of_a_later_one(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal, "Rounds", [None, 0.2, None])
        await decide_rounds(temporal, run, ROUNDS[0])
        item = await in_round(run, 2)
        await temporal.people.decide(run.id, "review", "approve", by="eve", digest=item["digest"])
        decided = [DECIDED[0], ("timed-out", []), DECIDED[2]]
        assert verdicts_of(await result(run)) == decided
        ends = await ends_after_resets(temporal, run)
        assert [verdicts_of(end) for end in ends] == [decided] * len(ends)


async def is_tested(run: Run) -> Any:
    return await run.query("is_tested")


@pytest.mark.slow
async def test_a_person_who_decides_before_a_gate_is_open_again_hears_that_the_run_was_reset(
    temporal: Temporal,
) -> None:
    async with worker(temporal):
        run = await start(temporal, "Staged")
        await asked(run)
        await temporal.people.decide(run.id, "test", "approve", by="ada")
        await until(partial(is_tested, run))
        await run.signal("go_on")
        await asked(run)
        await temporal.people.decide(run.id, "ship", "approve", by="bob")
        first = await result(run)
        again = await reset(temporal, run, 0)
        await until(partial(is_tested, again))
        with pytest.raises(InputError, match="no gate ship is open; open: none; the run was reset: earlier decisions"):
            await temporal.people.decide(run.id, "ship", "approve", by="bob")
        await again.signal("go_on")
        assert await result(again) == first
        await check_replays(temporal, again)


@pytest.mark.slow
async def test_gates_beside_each_other_are_not_asked_again_and_a_callback_of_the_users_is_called(
    temporal: Temporal,
) -> None:
    async with worker(temporal):
        run = await start(temporal, "Beside")
        await asked(run, 2)
        await temporal.people.decide(run.id, "right", "reject", by="bob")
        await temporal.people.decide(run.id, "left", "approve", by="ada")
        first = await result(run)
        assert verdicts_of(first) == [("approved", ["ada"]), ("rejected", ["bob"])]
        ends = await ends_after_resets(temporal, run)
        assert [end["gates"] for end in ends] == [first["gates"]] * len(ends)
        assert [end["resets"] for end in ends] == [0, *[1] * (len(ends) - 1)]  # it is made after the first task's seed


async def has_gone_on(run: Run) -> bool:
    return (await events(run))[-1].HasField("workflow_execution_continued_as_new_event_attributes")


@pytest.mark.slow
async def test_a_workflow_that_continues_as_new_finds_the_gate_of_the_run_that_is_reset(temporal: Temporal) -> None:
    async with worker(temporal):
        run = await start(temporal, "Weekly")
        await asked(run)
        await approve_by_client(temporal, run, "ada")
        await until(partial(has_gone_on, run))
        await asked(one_run(temporal, None))
        await approve_by_client(temporal, run, "bob")
        ended: Any = await result(run)
        assert ended["by"] == ["bob"]
        first, second = [
            one_run(temporal, history[0].workflow_execution_started_event_attributes.original_execution_run_id)
            for history in await chain(temporal.client, run)
        ]
        ends = await ends_after_resets(temporal, second)
        assert [end["by"] for end in ends] == [["bob"]] * len(ends)
        async for again in resets(temporal, first):
            await until(partial(has_gone_on, again))
            await check_replays(temporal, again)
            assert len(await asked(one_run(temporal, None))) == 1  # a new run's gate


async def test_a_late_decision_that_a_reset_sends_again_does_not_count_before_those_on_record(
    temporal: Temporal,
) -> None:
    """An approval by an update, and a rejection without an id that was too late."""
    async with worker(temporal):
        run = await start(temporal, "Rounds", [3600, 3600])
        (first,) = await asked(run)
        for count in (1, 2):  # so that there are tasks in which the gate is open
            await run.signal("reject", {"by": "eve"})
            await until(partial(has_refused, run, count))
        at = len(await tasks(run)) - 1
        decision = {"gate": first["name"], "by": "ada", "digest": first["digest"]}
        await run.execute_update("decide", {**decision, "decision": "approve"})
        await run.signal("reject", {**decision, "by": "bob"})
        await until(partial(is_asked_again, run, first))
        again = await reset(temporal, run, at, with_signals=True)
        await until(partial(is_asked_again, again, first))
        (second,) = await asked(again)
        await temporal.people.decide(run.id, second["name"], "approve", by="ada", digest=second["digest"])
        ended: Any = await result(again)
        await check_replays(temporal, again)
    assert [gate["status"] for gate in ended["gates"]] == ["approved", "approved"], ended


async def has_refused(run: Run, count: int) -> bool:
    return len(await refusals(run)) == count


async def is_asked_again(run: Run, first: dict[str, Any]) -> bool:
    return [item["digest"] for item in await asked(run)] != [first["digest"]]


async def test_a_workflow_that_a_worker_without_the_plugin_began_continues_with_it(temporal: Temporal) -> None:
    queue, options = temporal.name, {"task_queue": temporal.name, "workflows": WORKFLOWS}
    async with Worker(temporal.client, **options):
        run = await start(temporal, "Release", "Ship?")
        await asked(run)
    async with worker(await temporal.elsewhere(), task_queue=queue):
        for by in ("ada", "bob"):
            await temporal.people.decide(run.id, "ship", "approve", by=by)
        ended: Any = await result(run)
    assert ended["by"] == ["ada", "bob"]
    await check_replays(temporal, run)
