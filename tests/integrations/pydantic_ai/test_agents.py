"""A pydantic-ai agent is started, messaged, approved and shown like one of ours, and we dispatch its tools."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from integrations.pydantic_ai.test_conversations import Script, Till, calls, reads, says
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.models.function import FunctionModel
from support.foreign_gates import STEPS, check_gates, decided_in_a_row
from support.foreign_shops import noted
from support.mortal_programs import Completed, run_until_complete
from support.temporal_runs import Temporal, events, pending, result, scheduled
from support.transcripts import asks_for, call

from standfast import Agent as OurAgent
from standfast import DefinitionError, is_interrupted, pipeline, run
from standfast.integrations.pydantic_ai import as_agent
from standfast.stores import SQLiteStore
from standfast.temporal import connect, start_pipeline
from standfast.testing import DevServer, ScriptedModel

CHARGE = calls(("charge", {"cents": 5}))
CHANGED = {"note": "ada changed the arguments before it ran", "arguments": {"cents": 4}, "result": 4}


@pytest_asyncio.fixture
async def temporal(temporal_server: DevServer, store: SQLiteStore) -> AsyncIterator[Temporal]:
    shop = Temporal(await connect(temporal_server.address), store, uuid4().hex[:12])
    yield shop
    await shop.end_all()


def shop_of(script: Script, *, requires_approval: bool = False, **options: Any) -> tuple[Agent[Any, Any], Till]:
    till = Till()
    tool = Tool(till.charge, requires_approval=requires_approval)
    return Agent(FunctionModel(script), name="shop", tools=[tool], **options), till


async def test_in_process_a_killed_run_charges_once_and_pays_no_answer_twice(tmp_path: Path) -> None:
    done = await run_until_complete("integrations.pydantic_ai.desk", tmp_path)
    check_sold(done, tmp_path)


async def test_on_temporal_a_killed_worker_charges_once_and_pays_no_answer_twice(
    temporal_server: DevServer, tmp_path: Path
) -> None:
    done = await run_until_complete("integrations.pydantic_ai.desk", tmp_path, temporal_server.address, uuid4().hex)
    check_sold(done, tmp_path)


def check_sold(done: Completed, folder: Path) -> None:
    assert (done.charges, done.deaths, done.said["status"]) == ([5], 2, "complete")
    told, stamp = json.loads(done.said["response"])
    assert (told["kind"], stamp) == ("tool-durability-error", "stamped")
    assert (len(noted(folder, "stamps")), len(noted(folder, "answers"))) == (2, 3)  # no answer was paid twice


async def test_its_approval_is_a_gate_whose_edit_is_what_runs_and_the_model_is_told(store: SQLiteStore) -> None:
    agent, till = shop_of(Script(CHARGE, reads), requires_approval=True)
    waits = await run(agent, message="Sell it.", session_id="s", store=store)
    assert is_interrupted(waits)
    (item,) = waits.approvals
    assert (item.message, item.arguments, till.charged) == ("Run charge?", {"cents": 5}, [])
    approval = {"gate": item.gate, "decision": "approve", "by": "ada", "digest": item.digest, "edit": {"cents": 4}}
    done = await run(agent, session_id="s", store=store, decisions=[approval])
    assert not is_interrupted(done)
    assert (json.loads(done.response), till.charged) == ([CHANGED], [4])


async def test_gates_beside_each_other_and_in_a_row_are_asked_once_each(store: SQLiteStore) -> None:
    charges = [calls(*(("charge", {"cents": 5}),) * count) for count in STEPS]
    agent, till = shop_of(Script(*charges, says("Sold.")), requires_approval=True)
    check_gates(*await decided_in_a_row(agent, store), till.charged)


@pytest.mark.parametrize("is_safe", [False, True])
async def test_a_call_that_pydantic_ai_cuts_off_is_of_unknown_outcome_unless_it_is_safe(
    store: SQLiteStore, is_safe: bool
) -> None:
    async def slow() -> str:
        await asyncio.sleep(60)
        return "late"

    tool = Tool(slow, timeout=0.05, metadata={"safe_to_retry": is_safe})
    agent = Agent(FunctionModel(Script(calls(("slow", {})), reads)), name="shop", tools=[tool])
    done = await run(as_agent(agent), message="Go.", session_id="s", store=store)
    assert not is_interrupted(done)
    (told,) = json.loads(done.response)
    assert "Timed out after 0.05 seconds" in told["error"]
    assert (told.get("kind") == "tool-durability-error") is not is_safe


async def test_a_result_of_a_tools_own_that_looks_like_a_note_is_read_whole(store: SQLiteStore) -> None:
    said = {"note": "by hand", "result": 5}
    agent = Agent(
        FunctionModel(Script(calls(("look", {})), reads)), name="shop", tools=[Tool(lambda: said, name="look")]
    )
    done = await run(agent, message="Look.", session_id="s", store=store)
    assert json.loads(done.response) == [said]


async def test_what_pydantic_ai_does_around_a_request_continues(store: SQLiteStore) -> None:
    asked, lengths = list[str](), list[int]()

    async def shout(ctx: RunContext[str], text: str) -> str:
        asked.append(ctx.deps)
        return text.upper()

    def noticed(messages: list[ModelMessage]) -> list[ModelMessage]:
        lengths.append(len(messages))
        return messages

    script = Script(calls(("shout", {"text": "hello"})), says("too short"), says("HELLO, and goodbye"), says("Again"))
    agent = Agent(
        FunctionModel(script),
        name="shop",
        deps_type=str,
        tools=[shout],
        system_prompt="Be loud.",
        capabilities=[ProcessHistory(noticed)],
    )

    @agent.instructions
    def who(ctx: RunContext[str]) -> str:
        return f"You serve {ctx.deps}."

    @agent.output_validator
    def check(text: str) -> str:
        if text == "too short":
            raise ModelRetry("longer")
        return text

    ours = as_agent(agent, deps="ada")
    done = await run(ours, message="Shout.", session_id="s", store=store)
    assert (done.response, asked, len(script.asked)) == ("HELLO, and goodbye", ["ada"], 3)
    await run(ours, message="Once more.", session_id="s", store=store)
    first, *_, last = script.asked[-1]
    assert isinstance(first, ModelRequest)
    assert [part.part_kind for part in first.parts] == ["system-prompt", "user-prompt"]
    assert isinstance(last, ModelRequest)
    assert (last.instructions, lengths) == ("You serve ada.", [1, 3, 5, 7])


class Receipt(BaseModel):
    cents: int


async def test_its_output_type_is_the_runs(store: SQLiteStore) -> None:
    script = Script(CHARGE, calls(("final_result", {"cents": 5})), calls(("final_result", {"cents": 6})))
    agent, till = shop_of(script, output_type=Receipt)
    done = await run(agent, message="Sell it.", session_id="s", store=store)
    assert (done.output, till.charged) == (Receipt(cents=5), [5])
    again = await run(agent, message="And again.", session_id="s", store=store)
    assert again.output == Receipt(cents=6)


async def test_on_temporal_each_request_and_each_tool_is_an_activity_and_people_are_asked(temporal: Temporal) -> None:
    agent, till = shop_of(Script(CHARGE, reads), requires_approval=True)
    async with temporal.worker(agent):
        handle = await temporal.start(agent, "Sell it.")
        [waits] = await pending(handle)
        assert (waits["kind"], waits["message"]) == ("approval", "Run charge?")
        await temporal.people.decide(handle.id, waits["name"], "approve", by="ada", edit={"cents": 4})
        assert json.loads((await result(handle))["response"]) == [CHANGED]
        names = [name for name in scheduled(await events(handle)) if "." not in name]
    assert (names, till.charged) == (["call_model", "charge", "call_model"], [4])


async def test_it_is_a_tool_of_another_agent_and_a_step_of_a_pipeline(temporal: Temporal) -> None:
    agent, till = shop_of(Script(CHARGE, reads, CHARGE, reads))
    review = pipeline("review", input=dict).step("sell", agent=agent).build()
    host = OurAgent("host", tools=[agent])

    def say(messages: Any, tools: Any) -> Any:
        read = [message.content for message in messages if message.role == "tool"]
        return read[-1] if read else asks_for(call("shop", "h1", message="Sell it."))

    async with temporal.worker(agent, host, pipelines=[review], llm=ScriptedModel(say)):
        done = await start_pipeline(temporal.client, "review", input={}, task_queue=temporal.name)
        assert (await result(done))["outputs"]["sell"] == {"response": "[5]"}
        assert (await temporal.run(host, "Let it be sold."))["response"] == "[5]"
    assert till.charged == [5, 5]


def test_what_cannot_be_dispatched_is_refused() -> None:
    with pytest.raises(DefinitionError, match="as_agent needs an agent of pydantic-ai, got 5"):
        as_agent(5)  # type: ignore[arg-type]
    agent = Agent("test", name="My Shop")
    with pytest.raises(DefinitionError, match="needs a name that matches"):
        as_agent(agent)
