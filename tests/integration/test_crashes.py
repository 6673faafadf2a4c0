"""Agents of every shape, stopped at every store write and every handler, and gone on with by a new process."""

import asyncio
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from holdfast import (
    Agent,
    AgentContext,
    ContextCompression,
    Happened,
    InterruptError,
    Loop,
    Message,
    NotHappened,
    RetryableError,
    RetryPolicy,
    TerminalError,
    TokenBudget,
    Tool,
    ToolContext,
    sqlite_store,
    tool,
)
from holdfast.stores import Session, SQLiteStore
from holdfast.testing import CrashReport, crash_everywhere


class World:
    """What tools do outside of holdfast, kept apart by the database that the run writes to."""

    def __init__(self) -> None:
        self.effects: dict[str, Counter[str]] = {}
        self._now = ""

    def enter(self, name: str) -> None:
        self._now = name
        self.effects.setdefault(name, Counter())

    def do(self, effect: str) -> None:
        self.effects[self._now][effect] += 1

    def has(self, effect: str) -> bool:
        return self.effects[self._now][effect] > 0


WORLD = World()


# --- tools --------------------------------------------------------------------------------------------------------


@tool(safe_to_retry=True)
async def look(text: str = "") -> str:
    """Look something up."""
    return f"seen {text}"


@tool(safe_to_retry=True, parallel=True)
async def peek(text: str = "") -> str:
    """Look something up beside others."""
    await asyncio.sleep(0)
    return f"seen {text}"


