"""Google ADK tools under the guard, with and without processes that die."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin
from google.adk.sessions import InMemorySessionService
from google.adk.tools import AgentTool, FunctionTool, ToolContext
from google.genai import types
from integrations.google_adk.shop import Answer, ScriptedModel, events_of, read_of, runner, said_in
from support.documents import run_examples
from support.mortal_programs import bare_and_guarded, run_until_complete
from support.tried_activities import tried_twice

from standfast import DefinitionError, InputError, MemoryStoreNotDurableError, memory_store
from standfast.integrations.google_adk import AtMostOnce
from standfast.stores import SQLiteStore
from standfast.testing import DevServer

SHOP = "integrations.google_adk.shop"
CHARGE = ("charge", {"cents": 5}, "call_1")


# --- processes that die ---


async def test_a_tool_that_dies_charges_each_time_and_with_the_guard_once(tmp_path: Path) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, "2"))
    assert bare == {"read": {"result": "charged 5"}, "said": "done"}
    read = told["read"]
    assert (read["kind"], read["toolName"], read["toolCallId"]) == ("tool-durability-error", "charge", "call_1")
    assert told["said"] == "done"


# --- in one process ---


class Shop:
    """Runners with one tool, and what that tool was called with."""

    def __init__(self, store: SQLiteStore, run: Callable[[int, ToolContext], Any] = lambda cents, _: f"ran {cents}"):
        self.charges: list[int] = []
        self.store, self.guard = store, AtMostOnce(store)
        self.sessions = InMemorySessionService()

        def charge(cents: int, tool_context: ToolContext) -> Any:
            """Charge the card."""
            self.charges.append(cents)
            return run(cents, tool_context)

        self.tool = FunctionTool(charge)

    def runner(self, *script: Answer, plugins: list[Any] | None = None, **options: Any) -> Any:
        return runner([*script], [self.tool], self.sessions, *([self.guard] if plugins is None else plugins), **options)

    async def begin(self, session: str = "order-7", *calls: Answer, **options: Any) -> list[Event]:
        return await events_of(self.runner(*(calls or [CHARGE]), "done", **options), "Charge it.", session)

    async def again(self, **options: Any) -> tuple[dict[str, Any], Any]:
        """Resume from before the tool's result, as after a crash; return what the model reads, and the session."""
        events = (await self.session()).events
        calls = [number for number, event in enumerate(events) if event.get_function_calls()]
        await self.go_back(events[: calls[-1] + 1])
        resumed = await events_of(self.runner("done", **options), None, invocation_id=events[-1].invocation_id)
        return read_of(resumed)[-1], await self.session()

    async def session(self) -> Any:
        return await self.sessions.get_session(app_name="shop", user_id="ada", session_id="order-7")

    async def go_back(self, events: list[Event]) -> None:
        """Give the session these events alone."""
        self.sessions = InMemorySessionService()
        copy = await self.sessions.create_session(app_name="shop", user_id="ada", session_id="order-7")
        for event in events:
            await self.sessions.append_event(copy, event)


async def test_a_call_that_is_made_again_reads_what_is_kept(store: SQLiteStore) -> None:
    shop = Shop(store)
    assert read_of(await shop.begin()) == [{"result": "ran 5"}]
    assert (await shop.again())[0] == {"result": "ran 5"}
    assert shop.charges == [5]


async def test_in_an_activity_a_call_is_known_by_the_activity_whichever_session_it_is_in(
    store: SQLiteStore, temporal_server: DevServer
) -> None:
    shop = Shop(store)

    async def work() -> Any:
        return read_of(await shop.begin(uuid4().hex))

    assert await tried_twice(temporal_server, work) == [{"result": "ran 5"}]
    assert shop.charges == [5]
    await shop.begin(uuid4().hex)  # in no activity, another session is another call
    assert shop.charges == [5, 5]


async def test_what_a_tool_does_to_its_session_is_done_again_and_the_tool_is_not_run(store: SQLiteStore) -> None:
    def paid(cents: int, context: ToolContext) -> dict[str, int]:
        context.state["paid"] = cents
        context.actions.skip_summarization = True
        return {"cents": cents}

    shop = Shop(store, paid)
    await shop.begin()
    read, session = await shop.again()
    assert (read, session.state) == ({"cents": 5}, {"paid": 5})
    assert session.events[-1].actions.skip_summarization or session.events[-2].actions.skip_summarization
    assert shop.charges == [5]


