"""What a durable session holds after every kind of end, and how the next run goes on from it."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import AfterValidator

from holdfast import (
    Agent,
    AgentContext,
    Happened,
    InputError,
    InterruptedResponse,
    InterruptError,
    Loop,
    MemoryStoreNotDurableError,
    Message,
    NotHappened,
    RunResult,
    SessionConflictError,
    StoreError,
    TerminalError,
    Tool,
    ToolContext,
    ToolDurabilityError,
    assert_complete,
    is_interrupted,
    memory_store,
    resume,
    run,
    sqlite_store,
    tool,
)
from holdfast.stores import Session, SQLiteStore
from holdfast.testing import ScriptedModel, SimulatedCrash, crash_after_tool_results

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


def shape(messages: Sequence[Message]) -> list[str]:
    """Return a transcript in short: "user hi", "calls c1 c2", "result c1", "assistant done"."""
    lines = []
    for message in messages:
        if message.role == "tool":
            lines.append(f"result {message.tool_call_id}")
        elif message.tool_calls:
            lines.append(" ".join(["calls", *(call.id for call in message.tool_calls)]))
        else:
            lines.append(f"{message.role} {message.content}")
    return lines


def calls(*ids: str, tool: str = "post") -> dict[str, Any]:
    return {"tool_calls": [{"id": call_id, "name": tool, "arguments": {"text": call_id}} for call_id in ids]}


def poster(effects: list[str], **options: Any) -> Tool[..., Any]:
    @tool(**options)
    async def post(text: str) -> str:
        """Post a text."""
        effects.append(text)
        return f"posted {text}"

    return post


def result_of(messages: Sequence[Message], call_id: str) -> str:
    (content,) = [message.content for message in messages if message.tool_call_id == call_id]
    return content


def kind_of(messages: Sequence[Message], call_id: str) -> str | None:
    """Return the `kind` of a result that is an error object, or None for any other."""
    try:
        kind: str | None = json.loads(result_of(messages, call_id)).get("kind")
    except ValueError:
        return None
    return kind


async def seed(store: SQLiteStore, messages: Sequence[Message], **fields: Any) -> None:
    session = Session(**{"id": "s", "agent_name": "poster", **fields})
    await store.append_messages_atomic("s", messages, session)


async def crash_on_write(store: Any, agent: Agent, script: Sequence[Any], number: int) -> None:
    with pytest.raises(RuntimeError, match="simulated crash after tool results"):
        await run(
            agent,
            message="hi",
            llm=ScriptedModel(script),
            store=crash_after_tool_results(store, number),
            session_id="s",
        )


async def reached(event: asyncio.Event, task: "asyncio.Task[Any]") -> None:
    """Wait for an event; fail if the task ends without it."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert event.is_set(), task


USER = Message(role="user", content="hi")
DURABILITY = ToolDurabilityError.kind


def asks(*ids: str, tool: str = "post") -> Message:
    return Message.model_validate({"role": "assistant", **calls(*ids, tool=tool)})


def answers(call_id: str) -> Message:
    return Message(role="tool", content=f"posted {call_id}", tool_call_id=call_id, tool_name="post", status="completed")


class StoreElsewhere(SQLiteStore):
    """The store as a machine sees it that shares the file and not the locks."""

    async def hold(self, session_id: str) -> bool:
        return True

    async def let_go(self, session_id: str) -> None:
        pass


# --- what is written, and when ------------------------------------------------------------------------------------


async def test_a_tool_step_is_two_writes_and_the_final_text_a_third(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    agent = Agent("poster", tools=[poster([])])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=recorder, session_id="s")
    assert recorder.writes == [
        ("append_messages_atomic", ["user hi", "calls c1"]),
        ("append_messages_atomic", ["result c1"]),
        ("append_messages_atomic", ["assistant done"]),
    ]


async def test_all_results_of_a_turn_land_in_one_write_in_call_order(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    agent = Agent("poster", tools=[poster([], parallel=True)])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1", "c2", "c3"), "done"]), store=recorder)
    assert recorder.writes[1] == ("append_messages_atomic", ["result c1", "result c2", "result c3"])


async def test_the_user_message_is_only_in_the_first_write(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    agent = Agent("poster", tools=[poster([])])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), calls("c2"), "done"]), store=recorder)
    assert [messages for _, messages in recorder.writes] == [
        ["user hi", "calls c1"],
        ["result c1"],
        ["calls c2"],
        ["result c2"],
        ["assistant done"],
    ]


