"""The harness that stops runs everywhere: its reports, and the faults that it finds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.crash_scenarios import SCENARIOS, Files, Scenario, crash
from support.crash_world import WORLD, calling, fail, look, poster, scripted

from standfast import Agent, Approval, Decision, Loop, Message, NotHappened, ToolContext, sqlite_store, tool
from standfast.stores import Session, SQLiteStore
from standfast.testing import CrashReport, crash_everywhere

# --- what the harness sees ---


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


# --- the harness can fail ---


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


async def test_calls_that_wait_for_approval_are_decided_on(folder: Path) -> None:
    @tool(approval=Approval(message="Post it?", approvers=["ada", "bob"], quorum=2))
    async def post() -> str:
        """Post."""
        return "posted"

    def model(messages: list[Message], _: Sequence[Any]) -> Any:
        return calling("post") if messages[-1].role == "user" else "done"

    async def crashed(kind: str, **options: Any) -> CrashReport:
        def store(name: str) -> SQLiteStore:
            return sqlite_store(folder / f"{kind}{name}.db")

        return await crash_everywhere(Agent("agent", tools=[post]), message="go", model=model, store=store, **options)

    report = await crashed("approved")
    assert (report.double_executions, report.lost_messages, report.unfinished) == ([], [], [])
    assert sum(run.calls.total() for run in report.runs) > 0
    report = await crashed("rejected", decide=lambda one: Decision(gate=one.gate, decision="reject", by="ada"))
    assert (report.unfinished, sum(run.calls.total() for run in report.runs)) == ([], 0)
