"""Strands tools under the guard, with and without processes that die."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from integrations.strands.shop import ScriptedModel, results
from mcp.types import Tool as MCPTool
from mcp.types import ToolAnnotations
from strands import Agent, ToolContext, tool
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent
from strands.session.file_session_manager import FileSessionManager
from strands.tools.mcp import MCPAgentTool
from support.documents import run_examples
from support.mortal_programs import Completed, bare_and_guarded, run_until_complete

from standfast import DefinitionError, MemoryStoreNotDurableError, memory_store
from standfast.integrations.strands import AtMostOnce
from standfast.stores import SQLiteStore
from standfast.testing import DevServer

SHOP = "integrations.strands.shop"
ON_TEMPORAL = "integrations.strands.on_temporal"
CHARGE = ("charge", {"cents": 5}, "call_1")


# --- processes that die ---


async def test_a_tool_that_dies_charges_each_time_and_with_the_guard_once(tmp_path: Path) -> None:
    bare, told = await bare_and_guarded(tmp_path, lambda folder, kind: run_until_complete(SHOP, folder, kind, "2"))
    assert bare == {"read": "charged 5", "status": "success", "said": "done"}
    read = json.loads(told["read"])
    assert (read["kind"], read["toolName"], read["toolCallId"]) == ("tool-durability-error", "charge", "call_1")
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
    """Agents of one session, with one tool, and what that tool was called with."""

    def __init__(self, store: SQLiteStore, folder: Path, run: Callable[[int], Any] = lambda cents: f"ran {cents}"):
        self.charges: list[int] = []
        self.folder, self.plugins = folder, [AtMostOnce(store)]

        @tool
        def charge(cents: int) -> Any:
            """Charge the card."""
            self.charges.append(cents)
            return run(cents)

        self.tool: Any = charge

    def agent(self, *script: Any, session: str = "order-7", **options: Any) -> Agent:
        return Agent(
            model=ScriptedModel(*script), tools=[self.tool], plugins=self.plugins, callback_handler=None,
            session_manager=FileSessionManager(session, str(self.folder)), **options,
        )  # fmt: skip

    async def again(self) -> dict[str, Any]:
        """Make the call once more, as the session would from before its result; return what the model reads."""
        copy = Agent(
            model=ScriptedModel("done"), tools=[self.tool], plugins=self.plugins, callback_handler=None,
            messages=[
                {"role": "user", "content": [{"text": "Charge it."}]},
                {"role": "assistant", "content": [{"toolUse": {
                    "name": "charge", "toolUseId": "call_1", "input": {"cents": 5},
                }}]},
            ],
        )  # fmt: skip
        copy._session_manager = FileSessionManager("order-7", str(self.folder))
        await copy.invoke_async(None)
        [read] = results(copy)
        return read


async def test_a_call_that_is_made_again_reads_what_is_kept(store: SQLiteStore, tmp_path: Path) -> None:
    shop = Shop(store, tmp_path)
    agent = shop.agent(CHARGE, "done")
    await agent.invoke_async("Charge it.")
    assert results(agent) == [{"toolUseId": "call_1", "status": "success", "content": [{"text": "ran 5"}]}]
    assert await shop.again() == results(agent)[0]
    assert shop.charges == [5]


async def test_so_does_one_that_has_raised(store: SQLiteStore, tmp_path: Path) -> None:
    def decline(cents: int) -> str:
        raise RuntimeError("the card was declined")

    shop = Shop(store, tmp_path, decline)
    agent = shop.agent(CHARGE, "done")
    raised: list[Any] = []
    agent.add_hook(lambda event: raised.append(event.exception), AfterToolCallEvent)
    await agent.invoke_async("Charge it.")
    assert [type(error) for error in raised] == [RuntimeError]
    read = await shop.again()
    assert (read["status"], read["content"]) == ("error", [{"text": "Error: RuntimeError - the card was declined"}])
    assert shop.charges == [5]


async def test_an_error_that_leaves_the_outcome_open_is_told_as_such(store: SQLiteStore, tmp_path: Path) -> None:
    def reset(cents: int) -> Any:
        raise ConnectionResetError("the connection broke behind the request")

    shop = Shop(store, tmp_path, reset)
    agent = shop.agent(CHARGE, "done")
    await agent.invoke_async("Charge it.")
    [first] = results(agent)
    for read in (first, await shop.again()):
        told = json.loads(read["content"][0]["text"])
        assert (read["status"], told["kind"]) == ("error", "tool-durability-error")
        assert "the connection broke" in told["error"]
    assert shop.charges == [5]


async def test_a_call_with_the_same_id_in_another_session_is_another(store: SQLiteStore, tmp_path: Path) -> None:
    shop = Shop(store, tmp_path)
    await shop.agent(CHARGE, "done").invoke_async("Charge it.")
    await shop.agent(CHARGE, "done", session="order-8").invoke_async("Charge it.")
    assert shop.charges == [5, 5]


async def test_a_key_that_is_used_again_with_other_arguments_is_refused(store: SQLiteStore, tmp_path: Path) -> None:
    shop = Shop(store, tmp_path)
    shop.plugins = [AtMostOnce(store, key=lambda context: "order-7")]
    agent = shop.agent(CHARGE, ("charge", {"cents": 6}, "call_1"), "done")
    await agent.invoke_async("Charge it.")
    assert "other arguments" in results(agent)[1]["content"][0]["text"]
    assert shop.charges == [5]


async def test_a_result_that_cannot_be_kept_is_read_as_lost(store: SQLiteStore, tmp_path: Path) -> None:
    shop = Shop(store, tmp_path, lambda cents: {"status": "success", "content": [{"json": object()}]})
    agent = Agent(model=ScriptedModel(CHARGE, "done"), tools=[shop.tool], callback_handler=None,
                  plugins=[AtMostOnce(store, key=lambda context: "order-7")])  # fmt: skip
    await agent.invoke_async("Charge it.")
    assert "ran, but its result was lost" in results(agent)[0]["content"][0]["text"]
    assert shop.charges == [5]


# --- people ---


@pytest.mark.parametrize("asker", ["tool", "hook"])
async def test_what_asks_a_person_continues_with_the_answer_and_runs_once(
    store: SQLiteStore, tmp_path: Path, asker: str
) -> None:
    shop, charged = Shop(store, tmp_path), []

    @tool(context=True)
    def charge(cents: int, tool_context: ToolContext) -> str:
        """Charge the card."""
        answer = tool_context.interrupt("sure", reason="Charge it?") if asker == "tool" else "yes"
        charged.append(cents)
        return f"{answer}, ran {cents}"

    def ask(event: BeforeToolCallEvent) -> None:
        event.interrupt("sure", reason="Charge it?")

    shop.tool = charge
    agent = shop.agent(CHARGE, "done")
    if asker == "hook":
        agent.add_hook(ask, BeforeToolCallEvent)
    asked = await agent.invoke_async("Charge it.")
    assert asked.stop_reason == "interrupt"
    [question] = asked.interrupts
    assert charged == []
    await agent.invoke_async([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])
    assert [result["content"] for result in results(agent)] == [[{"text": "yes, ran 5"}]]
    assert charged == [5]


async def test_calls_that_look_alike_are_asked_about_and_run_one_after_the_other(
    store: SQLiteStore, tmp_path: Path
) -> None:
    shop = Shop(store, tmp_path)
    agent = shop.agent(CHARGE, CHARGE, CHARGE, "done")  # all with one id, as of a model that counts from 1
    agent.add_hook(lambda event: event.interrupt("sure", reason="Charge it?"), BeforeToolCallEvent)
    asked = await agent.invoke_async("Charge it.")
    for times in range(3):
        assert (asked.stop_reason, shop.charges) == ("interrupt", [5] * times)
        [question] = asked.interrupts
        answer = {"interruptResponse": {"interruptId": question.id, "response": "yes"}}
        asked = await agent.invoke_async([answer])
    assert (asked.stop_reason, shop.charges) == ("end_turn", [5, 5, 5])
    [*_, last] = results(agent)
    assert await shop.again() == last  # the first call, made again after a crash
    assert shop.charges == [5, 5, 5]


# --- declarations ---


@pytest.mark.parametrize(
    ("annotations", "trust_hints", "runs"),
    [({"safe_to_retry": True}, False, 2), ({"safe_to_retry": "no"}, True, 1), ({"readOnlyHint": True}, True, 2),
     ({"idempotentHint": True}, True, 2), ({"readOnlyHint": True}, False, 1), ({"readOnlyHint": False}, True, 1)],
)  # fmt: skip
async def test_only_a_tool_that_is_safe_runs_again(
    store: SQLiteStore, tmp_path: Path, annotations: dict[str, object], trust_hints: bool, runs: int
) -> None:
    shop = Shop(store, tmp_path)
    shop.plugins = [AtMostOnce(store, trust_hints=trust_hints)]
    shop.tool.tool_spec = {**shop.tool.tool_spec, "annotations": annotations}
    await shop.agent(CHARGE, "done").invoke_async("Charge it.")
    await shop.again()
    assert shop.charges == [5] * runs


def test_an_mcp_server_cannot_declare_its_tools_safe(store: SQLiteStore) -> None:
    schema = {"type": "object", "properties": {}}
    said = ToolAnnotations.model_validate({"safe_to_retry": True, "readOnlyHint": True})
    theirs = MCPAgentTool(MCPTool(name="charge", inputSchema=schema, annotations=said), None)  # type: ignore[arg-type]
    assert theirs.tool_spec["annotations"] == {"safe_to_retry": True, "readOnlyHint": True}
    assert not AtMostOnce(store)._is_safe(theirs)
    assert AtMostOnce(store, trust_hints=True)._is_safe(theirs)


async def test_without_a_session_nothing_runs_and_the_model_reads_why(store: SQLiteStore, tmp_path: Path) -> None:
    shop = Shop(store, tmp_path)
    agent = Agent(model=ScriptedModel(CHARGE, "done"), tools=[shop.tool], plugins=shop.plugins, callback_handler=None)
    await agent.invoke_async("Charge it.")
    assert "its agent has no session" in results(agent)[0]["content"][0]["text"]
    assert shop.charges == []


def test_a_key_that_is_not_a_function_is_refused_before_an_agent_runs(store: SQLiteStore) -> None:
    with pytest.raises(DefinitionError, match=r"key must be a function of .* that returns a text"):
        AtMostOnce(store, key="order-7")  # type: ignore[arg-type]


def test_a_store_that_forgets_is_refused() -> None:
    with pytest.raises(MemoryStoreNotDurableError):
        AtMostOnce(memory_store())


async def test_two_guards_are_as_good_as_one(store: SQLiteStore, tmp_path: Path) -> None:
    class Outer(AtMostOnce):
        name = "outer"

    shop = Shop(store, tmp_path)
    shop.plugins = [Outer(store), AtMostOnce(store)]
    agent = shop.agent(CHARGE, "done")
    await agent.invoke_async("Charge it.")
    assert [result["content"] for result in results(agent)] == [[{"text": "ran 5"}]]
    assert shop.charges == [5]


async def test_its_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "strands.models.openai.OpenAIModel", lambda **given: ScriptedModel(CHARGE, "done"), raising=False
    )
    await run_examples("integrations/strands.md")