async def test_a_turn_of_text_is_one_write(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    await run(Agent("poster"), message="hi", llm=ScriptedModel(["done"]), store=recorder, session_id="s")
    assert recorder.writes == [("append_messages_atomic", ["user hi", "assistant done"])]


async def test_ten_steps_of_two_calls_are_twenty_one_writes(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    script = [calls(f"a{step}", f"b{step}") for step in range(10)]
    await run(Agent("poster", tools=[poster([])]), message="hi", llm=ScriptedModel([*script, "done"]), store=recorder)
    assert [name for name, _ in recorder.writes] == ["append_messages_atomic"] * 21


async def test_the_calls_are_written_before_their_handlers_start(store: SQLiteStore) -> None:
    seen: list[list[str]] = []

    @tool
    async def post(text: str) -> None:
        """Post a text."""
        seen.append(shape(await store.load_messages("s")))

    agent = Agent("poster", tools=[post])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    assert seen == [["user hi", "calls c1"]]


async def test_system_messages_are_not_stored(store: SQLiteStore) -> None:
    agent = Agent("poster", instructions="Be brief.", tools=[poster([])], loop=Loop(token_budget=1_000))
    usage = {"usage": {"input_tokens": 850, "output_tokens": 0}}
    model = ScriptedModel([{**calls("c1"), **usage}, "done"])
    await run(agent, message="hi", llm=model, store=store, session_id="s")
    assert [message.role for message in model.calls[1].messages].count("system") == 2
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_run_without_a_store_writes_nothing_and_has_no_session() -> None:
    result = assert_complete(await run(Agent("poster"), message="hi", llm=ScriptedModel(["done"])))
    assert result.session_id is None


# --- errors of the model ------------------------------------------------------------------------------------------


async def test_a_model_error_at_once_writes_nothing(store: SQLiteStore) -> None:
    recorder = Recorder(store)
    model = ScriptedModel([RuntimeError("no route to model")])
    result = assert_complete(await run(Agent("poster"), message="hi", llm=model, store=recorder, session_id="s"))
    assert (result.status, result.response, result.iterations) == ("error", "no route to model", 1)
    assert recorder.writes == []
    assert await store.load_session("s") is None


async def test_a_model_error_after_a_step_keeps_the_step_and_the_session_goes_on(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    model = ScriptedModel([calls("c1"), RuntimeError("overloaded")])
    failed = assert_complete(await run(agent, message="hi", llm=model, store=store, session_id="s"))
    assert (failed.status, failed.session_id) == ("error", "s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1"]

    again = assert_complete(await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s"))
    assert (again.status, effects) == ("complete", ["c1"])
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_model_error_on_a_resumed_session_changes_nothing(store: SQLiteStore) -> None:
    def count(ctx: AgentContext) -> None:
        ctx.state["runs"] = ctx.state.get("runs", 0) + 1

    agent = Agent("poster", on_start=count)
    await run(agent, message="hi", llm=ScriptedModel(["done"]), store=store, session_id="s")
    before = await store.load_session("s"), await store.load_messages("s")
    await run(agent, message="more", llm=ScriptedModel([RuntimeError("down")]), store=store, session_id="s")
    assert (await store.load_session("s"), await store.load_messages("s")) == before


async def test_a_model_error_does_not_prune_a_session(store: SQLiteStore) -> None:
    agent = Agent("poster")
    for text in ("one", "two", "three"):
        await run(agent, message=text, llm=ScriptedModel(["done"]), store=store, session_id="s")
    before = await store.load_messages("s")
    model = ScriptedModel([RuntimeError("down")])
    await run(agent, message="more", llm=model, store=store, session_id="s", max_stored_messages=2)
    assert await store.load_messages("s") == before


# --- crash windows ------------------------------------------------------------------------------------------------


async def test_an_unsafe_call_lost_in_flight_is_answered_with_a_durability_error(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1")], 2)
    assert effects == ["c1"]

    model = ScriptedModel(["I will look first."])
    result = assert_complete(await run(agent, llm=model, store=store, session_id="s"))
    assert (result.status, effects) == ("complete", ["c1"])
    payload = json.loads(result_of(await store.load_messages("s"), "c1"))
    assert {key: payload[key] for key in ("kind", "toolName", "toolCallId")} == {
        "kind": "tool-durability-error",
        "toolName": "post",
        "toolCallId": "c1",
    }
    assert sorted(payload) == ["error", "kind", "toolCallId", "toolName"]
    assert result_of(model.calls[0].messages, "c1") == result_of(await store.load_messages("s"), "c1")


async def test_a_durability_error_names_the_tool_the_call_and_the_way_out(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[poster([])])
    await seed(store, [USER, asks("c1")])
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    error = json.loads(result_of(await store.load_messages("s"), "c1"))["error"]
    for part in ("'post'", "c1", "safe_to_retry", "Check the external state"):
        assert part in error


async def test_a_safe_call_lost_in_flight_runs_again_and_its_real_result_is_stored(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=True)])
    await crash_on_write(store, agent, [calls("c1")], 2)
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert effects == ["c1", "c1"]
    assert shape(messages) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert result_of(messages, "c1") == "posted c1"
    assert not any(DURABILITY in message.content for message in messages)


async def test_a_crash_on_the_first_write_runs_no_handler_and_leaves_no_session(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1")], 1)
    assert (effects, await store.load_session("s")) == ([], None)

    await run(agent, message="hi", llm=ScriptedModel([calls("c2"), "done"]), store=store, session_id="s")
    assert effects == ["c2"]
    assert shape(await store.load_messages("s")) == ["user hi", "calls c2", "result c2", "assistant done"]


async def test_a_crash_inside_an_unsafe_handler_is_answered_with_a_durability_error(store: SQLiteStore) -> None:
    started: list[str] = []

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        started.append(text)
        raise SimulatedCrash("in the handler")

    agent = Agent("poster", tools=[post])
    with pytest.raises(SimulatedCrash):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1")]), store=store, session_id="s")
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert (started, kind_of(await store.load_messages("s"), "c1")) == (["c1"], DURABILITY)


async def test_a_crash_on_the_last_write_loses_only_the_last_text(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    await crash_on_write(store, agent, [calls("c1"), "done"], 3)
    result = assert_complete(await run(agent, llm=ScriptedModel(["done again"]), store=store, session_id="s"))
    assert (result.response, effects) == ("done again", ["c1"])
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done again"]


async def test_a_cancelled_run_records_its_unsafe_call_as_unknown(store: SQLiteStore) -> None:
    started = asyncio.Event()

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent("poster", tools=[post])
    going = asyncio.create_task(
        run(agent, message="hi", llm=ScriptedModel([calls("c1", "c2")]), store=store, session_id="s")
    )
    await reached(started, going)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls c1 c2", "result c1", "result c2"]
    assert [kind_of(messages, call_id) for call_id in ("c1", "c2")] == [DURABILITY, None]
    assert messages[-1].status == "cancelled"


# --- orphans ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "handled"),
    [
        pytest.param([USER, asks("a", "b")], ["a", "b"], id="no result"),
        pytest.param([USER, asks("a", "b"), answers("a")], ["b"], id="first result"),
        pytest.param([USER, asks("a", "b"), answers("b")], ["a"], id="second result"),
        pytest.param([USER, asks("a", "b", "c"), answers("c"), answers("a")], ["b"], id="results out of order"),
        pytest.param([USER, asks("a", "b"), answers("a"), answers("b")], [], id="all results"),
        pytest.param([USER], [], id="trailing user"),
    ],
)
async def test_a_resumed_run_handles_exactly_the_calls_without_a_result(
    store: SQLiteStore, stored: list[Message], handled: list[str]
) -> None:
    effects: list[str] = []
    recorder = Recorder(store)
    await seed(store, stored)
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=True)])
    await run(agent, llm=ScriptedModel(["done"]), store=recorder, session_id="s")
    repairs = [("append_messages_atomic", [f"result {call}" for call in handled])] if handled else []
    assert effects == handled
    assert recorder.writes == [*repairs, ("append_messages_atomic", ["assistant done"])]


async def test_safe_and_unsafe_orphans_of_one_turn_are_repaired_in_one_write_in_call_order(store: SQLiteStore) -> None:
    effects: list[str] = []

    @tool(safe_to_retry=True)
    async def look(text: str) -> str:
        """Look."""
        effects.append(f"look {text}")
        return "seen"

    recorder = Recorder(store)
    mixed = [*(asks("a").tool_calls or ()), *(asks("b", tool="look").tool_calls or ()), *(asks("c").tool_calls or ())]
    await seed(store, [USER, Message(role="assistant", tool_calls=tuple(mixed))])
    agent = Agent("poster", tools=[poster(effects), look])
    await run(agent, llm=ScriptedModel(["done"]), store=recorder, session_id="s")
    messages = await store.load_messages("s")
    assert recorder.writes[0] == ("append_messages_atomic", ["result a", "result b", "result c"])
    assert (effects, result_of(messages, "b")) == (["look b"], "seen")
    assert [kind_of(messages, call_id) for call_id in "ac"] == [DURABILITY] * 2


async def test_a_safe_orphan_that_raises_is_stored_as_its_error_after_one_call(store: SQLiteStore) -> None:
    started: list[str] = []

    @tool(safe_to_retry=True)
    async def post(text: str) -> str:
        """Post a text."""
        started.append(text)
        raise ValueError("service is down")

    await seed(store, [USER, asks("c1")])
    await run(Agent("poster", tools=[post]), llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert started == ["c1"]
    assert json.loads(result_of(await store.load_messages("s"), "c1")) == {"error": "service is down"}


async def test_an_orphan_of_a_tool_that_is_gone_is_a_durability_error(store: SQLiteStore) -> None:
    await seed(store, [USER, asks("c1", tool="gone")])
    await run(Agent("poster", tools=[poster([])]), llm=ScriptedModel(["done"]), store=store, session_id="s")
    payload = json.loads(result_of(await store.load_messages("s"), "c1"))
    assert (payload["kind"], payload["toolName"]) == (DURABILITY, "gone")


async def test_orphans_are_answered_before_the_new_message(store: SQLiteStore) -> None:
    await seed(store, [USER, asks("c1")])
    recorder, model = Recorder(store), ScriptedModel(["done"])
    await run(Agent("poster", tools=[poster([])]), message="and now?", llm=model, store=recorder, session_id="s")
    assert recorder.writes == [
        ("append_messages_atomic", ["result c1"]),
        ("append_messages_atomic", ["user and now?", "assistant done"]),
    ]
    assert shape(model.calls[0].messages[1:]) == ["user hi", "calls c1", "result c1", "user and now?"]


async def test_orphans_are_answered_without_asking_the_model_when_the_model_fails(store: SQLiteStore) -> None:
    effects: list[str] = []
    await seed(store, [USER, asks("c1")])
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=True)])
    await run(agent, message="more", llm=ScriptedModel([RuntimeError("down")]), store=store, session_id="s")
    await run(agent, message="more", llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert effects == ["c1"]
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "user more", "assistant done"]