async def test_pictures_are_there_again(store: SQLiteStore) -> None:
    picture = types.Part.from_bytes(data=b"\x00\xff", mime_type="image/png")
    for value in (picture, {"see": picture, "n": [1]}, [picture, "x"]):
        shop = Shop(store, lambda cents, _, value=value: value)
        shop.guard = AtMostOnce(store, key=lambda args, context, value=value: repr(type(value)))
        [first] = [part for event in await shop.begin() for part in event.get_function_responses()]
        _, session = await shop.again()
        [second] = [part for event in session.events for part in event.get_function_responses()]
        assert first.parts
        assert (first.response, first.parts) == (second.response, second.parts)
        assert shop.charges == [5]


async def test_what_has_raised_is_read_by_the_model_and_not_run_again(store: SQLiteStore) -> None:
    def decline(cents: int, context: ToolContext) -> str:
        raise RuntimeError("the card was declined")

    shop = Shop(store, decline)
    with pytest.raises(RuntimeError, match="declined"):
        await shop.begin()
    assert (await shop.again())[0] == {"error": "RuntimeError: the card was declined"}
    assert shop.charges == [5]


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore) -> None:
    def reset(cents: int, context: ToolContext) -> Any:
        raise ConnectionResetError("the connection broke behind the request")

    shop = Shop(store, reset)
    [first] = read_of(await shop.begin())
    for told in (first, (await shop.again())[0]):
        assert (told["kind"], "the connection broke" in told["error"]) == ("tool-durability-error", True)
    assert shop.charges == [5]


async def test_a_plugin_that_lets_the_model_try_again_sees_what_was_raised(store: SQLiteStore) -> None:
    def decline(cents: int, context: ToolContext) -> str:
        raise RuntimeError("the card was declined")

    shop = Shop(store, decline)
    retries = ReflectAndRetryToolPlugin(max_retries=3)
    [read] = read_of(await shop.begin(plugins=[retries, shop.guard]))
    assert "the card was declined" in str(read)
    assert shop.charges == [5]  # another call of the model's would be another effect


