"""Test data for a store, and stores that record, fail or share a file."""

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import pytest

from standfast import Agent, Message, StoreError, run
from standfast.stores import DurableStore, Session, SQLiteStore
from standfast.testing import ScriptedModel, crash_after_tool_results
from support.transcripts import shape

SESSION = Session(id="s", agent_name="greeter")


def say(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


async def append(store: DurableStore, text: str, session_id: str = "s") -> int:
    return await store.append_messages_atomic(session_id, say(text), SESSION.model_copy(update={"id": session_id}))


async def contents(store: Any, session_id: str = "s") -> list[str]:
    return [message.content for message in await store.load_messages(session_id)]


def python(script: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


WRITES = ("append_messages_atomic", "append_messages", "save_session", "prune_messages", "delete_session")


class Recorder:
    """Forwards everything to a store and keeps what was written: the method, then the messages as `shape`."""

    def __init__(self, store: Any) -> None:
        self.writes: list[tuple[str, list[str]]] = []
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in WRITES:
            return method

        async def write(*args: Any, **options: Any) -> Any:
            has_messages = name.startswith("append")
            self.writes.append((name, shape(args[1]) if has_messages else []))
            return await method(*args, **options)

        return write


class Refusing:
    """A store that refuses calls while it is told to, except holds; `errors` has its own errors.

    Args:
        refuses: the methods that it refuses; None for all.
        refused: the calls that it has refused.
    """

    def __init__(self, store: Any) -> None:
        self.refuses: set[str] | None = set()
        self.refused: list[str] = []
        self.errors: list[str] = []
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not callable(method) or name in ("hold", "let_go"):
            return method

        async def maybe(*arguments: Any, **options: Any) -> Any:
            if self.refuses is None or name in self.refuses:
                self.refused.append(name)
                raise StoreError("the database is away")
            try:
                return await method(*arguments, **options)
            except StoreError as error:
                self.errors.append(str(error))
                raise

        return maybe


class StoreElsewhere(SQLiteStore):
    """The store as a machine sees it that shares the file and not the locks."""

    async def hold(self, session_id: str) -> bool:
        return True

    async def let_go(self, session_id: str) -> None:
        pass


async def seed(store: SQLiteStore, messages: Sequence[Message], **fields: Any) -> None:
    session = Session(**{"id": "s", "agent_name": "poster", **fields})
    await store.append_messages_atomic("s", messages, session)


async def crash_on_write(store: Any, agent: Agent, script: Sequence[Any], number: int, **options: Any) -> None:
    with pytest.raises(RuntimeError, match="simulated crash after tool results"):
        await run(
            agent,
            message="hi",
            llm=ScriptedModel(script),
            store=crash_after_tool_results(store, number),
            session_id="s",
            **options,
        )
