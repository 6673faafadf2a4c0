"""An exception that ends an in-process run carries everything that ran before it."""

from pathlib import Path
from typing import Any

import pytest

from standfast import (
    Agent,
    Checkpoint,
    Pipeline,
    StandfastError,
    StoreError,
    TerminalError,
    pipeline,
    run,
    run_pipeline,
    run_streaming,
    sqlite_store,
    tool,
)
from standfast.testing import ScriptedModel

paid: list[int] = []


@tool
async def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
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

    first, failed = results(raised.value)
    assert "paid 5" in first
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


async def test_a_person_who_listens_to_a_run_catches_what_ran_as_well() -> None:
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


def paying_twice(*, mended: bool = False) -> Pipeline:
    """A pipeline whose second step cannot be reached, unless it is mended."""

    def given(context: Any) -> Any:
        return {"amount": 7} if mended else {"amount": context.prev["totals"]}

    first = pipeline("pays").step("first", run=pay, input=lambda context: {"amount": 5})
    return first.step("second", run=pay, input=given).build()


async def test_a_function_of_a_pipeline_that_raises_does_not_hide_what_was_paid_before() -> None:
    with pytest.raises(KeyError) as raised:
        await run_pipeline(paying_twice())

    found: Any = raised.value
    assert (list(found.step_results), found.step_results["first"].response) == (["first"], "paid 5")
    assert found.run_key is None
    paid.clear()
    ended = await run_pipeline(paying_twice(mended=True), previous_results=found.step_results)
    assert (ended.status, paid) == ("complete", [7])


async def test_an_exception_of_a_pipeline_has_what_it_was_given_and_had_no_use_for_yet() -> None:
    earlier = await run_pipeline(paying_twice(mended=True))

    def broken(context: Any) -> Any:
        raise KeyError("totals")

    again = pipeline("pays").step("new", run=pay, input=broken).step("first", run=pay).step("second", run=pay).build()
    with pytest.raises(KeyError) as raised:
        await run_pipeline(again, previous_results=earlier.step_results)

    assert list(raised.value.step_results) == ["first", "second"]  # type: ignore[attr-defined]


async def test_a_pipeline_whose_key_was_made_up_continues_by_the_key_in_its_exception(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "a.db")
    with pytest.raises(KeyError) as raised:
        await run_pipeline(paying_twice(), store=store)

    found: Any = raised.value
    assert found.step_results["first"].response == "paid 5"
    assert found.__notes__ == [f"at step 'second' of pipeline 'pays', run_key={found.run_key!r}"]
    paid.clear()
    ended = await run_pipeline(paying_twice(mended=True), store=store, run_key=found.run_key)
    assert (ended.status, ended.run_key, paid) == ("complete", found.run_key, [7])
