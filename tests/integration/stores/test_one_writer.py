"""A session has one writer: a second run is refused, in this process and in another."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.doubles import poster, reached
from support.stores import StoreElsewhere, contents, seed
from support.transcripts import DURABILITY, USER, asks, calls, kind_of, shape

from standfast import (
    Agent,
    AgentContext,
    Message,
    RunResult,
    SessionAccessDeniedError,
    SessionConflictError,
    SessionNotFoundError,
    run,
    run_streaming,
    sqlite_store,
    tool,
)
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel

# --- one writer ---


class WaitingModel:
    """A model that answers once it is let go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def chat(self, messages: Any, tools: Any, **settings: Any) -> dict[str, Any]:
        self.asked.set()
        await self.go_on.wait()
        return {"text": "late"}


async def test_of_two_processes_in_one_session_the_later_writer_is_refused(store: SQLiteStore, tmp_path: Path) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    async with StoreElsewhere(tmp_path / "standfast.db") as other:
        slow = asyncio.create_task(run(agent, message="slow", llm=late, store=other, session_id="s"))
        await reached(late.asked, slow)
        await run(agent, message="fast", llm=ScriptedModel(["ok"]), store=store, session_id="s")
        late.go_on.set()
        with pytest.raises(SessionConflictError, match="Session s is at message 4, this run knows of 2") as caught:
            await slow
    assert caught.value.code == "SESSION_CONFLICT"
    assert await contents(store) == ["hi", "yes", "fast", "ok"]


async def test_of_two_processes_that_create_a_session_one_is_refused_and_its_tools_never_run(
    store: SQLiteStore, tmp_path: Path
) -> None:
    effects: list[str] = []

    @tool
    async def post() -> None:
        """Post."""
        effects.append("post")

    both_asked = asyncio.Barrier(2)

    async def answer(messages: list[Message], tools: list[Any]) -> Any:
        if messages[-1].role == "tool":
            return "done"
        await both_asked.wait()
        return {"tool_calls": [{"id": "c1", "name": "post"}]}

    agent = Agent("greeter", tools=[post])
    await store.list_sessions()
    async with StoreElsewhere(tmp_path / "standfast.db") as other:
        ended = await asyncio.gather(
            *(
                run(agent, message="hi", llm=ScriptedModel(answer), store=each, session_id="s")
                for each in (store, other)
            ),
            return_exceptions=True,
        )
    assert sorted(type(end).__name__ for end in ended) == ["RunResult", "SessionConflictError"]
    assert (effects, await contents(store)) == (["post"], ["hi", "", "null", "done"])


async def test_a_session_deleted_under_a_run_is_a_conflict(store: SQLiteStore, tmp_path: Path) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    slow = asyncio.create_task(run(agent, message="slow", llm=late, store=store, session_id="s"))
    await reached(late.asked, slow)
    await store.delete_session("s")
    late.go_on.set()
    with pytest.raises(SessionConflictError):
        await slow
    assert await store.load_session("s") is None


async def test_a_session_deleted_and_made_again_under_a_run_is_a_conflict(store: SQLiteStore, tmp_path: Path) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id="ann")
    slow = asyncio.create_task(run(agent, message="slow", llm=late, store=store, session_id="s", user_id="ann"))
    await reached(late.asked, slow)
    async with StoreElsewhere(tmp_path / "standfast.db") as other:
        await other.delete_session("s")
        await run(agent, message="bob's", llm=ScriptedModel(["secret"]), store=other, session_id="s", user_id="bob")
    late.go_on.set()
    with pytest.raises(SessionConflictError):
        await slow
    assert await contents(store) == ["bob's", "secret"]