async def test_a_call_left_unanswered_before_a_later_message_never_reaches_the_model_as_it_is(
    store: SQLiteStore,
) -> None:
    await seed(store, [USER, asks("c1"), Message(role="user", content="and now?")])
    model = ScriptedModel(["done"])
    with contextlib.suppress(InputError):
        await run(Agent("poster", tools=[poster([])]), llm=model, store=store, session_id="s")
    assert [shape(call.messages[1:4]) for call in model.calls] in ([], [["user hi", "calls c1", "result c1"]])


async def test_an_orphan_that_asks_waits_for_its_answer_instead_of_taking_the_new_message(store: SQLiteStore) -> None:
    @tool(safe_to_retry=True)
    async def post(text: str) -> str:
        """Ask for leave."""
        raise InterruptError("May I?")

    await seed(store, [USER, asks("c1")])
    agent = Agent("poster", tools=[post])
    with pytest.raises(InputError, match="May I\\?"):
        await run(agent, message="more", llm=ScriptedModel([]), store=store, session_id="s")
    waiting = await run(agent, llm=ScriptedModel([]), store=store, session_id="s")
    assert isinstance(waiting, InterruptedResponse)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert result_of(await store.load_messages("s"), "c1") == "yes"


# --- a crash while repairing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("safe", [True, False])
async def test_a_repair_that_crashes_is_done_again_once_per_call(store: SQLiteStore, safe: bool) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects, safe_to_retry=safe)])
    await seed(store, [USER, asks("a", "b")])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, llm=ScriptedModel([]), store=crash_after_tool_results(store, 1), session_id="s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls a b"]

    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls a b", "result a", "result b", "assistant done"]
    assert effects == (["a", "b", "a", "b"] if safe else [])
    assert [kind_of(messages, call_id) for call_id in "ab"] == ([None] * 2 if safe else [DURABILITY] * 2)


