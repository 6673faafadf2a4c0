"""What ran before an exception ended a run in this process reaches whoever catches it."""

from pathlib import Path
from typing import Any

import pytest

from standfast import (
    Agent,
    Checkpoint,
    StandfastError,
    StoreError,
    TerminalError,
    run,
    run_streaming,
    sqlite_store,
    tool,
)
from standfast.testing import ScriptedModel


@tool
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
async def give_up() -> str:
    """Fail for good."""
    raise TerminalError("no such account", status_code=404)


PAYS: dict[str, Any] = {"tool_calls": [{"name": "pay", "arguments": {"amount": 5}}]}


def results(error: BaseException) -> list[str]:
    checkpoint = error.checkpoint  # type: ignore[attr-defined]
    assert isinstance(checkpoint, Checkpoint)
    return [message.content for message in checkpoint.messages if message.role == "tool"]


@pytest.mark.parametrize("has_store", [False, True])
async def test_a_tool_that_fails_the_run_does_not_hide_what_was_paid_before(tmp_path: Path, has_store: bool) -> None:
    clerk = Agent("clerk", tools=[pay, give_up], on_terminal_tool_error="fail")
    turns = ScriptedModel([PAYS, {"tool_calls": [{"name": "give_up", "arguments": {}}]}])
    store = sqlite_store(tmp_path / "a.db") if has_store else None

    with pytest.raises(TerminalError) as raised:
        await run(clerk, message="go", llm=turns, store=store)

    paid, failed = results(raised.value)
    assert "paid 5" in paid
    assert "no such account" in failed
    assert raised.value.checkpoint.iterations == 2
    assert (raised.value.checkpoint.session_id is not None) == has_store
    # It is whole: the run can go on from it.
    ended = await run(clerk, checkpoint=raised.value.checkpoint, llm=ScriptedModel(["never mind"]), store=store)
    assert ended.status == "complete"


async def test_a_hook_that_raises_does_not_hide_what_was_paid_before() -> None:
    def complete(context: object) -> None:
        raise KeyError("totals")

    clerk = Agent("clerk", tools=[pay], on_complete=complete)

    with pytest.raises(KeyError) as raised:
        await run(clerk, message="go", llm=ScriptedModel([PAYS, "done"]))

    assert results(raised.value) == ["paid 5"]


async def test_a_store_that_fails_after_a_payment_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store(tmp_path / "a.db")

    async def full(*_: object, **__: object) -> int:
        raise StoreError("disk full")

    @tool
    async def pay_last(amount: int) -> str:
        """Pay, whereupon the disk is full."""
        monkeypatch.setattr(store, "append_messages_atomic", full)
        return f"paid {amount}"

    turns = ScriptedModel([{"tool_calls": [{"name": "pay_last", "arguments": {"amount": 5}}]}])

    with pytest.raises(StoreError) as raised:
        await run(Agent("clerk", tools=[pay_last]), message="go", llm=turns, store=store)

    assert results(raised.value) == ["paid 5"]


async def test_who_listens_to_a_run_catches_what_ran_as_well() -> None:
    clerk = Agent("clerk", tools=[pay, give_up], on_terminal_tool_error="fail")
    turns = ScriptedModel([PAYS, {"tool_calls": [{"name": "give_up", "arguments": {}}]}])

    with pytest.raises(TerminalError) as raised:
        async for _ in run_streaming(clerk, message="go", llm=turns):
            pass

    assert "paid 5" in results(raised.value)[0]


async def test_of_nested_runs_the_outermost_is_carried() -> None:
    inner = Agent("inner", tools=[give_up], on_terminal_tool_error="fail")
    outer = Agent("outer", tools=[pay, inner], on_terminal_tool_error="fail")
    asks = {"tool_calls": [{"name": "inner", "arguments": {"message": "go"}}]}

    def model(messages: Any, tools: Any) -> Any:
        if any(one.name == "give_up" for one in tools):
            return {"tool_calls": [{"name": "give_up", "arguments": {}}]}
        return asks if any(message.role == "tool" for message in messages) else PAYS

    with pytest.raises(TerminalError) as raised:
        await run(outer, message="go", llm=ScriptedModel(model))

    assert "paid 5" in results(raised.value)[0]


def test_an_error_of_no_run_has_none() -> None:
    assert StandfastError("no run").checkpoint is None
