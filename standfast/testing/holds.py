"""Checks of holds: one holder at a time, visible to all others, and gone when its process has died."""

import asyncio
from typing import Any

from standfast.testing.expectations import expect
from standfast.testing.rivals import Rivals

PATIENCE = 60.0  # seconds until a dead process's holds have ended; a run should wait less


async def _hold_or_let_go(store: Any, who: int, number: int) -> bool:
    if number % 2:
        await store.let_go("s1")
        return False
    held: bool = await store.hold("s1")
    return held


async def of_many_who_take_a_hold_one_has_it(store: Any, rivals: Rivals) -> None:
    """If holds are not shared, they guard at least within an object."""

    async def check(number: int, held: list[bool]) -> None:
        expect(sum(held), 1 - number % 2, f"how many hold one session, out of {held}")

    await rivals.race(_hold_or_let_go, check, only_object=not store.shares_holds)


async def a_hold_is_seen_by_all_and_ended_by_its_holder_alone(store: Any, rivals: Rivals) -> None:
    if not store.shares_holds:  # so a free hold does not count as proof of death
        return
    expect(await store.hold("s1"), True, "hold")
    elsewhere = [process.do(_try, "s1") for process in rivals.processes]
    expect(await asyncio.gather(_try(rivals.other, "s1"), *elsewhere), [False] * 3, "hold by others")
    await rivals.other.let_go("s1")
    await rivals.processes[0].do(_let_go, "s1")
    expect(await _try(rivals.other, "s1"), False, "hold by another object after others let go")
    await store.let_go("s1")
    expect(await rivals.processes[0].do(_try, "s1"), True, "hold by another process after let_go")
    expect(await _try(store, "s1"), False, "hold of a name that another process holds")
    await rivals.processes[0].do(_let_go, "s1")
    expect(await _try(rivals.other, "s1"), True, "hold by another object after the process let go")
    await rivals.other.let_go("s1")


async def holds_of_a_process_that_is_killed_are_free_and_others_stay(store: Any, rivals: Rivals) -> None:
    if not store.shares_holds:  # so a free hold does not count as proof of death
        return
    expect(await rivals.processes[0].do(_try, "lost"), True, "hold by another process")
    expect(await store.hold("kept"), True, "hold")
    rivals.processes[0].kill()
    await within(lambda: store.hold("lost"), "a hold of a process that was killed")
    expect(await rivals.processes[1].do(_try, "lost"), False, "hold by others, after it was taken again")
    expect(await rivals.processes[1].do(_try, "kept"), False, "hold of a name that a living process holds")
    await store.let_go("lost")
    await store.let_go("kept")


async def all_who_use_a_store_see_the_holds_of_one_scope(store: Any, rivals: Rivals) -> None:
    scope = await store.hold_scope()
    others = await asyncio.gather(_scope(rivals.other), *(process.do(_scope) for process in rivals.processes))
    expect(others, [scope] * len(others), "hold_scope of others")
    expect("_" in scope, False, f"whether {scope!r} contains _, which separates it in workers' names")


async def within(condition: Any, what: str) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: the condition does not hold in time.
    """
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{what}: nothing has changed in {PATIENCE:.0f} s")
        await asyncio.sleep(0.02)


async def _try(store: Any, name: str) -> bool:
    held: bool = await store.hold(name)
    return held


async def _let_go(store: Any, name: str) -> None:
    await store.let_go(name)


async def _scope(store: Any) -> str:
    scope: str = await store.hold_scope()
    return scope


HELD_BY_ONE = [of_many_who_take_a_hold_one_has_it]
SHARED_HOLDS = [
    a_hold_is_seen_by_all_and_ended_by_its_holder_alone,
    holds_of_a_process_that_is_killed_are_free_and_others_stay,
]
SHARED_SCOPE = [all_who_use_a_store_see_the_holds_of_one_scope]