# --- verify -------------------------------------------------------------------------------------------------------


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


# --- finished sessions --------------------------------------------------------------------------------------------


async def test_a_finished_session_finishes_again_without_the_model_and_without_a_write(store: SQLiteStore) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    first = await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    before = await store.load_session("s")
    recorder = Recorder(store)
    again = await run(agent, llm=ScriptedModel([]), store=recorder, session_id="s")
    assert isinstance(first, RunResult)
    assert isinstance(again, RunResult)
    assert (again.status, again.response, again.messages) == (first.status, first.response, first.messages)
    assert (effects, recorder.writes, await store.load_session("s")) == (["c1"], [], before)


async def test_an_exported_run_ends_in_another_store_as_it_did_in_the_first(store: SQLiteStore, tmp_path: Path) -> None:
    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    done = assert_complete(
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    )
    async with sqlite_store(tmp_path / "other.db") as other:
        with pytest.raises(InputError, match="belongs to session s, which is not in this store"):
            await run(agent, checkpoint=done.checkpoint, llm=ScriptedModel([]), store=other)
        exported = done.checkpoint.model_copy(update={"session_id": None}).model_dump_json()
        await run(agent, checkpoint=exported, llm=ScriptedModel([]), store=other, session_id="s")
        assert await other.load_messages("s") == await store.load_messages("s")
    assert effects == ["c1"]


# --- questions ----------------------------------------------------------------------------------------------------


def asking() -> Tool[..., Any]:
    @tool
    async def ask(text: str) -> str:
        """Ask a person."""
        raise InterruptError(f"{text}?")

    return ask