async def test_a_run_in_flight_holds_its_session_until_it_ends(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s"))
    await reached(late.asked, first)
    with pytest.raises(SessionConflictError, match="Session s has a run in flight"):
        await run(agent, message="too soon", llm=ScriptedModel([]), store=store, session_id="s")
    late.go_on.set()
    await first
    await run(agent, message="now", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert await contents(store) == ["hi", "late", "now", "ok"]


async def test_other_sessions_run_while_one_is_in_flight(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s"))
    await reached(late.asked, first)
    await run(agent, message="hi", llm=ScriptedModel(["ok"]), store=store, session_id="t")
    assert (first.done(), await contents(store, "t")) == (False, ["hi", "ok"])
    late.go_on.set()
    await first


async def test_a_run_that_fails_gives_its_session_free(store: SQLiteStore) -> None:
    def fail(ctx: AgentContext) -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        await run(Agent("greeter", on_start=fail), message="hi", llm=ScriptedModel([]), store=store, session_id="s")
    with pytest.raises(SessionNotFoundError):
        await run(
            Agent("greeter"), message="hi", llm=ScriptedModel([]), store=store, session_id="s", create_session=False
        )
    result = await run(Agent("greeter"), message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s")
    assert isinstance(result, RunResult)


async def test_a_cancelled_run_gives_its_session_free(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s"))
    await reached(late.asked, first)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await run(agent, message="again", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert await contents(store) == ["again", "ok"]


async def test_a_stream_left_early_gives_its_session_free(store: SQLiteStore) -> None:
    agent = Agent("greeter")
    stream = run_streaming(agent, message="hi", llm=ScriptedModel(["one two"]), store=store, session_id="s")
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    await run(agent, message="again", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    assert (await contents(store))[-2:] == ["again", "ok"]


async def test_a_tool_that_runs_its_own_session_is_refused_instead_of_waiting_for_ever(store: SQLiteStore) -> None:
    @tool
    async def again() -> str:
        """Run the same session."""
        await run(agent, message="deeper", llm=ScriptedModel([]), store=store, session_id="s")
        return "never"

    agent = Agent("greeter", tools=[again])
    script: list[Any] = [{"tool_calls": [{"id": "c1", "name": "again"}]}, "done"]
    await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert (messages[2].status, "run in flight" in messages[2].content) == ("failed", True)


async def test_a_stranger_learns_nothing_of_a_run_in_flight(store: SQLiteStore) -> None:
    agent, late = Agent("greeter"), WaitingModel()
    await run(agent, message="hi", llm=ScriptedModel(["yes"]), store=store, session_id="s", user_id="ann")
    first = asyncio.create_task(run(agent, message="hi", llm=late, store=store, session_id="s", user_id="ann"))
    await reached(late.asked, first)
    with pytest.raises(SessionAccessDeniedError):
        await run(agent, message="hi", llm=ScriptedModel([]), store=store, session_id="s", user_id="bob")
    late.go_on.set()
    await first


async def test_a_session_is_held_against_other_stores_and_processes_on_the_file(
    store: SQLiteStore, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "standfast.db")
    assert await store.hold("s")
    code = (
        "import asyncio, sys\nfrom standfast import sqlite_store\n"
        "print([asyncio.run(sqlite_store(sys.argv[1]).hold(name)) for name in ('s', 'free')])"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "standfast.db")]
    async with sqlite_store(tmp_path / "link.db") as other:
        assert (await other.hold("s"), await other.hold("t")) == (False, True)
        seen = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert seen.stdout == "[False, True]\n"
        await store.let_go("s")
        assert await other.hold("s")
        await other.let_go("s")
        await other.let_go("t")


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("uses", [0, 1, 2])
async def test_a_store_can_be_used_after_a_fork(tmp_path: Path, uses: int) -> None:
    code = (
        "import asyncio, os, sys\nfrom standfast import sqlite_store\n"
        "store = sqlite_store(sys.argv[1])\n"
        "[asyncio.run(store.load_session('s')) for _ in range(int(sys.argv[2]))]\n"
        "child = os.fork()\n"
        "who, found = 'child' if child == 0 else 'parent', asyncio.run(store.load_session('s'))\n"
        "os.write(1, f'{who} {found}\\n'.encode())\n"
        "child == 0 or os.waitpid(child, 0)\n"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "forked.db"), str(uses)]
    seen = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert sorted(seen.stdout.splitlines()) == ["child None", "parent None"]


# --- two runs at once ---


class Gate:
    """A tool whose handler waits, the first time, until it is let go on."""

    def __init__(self, **options: Any) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.effects: list[str] = []

        @tool(**options)
        async def post(text: str) -> str:
            """Post a text."""
            self.effects.append(text)
            if not self.reached.is_set():
                self.reached.set()
                await self.open.wait()
            return f"posted {text}"

        self.tool = post


async def test_a_second_run_of_a_session_in_flight_is_refused(store: SQLiteStore) -> None:
    gate = Gate()
    agent = Agent("poster", tools=[gate.tool])
    first = asyncio.create_task(
        run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    )
    await reached(gate.reached, first)
    model = ScriptedModel([])
    with pytest.raises(SessionConflictError, match="Session s has a run in flight"):
        await run(agent, message="me too", llm=model, store=store, session_id="s")
    gate.open.set()
    await first
    assert model.calls == []
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_run_that_another_process_has_repaired_in_the_meantime_writes_nothing_over_it(
    store: SQLiteStore, tmp_path: Path
) -> None:
    gate = Gate()
    agent = Agent("poster", tools=[gate.tool])
    first = asyncio.create_task(run(agent, message="hi", llm=ScriptedModel([calls("c1")]), store=store, session_id="s"))
    await reached(gate.reached, first)
    async with StoreElsewhere(tmp_path / "standfast.db") as other:
        await run(agent, llm=ScriptedModel(["lost"]), store=other, session_id="s")
        gate.open.set()
        with pytest.raises(SessionConflictError, match="another run has written to it"):
            await first
        messages = await other.load_messages("s")
    assert gate.effects == ["c1"]
    assert shape(messages) == ["user hi", "calls c1", "result c1", "assistant lost"]
    assert kind_of(messages, "c1") == DURABILITY


async def test_of_two_processes_that_repair_an_unsafe_call_at_once_none_runs_it(
    store: SQLiteStore, tmp_path: Path
) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await seed(store, [USER, asks("c1")])
    async with sqlite_store(tmp_path / "standfast.db") as other:
        ended = await asyncio.gather(
            *(run(agent, llm=ScriptedModel(["done"]), store=each, session_id="s") for each in (store, other)),
            return_exceptions=True,
        )
    assert all(isinstance(end, RunResult | SessionConflictError) for end in ended)
    assert effects == []
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]
