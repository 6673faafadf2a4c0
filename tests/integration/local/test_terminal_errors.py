"""Terminal errors: read by the model, the end of the run, or raised to the caller."""

from typing import Any

import pytest
from support.doubles import ask
from support.transcripts import asks_for, call, error, results

from standfast import Agent, Loop, TerminalError, Tool, assert_complete, run, tool
from standfast.stores import SQLiteStore
from standfast.testing import ScriptedModel


@tool
async def charge() -> None:
    """Fail for good."""
    raise TerminalError("card is blocked", 402, {"card": "1234"})


def ledger(ran: list[str]) -> Tool[..., Any]:
    @tool
    async def note(text: str) -> str:
        ran.append(text)
        return text

    return note


async def test_a_terminal_error_is_read_by_the_model_by_default() -> None:
    ran: list[str] = []
    agent = Agent("a", tools=[charge, ledger(ran)])
    result = await ask(agent, call("charge", "c1"), call("note", "c2", text="after"))
    assert (error(result), ran, result.status) == ("card is blocked", ["after"], "complete")


async def test_stop_ends_the_run_with_error_after_the_calls_of_the_turn() -> None:
    ran: list[str] = []
    agent = Agent("a", tools=[charge, ledger(ran)], on_terminal_tool_error="stop")
    model = ScriptedModel([asks_for(call("charge", "c1"), call("note", "c2", text="after"))])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert (result.status, result.response, ran) == ("error", "card is blocked", ["after"])
    assert [message.status for message in results(result)] == ["failed", "completed"]


async def test_fail_raises_the_error_and_starts_no_later_call(store: SQLiteStore) -> None:
    ran: list[str] = []
    agent = Agent("a", tools=[charge, ledger(ran)], on_terminal_tool_error="fail")
    model = ScriptedModel(
        [asks_for(call("note", "c1", text="before"), call("charge", "c2"), call("note", "c3", text="after"))]
    )
    with pytest.raises(TerminalError, match="card is blocked") as caught:
        await run(agent, message="go", session_id="s", store=store, llm=model)
    assert (caught.value.status_code, caught.value.metadata) == (402, {"card": "1234"})
    assert ran == ["before"]
    stored = await store.load_messages("s")
    assert [message.status for message in stored if message.role == "tool"] == ["completed", "failed", "cancelled"]


async def test_fail_starts_no_parallel_call_that_waits_for_a_slot() -> None:
    ran: list[str] = []

    @tool(parallel=True)
    async def work(name: str) -> None:
        ran.append(name)
        if name == "bad":
            raise TerminalError("no")

    agent = Agent("a", tools=[work], on_terminal_tool_error="fail", loop=Loop(max_tool_concurrency=1))
    names = ["good", "bad", "late", "later"]
    model = ScriptedModel([asks_for(*(call("work", name, name=name) for name in names))])
    with pytest.raises(TerminalError):
        await run(agent, message="go", llm=model)
    assert ran == ["good", "bad"]


async def test_a_session_that_failed_for_good_can_continue(store: SQLiteStore) -> None:
    agent = Agent("a", tools=[charge], on_terminal_tool_error="fail")
    with pytest.raises(TerminalError):
        await run(agent, message="go", session_id="s", store=store, llm=ScriptedModel([asks_for(call("charge", "c1"))]))
    model = ScriptedModel(["ask for another card"])
    result = assert_complete(await run(agent, message="and now?", session_id="s", store=store, llm=model))
    assert result.response == "ask for another card"
    assert [message.role for message in model.calls[0].messages] == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_terminal_error_arrives_whole_through_nested_agents(levels: int) -> None:
    agent = Agent("innermost", tools=[charge], on_terminal_tool_error="fail")
    script = [asks_for(call("charge", "c"))]
    for level in range(levels):
        inner = agent
        agent = Agent(f"level-{level}", tools=[inner], on_terminal_tool_error="fail")
        script.insert(0, asks_for(call(inner.name, "c", message="go")))
    with pytest.raises(TerminalError, match="card is blocked") as caught:
        await run(agent, message="go", llm=ScriptedModel(script))
    assert (caught.value.status_code, caught.value.metadata) == (402, {"card": "1234"})


async def test_a_parent_that_reads_terminal_errors_reads_those_of_its_child() -> None:
    child = Agent("child", tools=[charge], on_terminal_tool_error="fail")
    model = ScriptedModel([asks_for(call("child", "c", message="go")), asks_for(call("charge", "c")), "sorry"])
    result = assert_complete(await run(Agent("parent", tools=[child]), message="go", llm=model))
    assert (result.response, error(result)) == ("sorry", "card is blocked")


async def test_a_terminal_error_over_the_limit_is_cut() -> None:
    @tool
    async def fail() -> None:
        """Fail."""
        raise TerminalError("x" * 5_000)

    agent = Agent("a", tools=[fail], loop=Loop(max_message_bytes=1_024))
    model = ScriptedModel([{"tool_calls": [{"id": "c", "name": "fail"}]}, "done"])
    result = assert_complete(await run(agent, message="go", llm=model))
    assert len(result.messages[2].content) < 1_200
