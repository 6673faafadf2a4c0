"""Operators' actions on guarded activities and their workflows: no unsafe effect happens twice in a run."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import pytest_asyncio
from support.temporal_runs import check_healthy, raw_payload, until
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from standfast import InputError, StandfastError
from standfast.temporal import StandfastClient, connect
from standfast.temporal.client.queues.servers import temporal_binary
from standfast.testing import DevServer, child_process

_PAUSED = (PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED, PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED)
same_loop = pytest.mark.asyncio(loop_scope="session")
Run = WorkflowHandle[Any, str]


class Shop:
    """A worker whose activities stop where they are told, and an operator of the server."""

    def __init__(self, client: Client, address: str, folder: Path) -> None:
        self.client, self.address, self.queue = client, address, f"q-{uuid4().hex[:12]}"
        self._folder, self.people = folder, StandfastClient(client, timeout=60)

    @asynccontextmanager
    async def worker(self, *window: str) -> AsyncIterator[asyncio.subprocess.Process]:
        words = (self.address, self.queue, str(self._folder), *window)
        command = (sys.executable, "-m", "support.operated_worker", *words)
        tests = str(Path(__file__).parents[2])
        async with child_process(*command, environment={**os.environ, "PYTHONPATH": tests}) as process:
            yield process

    async def start(self, activity: str, case: str, how: str = "", *, workflow_id: str | None = None) -> Run:
        name = workflow_id or f"{case}/{self.queue}"
        arguments = [activity, case, how]
        return await self.client.start_workflow(
            "Operated", args=arguments, id=name, task_queue=self.queue, result_type=str
        )

    def stop_at(self, case: str, point: str) -> None:
        (self._folder / f"{case}.{point}").touch()

    async def stands(self, case: str, point: str) -> None:
        await until((self._folder / f"{case}.{point}.reached").exists)

    def go_on(self, case: str, point: str) -> None:
        (self._folder / f"{case}.{point}").unlink()

    def effects(self, case: str) -> int:
        path = self._folder / "effects"
        return path.read_text().splitlines().count(case) if path.exists() else 0

    async def temporal(self, *words: str) -> None:
        """Run the `temporal` command, as an operator would."""
        command = [temporal_binary(), *words, "--address", self.address]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, output

    async def reset(self, run: Run) -> Run:
        """Reset a run to its first workflow task, and return the new one."""

        async def tasks() -> list[int]:
            return [event.event_id async for event in run.fetch_history_events() if event.event_type == 7]

        first = (await until(tasks))[0]
        await self.temporal("workflow", "reset", "-w", run.id, "--event-id", str(first), "--reason", "test")
        return self.client.get_workflow_handle(run.id, result_type=str)

    async def opens(self, run: Run) -> dict[str, Any]:
        """Return the gate at which a run waits, once it does."""

        async def waits() -> list[Any]:
            with contextlib.suppress(StandfastError):  # its worker is being started
                return list(await self.people.pending(run.id))
            return []

        (item,) = await until(waits)
        return dict(item)

    async def approve(self, run: Run) -> None:
        item = await self.opens(run)
        await self.people.decide(run.id, item["name"], "approve", by="ada", digest=item["digest"])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(temporal_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """Return a shop with a worker that is not killed."""
    made = Shop(await connect(temporal_server.address), temporal_server.address, tmp_path_factory.mktemp("shop"))
    async with made.worker():
        yield made


async def told(run: Run) -> str:
    """Return the result of a run, or the type of the error behind its failure."""
    try:
        async with asyncio.timeout(60):
            return await run.result()
    except WorkflowFailureError as failed:
        cause = failed.cause
        while cause.__cause__ is not None:
            cause = cause.__cause__
        assert isinstance(cause, ApplicationError)
        return str(cause.type)


# --- activities ---

OPTIONS = "update-options --start-to-close-timeout"
# What an operator does to an activity that runs, and whether the attempt has heard then that it is to end.
ACTIONS: dict[str, tuple[list[str], bool | None]] = {
    "pause": (["pause", "heard", "unpause"], True),
    "reset": (["reset", "heard"], True),
    "reset its heartbeats": (["reset --clear-heartbeat-details", "heard"], True),
    "reset while it is paused": (["pause", "reset --keep-paused", "heard", "unpause"], True),
    "a shorter timeout": ([f"{OPTIONS} 1s", "heard"], None),  # the server may have begun another before
    "a longer timeout": ([f"{OPTIONS} 10m"], False),
    "more attempts": (["update-options --retry-maximum-attempts 9"], False),
}


class Ended(NamedTuple):
    effects: int
    told: str


async def operated(shop: Shop, activity: str, action: str) -> Ended:
    case = f"{activity}-{action.replace(' ', '-')}"
    words, _ = ACTIONS[action]
    shop.stop_at(case, "happened")
    run = await shop.start(activity, case)
    await shop.stands(case, "happened")

    async def has_heard() -> bool:
        pending = (await run.describe()).raw_description.pending_activities
        return not pending or pending[0].attempt > 1 or pending[0].state in _PAUSED

    for word in words:
        if word != "heard":
            command, *options = word.split()
            await shop.temporal("activity", command, "-w", run.id, "-a", "1", *options)
        elif activity != "deaf":
            await until(has_heard)
    shop.go_on(case, "happened")
    return Ended(shop.effects(case), await told(run))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def after(shop: Shop) -> dict[tuple[str, str], Ended]:
    """Return the outcome of each action on an activity that stands behind its effect."""
    cases = [(activity, action) for activity in ("charge", "deaf", "seen") for action in ACTIONS]
    at_once = asyncio.Semaphore(6)

    async def one(activity: str, action: str) -> Ended:
        async with at_once:
            return await operated(shop, activity, action)

    ended = await asyncio.gather(*(one(*case) for case in cases))
    return dict(zip(cases, ended, strict=True))


@same_loop
async def test_no_action_on_an_activity_repeats_its_effect(after: dict[tuple[str, str], Ended]) -> None:
    assert {case: ended.effects for case, ended in after.items()} == dict.fromkeys(after, 1)


@same_loop
@pytest.mark.parametrize(
    "action", [action for action, (_, is_broken_off) in ACTIONS.items() if is_broken_off is not None]
)
async def test_the_caller_is_told_what_is_known_after_an_action(
    after: dict[tuple[str, str], Ended], action: str
) -> None:
    is_broken_off = ACTIONS[action][1]
    did = {activity: f"did {activity}-{action.replace(' ', '-')}" for activity in ("charge", "deaf", "seen")}
    assert after["deaf", action].told == did["deaf"]
    assert after["charge", action].told == ("ToolDurabilityError" if is_broken_off else did["charge"])
    saw = did["seen"].replace("did", "saw")
    assert after["seen", action].told == (saw if is_broken_off else did["seen"])


# --- workflows ---


@same_loop
@pytest.mark.parametrize(("activity", "in_all"), [("deaf", 2), ("keyed", 1)])
async def test_a_workflow_that_is_terminated_and_started_again_is_another_run_unless_the_effect_has_a_key(
    shop: Shop, activity: str, in_all: int
) -> None:
    case = f"terminated-{activity}"
    shop.stop_at(case, "happened")
    run = await shop.start(activity, case)
    await shop.stands(case, "happened")
    await run.terminate("test")
    again = await shop.start(activity, case)
    shop.go_on(case, "happened")
    assert await told(again) == f"did {case}"
    assert shop.effects(case) == in_all


@same_loop
async def test_a_workflow_that_is_reset_twice_while_its_activity_runs_waits_for_it(shop: Shop) -> None:
    shop.stop_at("reset", "happened")
    run = await shop.start("deaf", "reset")
    await shop.stands("reset", "happened")
    run = await shop.reset(await shop.reset(run))
    shop.go_on("reset", "happened")
    assert await told(run) == "did reset"
    assert await told(await shop.reset(run)) == "did reset"
    assert shop.effects("reset") == 1


@same_loop
@pytest.mark.parametrize(("activity", "in_all"), [("charge", 2), ("keyed", 1)])
async def test_a_child_of_a_workflow_that_is_reset_is_another_run_unless_the_effect_has_a_key(
    shop: Shop, activity: str, in_all: int
) -> None:
    case = f"child-{activity}"
    run = await shop.start(activity, case, "child")
    assert await told(run) == f"did {case}"
    assert await told(await shop.reset(run)) == f"did {case}"
    assert shop.effects(case) == in_all


@same_loop
async def test_an_activity_id_that_is_used_twice_is_one_call(shop: Shop) -> None:
    assert await told(await shop.start("charge", "one-id", "one id")) == "did one-id"
    assert shop.effects("one-id") == 1


# --- gates ---


@same_loop
@pytest.mark.parametrize("which", ["before the decision", "while it runs", "after it"])
async def test_an_approved_effect_happens_once_though_its_workflow_is_reset(shop: Shop, which: str) -> None:
    case = f"gate-reset-{which.replace(' ', '-')}"
    shop.stop_at(case, "happened")
    run = await shop.start("approved", case, "gate")
    if which == "before the decision":
        await shop.opens(run)
        run = await shop.reset(run)
    await shop.approve(run)
    await shop.stands(case, "happened")
    if which == "while it runs":
        run = await shop.reset(run)
    shop.go_on(case, "happened")
    assert await told(run) == f"did {case}"
    if which == "after it":
        assert await told(await shop.reset(run)) == f"did {case}"
    assert shop.effects(case) == 1


@same_loop
@pytest.mark.parametrize(("activity", "in_all"), [("approved", 2), ("approved_by_key", 1)])
async def test_a_workflow_that_is_terminated_behind_its_gate_and_started_again_asks_again(
    shop: Shop, activity: str, in_all: int
) -> None:
    case = f"gate-terminated-{activity}"
    shop.stop_at(case, "happened")
    run = await shop.start(activity, case, "gate")
    await shop.approve(run)
    await shop.stands(case, "happened")
    await run.terminate("test")
    again = await shop.start(activity, case, "gate")
    await shop.opens(again)
    assert shop.effects(case) == 1
    shop.go_on(case, "happened")
    await shop.approve(again)
    assert await told(again) == f"did {case}"
    assert shop.effects(case) == in_all


@same_loop
async def test_of_decisions_that_come_at_once_through_several_doors_one_counts(shop: Shop) -> None:
    async def decided(number: int) -> tuple[int, str]:
        case = f"at-once-{number}"
        run = await shop.start("approved", case, "gate")
        item = await shop.opens(run)
        given = {"gate": "approved", "digest": item["digest"], "by": "ada"}
        rejected = {"by": "bob", "digest": item["digest"]}
        await asyncio.gather(
            run.signal("approve", given),
            run.execute_update("decide", {**given, "decision": "reject", "by": "cy"}),
            shop.people.decide(run.id, "approved", "reject", **rejected),
            return_exceptions=True,
        )
        said = await told(run)
        await check_healthy(run)
        return shop.effects(case), said.partition(" ")[0]

    ended = await asyncio.gather(*map(decided, range(6)))
    assert set(ended) <= {(1, "did"), (0, "approval-rejected")}


@same_loop
async def test_an_approval_that_is_sent_again_does_not_count_for_the_workflow_that_was_started_in_its_place(
    shop: Shop,
) -> None:
    run = await shop.start("approved", "again", "gate")
    item = await shop.opens(run)
    approval = {"by": "ada", "digest": item["digest"], "id": "a click"}
    await shop.people.decide(run.id, "approved", "approve", **approval)
    assert await told(run) == "did again"
    again = await shop.start("approved", "again", "gate")
    await shop.opens(again)
    await shop.people.decide(run.id, "approved", "approve", **approval)  # its sender had not heard of the first
    with pytest.raises(InputError):  # of someone who still looks at what the first one has shown
        await shop.people.decide(run.id, "approved", "approve", by="ada", digest=item["digest"])
    await shop.opens(again)
    await shop.approve(again)
    assert await told(again) == "did again"
    assert shop.effects("again") == 2


@same_loop
async def test_a_workflow_that_continues_as_new_behind_its_gate_asks_again(shop: Shop) -> None:
    run = await shop.start("approved", "as-new", "gate, then as new")
    await shop.approve(run)
    await until(lambda: shop.effects("as-new"))
    current: Run = shop.client.get_workflow_handle(run.id, result_type=str)
    await until(lambda: is_another(current, run))
    await shop.approve(current)
    assert await told(current) == "did as-new"
    assert shop.effects("as-new") == 2


async def is_another(current: Run, run: Run) -> bool:
    return (await current.describe()).run_id != run.first_execution_run_id


@same_loop
async def test_two_workflows_whose_approved_effects_have_one_key_are_one_effect(shop: Shop) -> None:
    shop.stop_at("both", "happened")
    runs = [await shop.start("approved_by_key", "both", "gate", workflow_id=f"{n}/{shop.queue}") for n in (1, 2)]
    for run in runs:
        await shop.approve(run)
    await shop.stands("both", "happened")
    shop.go_on("both", "happened")
    assert [await told(run) for run in runs] == ["did both"] * 2
    assert shop.effects("both") == 1


@same_loop
@pytest.mark.parametrize("kind", ["wrong", "broken", "unknown"])
async def test_an_approved_activity_that_is_completed_by_hand_with_junk_fails_its_workflow_in_words(
    shop: Shop, kind: str
) -> None:
    payloads = {"wrong": raw_payload(b"[7]"), "broken": raw_payload(b"[7"), "unknown": raw_payload(b"7", "unknown")}
    case = f"by-hand-{kind}"
    shop.stop_at(case, "happened")
    run = await shop.start("approved", case, "gate")
    await shop.approve(run)
    await shop.stands(case, "happened")
    (pending,) = (await run.describe()).raw_description.pending_activities
    await shop.client.workflow_service.respond_activity_task_completed_by_id(
        RespondActivityTaskCompletedByIdRequest(
            namespace="default",
            workflow_id=run.id,
            activity_id=pending.activity_id,
            result=Payloads(payloads=[payloads[kind]]),
        )
    )
    with pytest.raises(WorkflowFailureError) as failed:
        async with asyncio.timeout(20):
            await run.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert "approved was completed by hand with an invalid result" in str(failed.value.cause)
    await check_healthy(run)
    shop.go_on(case, "happened")
    assert await told(await shop.reset(run)) == f"did {case}"  # the store knows
    assert shop.effects(case) == 1


@pytest.mark.slow
@same_loop
@pytest.mark.parametrize("point", ["open", "happened"])
async def test_a_worker_that_is_killed_at_a_gate_or_behind_an_approved_effect_repeats_none(
    shop: Shop, tmp_path: Path, point: str
) -> None:
    lone = Shop(shop.client, shop.address, tmp_path)
    case = f"killed-{point}"
    lone.stop_at(case, point)
    async with lone.worker() as process:
        run = await lone.start("approved", case, "gate")
        await lone.opens(run)
        if point != "open":
            await lone.approve(run)
            await lone.stands(case, point)
        process.kill()
        await process.wait()
    lone.go_on(case, point)
    async with lone.worker():
        if point == "open":
            await lone.approve(run)
        assert await told(run) == (f"did {case}" if point == "open" else "ToolDurabilityError")
    assert lone.effects(case) == 1
