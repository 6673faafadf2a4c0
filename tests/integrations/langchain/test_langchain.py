"""Tools of LangChain agents and LangGraph's `ToolNode` under the guard, with and without processes that die."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from integrations.langchain.shop import CONFIG, ScriptedModel, asks
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from support.documents import run_examples
from support.mortal_programs import Completed, bare_and_guarded, run_until_complete

from standfast import DefinitionError, InputError, MemoryStoreNotDurableError, memory_store
from standfast.integrations.langchain import AtMostOnce
from standfast.stores import SQLiteStore
from standfast.testing import DevServer

SHOP = "integrations.langchain.shop"
ON_TEMPORAL = "integrations.langchain.on_temporal"


# --- processes that die ---


@pytest.mark.parametrize("way", ["async", "plain"])
async def test_a_tool_that_dies_charges_each_time_and_with_the_guard_once(tmp_path: Path, way: str) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, way, "2"))
    assert bare == {"read": "charged 5", "status": "success", "said": "done"}
    read = json.loads(told["read"])
    assert (read["kind"], read["toolName"], read["toolCallId"]) == ("tool-durability-error", "charge", "call_0")
    assert "its process ended while it ran" in read["error"]
    assert (told["status"], told["said"]) == ("error", "done")


async def test_on_temporal_a_tool_whose_worker_dies_charges_each_time_and_with_the_guard_once(
    temporal_server: DevServer, tmp_path: Path
) -> None:
    async def run(folder: Path, kind: str) -> Completed:
        return await run_until_complete(ON_TEMPORAL, folder, kind, "2", temporal_server.address, uuid4().hex)

    bare, told = await bare_and_guarded(tmp_path, run)
    assert bare == {"read": "charged 5", "said": "done"}
    read = json.loads(told["read"])
    assert (read["kind"], read["toolName"], told["said"]) == ("tool-durability-error", "charge", "done")


# --- in one process ---


class Shop:
    """An agent with one tool, and what that tool was called with."""

    def __init__(self, store: SQLiteStore, run: Any = lambda cents: f"charged {cents}", **tool: Any) -> None:
        self.charges: list[int] = []
        self.saver = InMemorySaver()
        self.guard = AtMostOnce(store)

        def charge(cents: int) -> Any:
            """Charge the card."""
            self.charges.append(cents)
            return run(cents)

        self.tool: BaseTool = StructuredTool.from_function(charge, **tool)

    def agent(self, *script: AIMessage, middleware: list[AgentMiddleware] | None = None) -> Any:
        middleware = [self.guard] if middleware is None else middleware
        model = ScriptedModel(messages=iter(script))
        return create_agent(model, [self.tool], middleware=middleware, checkpointer=self.saver)


ASKED = {"messages": [HumanMessage("Charge it.")]}
DONE = AIMessage("done")


def read(state: Any) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


async def before_the_tools(agent: Any) -> Any:
    """Return where a thread can be resumed from, before its last tool call."""
    return await anext(state.config async for state in agent.aget_state_history(CONFIG) if state.next == ("tools",))


async def again(shop: Shop) -> list[ToolMessage]:
    """Resume from before the tool call, as after a crash or from a fork; return what the model reads."""
    agent = shop.agent(DONE)
    return read(await agent.ainvoke(None, await before_the_tools(agent)))


async def test_a_thread_resumed_from_before_its_call_reads_what_is_kept(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: (f"charged {cents}", {"receipt": cents}), response_format="content_and_artifact")
    first = read(await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG))
    second = await again(shop)
    assert [(one.content, one.artifact, one.status) for one in first] == [("charged 5", {"receipt": 5}, "success")]
    assert [(one.content, one.artifact, one.status) for one in second] == [("charged 5", {"receipt": 5}, "success")]
    assert shop.charges == [5]


async def test_so_does_one_whose_tool_returns_a_command(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: Command(update={"messages": [ToolMessage("on its way", tool_call_id="call_0")]}))
    await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG)
    assert [message.content for message in await again(shop)] == ["on its way"]
    assert shop.charges == [5]


async def test_calls_with_the_same_id_in_other_messages_and_threads_are_others(store: SQLiteStore) -> None:
    shop = Shop(store)
    await shop.agent(asks("charge", cents=5), asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG)
    await shop.agent(asks("charge", cents=6), DONE).ainvoke(ASKED, {"configurable": {"thread_id": "order-8"}})
    assert shop.charges == [5, 5, 6]


async def test_what_has_raised_is_read_by_the_model_and_not_run_again(store: SQLiteStore) -> None:
    def decline(cents: int) -> str:
        raise ValueError("the card was declined")

    shop = Shop(store, decline)
    with pytest.raises(ValueError, match="declined"):
        await shop.agent(asks("charge", cents=5)).ainvoke(ASKED, CONFIG)
    agent = shop.agent(DONE)
    [told] = read(await agent.ainvoke(None, CONFIG))
    assert (told.content, told.status) == ('{"error": "ValueError: the card was declined"}', "error")
    assert shop.charges == [5]


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore) -> None:
    def reset(cents: int) -> str:
        raise ConnectionResetError("the connection broke behind the request")

    shop = Shop(store, reset)
    [first] = read(await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG))
    for one in (first, *await again(shop)):
        told = json.loads(str(one.content))
        assert (one.status, told["kind"]) == ("error", "tool-durability-error")
        assert "the connection broke" in told["error"]
    assert shop.charges == [5]


async def test_middleware_that_calls_a_failed_tool_again_does_not_run_it_again(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: 1 / 0)
    retries = ToolRetryMiddleware(max_retries=3, initial_delay=0)
    agent = shop.agent(asks("charge", cents=5), DONE, middleware=[retries, shop.guard])
    [told] = read(await agent.ainvoke(ASKED, CONFIG))
    assert "ZeroDivisionError" in str(told.content)
    assert shop.charges == [5]


async def test_arguments_that_do_not_fit_are_read_by_the_model(store: SQLiteStore) -> None:
    shop = Shop(store)
    [told] = read(await shop.agent(asks("charge", cents="much"), DONE).ainvoke(ASKED, CONFIG))
    assert "cents" in str(told.content)
    assert shop.charges == []


async def test_a_result_that_cannot_be_kept_is_read_as_lost(store: SQLiteStore) -> None:
    shop = Shop(store, lambda cents: ("charged", object()), response_format="content_and_artifact")
    [told] = read(await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG))
    assert "ran, but its result was lost" in str(told.content)
    assert shop.charges == [5]


# --- people ---


async def test_a_tool_that_asks_a_person_continues_with_the_answer_and_runs_once(store: SQLiteStore) -> None:
    charged = []

    def ask(cents: int) -> str:
        answer = interrupt("Charge it?")
        charged.append(cents)
        return f"{answer}, charged {cents}"

    shop = Shop(store, ask)
    asked = await shop.agent(asks("charge", cents=5)).ainvoke(ASKED, CONFIG)
    assert [one.value for one in asked["__interrupt__"]] == ["Charge it?"]
    answered = await shop.agent(DONE).ainvoke(Command(resume="yes"), CONFIG)
    assert [message.content for message in read(answered)] == ["yes, charged 5"]
    assert charged == [5]


async def test_a_call_that_people_have_edited_runs_once_as_edited(store: SQLiteStore) -> None:
    shop = Shop(store)
    people = HumanInTheLoopMiddleware(interrupt_on={"charge": True})
    await shop.agent(asks("charge", cents=5), middleware=[people, shop.guard]).ainvoke(ASKED, CONFIG)
    edited = {"type": "edit", "edited_action": {"name": "charge", "args": {"cents": 4}}}
    agent = shop.agent(DONE, middleware=[people, shop.guard])
    state = await agent.ainvoke(Command(resume={"decisions": [edited]}), CONFIG)
    assert [str(message.content).endswith("charged 4") for message in read(state)] == [True]  # behind LangChain's note
    assert shop.charges == [4]


async def test_calls_that_look_alike_are_asked_about_and_run_one_after_the_other(store: SQLiteStore) -> None:
    shop = Shop(store)
    people = HumanInTheLoopMiddleware(interrupt_on={"charge": True})
    charge = asks("charge", cents=5)
    script = [charge.model_copy(update={"id": f"m{number}"}) for number in range(3)]  # all calls have one id
    agent = shop.agent(*script, DONE, middleware=[people, shop.guard])
    state = await agent.ainvoke(ASKED, CONFIG)
    for times in range(3):
        assert ("__interrupt__" in state, shop.charges) == (True, [5] * times)
        state = await agent.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
    assert ("__interrupt__" in state, shop.charges) == (False, [5, 5, 5])


# --- declarations ---


READ_ONLY = {"readOnlyHint": True}


@pytest.mark.parametrize(
    ("metadata", "trust_hints", "runs"),
    [({"safe_to_retry": True}, False, 2), ({"safe_to_retry": "no"}, True, 1), (READ_ONLY, True, 2),
     ({"idempotentHint": True, "readOnlyHint": None}, True, 2), (READ_ONLY, False, 1),
     ({"readOnlyHint": False}, True, 1), (None, True, 1)],
)  # fmt: skip
async def test_only_a_tool_that_is_safe_runs_again(
    store: SQLiteStore, metadata: Any, trust_hints: bool, runs: int
) -> None:
    shop = Shop(store, metadata=metadata)
    shop.guard = AtMostOnce(store, trust_hints=trust_hints)
    await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG)
    await again(shop)
    assert shop.charges == [5] * runs


async def test_an_mcp_server_cannot_declare_its_tools_safe(store: SQLiteStore) -> None:
    charges = []

    async def call_tool(cents: int) -> str:
        """Charge the card."""
        charges.append(cents)
        return "charged"

    call_tool.__module__ = "langchain_mcp_adapters.tools"  # which copies all annotations of a server
    shop = Shop(store)
    shop.tool = StructuredTool.from_function(coroutine=call_tool, name="charge", metadata={"safe_to_retry": True})
    await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED, CONFIG)
    await again(shop)
    assert charges == [5]


async def test_without_a_thread_nothing_runs_unless_there_is_a_key(store: SQLiteStore) -> None:
    shop = Shop(store)
    shop.saver = None  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"'charge' cannot be guarded: its graph has no thread_id"):
        await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED)
    assert shop.charges == []
    shop.guard = AtMostOnce(store, key=lambda request: "order-7")
    for _ in range(2):
        [told] = read(await shop.agent(asks("charge", cents=5), DONE).ainvoke(ASKED))
        assert told.content == "charged 5"
    assert shop.charges == [5]


@pytest.mark.parametrize("way", ["async", "plain"])
async def test_two_guards_are_as_good_as_one(store: SQLiteStore, way: str) -> None:
    class Outer(AtMostOnce):
        pass

    shop = Shop(store)
    agent = shop.agent(asks("charge", cents=5), DONE, middleware=[Outer(store), shop.guard])
    state = await agent.ainvoke(ASKED, CONFIG) if way == "async" else agent.invoke(ASKED, CONFIG)
    assert [message.content for message in read(state)] == ["charged 5"]
    assert shop.charges == [5]


def test_a_key_that_is_not_a_function_is_refused_before_an_agent_runs(store: SQLiteStore) -> None:
    with pytest.raises(DefinitionError, match=r"key must be a function of .* that returns a text"):
        AtMostOnce(store, key="order-7")  # type: ignore[arg-type]


def test_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError):
        AtMostOnce(memory_store())


@pytest.mark.parametrize("way", ["async", "plain"])
async def test_a_tool_node_of_a_graph_of_ones_own_is_guarded(store: SQLiteStore, way: str) -> None:
    shop = Shop(store)
    tools = ToolNode([shop.tool], wrap_tool_call=shop.guard.wrap_tool_call, awrap_tool_call=shop.guard.awrap_tool_call)
    graph = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools").compile(shop.saver)
    given: Any = {"messages": [AIMessage("", id="m1", tool_calls=asks("charge", cents=5).tool_calls)]}
    for _ in range(2):
        state = await graph.ainvoke(given, CONFIG) if way == "async" else graph.invoke(given, CONFIG)
        assert {message.content for message in read(state)} == {"charged 5"}
    assert shop.charges == [5]


async def test_its_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await run_examples("integrations/langchain.md")
