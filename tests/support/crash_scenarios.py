"""Agents of every shape and their models, stopped at every point with separate stores."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast import Agent, AgentContext, ContextCompression, Loop, Message, TokenBudget, Tool, sqlite_store
from standfast.stores import Session, SQLiteStore
from standfast.testing import CrashReport, crash_everywhere
from support.crash_world import (
    WORLD,
    Letter,
    Turn,
    answer_wrongly,
    ask,
    busy,
    busy_with_effects,
    calling,
    cancel_itself,
    confirm,
    delegate,
    doubt,
    doubter,
    fail,
    fail_safely,
    give_up,
    look,
    mail,
    missing,
    peek,
    post,
    poster,
    read_much,
    reader,
    research,
    scripted,
    send,
    transfer,
    transfer_blindly,
    write,
)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """An agent and its model.

    Args:
        statuses: how the run may end.
        invoked: agents that its tools invoke.
        seed: messages that the session starts with.
        is_long: stopping it twice takes too long for every day.
    """

    tools: Sequence[Tool[..., Any] | Agent] = ()
    turns: Sequence[Turn] = ()
    others: Mapping[str, Sequence[Turn]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    statuses: frozenset[str] = frozenset({"complete"})
    invoked: Sequence[Agent] = ()
    seed: Sequence[Message] = ()
    is_long: bool = False

    @property
    def agent(self) -> Agent:
        return Agent("agent", tools=self.tools, **self.options)


def start(ctx: AgentContext) -> None:
    ctx.state["started"] = ctx.state.get("started", 0) + 1


def complete(ctx: AgentContext) -> None:
    ctx.state["completed"] = ctx.state.get("completed", 0) + 1


LONG = [
    message
    for number in range(105)
    for message in (Message(role="user", content=f"q{number}"), Message(role="assistant", content=f"a{number}"))
]
SAME_ID = {"tool_calls": [{"id": "same", "name": "post"}, {"id": "same", "name": "look"}]}
USAGE = {"usage": {"input_tokens": 400, "output_tokens": 0}}

SCENARIOS = {
    "text only": Scenario(turns=["done"]),
    "an empty answer": Scenario(turns=[""], statuses=frozenset({"empty"})),
    "a safe call": Scenario(tools=[look], turns=[calling("look"), "done"]),
    "an unsafe call": Scenario(tools=[post], turns=[calling("post"), "done"]),
    "safe and unsafe in one turn": Scenario(tools=[look, post], turns=[calling("look", "post", "look"), "done"]),
    "unsafe calls beside each other": Scenario(tools=[send], turns=[calling("send", "send", "send"), "done"]),
    "safe calls beside each other": Scenario(tools=[peek], turns=[calling("peek", "peek"), "done"]),
    "parallel and serial batches": Scenario(
        tools=[peek, post, send], turns=[calling("peek", "send", "post", "send", "peek"), "done"], is_long=True
    ),
    "one slot for parallel calls": Scenario(
        tools=[send], turns=[calling("send", "send"), "done"], options={"loop": Loop(max_tool_concurrency=1)}
    ),
    "three turns": Scenario(
        tools=[look, post], turns=[calling("look"), calling("post"), calling("look", "post"), "done"], is_long=True
    ),
    "ten turns of two calls": Scenario(
        tools=[look, post], turns=[*[calling("look", "post")] * 10, "done"], is_long=True
    ),
    "plain functions": Scenario(tools=[write], turns=[calling("write", text="x"), "done"]),
    "explicit schemas": Scenario(
        tools=[mail], turns=[calling("mail", to="ann"), calling("mail", to=""), "done"], is_long=True
    ),
    "the same id for every call": Scenario(tools=[post, look], turns=[SAME_ID, SAME_ID, "done"], is_long=True),
    "text beside calls": Scenario(tools=[post], turns=[{"text": "One moment.", **calling("post")}, "done"]),
    "an agent as a tool": Scenario(
        tools=[poster],
        turns=[calling("poster", message="x"), "done"],
        others={"poster": [calling("post"), "posted"]},
    ),
    "agents in agents": Scenario(
        tools=[Agent("middle", instructions="middle", tools=[poster])],
        turns=[calling("middle", message="x"), "done"],
        others={"middle": [calling("poster", message="x"), "ok"], "poster": [calling("post"), "posted"]},
    ),
    "an agent invoked by an unsafe tool": Scenario(
        tools=[delegate],
        turns=[calling("delegate", text="x"), "done"],
        others={"poster": [calling("post"), "posted"]},
        invoked=[poster],
    ),
    "an agent invoked by a safe tool": Scenario(
        tools=[research],
        turns=[calling("research", text="x"), "done"],
        others={"reader": [calling("look"), "read"]},
        invoked=[reader],
    ),
    "an invoked agent that asks": Scenario(
        tools=[doubt],
        turns=[calling("doubt", text="x"), "done"],
        others={"doubter": [calling("ask"), "never"]},
        invoked=[doubter],
    ),
    "a question": Scenario(tools=[ask], turns=[calling("ask"), "done"]),
    "a question between calls": Scenario(tools=[ask, post, look], turns=[calling("post", "ask", "look"), "done"]),
    "two questions in a turn": Scenario(tools=[ask], turns=[calling("ask", "ask"), "done"]),
    "a question among parallel calls": Scenario(
        tools=[confirm, send], turns=[calling("send", "confirm", "send"), "done"]
    ),
    "questions in two turns": Scenario(
        tools=[ask, post], turns=[calling("ask"), calling("post", "ask"), "done"], is_long=True
    ),
    "a failing handler": Scenario(tools=[fail, fail_safely], turns=[calling("fail", "fail_safely"), "done"]),
    "a handler that is cancelled from within": Scenario(
        tools=[cancel_itself], turns=[calling("cancel_itself"), "done"]
    ),
    "a retry": Scenario(tools=[busy], turns=[calling("busy"), "done"]),
    "no retry for a call with effects": Scenario(
        tools=[busy_with_effects], turns=[calling("busy_with_effects"), "done"]
    ),
    "a terminal error that the model reads": Scenario(tools=[give_up], turns=[calling("give_up"), "done"]),
    "a terminal error that stops the run": Scenario(
        tools=[give_up, post],
        turns=[calling("give_up", "post"), "done"],
        options={"on_terminal_tool_error": "stop"},
        statuses=frozenset({"complete", "error"}),
    ),
    "an unknown tool": Scenario(tools=[post], turns=[calling("nothing", "post"), "done"]),
    "malformed arguments": Scenario(
        tools=[post],
        turns=[{"tool_calls": [{"name": "post", "arguments": "{no json"}, {"name": "post", "arguments": "[1]"}]}, "x"],
    ),
    "a tool without a handler": Scenario(tools=[missing], turns=[calling("missing"), "done"]),
    "a result of the wrong type": Scenario(tools=[answer_wrongly], turns=[calling("answer_wrongly"), "done"]),
    "a large result": Scenario(tools=[read_much], turns=[calling("read_much"), "done"], is_long=True),
    "more calls than a turn may have": Scenario(
        tools=[post], turns=[calling("post", "post", "post"), "done"], options={"loop": Loop(max_tool_calls=2)}
    ),
    "verify that can tell": Scenario(tools=[transfer], turns=[calling("transfer"), "done"]),
    "verify that cannot tell": Scenario(tools=[transfer_blindly], turns=[calling("transfer_blindly"), "done"]),
    "an output type": Scenario(tools=[post], turns=[calling("post"), '{"to": "ann"}'], options={"output": Letter}),
    "hooks that change the state": Scenario(
        tools=[post], turns=[calling("post"), "done"], options={"on_start": start, "on_complete": complete}
    ),
    "a budget": Scenario(
        tools=[look],
        turns=[{**calling("look"), **USAGE}] * 9,
        options={"loop": Loop(token_budget=TokenBudget(1_000))},
        statuses=frozenset({"token-budget-exhausted"}),
        is_long=True,
    ),
    "too many iterations": Scenario(
        tools=[post],
        turns=[calling("post")],
        options={"loop": Loop(max_iterations=2)},
        statuses=frozenset({"max-iterations"}),
        is_long=True,
    ),
    "stuck": Scenario(tools=[fail], turns=[calling("fail")], statuses=frozenset({"stuck"}), is_long=True),
    "stuck until a person helps": Scenario(
        tools=[fail],
        turns=[calling("fail"), calling("fail"), "done"],
        options={"loop": Loop(stuck_threshold=2, on_stuck="escalate")},
        is_long=True,
    ),
    "a context that is compressed": Scenario(
        tools=[look],
        turns=[calling("look"), calling("look"), "done"],
        options={"loop": Loop(context_compression=ContextCompression(list, max_messages=2))},
        is_long=True,
    ),
    "a long session that is pruned": Scenario(
        tools=[post, look],
        turns=["a"] * 105 + [calling("post", "look"), "done"],
        is_long=True,
        seed=[*LONG, Message(role="user", content="go")],
    ),
}


class Files:
    """Opens stores by name: a new name is a copy of a file that holds the scenario's seed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = folder / "template"

    async def prepare(self, seed: Sequence[Message]) -> None:
        async with sqlite_store(self._template) as store:
            await store.list_sessions()
            if seed:
                await store.append_messages_atomic("crash", seed, Session(id="crash", agent_name="agent"))

    def open(self, name: str) -> SQLiteStore:
        path = self._folder / f"{name}.db"
        if not path.exists():
            shutil.copy(self._template, path)
        WORLD.enter(str(path))
        return sqlite_store(path)

    def paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.db"))


async def crash(
    folder: Path,
    scenario: Scenario,
    *,
    crashes: int = 1,
    store: Callable[[SQLiteStore], Any] = lambda opened: opened,
) -> CrashReport:
    files = Files(folder)
    await files.prepare(scenario.seed)
    return await crash_everywhere(
        scenario.agent,
        message="go",
        model=scripted(scenario.turns, **scenario.others),
        store=lambda name: store(files.open(name)),
        invoked=scenario.invoked,
        crashes=crashes,
    )
