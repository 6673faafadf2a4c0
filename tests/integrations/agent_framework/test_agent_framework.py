"""Microsoft Agent Framework tools under the guard, with and without processes that die."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    SKIP_PARSING,
    AgentSession,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
)
from integrations.agent_framework.shop import Answer, results, seller
from support.documents import run_examples
from support.mortal_programs import bare_and_guarded, run_until_complete
from support.tried_activities import tried_twice

from standfast import DefinitionError, MemoryStoreNotDurableError, memory_store
from standfast.integrations.agent_framework import AtMostOnce
from standfast.stores import SQLiteStore
from standfast.testing import DevServer

SHOP = "integrations.agent_framework.shop"
CHARGE = ("charge", {"cents": 5}, "call_1")


# --- processes that die ---


async def test_a_tool_that_dies_charges_each_time_and_with_the_guard_once(tmp_path: Path) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, "2"))
    assert bare == {"read": "charged 5", "said": "done"}
    read = json.loads(told["read"])
    assert (read["kind"], read["toolName"], read["toolCallId"]) == ("tool-durability-error", "charge", "call_1")
    assert told["said"] == "done"


# --- in one process ---


class Shop:
    """Agents with one tool that needs approval, and what that tool was called with."""

    def __init__(self, store: SQLiteStore, run: Callable[[int], Any] = lambda cents: f"ran {cents}", **tool: Any):
        self.charges: list[int] = []
        self.run, self.guard = run, AtMostOnce(store)
        self.tool = {"approval_mode": "always_require", **tool}

    def agent(self, *script: Answer, middleware: list[FunctionMiddleware] | None = None) -> Any:
        def charge(cents: int) -> Any:
            self.charges.append(cents)
            return self.run(cents)

        return seller([*script], charge, *([self.guard] if middleware is None else middleware), **self.tool)

    async def ask(self, session: str = "order-7", call: Answer = CHARGE) -> None:
        """Let the model call the tool, which waits for an approval; keep the session."""
        kept = AgentSession(session_id=session)
        [self.asked] = (await self.agent(call).run("Charge it.", session=kept)).user_input_requests
        self.kept = kept.to_dict()

    async def approve(self, approved: bool = True, **options: Any) -> Any:
        """Approve what was asked, as often as a process dies in between; return what the model reads."""
        answer = Message("user", [self.asked.to_function_approval_response(approved=approved)])
        agent = self.agent("done", **options)
        [read] = results(await agent.run(answer, session=AgentSession.from_dict(self.kept)))
        return read.result


async def test_a_call_that_is_made_again_reads_what_is_kept(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.ask()
    assert shop.charges == []
    assert [await shop.approve(), await shop.approve()] == ["ran 5"] * 2
    assert shop.charges == [5]


async def test_what_people_reject_is_not_run_and_not_claimed(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.ask()
    assert "ran" not in str(await shop.approve(approved=False))
    assert shop.charges == []
    assert await shop.approve() == "ran 5"


async def test_calls_that_look_alike_are_asked_about_and_run_one_after_the_other(store: SQLiteStore) -> None:
    shop, session = Shop(store), AgentSession(session_id="order-7")
    agent = shop.agent(CHARGE, CHARGE, CHARGE, "done")  # all with one id, as of a model that counts from 1
    response = await agent.run("Charge it.", session=session)
    for times in range(3):
        assert shop.charges == [5] * times
        [asked] = response.user_input_requests
        answer = Message("user", [asked.to_function_approval_response(approved=True)])
        response = await agent.run(answer, session=session)
    assert (response.text, shop.charges) == ("done", [5, 5, 5])


async def test_a_tool_without_approval_runs_once_as_well(store: SQLiteStore) -> None:
    shop = Shop(store, approval_mode="never_require")
    response = await shop.agent(CHARGE, "done").run("Charge it.", session=AgentSession(session_id="order-7"))
    assert ([read.result for read in results(response)], response.text, shop.charges) == (["ran 5"], "done", [5])


async def test_in_an_activity_a_call_is_known_by_the_activity_and_needs_no_session(
    store: SQLiteStore, temporal_server: DevServer
) -> None:
    shop = Shop(store, approval_mode="never_require")

    async def work() -> Any:
        return [read.result for read in results(await shop.agent(CHARGE, "done").run("Charge it."))]

    assert await tried_twice(temporal_server, work) == ["ran 5"]
    assert shop.charges == [5]


async def test_pictures_and_raw_values_are_there_again(store: SQLiteStore) -> None:
    picture = Content.from_data(b"\x00\xff", media_type="image/png")
    for number, (value, options) in enumerate((([picture], {}), ({"cents": 5}, {"result_parser": SKIP_PARSING}))):
        shop = Shop(store, lambda cents, value=value: value, **options)
        await shop.ask(session=str(number))
        answer = Message("user", [shop.asked.to_function_approval_response(approved=True)])
        reads = []
        for _ in range(2):
            agent = shop.agent("done")
            [read] = results(await agent.run(answer, session=AgentSession.from_dict(shop.kept)))
            reads.append((read.result, [part.to_dict() for part in read.items or []]))
        assert reads[0] == reads[1]
        assert shop.charges == [5]


async def test_what_has_raised_is_read_by_the_model_and_not_run_again(store: SQLiteStore) -> None:
    def decline(cents: int) -> str:
        raise RuntimeError("the card was declined")

    shop = Shop(store, decline)
    await shop.ask()
    assert "Error" in await shop.approve()
    assert json.loads(await shop.approve()) == {"error": "RuntimeError: the card was declined"}
    assert shop.charges == [5]


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore) -> None:
    def reset(cents: int) -> Any:
        raise ConnectionResetError("the connection broke behind the request")

    shop = Shop(store, reset)
    await shop.ask()
    for _ in range(2):
        told = json.loads(await shop.approve())
        assert (told["kind"], "the connection broke" in told["error"]) == ("tool-durability-error", True)
    assert shop.charges == [5]


@pytest.mark.parametrize("kind", [MiddlewareFailure, MiddlewareTermination])
async def test_a_tool_that_ends_the_run_ends_it_again_and_is_not_run_again(store: SQLiteStore, kind: Any) -> None:
    def end(cents: int) -> str:
        raise kind("enough")

    shop = Shop(store, end)
    await shop.ask()
    for _ in range(2):
        answer = Message("user", [shop.asked.to_function_approval_response(approved=True)])
        run = shop.agent("done").run(answer, session=AgentSession.from_dict(shop.kept))
        if kind is MiddlewareFailure:
            with pytest.raises(MiddlewareFailure, match="enough"):
                await run
        else:
            await run
    assert shop.charges == [5]


async def test_calls_of_other_sessions_and_an_id_that_a_model_uses_again_are_others(store: SQLiteStore) -> None:
    shop = Shop(store, approval_mode="never_require")
    session = AgentSession(session_id="order-7")
    await shop.agent(CHARGE, CHARGE, "done").run("Charge it.", session=session)
    await shop.agent(CHARGE, "done").run("Charge it.", session=AgentSession(session_id="order-8"))
    assert shop.charges == [5, 5, 5]


async def test_a_key_that_is_used_with_other_arguments_ends_the_run_before_anything_runs(store: SQLiteStore) -> None:
    shop = Shop(store, approval_mode="never_require")
    shop.guard = AtMostOnce(store, key=lambda context: "order-7")
    await shop.agent(CHARGE, "done").run("Charge it.")
    with pytest.raises(MiddlewareFailure, match="other arguments"):
        await shop.agent(("charge", {"cents": 6}, "call_2"), "done").run("Charge it.")
    assert shop.charges == [5]


async def test_a_result_that_cannot_be_kept_is_read_as_lost(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: object(), result_parser=SKIP_PARSING)
    await shop.ask()
    assert "ran, but its result was lost" in await shop.approve()
    assert "ran, but its result was lost" in await shop.approve()
    assert shop.charges == [5]


async def test_middleware_behind_the_guard_that_asks_a_person_has_not_run_the_tool(store: SQLiteStore) -> None:
    class Ask(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Any) -> None:
            call = Content.from_function_call("call_1", "charge", arguments={"cents": 5})
            context.result = Content.from_function_approval_request("ask", call)

    shop = Shop(store, approval_mode="never_require")
    agent = shop.agent(CHARGE, "done", middleware=[AtMostOnce(store, key=lambda context: "k"), Ask()])
    assert len((await agent.run("Charge it.")).user_input_requests) == 1
    shop.guard = AtMostOnce(store, key=lambda context: "k")
    await shop.agent(CHARGE, "done").run("Charge it.")
    assert shop.charges == [5]


async def test_middleware_that_calls_a_tool_again_does_not_run_it_again(store: SQLiteStore) -> None:
    class Twice(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Any) -> None:
            with contextlib.suppress(ZeroDivisionError):
                await call_next()
            await call_next()

    for failing in (True, False):
        shop = Shop(store, (lambda cents: cents / 0) if failing else (lambda cents: "ran"))
        await shop.ask(session=str(failing))
        read = await shop.approve(middleware=[Twice(), shop.guard])
        assert ("division by zero" if failing else "ran") in read
        assert shop.charges == [5]


# --- declarations ---


@pytest.mark.parametrize(
    ("properties", "runs"),
    [({"safe_to_retry": True}, 2), ({"safe_to_retry": "no"}, 1), ({"readOnlyHint": True}, 1), (None, 1)],
)
async def test_only_a_tool_that_is_declared_safe_runs_again(store: SQLiteStore, properties: Any, runs: int) -> None:
    shop = Shop(store, additional_properties=properties)
    await shop.ask()
    assert [await shop.approve(), await shop.approve()] == ["ran 5"] * 2
    assert shop.charges == [5] * runs


async def test_without_a_session_nothing_runs_and_the_run_says_why(store: SQLiteStore) -> None:
    shop = Shop(store, approval_mode="never_require")
    with pytest.raises(MiddlewareFailure, match="its run has no session"):
        await shop.agent(CHARGE, "done").run("Charge it.")
    assert shop.charges == []


async def test_a_call_outside_of_an_agent_is_refused(store: SQLiteStore) -> None:
    async def never() -> None:
        raise AssertionError

    for name, session in (("charge", AgentSession(session_id="order-7")), ("", AgentSession(session_id="order-7"))):
        context = FunctionInvocationContext(FunctionTool(name=name, func=lambda: "x"), {}, session=session)
        with pytest.raises(MiddlewareFailure, match="without the ids" if name else "without"):
            await AtMostOnce(store).process(context, never)


async def test_two_guards_are_as_good_as_one(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.ask()
    for _ in range(2):
        assert await shop.approve(middleware=[AtMostOnce(store), AtMostOnce(store)]) == "ran 5"
    assert shop.charges == [5]


def test_a_key_that_is_not_a_function_is_refused_before_an_agent_runs(store: SQLiteStore) -> None:
    with pytest.raises(DefinitionError, match=r"key must be a function of .* that returns a text"):
        AtMostOnce(store, key="order-7")  # type: ignore[arg-type]


async def test_a_key_that_raises_ends_the_run_before_anything_runs(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.ask()
    with pytest.raises(MiddlewareFailure, match=r"Tool 'charge': key= has raised AttributeError: .* Nothing was run"):
        await shop.approve(middleware=[AtMostOnce(store, key=lambda context: context.order)])  # type: ignore[attr-defined]
    assert shop.charges == []


def test_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError):
        AtMostOnce(memory_store())  # type: ignore[arg-type]


async def test_its_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await run_examples("integrations/agent-framework.md")
