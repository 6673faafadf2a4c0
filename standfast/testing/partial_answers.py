"""Checks of a store that keeps models' answers while they arrive."""

from typing import Any

from standfast.stores import PartialAnswer
from standfast.testing.expectations import expect


def part(text: str, offset: int = 0, *, turn: int = 1, attempt: str = "a") -> PartialAnswer:
    return PartialAnswer(turn=turn, attempt=attempt, offset=offset, text=text)


async def what_is_said_can_be_followed_from_where_one_is(store: Any) -> None:
    expect(await store.load_partial("run"), None, "load_partial before anything is said")
    await store.add_partial("run", part("Hé"))
    heard = await store.load_partial("run")
    expect(heard, part("Hé"), "what was said")
    await store.add_partial("run", part("llo\n", 2))
    more = await store.load_partial("run", after=heard)
    expect(more, part("llo\n", 2), "what was said since")
    expect(await store.load_partial("run", after=more), part("", 6), "what was said since, if nothing")
    expect(await store.load_partial("run"), part("Héllo\n"), "all that was said")
    expect(await store.load_partial("other"), None, "what another run says")


async def what_is_said_twice_is_there_once(store: Any) -> None:
    await store.add_partial("run", part("one "))
    await store.add_partial("run", part("two ", 4))
    await store.add_partial("run", part("two ", 4))
    expect(await store.load_partial("run"), part("one two "), "what was said")


async def a_later_attempt_takes_the_place_of_an_earlier_one_for_good(store: Any) -> None:
    await store.add_partial("run", part("first"))
    heard = await store.load_partial("run")
    await store.add_partial("run", part("again", attempt="b"))
    await store.add_partial("run", part(" late", 5))
    expect(await store.load_partial("run", after=heard), part("again", attempt="b"), "what the later one says")
    await store.drop_partial("run", turn=1, attempt="a")
    expect(await store.load_partial("run"), part("again", attempt="b"), "it, when the earlier one has ended")
    await store.add_partial("run", part("next", turn=2, attempt="0"))
    expect(await store.load_partial("run"), part("next", turn=2, attempt="0"), "what is said at the next turn")


async def what_was_said_is_forgotten_and_not_begun_in_its_middle(store: Any) -> None:
    await store.add_partial("run", part("gone"))
    await store.drop_partial("run", turn=1, attempt="a")
    expect(await store.load_partial("run"), None, "load_partial")
    await store.add_partial("run", part("late", 4))
    expect(await store.load_partial("run"), None, "load_partial after something came late")


PARTIAL_ANSWERS = [
    what_is_said_can_be_followed_from_where_one_is,
    what_is_said_twice_is_there_once,
    a_later_attempt_takes_the_place_of_an_earlier_one_for_good,
    what_was_said_is_forgotten_and_not_begun_in_its_middle,
]
