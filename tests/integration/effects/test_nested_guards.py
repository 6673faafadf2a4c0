"""Nested guards of other frameworks' tools: two around one call count as one, and an inner call has its own."""

from collections.abc import Callable
from typing import Any

from standfast.integrations._guards import ToolGuard, key_of
from standfast.stores import SQLiteStore


async def call(guard: ToolGuard, session: str, order: str, then: Callable[[], Any]) -> Any:
    """Make a model's first call of the tool `charge` in a session; providers count their ids from 0."""
    return await guard.run("charge", "call_0", {"order": order}, then, key=key_of(session, "call_0"))


async def test_two_guards_around_one_call_are_one(store: SQLiteStore) -> None:
    charged = []
    outer, inner = ToolGuard(store), ToolGuard(store)

    async def charge() -> str:
        charged.append("a")
        return "done"

    for _ in range(2):
        assert await call(outer, "shop", "a", lambda: call(inner, "shop", "a", charge)) == "done"
    assert charged == ["a"]


async def test_the_call_of_an_agent_inside_a_tool_is_guarded_though_it_has_the_same_name_and_id(
    store: SQLiteStore,
) -> None:
    charged, guard = [], ToolGuard(store)

    async def charge() -> str:
        charged.append("inner")
        return "inner"

    async def ask_an_agent() -> str:
        for _ in range(2):
            await call(guard, "shop/agent", "a", charge)
        return "outer"

    assert await call(guard, "shop", "a", ask_an_agent) == "outer"
    assert charged == ["inner"]