@tool
async def post(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Post a text."""
    WORLD.do(ctx.idempotency_key)
    return f"posted {text}"


@tool(parallel=True)
async def send(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Send a text beside others."""
    WORLD.do(ctx.idempotency_key)
    await asyncio.sleep(0)
    return f"sent {text}"


@tool
def write(text: str = "") -> dict[str, Any]:
    """Write a text, in a plain function."""
    return {"written": text}


@tool
async def ask(text: str = "Go on?") -> str:
    """Ask a person."""
    raise InterruptError(text)


@tool(parallel=True)
async def confirm(text: str = "Really?") -> str:
    """Ask a person beside other calls."""
    raise InterruptError(text)


@tool
async def fail(text: str = "") -> str:
    """Fail."""
    raise ValueError("no luck")


@tool(safe_to_retry=True)
async def fail_safely(text: str = "") -> str:
    """Fail without effects."""
    raise ValueError("no luck")


@tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.001, maximum_attempts=2))
async def busy(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Succeed the second time."""
    if ctx.attempt == 1:
        raise RetryableError("busy", retry_after=0)
    return "at last"


@tool
async def busy_with_effects(text: str = "") -> str:
    """Ask for another try, which it does not get."""
    raise RetryableError("busy", retry_after=0)


@tool
async def give_up(text: str = "") -> str:
    """Fail for good."""
    raise TerminalError("account closed")


@tool
async def cancel_itself(text: str = "") -> str:
    """Be cancelled from within."""
    raise asyncio.CancelledError


@tool
async def answer_wrongly(text: str = "") -> int:
    """Return what it should not."""
    return "many"  # type: ignore[return-value]


@tool(safe_to_retry=True)
async def read_much(text: str = "") -> str:
    """Return a long text with odd characters."""
    return "ÿ🙂\0" * 20_000


async def was_transferred(text: str = "", ctx: ToolContext = ToolContext()) -> Happened | NotHappened:  # noqa: B008
    return Happened("found") if WORLD.has(ctx.idempotency_key) else NotHappened()


@tool(verify=was_transferred)
async def transfer(text: str = "", ctx: ToolContext = ToolContext()) -> str:  # noqa: B008  # frozen
    """Transfer, and be able to look whether that happened."""
    WORLD.do(ctx.idempotency_key)
    return "transferred"


@tool(verify=lambda text="": None)
async def transfer_blindly(text: str = "") -> str:
    """Transfer, and never know."""
    return "transferred"


missing: Tool[..., Any] = Tool("missing", description="A tool whose handler nobody gave.")


class Letter(BaseModel):
    to: Annotated[str, Field(min_length=1)]


async def mail_letter(letter: Letter, ctx: ToolContext) -> str:
    WORLD.do(ctx.idempotency_key)
    return f"mailed to {letter.to}"


mail = Tool("mail", description="Mail a letter.", input=Letter, output=str, handler=mail_letter)

poster = Agent("poster", instructions="poster", tools=[post], description="Posts.")
reader = Agent("reader", instructions="reader", tools=[look])
doubter = Agent("doubter", instructions="doubter", tools=[ask])


@tool
async def delegate(text: str, ctx: ToolContext) -> str:
    """Let another agent post."""
    return (await ctx.agents.invoke(poster, message=text))["response"]


@tool(safe_to_retry=True)
async def research(text: str, ctx: ToolContext) -> str:
    """Let another agent read."""
    return (await ctx.agents.invoke(reader, message=text))["response"]


@tool
async def doubt(text: str, ctx: ToolContext) -> str:
    """Let another agent ask."""
    return (await ctx.agents.invoke(doubter, message=text))["response"]


# --- models -------------------------------------------------------------------------------------------------------

Turn = str | Mapping[str, Any]


def calling(*names: str, **arguments: Any) -> dict[str, Any]:
    """Return an answer that calls tools, without ids: the loop makes them."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name in names]}


def scripted(turns: Sequence[Turn], **others: Sequence[Turn]) -> Callable[[list[Message], list[Any]], Turn]:
    """Return a model that answers the n-th time by the n-th turn, each agent (told by its instructions) its own."""

    def answer(messages: list[Message], tools: list[Any]) -> Turn:
        mine = others.get(messages[0].content, turns)
        said = sum(message.role == "assistant" for message in messages)
        return mine[min(said, len(mine) - 1)]

    return answer


# --- scenarios ----------------------------------------------------------------------------------------------------


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
    "an empty answer": Scenario(turns=[""]),
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


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the databases are: in memory if there is such a folder, since nothing here depends on a flush to disk."""
    memory = "/dev/shm"
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as name:
        yield Path(name)


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


def check(folder: Path, scenario: Scenario, report: CrashReport) -> None:
    assert report.double_executions == []
    assert report.lost_messages == []
    assert {run.result and run.result.status for run in report.runs} <= scenario.statuses
    effects = [WORLD.effects[str(path)] for path in Files(folder).paths()]
    assert max((count for each in effects for count in each.values()), default=1) == 1
    assert [run.stopped_at for run in report.runs][-1] == ()


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
async def test_a_run_stopped_anywhere_doubles_no_effect_and_loses_no_message(folder: Path, scenario: Scenario) -> None:
    check(folder, scenario, await crash(folder, scenario))


SHORT = {name: scenario for name, scenario in SCENARIOS.items() if not scenario.is_long}


@pytest.mark.parametrize("scenario", SHORT.values(), ids=SHORT)
async def test_a_run_stopped_twice_doubles_no_effect_and_loses_no_message(folder: Path, scenario: Scenario) -> None:
    report = await crash(folder, scenario, crashes=2)
    check(folder, scenario, report)
    assert {len(run.stopped_at) for run in report.runs} == {0, 1, 2}


# --- what the harness sees ----------------------------------------------------------------------------------------


async def test_the_harness_stops_at_every_write_and_every_handler(folder: Path) -> None:
    report = await crash(folder, SCENARIOS["an unsafe call"])
    assert [run.stopped_at for run in report.runs] == [
        ("before write 1",),
        ("after write 1",),
        ("before handler of agent/call_1_0",),
        ("after handler of agent/call_1_0",),
        ("before write 2",),
        ("after write 2",),
        ("before write 3",),
        ("after write 3",),
        (),
    ]
    assert [run.calls["agent/call_1_0"] for run in report.runs] == [1, 0, 0, 1, 1, 1, 1, 1, 1]


async def test_hooks_that_change_the_state_are_recorded_wherever_the_run_was_stopped(folder: Path) -> None:
    await crash(folder, SCENARIOS["hooks that change the state"])
    states = []
    for path in Files(folder).paths():
        async with sqlite_store(path) as store:
            session = await store.load_session("crash")
            assert session is not None
            states.append(json.loads(session.state))
    assert all(state["started"] >= 1 and state["completed"] >= 1 for state in states)
    assert len(states) == 9


def named_alike(name: str, **options: Any) -> Agent:
    @tool(name="act", **options)
    async def act() -> str:
        """Act."""
        return f"{name} acted"

    return Agent(name, instructions=name, tools=[act])


async def test_tools_of_two_agents_that_are_named_alike_are_watched_each_as_what_it_is(folder: Path) -> None:
    child = named_alike("child", safe_to_retry=True)
    (act,) = named_alike("parent").tool_map.values()
    alike = Scenario(
        tools=[act, child],
        turns=[calling("act"), calling("child", message="x"), "done"],
        others={"child": [calling("act"), "ok"]},
    )
    whole = (await crash(folder, alike)).runs[-1]
    assert [message.content for message in whole.messages if message.role == "tool"] == ["parent acted", "ok"]
    assert whole.unsafe_calls == {"agent/call_1_0", "agent/call_3_0"}


# --- the harness can fail -----------------------------------------------------------------------------------------


@tool(safe_to_retry=True)
async def charge(text: str = "") -> str:
    """Charge a customer, though it says that doing so twice is harmless."""
    WORLD.do("charge")
    return "charged"


async def test_an_effect_that_is_falsely_declared_safe_shows_as_run_twice(folder: Path) -> None:
    report = await crash(folder, Scenario(tools=[charge], turns=[calling("charge"), "done"]))
    assert [run.stopped_at for run in report.runs if run.calls["agent/call_1_0"] == 2] == [
        ("after handler of agent/call_1_0",),
        ("before write 2",),
    ]
    assert sorted(WORLD.effects[str(path)]["charge"] for path in Files(folder).paths()).count(2) == 2


@tool(verify=lambda text="": NotHappened())
async def pay(text: str = "") -> str:
    """Pay, and always deny it."""
    return "paid"


async def test_a_verify_that_denies_what_happened_shows_as_a_double_execution(folder: Path) -> None:
    report = await crash(folder, Scenario(tools=[pay], turns=[calling("pay"), "done"]))
    assert report.double_executions == [
        (("after handler of agent/call_1_0",), "agent/call_1_0"),
        (("before write 2",), "agent/call_1_0"),
    ]


@tool(safe_to_retry=True)
async def delegate_carelessly(text: str, ctx: ToolContext) -> str:
    """Let an agent with effects work, though it says that doing so twice is harmless."""
    return (await ctx.agents.invoke(poster, message=text))["response"]


async def test_an_agent_with_effects_behind_a_tool_declared_safe_shows_as_a_double_execution(folder: Path) -> None:
    careless = Scenario(
        tools=[delegate_carelessly],
        turns=[calling("delegate_carelessly", text="x"), "done"],
        others={"poster": [calling("post"), "posted"]},
        invoked=[poster],
    )
    report = await crash(folder, careless)
    assert {call for _, call in report.double_executions} == {"poster/call_1_0"}


class ForgetfulStore:
    """Acknowledges everything and forgets what the user said."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_messages_atomic(
        self, session_id: str, messages: Sequence[Message], session: Session, **options: Any
    ) -> int:
        kept = [message for message in messages if message.role != "user"]
        return await self._store.append_messages_atomic(session_id, kept, session, write_key=options["write_key"])


