"""Every kind of deploy under every kind of parked run: it ends, repeats nothing, and fails no workflow task."""

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from support.deploys import read
from support.questions import ask
from support.temporal_runs import (
    Run,
    Temporal,
    ask_models_once,
    check_healthy,
    has_ended,
    pending,
    result,
    until,
    waiting,
)
from support.transcripts import asks_for, call

from standfast import Agent, Approval, Message, RetryPolicy, ToolContext, tool
from standfast.testing import ScriptedModel

MAY = Approval(message="May it?")
QUICK = RetryPolicy(initial_interval=0.01, maximum_attempts=2)


class Application:
    """Versions of an application, and what they do to the world."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.go_on, self.down = threading.Event(), False  # handlers have their own loop

    def agent(self, *, name: str = "clerk", move: str | None = "move", gate: Any = MAY, **options: Any) -> Agent:
        tools: list[Any] = [ask, self.long(), self.move("gated", gate)]
        moves = [] if move is None else [self.move(move, options.pop("approval", None), **options)]
        options = {key: value for key, value in options.items() if key in ("model", "formerly")}
        return Agent(name, tools=[*tools, *moves], **options)

    def move(self, name: str, approval: Any, **options: Any) -> Any:
        given = {key: value for key, value in options.items() if key not in ("model", "formerly")}

        @tool(name=name, approval=approval, **given)
        async def move(number: int, ctx: ToolContext) -> str:
            """Move."""
            self.effects.append(f"{ctx.session_id} {name} {number}")
            return f"moved {number}"

        return move

    def long(self) -> Any:
        @tool(name="long")
        async def long() -> str:
            """Last."""
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
            return "long"

        return long

    def model(self, messages: Sequence[Message], tools: Any) -> Any:
        """Answer as a model that is parked as its user says, and then moves twice."""
        parked = next(message.content for message in messages if message.role == "user")
        if parked == "pause" and self.down:
            raise ConnectionError("down")
        turns: list[Any] = [asks_for(call("move", "m1", number=1)), asks_for(call("move", "m2", number=2)), "done"]
        if parked in PARKS:
            turns.insert(0, PARKS[parked])
        return turns[sum(message.role == "assistant" for message in messages)]


PARKS = {
    "question": asks_for(call("ask", "p", question="?")),
    "gate": asks_for(call("gated", "p", number=0)),
    "long": asks_for(call("long", "p")),
}
DEPLOYS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a tool renamed": {"move": "shift"},
    "a tool removed": {"move": None},
    "made unsafe": {},
    "made safe": {"safe_to_retry": True, "retry": QUICK},
    "made parallel": {"parallel": True},
    "approval added": {"approval": MAY},
    "approval removed": {"gate": None},
    "verify added": {"verify": lambda number: None},
    "timeout changed": {"timeout": 7},
    "model changed": {"model": "openai:new"},
    "agent renamed": {"name": "assistant", "formerly": ["clerk"]},
}  # fmt: skip
BEFORE = {"made unsafe": {"safe_to_retry": True, "retry": QUICK}}
SKIPPED = '{"error": "Not run: skipped by somebody: gone'
GONE = '{"error": "Tool \\"move\\" not found. Available tools: '


async def tended(temporal: Temporal, run: Run) -> None:
    """Do everything that a run waits for until it has ended. It must not wait for anything invisible."""

    tended: list[Any] = []

    async def tend() -> bool:
        for item in [item for item in await waiting(run) if item not in tended]:
            tended.append(item)
            match item["kind"]:
                case "question":
                    await run.signal("answer", {"text": "yes", "tool_call_id": item["name"]})
                case "approval":
                    await run.signal("approve", {"gate": item["name"], "by": "ada", "digest": item["digest"]})
                case "pause":
                    await run.signal("resume", {})
                case "worker":
                    await run.signal("resume", {"action": "skip", "name": item["name"], "reason": "gone"})
        return await has_ended(run)

    await until(tend)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("deploy", DEPLOYS)
async def test_parked_runs_continue_under_the_next_version(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch, deploy: str
) -> None:
    ask_models_once(monkeypatch)
    application, runs = Application(), {}
    application.down, model = True, ScriptedModel(application.model)
    async with temporal.worker(application.agent(**BEFORE.get(deploy, {})), llm=model):
        for parked in (*PARKS, "pause"):
            runs[parked] = await temporal.start("clerk", parked, session=parked)
        await asyncio.gather(*(pending(run) for parked, run in runs.items() if parked != "long"))
        await until(partial(_runs, runs["long"], "long"))
        application.go_on.set()  # while its worker drains
    application.down = False
    async with temporal.worker(application.agent(**DEPLOYS[deploy]), llm=model):
        for parked, run in runs.items():
            await tended(temporal, run)
            assert (await result(run))["status"] == "complete"
            await check_healthy(run)
            _check_read(parked, deploy, read(await temporal.messages(parked)))
    assert len(application.effects) == len(set(application.effects)), application.effects


def _check_read(parked: str, deploy: str, found: dict[str, str]) -> None:
    """Check what the model reads; where a long tool ends before its worker, the next turn may be that worker's."""
    assert set(found) == {"m1", "m2"} | ({"p"} if parked in PARKS else set())
    moved = [found["m1"], found["m2"]]
    if deploy not in ("a tool renamed", "a tool removed"):
        assert moved == ["moved 1", "moved 2"]
    elif parked == "long":
        assert all(text.startswith((GONE, "moved", SKIPPED)) for text in moved), moved
    else:
        assert all(text.startswith(GONE) for text in moved), moved


async def _runs(run: Run, name: str) -> bool:
    found = (await run.describe()).raw_description.pending_activities
    return any(item.activity_type.name == name and item.HasField("last_started_time") for item in found)