async def test_a_question_survives_in_the_session_and_its_answer_is_the_result(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    script = [calls("c1", tool="ask")]
    first = await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    again = await run(agent, llm=ScriptedModel([]), store=store, session_id="s")
    assert is_interrupted(first)
    assert is_interrupted(again)
    assert (again.question, again.checkpoint.pending_tool_use_id) == ("c1?", "c1")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1"]

    await resume(agent, again.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert (result_of(messages, "c1"), messages[2].tool_name) == ("yes", "ask")


async def test_a_question_is_answered_once(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    waiting = await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store)
    assert is_interrupted(waiting)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    before = await store.load_messages(waiting.session_id or "")
    with pytest.raises(InputError, match="does not wait for the answer to call c1 any more"):
        await resume(agent, waiting.checkpoint, "no", llm=ScriptedModel([]), store=store)
    assert await store.load_messages(waiting.session_id or "") == before


async def test_a_session_that_asks_takes_no_new_message(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    with pytest.raises(InputError, match=r"Session s waits for the answer to 'c1\?' \(call c1\)"):
        await run(agent, message="never mind", llm=ScriptedModel([]), store=store, session_id="s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1"]


async def test_an_answer_lost_before_its_write_is_asked_for_again(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    waiting = await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    assert is_interrupted(waiting)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]), store=crash_after_tool_results(store, 1))
    again = await run(agent, llm=ScriptedModel([]), store=store, session_id="s")
    assert is_interrupted(again)
    assert again.question == "c1?"


async def test_two_questions_of_a_turn_are_asked_one_after_the_other_without_the_model(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    script = [calls("c1", "c2", tool="ask")]
    first = await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s")
    assert is_interrupted(first)
    second = await resume(agent, first.checkpoint, "one", llm=ScriptedModel([]), store=store)
    assert is_interrupted(second)
    assert [first.question, second.question] == ["c1?", "c2?"]
    await resume(agent, second.checkpoint, "two", llm=ScriptedModel(["done"]), store=store)
    messages = await store.load_messages("s")
    assert [result_of(messages, call_id) for call_id in ("c1", "c2")] == ["one", "two"]


@pytest.mark.parametrize("is_stored", [True, False], ids=["session", "checkpoint"])
async def test_the_model_sees_results_in_call_order_though_the_first_was_answered_last(
    store: SQLiteStore, is_stored: bool
) -> None:
    both = [*calls("c1", tool="ask")["tool_calls"], *calls("c2")["tool_calls"]]
    agent = Agent("poster", tools=[asking(), poster([])])
    options: dict[str, Any] = {"store": store} if is_stored else {}
    waiting = await run(agent, message="hi", llm=ScriptedModel([{"tool_calls": both}]), **options)
    assert is_interrupted(waiting)
    model = ScriptedModel(["done"])
    result = assert_complete(await resume(agent, waiting.checkpoint, "yes", llm=model, **options))
    assert shape(model.calls[0].messages[1:]) == ["user hi", "calls c1 c2", "result c1", "result c2"]
    assert shape(result.messages) == ["user hi", "calls c1 c2", "result c1", "result c2", "assistant done"]


async def test_a_call_beside_a_question_is_not_run_again_by_the_answer(store: SQLiteStore) -> None:
    effects: list[str] = []
    both = [*calls("c1", tool="ask")["tool_calls"], *calls("c2")["tool_calls"]]
    agent = Agent("poster", tools=[asking(), poster(effects)])
    waiting = await run(agent, message="hi", llm=ScriptedModel([{"tool_calls": both}]), store=store, session_id="s")
    assert is_interrupted(waiting)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    assert (effects, kind_of(await store.load_messages("s"), "c2")) == (["c2"], None)


async def test_a_checkpoint_goes_on_in_another_store_under_its_session_id(store: SQLiteStore, tmp_path: Path) -> None:
    agent = Agent("poster", tools=[asking()])
    waiting = await run(agent, message="hi", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    assert is_interrupted(waiting)
    exported = waiting.checkpoint.model_copy(update={"session_id": None}).model_dump_json()
    async with sqlite_store(tmp_path / "other.db") as other:
        with pytest.raises(InputError, match="belongs to session s, which is not in this store"):
            await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]), store=other)
        with pytest.raises(InputError, match="belongs to session s: pass the store= that holds it"):
            await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]))
        with pytest.raises(InputError, match="belongs to session s, not to session t"):
            await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel([]), store=store, session_id="t")
        await resume(agent, exported, "yes", llm=ScriptedModel(["done"]), store=other, session_id="s")
        assert shape(await other.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


# --- hooks and terminal errors ------------------------------------------------------------------------------------


async def test_an_on_complete_that_raises_loses_no_message(store: SQLiteStore) -> None:
    def fail(ctx: AgentContext) -> None:
        raise OSError("no mail today")

    agent = Agent("poster", tools=[poster([])], on_complete=fail)
    with pytest.raises(OSError, match="no mail today"):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_an_on_complete_that_raises_loses_no_message_of_a_memory_store() -> None:
    def fail(ctx: AgentContext) -> None:
        raise OSError("no mail today")

    memory = memory_store()
    agent = Agent("poster", tools=[poster([])], on_complete=fail)
    with pytest.raises(OSError, match="no mail today"):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=memory)
    (session,) = await memory.list_sessions()
    assert shape(await memory.load_messages(session.id)) == ["user hi", "calls c1", "result c1", "assistant done"]