async def test_a_store_that_forgets_a_message_shows_in_the_lost_messages(folder: Path) -> None:
    report = await crash(folder, SCENARIOS["an unsafe call"], store=ForgetfulStore)
    assert set(report.lost_messages) >= {(("after write 1",), "user: 'go'"), ((), "user: 'go'")}


async def test_a_store_that_forgets_results_shows_in_the_lost_messages(folder: Path) -> None:
    class ResultsForgotten(ForgetfulStore):
        async def load_messages(self, session_id: str) -> list[Message]:
            return [message for message in await self._store.load_messages(session_id) if message.role != "tool"]

    report = await crash(folder, Scenario(tools=[look], turns=[calling("look"), "done"]), store=ResultsForgotten)
    assert ((), "0 results for 1 requests of call_1_0") in report.lost_messages


async def test_a_store_that_dies_with_its_process_shows_as_a_double_execution() -> None:
    def forgets_all(name: str) -> SQLiteStore:
        WORLD.enter(name)
        return sqlite_store(":memory:")

    scenario = SCENARIOS["an unsafe call"]
    report = await crash_everywhere(scenario.agent, message="go", model=scripted(scenario.turns), store=forgets_all)
    assert ("after write 2",) in [stopped_at for stopped_at, _ in report.double_executions]


async def test_a_message_said_twice_and_stored_once_shows_in_the_lost_messages(folder: Path) -> None:
    class SecondForgotten(ForgetfulStore):
        async def append_messages_atomic(
            self, session_id: str, messages: Sequence[Message], session: Session, **options: Any
        ) -> int:
            known = await self._store.load_messages(session_id)
            kept = [message for message in messages if message not in known]
            return await self._store.append_messages_atomic(session_id, kept, session, write_key=options["write_key"])

    loop = Loop(stuck_threshold=1, on_stuck="escalate")  # asks twice, and gets the same answer twice
    scenario = Scenario(tools=[fail], turns=[calling("fail"), calling("fail"), "done"], options={"loop": loop})
    report = await crash(folder, scenario, store=SecondForgotten)
    assert report.lost_messages != []


async def test_a_run_that_does_not_complete_shows_as_unfinished(folder: Path) -> None:
    report = await crash(folder, SCENARIOS["too many iterations"])
    assert report.unfinished == [run.stopped_at for run in report.runs]
