"""A person's resolution of a call of unknown outcome counts for every later run of the session."""

from typing import Any

from acceptance.temporal_world import World

CALL = "case.1"


async def asked(world: World, run: Any) -> list[tuple[str, str]]:
    """Wait until a run asks about a call, and return the kind and the call of all that waits."""
    await world.asks(run)
    return [(item["kind"], item["name"]) for item in await world.people.pending(run.id)]


async def unknown(world: World) -> Any:
    """Lose a call with its worker after the claim; returns the run, which asks about it, and leaves worker b."""
    first = await world.worker("a")
    run = await world.start_and_stop("case", "charge", "before-effect", worker="a", agent="asker")
    first.kill()
    await world.worker("b")
    assert await asked(world, run) == [("unknown", CALL)]
    return run


async def say_not_happened_and_end(world: World, point: str) -> None:
    """Have the call run again, and end its run and its worker when the worker stands at a point of it."""
    run = await unknown(world)
    world.stop_at(point, CALL, worker="b")
    await world.people.resolve(run.id, CALL, "not-happened", by="ada")
    await world.stands(point, CALL, worker="b")
    await run.terminate()
    world.processes[-1].kill()
    await world.worker("c")


async def test_a_call_that_has_not_happened_is_run_by_the_next_run_if_its_own_ends_before_it_could(
    world: World,
) -> None:
    await say_not_happened_and_end(world, "before-claim")
    again = await world.start("case", "look", agent="asker")
    assert (await again.result())["status"] == "complete"
    assert world.effects(CALL) == 1
    assert (await world.results("case"))[0] == f"completed: did {CALL}"


async def test_nobody_is_asked_again_about_a_call_that_was_run_again_and_recorded(world: World) -> None:
    await say_not_happened_and_end(world, "after-record")
    again = await world.start("case", "look", agent="asker")
    assert (await again.result())["status"] == "complete"
    assert world.effects(CALL) == 1
    assert (await world.results("case"))[0] == f"completed: did {CALL}"


async def test_a_call_that_was_lost_a_second_time_is_asked_about_again_and_can_be_resolved(world: World) -> None:
    await say_not_happened_and_end(world, "after-effect")
    again = await world.start("case", "look", agent="asker")
    assert await asked(world, again) == [("unknown", CALL)]
    await world.people.resolve(again.id, CALL, "happened", result="found", by="ada")
    assert (await again.result())["status"] == "complete"
    assert world.effects(CALL) == 1
    assert (await world.results("case"))[0] == "completed: found"


async def test_the_next_run_asks_about_a_lost_call_as_the_one_before_did(world: World) -> None:
    run = await unknown(world)
    await run.terminate()
    again = await world.start("case", "look", agent="asker")
    assert await asked(world, again) == [("unknown", CALL)]
    await world.people.resolve(again.id, CALL, "not-happened", by="ada")
    assert (await again.result())["status"] == "complete"
    assert world.effects(CALL) == 1


async def test_what_a_call_that_was_thought_lost_has_recorded_in_the_meantime_is_more_than_what_a_person_says(
    world: World,
) -> None:
    run = await unknown(world)
    session = await world.store.load_session("case")
    assert session is not None
    scope = f"{session.key}/2"
    entry = (await world.store.load_entries(scope, [f"0/{CALL}"]))[f"0/{CALL}"]
    late = {"owner": str(entry.owner), "state": "done", "result": '{"returned": "did it late"}'}
    assert await world.store.finish(scope, f"0/{CALL}", **late)  # type: ignore[arg-type]
    await world.people.resolve(run.id, CALL, "not-happened", by="ada")
    assert (await run.result())["status"] == "complete"
    assert (world.effects(CALL), await world.results("case")) == (0, ["completed: did it late"])
