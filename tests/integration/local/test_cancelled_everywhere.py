"""No call is without a result once its turn is over, wherever and however often its run was cancelled."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest
from support.every_place import Kind, Places, Wish, everywhere
from support.transcripts import USER, asks_for, call

from standfast import (
    Agent,
    Approval,
    InterruptedResponse,
    InterruptError,
    Message,
    NotHappened,
    RunResult,
    ToolContext,
    run,
    sqlite_store,
    tool,
)
from standfast.stores import Session, SQLiteStore
from standfast.testing import ScriptedModel

EFFECTS: Counter[str] = Counter()


async def has_not(ctx: ToolContext) -> NotHappened:
    await asyncio.sleep(0)
    return NotHappened()


async def work(ctx: ToolContext) -> str:
    await asyncio.sleep(0)
    EFFECTS[f"{ctx.session_id}/{ctx.tool_call_id}"] += 1
    await asyncio.sleep(0)
    return "did it"


def work_plainly(ctx: ToolContext) -> str:
    EFFECTS[f"{ctx.session_id}/{ctx.tool_call_id}"] += 1
    return "did it"


async def wonder(ctx: ToolContext) -> str:
    raise InterruptError("Which?")


helper = Agent("helper", model="helper", tools=[tool(name="look", description="Look.", safe_to_retry=True)(work)])
TOOLS = [
    tool(name="charge", description="Charge.")(work),
    tool(name="charge_plainly", description="Charge.")(work_plainly),
    tool(name="charge_beside", description="Charge.", parallel=True)(work),
    tool(name="look", description="Look.", safe_to_retry=True)(work),
    tool(name="look_beside", description="Look.", parallel=True, safe_to_retry=True)(work),
    tool(name="wire", description="Wire.", verify=has_not)(work),
    tool(name="pay", description="Pay.", approval=Approval(message="Pay?"))(work),
    tool(name="wonder", description="Wonder.")(wonder),
    helper,
]
SAFE = ("look", "look_beside")
agent = Agent("worker", model="worker", tools=TOOLS, on_complete=lambda context: asyncio.sleep(0))
ORPHANS = [USER, Message(role="assistant", tool_calls=[call(name, f"o{number}") for number, name in enumerate(
    ("charge", "wire", "look_beside", "look_beside", "wire"))])]  # fmt: skip


def asked(*names: str, first: int = 1) -> Any:
    arguments = {"helper": {"message": "help"}}
    return asks_for(*(call(name, f"c{number}", **arguments.get(name, {})) for number, name in enumerate(names, first)))


def models(*script: Any) -> Callable[[str], ScriptedModel]:
    """Return models whose answers depend only on what they read, however often they are called."""

    def answer(messages: list[Message], tools: Any) -> Any:
        said = max(index for index, message in enumerate(messages) if message.role == "user")
        turn = sum(message.role == "assistant" for message in messages[said:])
        return script[turn] if turn < len(script) else "done"

    helping = ScriptedModel(
        lambda messages, tools: "helped" if messages[-1].role == "tool" else asks_for(call("look", "h1"))
    )
    return {"worker": ScriptedModel(answer), "helper": helping}.__getitem__


class Scenario:
    """What was there before, what the run is told, and what its model asks for."""

    def __init__(self, *script: Any, before: Any = None, seeded: Any = None, **given: Any) -> None:
        self.script, self.before, self.seeded, self.given = script, before, seeded, given

    async def begin(self, store: SQLiteStore, session: str) -> Any:
        """Return the run that is to be cancelled."""
        given, options = dict(self.given), {"llm": models(*self.script), "store": store, "session_id": session}
        if self.seeded:
            kept = Session(id=session, agent_name="worker")
            await store.append_messages_atomic(session, self.seeded, kept)
        if self.before:
            waits = await run(agent, message="go", **options)
            assert isinstance(waits, InterruptedResponse)
            digests = [one.digest for one in waits.approvals]
            given["decisions"] = [{"gate": "c1", "decision": "approve", "digest": digest} for digest in digests]
        return run(agent, **given, **options)


SCENARIOS = {
    "calls of a turn": Scenario(
        asked("charge", "look", "charge_plainly"), asked("look_beside", "charge_beside", first=4), message="go"
    ),
    "calls that were lost": Scenario(seeded=ORPHANS),
    "calls that were lost, and a message": Scenario(asked("charge"), seeded=ORPHANS, message="go"),
    "calls of a transcript": Scenario(messages=ORPHANS),
    "a call that was approved": Scenario(asked("pay", "charge"), before=True),
    "a call that must be approved": Scenario(asked("pay", "charge"), message="go"),
    "questions beside calls": Scenario(asked("wonder", "charge", "wonder"), message="go"),
    "an agent that is a tool": Scenario(asked("helper", "charge"), message="go"),
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_call_has_a_result_wherever_its_run_was_cancelled(folder: Path, name: str, kind: Kind) -> None:
    scenario = SCENARIOS[name]
    async with sqlite_store(folder / "standfast.db") as store:

        async def attempt(wish: Wish) -> int:
            session, places = uuid4().hex, Places(wish, kind)
            ended = await places.run(await scenario.begin(store, session))
            assert isinstance(ended, asyncio.CancelledError | RunResult | InterruptedResponse), ended
            await check(
                store, session, scenario.seeded, f"{places.cancels} cancels of {places.count} places: {ended!r:.200}"
            )
            return places.count

        made = await everywhere(attempt)
    assert made > 10


async def check(store: SQLiteStore, session: str, seeded: Any, where: str) -> None:
    """Check what a cancelled run has left, and then what the next run makes of it."""
    assert await store.hold(session), where
    await store.let_go(session)
    kept = await store.load_session(session)
    waits = kept is not None and bool(kept.questions)
    messages = await store.load_messages(session)
    untouched = messages == seeded
    assert (where, faults(session, messages, waits or untouched)) == (where, [])
    if not messages or waits:
        return
    assert isinstance(await run(agent, llm=models(), store=store, session_id=session), RunResult)
    assert (where, faults(session, await store.load_messages(session), False)) == (where, [])


def faults(session: str, messages: list[Message], may_wait: bool) -> list[str]:
    results = Counter(message.tool_call_id for message in messages if message.role == "tool")
    read = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    asked = {one.id: one.name for message in messages for one in message.tool_calls or ()}
    found = [f"{result} has no call" for result in results if result not in asked]
    for call_id, name in asked.items():
        effects, content = EFFECTS[f"{session}/{call_id}"], read.get(call_id, "")
        if results[call_id] > 1 or (results[call_id] < 1 and not may_wait):
            found.append(f"{call_id} has {results[call_id]} results")
        if effects > 1 and name not in SAFE:
            found.append(f"{call_id} had {effects} effects")
        if "Not run" in content and effects:
            found.append(f"{call_id} ran, and the model reads {content}")
        if content.startswith("did") and not effects:
            found.append(f"{call_id} did not run, and the model reads {content}")
    return found
