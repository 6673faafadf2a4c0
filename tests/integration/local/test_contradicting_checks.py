"""Two checks of one lost call disagree: "happened" wins, and the call runs at most once more."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.drivers import Driver
from support.transcripts import DURABILITY, asks_for, call, tool_results

from standfast import Agent, Happened, NotHappened, SessionConflictError, ToolContext, run, tool
from standfast.effects import ToolDurabilityError, effect
from standfast.effects.kept_outcomes import write_kept
from standfast.runtime import call_ledger
from standfast.runtime.call_ledger import CONTRADICTED, last_dispatch
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel, crash_after_tool_results
from standfast.tools import Returned
from standfast.tools.signatures import hash_of


class Rival:
    """Another attempt that has asked `verify`, too, and acts in the ledger while this one still asks."""

    def __init__(self, store: SQLiteStore, scope: str, key: str, digest: str, result: str) -> None:
        self._store, self._scope, self._key, self._digest, self._result = store, scope, key, digest, result

    async def look(self) -> None:
        """Find the last dispatch. A run in process claims nothing, so there may be none."""
        self._number = await last_dispatch(self._store, self._scope, 0, self._key.removeprefix("0/"))
        if not self._number:
            self._number = 1
            await self._store.claim(self._scope, self._key, owner="lost", arguments_hash=self._digest)
        self._last = f"{self._key}#{self._number}" if self._number > 1 else self._key
        self._owner = str((await self._store.settle(self._scope, self._last)).owner)

    async def gives_up(self) -> None:
        """It was told that the call has not happened."""
        await self._store.abandon(self._scope, self._last, owner=self._owner)

    async def dispatches(self) -> None:
        await self.gives_up()
        self._last, self._owner = f"{self._key}#{self._number + 1}", "rival"
        await self._store.claim(self._scope, self._last, owner="rival", arguments_hash=self._digest)

    async def runs(self) -> None:
        await self.dispatches()
        await self.records()

    async def takes_over(self) -> None:
        """It was told that the call has happened, and, as earlier versions do, claims it before it records that."""
        self._owner = "rival"
        await self._store.take_over(self._scope, self._last, owner=self._owner)

    async def records(self) -> None:
        await self._store.finish(self._scope, self._last, owner=self._owner, state="done", result=self._result)


HAPPENED, NOT_HAPPENED = Happened("found"), NotHappened()
CASES: list[tuple[Callable[[Rival], Awaitable[None]], Any, str]] = [
    (Rival.gives_up, HAPPENED, "found"),
    (Rival.dispatches, HAPPENED, "unknown"),
    (Rival.runs, HAPPENED, "rival's"),
    (Rival.records, HAPPENED, "rival's"),
    (Rival.takes_over, HAPPENED, "found"),
    (Rival.takes_over, NOT_HAPPENED, "unknown"),
    (Rival.records, NOT_HAPPENED, "rival's"),
    (Rival.runs, NOT_HAPPENED, "rival's"),
]
IDS = [f"{act.__name__}-{type(said).__name__}" for act, said, _ in CASES]


@pytest.mark.parametrize(("act", "said", "told"), CASES, ids=IDS)
async def test_of_two_checks_of_a_call_the_one_that_found_it_wins_and_it_does_not_run_again(
    driver: Driver, act: Callable[[Rival], Awaitable[None]], said: Any, told: str
) -> None:
    effects: list[str] = []
    store = driver.temporal.store

    async def verify(ctx: ToolContext) -> Any:
        scope, _, key = ctx.idempotency_key.rpartition(".")
        if not rivals:
            rivals.append(Rival(store, scope, key, call_ledger.hash_of(asked), json.dumps({"returned": "rival's"})))
            await rivals[0].look()
            await act(rivals[0])
        return said

    rivals: list[Rival] = []

    @tool(verify=verify)
    async def post(ctx: ToolContext) -> str:
        effects.append(ctx.tool_call_id)
        return "posted"

    agent, asked = Agent("poster", tools=[post]), call("post", "c1")
    dying = crash_after_tool_results(store, 2)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(
            agent, message="go", llm=ScriptedModel([asks_for(asked)]), store=dying, session_id=driver.temporal.session()
        )
    try:
        ended = await driver.run(agent, ScriptedModel(["done"]), message=None)
    except SessionConflictError:
        assert said is NOT_HAPPENED  # in process, whoever has lost the call ends before the model reads anything
        await rivals[0].records()
        told = "rival's"
        ended = await driver.run(agent, ScriptedModel(["done"]), message=None)
    [result] = [one.content for one in tool_results(ended.messages)]
    assert (told if told != "unknown" else DURABILITY) in result
    assert effects == ["c1"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("act", "said", "told"), CASES, ids=IDS)
async def test_of_two_checks_of_an_effect_the_one_that_found_it_wins_and_it_does_not_run_again(
    store: SQLiteStore, act: Callable[[Rival], Awaitable[None]], said: Any, told: str
) -> None:
    effects: list[str] = []
    scope, key, digest = "effect/charge/a/steps/call", "0/charge", hash_of({"order": "a"})
    rivals: list[Rival] = []

    async def verify(order: str) -> Any:
        if not rivals:
            rivals.append(Rival(store, scope, key, digest, write_kept(Returned('"rival\'s"'))))
            await rivals[0].look()
            await act(rivals[0])
        return said

    @effect(store, "charge", key=lambda order: order, verify=verify, timeout=0.1)
    async def charge(order: str) -> str:
        effects.append(order)
        return "charged"

    over = "effects_elsewhere_1_1f_elsewhere.1-0"  # an attempt of another machine, whose time is over
    await store.claim(scope, key, owner=over, arguments_hash=digest)
    if told == "unknown" and said is NOT_HAPPENED:
        with pytest.raises(ToolDurabilityError, match=CONTRADICTED):
            await charge("a")
    else:  # the outcome of a rival that dies is looked up again, and it has happened
        assert await charge("a") == (told if told != "unknown" else "found")
    assert effects == []