async def test_calls_of_other_sessions_and_an_id_that_a_model_uses_again_are_others(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.begin("order-7", CHARGE, CHARGE)
    await shop.begin("order-8")
    assert shop.charges == [5, 5, 5]


async def test_a_key_that_is_used_with_other_arguments_is_refused_before_anything_runs(store: SQLiteStore) -> None:
    shop = Shop(store)
    shop.guard = AtMostOnce(store, key=lambda args, context: "order-7")
    with pytest.raises(InputError, match="other arguments"):
        await shop.begin("order-7", CHARGE, ("charge", {"cents": 6}, "call_2"))
    assert shop.charges == [5]


async def test_a_result_that_cannot_be_kept_is_read_as_lost(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents, _: object())
    assert "ran, but its result was lost" in read_of(await shop.begin())[0]["error"]
    assert "ran, but its result was lost" in (await shop.again())[0]["error"]
    assert shop.charges == [5]


# --- people ---


async def confirm(shop: Shop, asked: list[Event], confirmed: bool = True) -> dict[str, Any]:
    """Answer a confirmation that a run has asked for; return what the model reads."""
    [call] = [call for event in asked for call in event.get_function_calls() if "confirmation" in str(call.name)]
    answer = types.FunctionResponse(id=call.id, name=call.name, response={"confirmed": confirmed})
    return read_of(await events_of(shop.runner("done"), types.Part(function_response=answer)))[-1]


@pytest.mark.parametrize("asker", ["framework", "tool"])
async def test_a_call_that_people_confirm_runs_once(store: SQLiteStore, asker: str) -> None:
    charged = []

    def ask(cents: int, context: ToolContext) -> str:
        if asker == "tool" and context.tool_confirmation is None:
            context.request_confirmation(hint="Sure?")
            return "asked"
        charged.append(cents)
        return f"ran {cents}"

    shop = Shop(store, ask)
    shop.tool = FunctionTool(shop.tool.func, require_confirmation=asker == "framework")
    asked = await shop.begin()
    assert charged == []
    waiting = [*(await shop.session()).events]
    assert await confirm(shop, asked) == {"result": "ran 5"}
    await shop.go_back(waiting)  # as after a crash: the answer is sent again
    assert await confirm(shop, asked) == {"result": "ran 5"}
    assert charged == [5]


async def test_calls_that_look_alike_are_asked_about_and_run_one_after_the_other(store: SQLiteStore) -> None:
    shop = Shop(store)
    shop.tool = FunctionTool(shop.tool.func, require_confirmation=True)
    asked = await shop.begin()
    for times, answer in enumerate([CHARGE, CHARGE, "done"]):  # all with one id, as of a model that counts from 1
        assert shop.charges == [5] * times
        [call] = [call for event in asked for call in event.get_function_calls() if "confirmation" in str(call.name)]
        said = types.FunctionResponse(id=call.id, name=call.name, response={"confirmed": True})
        script = [answer] if answer == "done" else [answer, "done"]
        asked = await events_of(shop.runner(*script), types.Part(function_response=said))
    assert shop.charges == [5, 5, 5]


async def test_what_people_reject_is_not_run(store: SQLiteStore) -> None:
    shop = Shop(store)
    shop.tool = FunctionTool(shop.tool.func, require_confirmation=True)
    assert await confirm(shop, await shop.begin(), confirmed=False) == {"error": "This tool call is rejected."}
    assert shop.charges == []


async def test_a_callback_of_the_agent_that_answers_in_the_tools_place_is_heard(store: SQLiteStore) -> None:
    shop = Shop(store)
    [read] = read_of(await shop.begin(before_tool_callback=lambda tool, args, tool_context: {"no": "not today"}))
    assert (read, shop.charges) == ({"no": "not today"}, [])
    assert (await shop.again())[0] == {"result": "ran 5"}  # nothing was claimed


# --- declarations ---


@pytest.mark.parametrize(("metadata", "runs"), [({"safe_to_retry": True}, 2), ({"safe_to_retry": "no"}, 1), (None, 1)])
async def test_only_a_tool_that_is_declared_safe_runs_again(store: SQLiteStore, metadata: Any, runs: int) -> None:
    shop = Shop(store)
    shop.tool.custom_metadata = metadata
    await shop.begin()
    assert (await shop.again())[0] == {"result": "ran 5"}
    assert shop.charges == [5] * runs


@pytest.mark.parametrize(("trusts", "runs"), [(True, 2), (False, 1)])
async def test_hints_of_an_mcp_server_count_only_where_it_is_trusted(
    store: SQLiteStore, trusts: bool, runs: int
) -> None:
    shop = Shop(store)
    shop.guard = AtMostOnce(store, trust_hints=trusts)
    shop.tool.raw_mcp_tool = SimpleNamespace(annotations=SimpleNamespace(readOnlyHint=True))  # as an McpTool has it
    await shop.begin()
    await shop.again()
    assert shop.charges == [5] * runs


@pytest.mark.filterwarnings("ignore:The `plugins` argument:DeprecationWarning")  # by ADK itself
async def test_an_agent_that_is_a_tool_is_guarded_as_one_call(store: SQLiteStore) -> None:
    shop = Shop(store)
    charge = shop.tool
    script: list[Answer] = [("charge", {"cents": 5}, "inner"), "charged by the other", "not asked again"]
    other = LlmAgent(name="other", model=ScriptedModel(script=script), tools=[charge])
    shop.tool = AgentTool(other)  # type: ignore[assignment]
    ask = ("other", {"request": "Charge it."}, "call_1")
    assert read_of(await shop.begin("order-7", ask)) == [{"result": "charged by the other"}]
    assert (await shop.again())[0] == {"result": "charged by the other"}
    assert shop.charges == [5]


async def test_a_tool_that_another_runner_shares_is_not_guarded_there(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.begin()
    await shop.again(plugins=[])
    assert shop.charges == [5, 5]


async def test_two_guards_are_as_good_as_one(store: SQLiteStore) -> None:
    class Outer(AtMostOnce):
        def __init__(self, store: SQLiteStore) -> None:
            super().__init__(store)
            self.name = "outer"

    shop = Shop(store)
    assert said_in(await shop.begin(plugins=[Outer(store), shop.guard])) == "done"
    assert (await shop.again(plugins=[Outer(store), shop.guard]))[0] == {"result": "ran 5"}
    assert shop.charges == [5]


async def test_a_call_outside_of_a_run_is_refused(store: SQLiteStore) -> None:
    shop = Shop(store)
    session = await shop.sessions.create_session(app_name="shop", user_id="ada", session_id="order-7")
    invocation = SimpleNamespace(session=session, agent=None)
    context = ToolContext(invocation, function_call_id=None)  # type: ignore[arg-type]
    await shop.guard.before_tool_callback(tool=shop.tool, tool_args={}, tool_context=context)
    with pytest.raises(InputError, match="without the ids"):
        await shop.tool.run_async(args={"cents": 5}, tool_context=context)
    assert shop.charges == []


def test_a_key_that_is_not_a_function_is_refused_before_an_agent_runs(store: SQLiteStore) -> None:
    with pytest.raises(DefinitionError, match=r"key must be a function of .* that returns a text"):
        AtMostOnce(store, key="order-7")  # type: ignore[arg-type]


def test_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError):
        AtMostOnce(memory_store())  # type: ignore[arg-type]


async def test_its_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await run_examples("integrations/google-adk.md")