async def test_a_terminal_error_that_fails_the_run_is_recorded_before_it_is_raised(store: SQLiteStore) -> None:
    @tool
    async def post(text: str) -> str:
        """Post a text."""
        raise TerminalError("account closed", 410, {"account": 7})

    agent = Agent("poster", tools=[post], on_terminal_tool_error="fail")
    with pytest.raises(TerminalError, match="account closed") as caught:
        await run(agent, message="hi", llm=ScriptedModel([calls("c1", "c2")]), store=store, session_id="s")
    assert (caught.value.status_code, caught.value.metadata) == (410, {"account": 7})
    messages = await store.load_messages("s")
    assert shape(messages) == ["user hi", "calls c1 c2", "result c1", "result c2"]
    assert [message.status for message in messages[2:]] == ["failed", "cancelled"]


# --- memory stores ------------------------------------------------------------------------------------------------


async def test_a_memory_store_refuses_a_session_that_it_does_not_know_before_anything_happens() -> None:
    started: list[AgentContext] = []
    model, memory = ScriptedModel(["done"]), memory_store()
    agent = Agent("poster", on_start=started.append)
    with pytest.raises(MemoryStoreNotDurableError, match="Session s is unknown to this memory store"):
        await run(agent, message="hi", llm=model, store=memory, session_id="s")
    assert (started, model.calls, await memory.list_sessions()) == ([], [], [])


async def test_a_memory_store_keeps_a_session_of_its_own_in_two_writes_at_the_end() -> None:
    recorder = Recorder(memory_store())
    agent = Agent("poster", tools=[poster([])])
    result = assert_complete(await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=recorder))
    assert result.session_id is not None
    assert recorder.writes == [
        ("save_session", []),
        ("append_messages", ["user hi", "calls c1", "result c1", "assistant done"]),
    ]


async def test_a_memory_store_goes_on_with_a_session_that_it_made() -> None:
    memory = memory_store()
    first = assert_complete(await run(Agent("poster"), message="hi", llm=ScriptedModel(["one"]), store=memory))
    model = ScriptedModel(["two"])
    await run(Agent("poster"), message="more", llm=model, store=memory, session_id=first.session_id)
    assert shape(model.calls[0].messages[1:]) == ["user hi", "assistant one", "user more"]


async def test_a_memory_store_forgets_a_session_with_its_object() -> None:
    first = assert_complete(await run(Agent("poster"), message="hi", llm=ScriptedModel(["one"]), store=memory_store()))
    with pytest.raises(MemoryStoreNotDurableError):
        await run(
            Agent("poster"),
            message="more",
            llm=ScriptedModel([]),
            store=memory_store(),
            session_id=first.session_id,
        )


# --- two runs at once ---------------------------------------------------------------------------------------------


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


async def test_a_run_that_another_process_has_repaired_meanwhile_writes_nothing_over_it(
    store: SQLiteStore, tmp_path: Path
) -> None:
    gate = Gate()
    agent = Agent("poster", tools=[gate.tool])
    first = asyncio.create_task(run(agent, message="hi", llm=ScriptedModel([calls("c1")]), store=store, session_id="s"))
    await reached(gate.reached, first)
    async with StoreElsewhere(tmp_path / "holdfast.db") as other:
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
    async with sqlite_store(tmp_path / "holdfast.db") as other:
        ended = await asyncio.gather(
            *(run(agent, llm=ScriptedModel(["done"]), store=each, session_id="s") for each in (store, other)),
            return_exceptions=True,
        )
    assert all(isinstance(end, RunResult | SessionConflictError) for end in ended)
    assert effects == []
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


# --- pruning ------------------------------------------------------------------------------------------------------


async def test_a_session_keeps_its_last_turns(store: SQLiteStore) -> None:
    for text in ("one", "two", "three"):
        await run(
            Agent("poster"),
            message=text,
            llm=ScriptedModel([f"re {text}"]),
            store=store,
            session_id="s",
            max_stored_messages=4,
        )
    assert shape(await store.load_messages("s")) == ["user two", "assistant re two", "user three", "assistant re three"]


