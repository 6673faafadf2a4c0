"""A lost call whose tool has `verify`: the next run follows its answer."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.doubles import poster
from support.stores import StoreElsewhere, crash_on_write, seed
from support.transcripts import DURABILITY, USER, asks, calls, kind_of, result_of

from standfast import Agent, Happened, Message, NotHappened, run
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


def verified(effects: list[str], verify: Callable[..., Any]) -> Agent:
    return Agent("poster", tools=[poster(effects, verify=verify)])


async def resumed_with(store: SQLiteStore, verify: Callable[..., Any]) -> tuple[list[str], list[Message]]:
    effects: list[str] = []
    agent = verified(effects, verify)
    await crash_on_write(store, agent, [calls("c1")], 2)
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    return effects, await store.load_messages("s")


async def test_what_verify_says_happened_is_the_result_and_nothing_runs_again(store: SQLiteStore) -> None:
    async def verify(text: str) -> Happened:
        return Happened(f"found {text}")

    effects, messages = await resumed_with(store, verify)
    assert (effects, result_of(messages, "c1")) == (["c1"], "found c1")


async def test_what_verify_says_did_not_happen_runs_once_more(store: SQLiteStore) -> None:
    effects, messages = await resumed_with(store, lambda text: NotHappened())
    assert (effects, result_of(messages, "c1")) == (["c1", "c1"], "posted c1")


async def test_a_verify_that_cannot_tell_leaves_a_durability_error(store: SQLiteStore) -> None:
    effects, messages = await resumed_with(store, lambda text: None)
    assert (effects, kind_of(messages, "c1")) == (["c1"], DURABILITY)


async def test_a_verify_that_raises_leaves_a_durability_error_that_says_so(store: SQLiteStore) -> None:
    def verify(text: str) -> None:
        raise ConnectionError("no answer from the archive")

    effects, messages = await resumed_with(store, verify)
    assert (effects, kind_of(messages, "c1")) == (["c1"], DURABILITY)
    assert "no answer from the archive" in result_of(messages, "c1")


async def test_a_verify_that_is_cancelled_from_within_leaves_a_durability_error_that_says_so(
    store: SQLiteStore,
) -> None:
    async def verify(text: str) -> None:
        raise asyncio.CancelledError

    effects, messages = await resumed_with(store, verify)
    assert (effects, kind_of(messages, "c1")) == (["c1"], DURABILITY)
    assert "verify was cancelled from within" in result_of(messages, "c1")


async def test_a_verify_that_returns_something_else_leaves_a_durability_error(store: SQLiteStore) -> None:
    effects, messages = await resumed_with(store, lambda text: False)
    assert (effects, kind_of(messages, "c1")) == (["c1"], DURABILITY)


async def test_a_verify_with_the_wrong_parameters_leaves_a_durability_error(store: SQLiteStore) -> None:
    effects, messages = await resumed_with(store, lambda: NotHappened())
    assert (effects, kind_of(messages, "c1")) == (["c1"], DURABILITY)


async def test_a_verified_result_that_does_not_fit_the_tool_is_an_error_and_nothing_runs_again(
    store: SQLiteStore,
) -> None:
    effects, messages = await resumed_with(store, lambda text: Happened({"not": "text"}))
    assert effects == ["c1"]
    assert list(json.loads(result_of(messages, "c1"))) == ["error"]


async def test_verify_is_asked_about_lost_calls_only(store: SQLiteStore) -> None:
    asked: list[str] = []
    effects: list[str] = []
    agent = verified(effects, asked.append)
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    assert (effects, asked) == (["c1"], [])


async def test_of_two_runs_that_hear_that_a_call_never_happened_only_one_runs_it(
    store: SQLiteStore, tmp_path: Path
) -> None:
    effects: list[str] = []
    asked: list[str] = []
    both = asyncio.Event()

    async def look(text: str) -> NotHappened:
        asked.append(text)
        if len(asked) == 2:
            both.set()
        await both.wait()
        return NotHappened()

    agent = Agent("poster", tools=[poster(effects, verify=look)])
    await seed(store, [USER, asks("c1")])
    async with StoreElsewhere(tmp_path / "standfast.db") as other:
        ended = await asyncio.gather(
            *(run(agent, llm=ScriptedModel(["done"]), store=each, session_id="s") for each in (store, other)),
            return_exceptions=True,
        )
    assert sorted(type(end).__name__ for end in ended) == ["RunResult", "SessionConflictError"]
    assert effects == ["c1"]
