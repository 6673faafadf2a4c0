"""Operators pause, reset, change, terminate and start again what charges: no order is charged twice by one run.

Workers are processes of their own, which are killed; charges are counted outside of everything, in a file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.operators import Running, Yard
from support.resets import reset, tasks
from support.temporal_runs import Temporal, check_healthy, pending, until


@pytest.fixture
def yard(temporal: Temporal, tmp_path: Path) -> Yard:
    return Yard(temporal, tmp_path)


async def again(yard: Yard, run: Running, task: int = 0) -> Running:
    """Reset a run to before its n-th workflow task."""

    async def has_begun() -> bool:
        return len(await tasks(run)) > task

    await until(has_begun)
    made = await reset(yard.temporal, run, task)
    return yard.temporal.client.get_workflow_handle(run.id, run_id=made.run_id)


COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "paused": [("pause",), ("unpause",)],
    "reset": [("reset",), ("reset", "--clear-heartbeat-details")],
    "kept-paused": [("pause",), ("reset", "--keep-paused"), ("unpause",)],
    "more-attempts": [("update-options", "--retry-maximum-attempts", "9"), ("reset",)],
    "less-time": [("update-options", "--start-to-close-timeout", "1s"), ("reset",)],
}


@pytest.mark.parametrize("place", ["before", "behind"])
async def test_an_activity_that_operators_send_out_again_while_it_runs_charges_once_and_tells_its_result(
    yard: Yard, place: str
) -> None:
    yard.stop_at(place)
    async with yard.worker():
        runs = {
            f"{do}-{name}": await yard.start({"do": do, "order": f"{do}-{name}"}, name=f"{do}-{name}")
            for do in ("charge", "verified")
            for name in COMMANDS
        }
        for order, run in runs.items():
            await yard.arrived(place, order)
            for command in COMMANDS[order.partition("-")[2]]:
                await yard.on_activity(run, *command)
        yard.go_on()
        for order, run in runs.items():
            assert await yard.told(run) == [f"charged {order}"]
            await check_healthy(run)
    assert sorted(yard.lines("charges")) == sorted(runs)


@pytest.mark.parametrize(("do", "place", "told"), [
    ("charge", "behind", "ToolDurabilityError"), ("charge", "before", "ToolDurabilityError"),
    ("verified", "behind", "found"), ("verified", "before", "charged a"),
])  # fmt: skip
async def test_an_activity_that_operators_change_while_it_waits_for_its_retry_charges_at_most_once(
    yard: Yard, do: str, place: str, told: str
) -> None:
    yard.stop_at(place)
    async with yard.worker() as process:
        run = await yard.start({"do": do, "seconds": 30, "attempts": 1})
        await yard.arrived(place)
        await yard.on_activity(run, "update-options", "--retry-maximum-attempts", "9")
        await yard.on_activity(run, "pause")
        process.kill()
    yard.go_on()
    async with yard.worker():
        await yard.on_activity(run, "reset", "--keep-paused")
        await yard.on_activity(run, "unpause")
        (found,) = await yard.told(run)
        assert (found if isinstance(found, str) else found[0]) == told
    assert yard.charges() == (place == "behind" or do == "verified")


async def test_what_is_reset_is_the_same_charge_and_what_is_started_again_is_another_unless_it_has_a_key(
    yard: Yard,
) -> None:
    async with yard.worker():
        yard.stop_at("before")
        run = await yard.start({}, name="reset")
        await yard.arrived("before")
        run = await again(yard, await again(yard, run))  # twice, while it runs
        yard.go_on()
        assert await yard.told(run) == ["charged a"]
        for task in (0, 1):
            run = await again(yard, run, task)  # and afterwards, to before and behind it
            assert await yard.told(run) == ["charged a"]
        assert yard.charges() == 1

        for do, charges in {"charge": 2, "keyed": 1}.items():
            yard.stop_at("before")
            run = await yard.start({"do": do, "order": do}, name=do)
            await yard.arrived("before", do)
            await run.terminate()
            run = await yard.start({"do": do, "order": do}, name=do)
            yard.go_on()
            assert await yard.told(run) == [f"charged {do}"]
            assert yard.charges(do) == charges

        for do, charges in {"charge": 2, "keyed": 1}.items():
            run = await yard.start({"do": do, "order": f"new-{do}"}, name=f"new-{do}", again=1)
            assert await yard.told(run) == [f"charged new-{do}"]
            assert yard.charges(f"new-{do}") == charges

        for do, charges in {"charge": 2, "keyed": 1}.items():
            run = await yard.start({"do": do, "order": f"child-{do}", "how": "child"}, name=f"child-{do}")
            assert await yard.told(run) == [[f"charged child-{do}"]]
            assert await yard.told(await again(yard, run)) == [[f"charged child-{do}"]]
            assert yard.charges(f"child-{do}") == charges


async def test_an_activity_id_that_is_used_twice_is_one_charge(yard: Yard) -> None:
    async with yard.worker():
        run = await yard.start(*({"activity_id": "mine", "order": order} for order in "aab"))
        first, second, other = await yard.told(run)
    assert (first, second, other[0]) == ("charged a", "charged a", "InputError")
    assert (yard.charges("a"), yard.charges("b")) == (1, 0)


async def test_a_local_activity_charges_once_though_a_later_attempt_has_another_id(yard: Yard) -> None:
    yard.stop_at("behind")
    step = {"how": "local", "attempts": 3, "seconds": 0.5, "wait": 0.5}
    async with yard.worker():
        runs = {do: await yard.start({"do": do, "order": do, **step}, name=do) for do in ("charge", "verified")}
        found = {do: (await yard.told(run))[0] for do, run in runs.items()}
        yard.go_on()
        assert found["charge"][0] == "ToolDurabilityError"
        assert "an earlier attempt at this local activity may have run it" in found["charge"][1]
        assert found["verified"] == "found"
        for run in runs.values():
            await check_healthy(run)
    assert (yard.charges("charge"), yard.charges("verified")) == (1, 1)


async def test_what_is_completed_or_failed_by_hand_goes_on_and_its_charge_is_found_after_a_reset(yard: Yard) -> None:
    acts: dict[str, tuple[str, ...]] = {"complete": ("--result", '"by hand"'), "fail": ("--reason", "no")}
    yard.stop_at("before")
    async with yard.worker():
        for act, words in acts.items():
            run = await yard.start({"order": act}, name=act)
            await yard.arrived("before", act)
            await yard.on_activity(run, act, *words)
            (found,) = await yard.told(run)
            assert found == "by hand" if act == "complete" else found[1] == "no"
            second = await again(yard, run)
            yard.go_on()
            assert await yard.told(second) == [f"charged {act}"]
            assert yard.charges(act) == 1
            yard.stop_at("before")
        yard.go_on()


async def at_the_gate(yard: Yard, name: str, order: str = "a") -> tuple[Running, Callable[[Running], Awaitable[None]]]:
    run = await yard.start({"how": "approved", "do": "approved", "seconds": 6, "order": order}, name=name)

    async def approve(run: Running) -> None:
        (shown,) = await pending(run)
        await run.signal("approve", {"gate": shown["name"], "digest": shown["digest"], "by": "ada"})

    return run, approve


async def test_a_charge_behind_a_gate_is_one_for_each_run_however_often_it_is_reset_and_killed(yard: Yard) -> None:
    yard.stop_at("behind")
    async with yard.worker() as process:
        run, approve = await at_the_gate(yard, "gate")
        await pending(run)
        run = await again(yard, run)  # before anybody has decided
        await approve(run)
        await yard.arrived("behind")
        run = await again(yard, run)  # while it runs: nobody is asked again, and it is waited for
        await asyncio.sleep(0.3)
        process.kill()
    yard.go_on()
    async with yard.worker():
        (found,) = await yard.told(run)
        assert found[0] == "ToolDurabilityError"
        (found,) = await yard.told(await again(yard, run))
        assert found[0] == "ToolDurabilityError"
        assert yard.charges() == 1

        run, approve = await at_the_gate(yard, "gate")  # the same id, another run: people are asked again
        await run.terminate()
        run, approve = await at_the_gate(yard, "gate")
        await approve(run)
        assert await yard.told(run) == ["charged a"]
    assert yard.charges() == 2


async def test_a_worker_on_another_store_by_mistake_charges_nothing_again_and_the_right_one_tells_the_run(
    yard: Yard,
) -> None:
    yard.stop_at("behind")
    async with yard.worker() as process:
        run = await yard.start({"seconds": 3, "wait": 0.1})
        await yard.arrived("behind")
        process.kill()
    yard.go_on()
    async with yard.worker(store="other.db") as process:
        assert await asyncio.wait_for(process.wait(), 30) != 0
    assert yard.charges() == 1
    async with yard.worker():
        assert (await yard.told(run))[0][0] == "ToolDurabilityError"
    assert yard.charges() == 1