async def test_a_session_keeps_two_hundred_messages_unless_told_otherwise(store: SQLiteStore) -> None:
    turn = [USER, Message(role="assistant", content="yes")]
    await seed(store, turn * 100)
    await run(Agent("poster"), message="more", llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert (len(messages), shape(messages[-2:])) == (200, ["user more", "assistant done"])


async def test_numbers_go_on_after_pruning_and_the_next_run_is_no_conflict(store: SQLiteStore) -> None:
    numbers = []
    for text in ("one", "two", "three"):
        await run(
            Agent("poster"),
            message=text,
            llm=ScriptedModel(["ok"]),
            store=store,
            session_id="s",
            max_stored_messages=2,
        )
        session = await store.load_session("s")
        assert session is not None
        numbers.append(session.last_seq)
    assert numbers == [2, 4, 6]


async def test_pruning_never_parts_a_call_from_its_result(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[poster([])])
    script: list[Any] = [calls("c1"), calls("c2"), "done"]
    await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s", max_stored_messages=3)
    assert shape(await store.load_messages("s")) == [
        "user hi",
        "calls c1",
        "result c1",
        "calls c2",
        "result c2",
        "assistant done",
    ]


async def test_pruning_leaves_a_waiting_question_answerable(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    await run(agent, message="one", llm=ScriptedModel(["ok"]), store=store, session_id="s")
    waiting = await run(
        agent,
        message="two",
        llm=ScriptedModel([calls("c1", tool="ask")]),
        store=store,
        session_id="s",
        max_stored_messages=2,
    )
    assert is_interrupted(waiting)
    await resume(agent, waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store)
    assert shape(await store.load_messages("s")) == ["user two", "calls c1", "result c1", "assistant done"]


@pytest.mark.parametrize("limit", [0, -1, "4", None])
async def test_a_limit_on_messages_that_is_no_positive_number_is_refused_before_anything_is_written(
    store: SQLiteStore, limit: Any
) -> None:
    model = ScriptedModel(["done"])
    with pytest.raises(InputError, match="max_stored_messages"):
        await run(Agent("poster"), message="hi", llm=model, store=store, session_id="s", max_stored_messages=limit)
    assert (model.calls, await store.load_session("s")) == ([], None)


# --- idempotency keys ---------------------------------------------------------------------------------------------


def keyed(keys: list[str], **options: Any) -> Tool[..., Any]:
    @tool(safe_to_retry=True, **options)
    async def post(text: str, ctx: ToolContext) -> str:
        """Post a text."""
        keys.append(ctx.idempotency_key)
        return "ok"

    return post


async def test_a_safe_call_run_again_after_a_crash_has_the_same_idempotency_key(store: SQLiteStore) -> None:
    keys: list[str] = []
    agent = Agent("poster", tools=[keyed(keys)])
    await run(agent, message="hello", llm=ScriptedModel(["hello"]), store=store, session_id="s")
    await crash_on_write(store, agent, [calls("c1", "c2")], 2)
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(
            agent, message="more", llm=ScriptedModel([]), store=crash_after_tool_results(store, 1), session_id="s"
        )
    await run(agent, message="more", llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert keys == keys[:2] * 3
    assert keys[0] != keys[1]


async def test_no_two_calls_of_a_session_have_the_same_idempotency_key(store: SQLiteStore) -> None:
    keys: list[str] = []
    agent = Agent("poster", tools=[keyed(keys, parallel=True)])
    for _ in range(2):
        script: list[Any] = [calls("same", "same"), calls("same", "other"), "done"]
        await run(agent, message="hi", llm=ScriptedModel(script), store=store, session_id="s", max_stored_messages=2)
    assert len(keys) == len(set(keys)) == 8


async def test_a_session_made_anew_under_an_old_id_has_new_idempotency_keys(store: SQLiteStore) -> None:
    keys: list[str] = []
    agent = Agent("poster", tools=[keyed(keys)])
    for _ in range(2):
        await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=store, session_id="s")
        await store.delete_session("s")
    assert len(set(keys)) == 2


# --- the harness for one crash ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "stored"), [(1, []), (2, ["user hi", "calls c1"])])
async def test_the_crash_harness_fails_one_atomic_write_and_nothing_of_it_lands(
    store: SQLiteStore, number: int, stored: list[str]
) -> None:
    agent = Agent("poster", tools=[poster([])])
    await crash_on_write(store, agent, [calls("c1")], number)
    assert shape(await store.load_messages("s")) == stored


async def test_the_crash_harness_passes_everything_else_through(store: SQLiteStore) -> None:
    harness = crash_after_tool_results(store)
    session = Session(id="s", agent_name="poster")
    await harness.save_session(session)
    await harness.append_messages("s", [USER], session)
    assert await harness.append_messages_atomic("s", [USER], session) == 2
    with pytest.raises(RuntimeError, match="simulated crash after tool results"):
        await harness.append_messages_atomic("s", [USER], session)
    assert await harness.append_messages_atomic("s", [USER], session) == 3
    await harness.prune_messages("s", 1)
    assert (shape(await harness.load_messages("s")), harness.durable) == (["user hi"], True)
    assert [listed.id for listed in await harness.list_sessions()] == ["s"]
    await harness.delete_session("s")
    assert await harness.load_session("s") is None


async def test_a_transcript_that_was_brought_is_stored_before_its_calls_run(store: SQLiteStore) -> None:
    effects: list[str] = []
    brought = [USER, asks("c1")]
    crashing = crash_after_tool_results(store)
    agent = Agent("poster", tools=[poster(effects)])
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(agent, messages=brought, llm=ScriptedModel([]), store=crashing, session_id="s")
    await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s")
    assert len(effects) == 1
    assert shape(await store.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]


# --- what could make an effect happen twice ------------------------------------------------------------------------


async def test_calls_that_ran_under_a_higher_limit_are_not_reported_as_not_run(store: SQLiteStore) -> None:
    effects: list[str] = []
    before = Agent("poster", tools=[poster(effects)])
    after = Agent("poster", tools=[poster(effects)], loop=Loop(max_tool_calls=1))
    with pytest.raises(RuntimeError, match="simulated crash"):
        await run(
            before,
            message="hi",
            llm=ScriptedModel([calls("c1", "c2")]),
            store=crash_after_tool_results(store),
            session_id="s",
        )
    await run(after, llm=ScriptedModel(["done"]), store=store, session_id="s")
    messages = await store.load_messages("s")
    assert (effects, kind_of(messages, "c1"), kind_of(messages, "c2")) == (["c1", "c2"], DURABILITY, DURABILITY)


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
    async with StoreElsewhere(tmp_path / "holdfast.db") as other:
        ended = await asyncio.gather(
            *(run(agent, llm=ScriptedModel(["done"]), store=each, session_id="s") for each in (store, other)),
            return_exceptions=True,
        )
    assert sorted(type(end).__name__ for end in ended) == ["RunResult", "SessionConflictError"]
    assert effects == ["c1"]


async def test_calls_that_run_after_all_are_fenced_together(store: SQLiteStore) -> None:
    effects: list[str] = []

    async def never(text: str) -> NotHappened:
        return NotHappened()

    agent = Agent("poster", tools=[poster(effects, verify=never, parallel=True)])
    await seed(store, [USER, asks("c1", "c2")])
    result = assert_complete(await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s"))
    assert (sorted(effects), result.status) == (["c1", "c2"], "complete")


async def test_results_that_a_store_refuses_for_a_moment_are_kept(store: SQLiteStore) -> None:
    class Hiccup(SQLiteStore):
        keys: ClassVar[list[Any]] = []

        async def append_messages_atomic(self, *args: Any, **options: Any) -> int:
            self.keys.append(options["write_key"])
            if len(self.keys) == 2:
                raise StoreError("busy")
            return await super().append_messages_atomic(*args, **options)

    effects: list[str] = []
    agent = Agent("poster", tools=[poster(effects)])
    async with Hiccup(":memory:") as hiccup:
        result = assert_complete(
            await run(agent, message="hi", llm=ScriptedModel([calls("c1"), "done"]), store=hiccup, session_id="s")
        )
        assert shape(await hiccup.load_messages("s")) == ["user hi", "calls c1", "result c1", "assistant done"]
    assert (result.status, effects) == ("complete", ["c1"])
    assert [Hiccup.keys.index(key) for key in Hiccup.keys] == [0, 1, 1, 3]


async def test_an_answer_to_an_old_checkpoint_is_not_taken_for_the_answer_to_a_new_question(store: SQLiteStore) -> None:
    agent = Agent("poster", tools=[asking()])
    old = assert_complete(await run(agent, message="hi", llm=ScriptedModel(["ok"]), store=store, session_id="s"))
    await run(agent, message="go", llm=ScriptedModel([calls("c1", tool="ask")]), store=store, session_id="s")
    with pytest.raises(InputError, match="does not wait for an answer here"):
        await resume(agent, old.checkpoint, "yes", llm=ScriptedModel([]), store=store)
    assert shape(await store.load_messages("s"))[-1] == "calls c1"


async def test_a_validator_that_raises_on_resume_does_not_wedge_the_session(store: SQLiteStore) -> None:
    def refuse(value: str) -> str:
        raise KeyError(value)

    @tool(safe_to_retry=True)
    async def post(text: Annotated[str, AfterValidator(refuse)]) -> str:
        """Post."""
        return text

    await seed(store, [USER, asks("c1")])
    agent = Agent("poster", tools=[post])
    result = assert_complete(await run(agent, llm=ScriptedModel(["done"]), store=store, session_id="s"))
    assert result.response == "done"
    assert "Invalid input" in result_of(await store.load_messages("s"), "c1")


async def test_a_question_that_was_returned_is_not_overwritten_by_a_run_that_began_before(
    store: SQLiteStore, tmp_path: Path
) -> None:
    await seed(store, [USER, asks("c1", tool="ask")])
    late, go = asyncio.Event(), asyncio.Event()

    async def unknown(text: str) -> None:
        late.set()
        await go.wait()

    @tool(verify=unknown)
    async def ask(text: str) -> str:
        """Ask a person."""
        raise InterruptError(f"{text}?")

    @tool(name="ask", safe_to_retry=True)
    async def ask_again(text: str) -> str:
        """Ask a person."""
        raise InterruptError(f"{text}?")

    async with StoreElsewhere(tmp_path / "holdfast.db") as other:
        slow = asyncio.create_task(
            run(Agent("poster", tools=[ask]), llm=ScriptedModel(["done"]), store=other, session_id="s")
        )
        await reached(late, slow)
        waiting = await run(Agent("poster", tools=[ask_again]), llm=ScriptedModel([]), store=store, session_id="s")
        assert is_interrupted(waiting)
        go.set()
        with pytest.raises(SessionConflictError):
            await slow
    await resume(
        Agent("poster", tools=[ask_again]), waiting.checkpoint, "yes", llm=ScriptedModel(["done"]), store=store
    )
    assert result_of(await store.load_messages("s"), "c1") == "yes"
