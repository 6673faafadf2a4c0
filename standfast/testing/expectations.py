"""Values and comparisons that the checks of a store use."""

from collections.abc import Awaitable, Sequence
from typing import Any

from standfast.errors import StandfastError
from standfast.messages import Message
from standfast.stores import Session


def expect(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {actual!r}")


def expect_same(seen: Sequence[object], what: str) -> None:
    if any(one != seen[0] for one in seen):
        raise AssertionError(f"{what}: expected one for all, got {list(seen)!r}")


async def expect_error(kind: type[StandfastError], awaitable: Awaitable[Any], what: str) -> None:
    try:
        result = await awaitable
    except kind:
        return
    raise AssertionError(f"{what}: expected {kind.__name__}, got {result!r}")


def session(session_id: str = "s1", **fields: Any) -> Session:
    return Session(**{"id": session_id, "agent_name": "greeter", **fields})


def say(*texts: str) -> list[Message]:
    """Return turns of a user message and its answer."""
    return [Message(role="user" if index % 2 == 0 else "assistant", content=text) for index, text in enumerate(texts)]


async def contents(store: Any, session_id: str = "s1") -> list[str]:
    return [message.content for message in await store.load_messages(session_id)]
