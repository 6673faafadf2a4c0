"""Each activity of a run logs one line: what a person on call needs, without secrets."""

import logging
from typing import Any

import pytest
from support.temporal_runs import Temporal, pending, result, until
from support.transcripts import asks_for, call

from integration.local.test_tool_approvals import posts, world
from standfast import Agent, Approval, InputError, RetryableError, RetryPolicy, tool
from standfast.testing import ScriptedModel

SECRET = "4111-1111"


@tool
async def charge(card: str) -> str:
    """Charge a card."""
    return f"charged {card}"


@tool(safe_to_retry=True)
async def look(card: str) -> str:
    """Look at a card."""
    raise ValueError(f"no card {card}")


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    found = [record.__dict__ for record in caplog.records if record.name == "standfast.runs"]
    return [one["fields"] | {"level": one["levelname"]} for one in found if one["event"] == event]


async def test_a_run_leaves_a_line_for_each_model_call_and_each_tool_call(
    temporal: Temporal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "standfast.runs")
    agent = Agent("clerk", tools=[charge, look])
    asked = asks_for(call("charge", "c1", card=SECRET), call("look", "c2", card=SECRET))
    async with temporal.worker(agent, llm=ScriptedModel([asked, f"Paid with {SECRET}."])):
        run = await temporal.start(agent, f"Charge {SECRET}")
        await result(run)
        await until(lambda: len(lines(caplog, "model")) == 2)
    [begun] = lines(caplog, "run begins")
    about = {"run": run.id, "run_id": run.result_run_id, "session": temporal.session()}
    assert begun.items() >= (about | {"outcome": "open", "level": "INFO"}).items()
    first, second = lines(caplog, "model")
    assert first.items() >= (about | {"turn": 1, "outcome": "calls", "calls": "charge,look"}).items()
    assert second.items() >= (about | {"turn": 2, "outcome": "answered"}).items()
    outcomes = {(one["tool"], one["call"], one["outcome"]) for one in lines(caplog, "tool")}
    assert outcomes == {("charge", 0, "returned"), ("look", 1, "failed")}
    assert all(isinstance(one["ms"], int) for one in lines(caplog, "tool"))
    assert SECRET not in caplog.text
    assert all(line.count("\n") == 0 for line in caplog.messages)


async def test_a_decision_that_counts_and_one_that_does_not_have_lines_that_say_so(
    temporal: Temporal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "standfast.runs")
    _, post = world(Approval(approvers=["ada"]))
    agent = Agent("clerk", tools=[post])
    async with temporal.worker(agent, llm=posts("hi")):
        run = await temporal.start(agent)
        await pending(run)
        with pytest.raises(InputError, match="eve may not decide"):
            await temporal.people.decide(run.id, "c1", "approve", by="eve")
        await temporal.people.decide(run.id, "c1", "approve", by="ada")
        await result(run)
        await until(lambda: len(lines(caplog, "decision")) == 2)
    found = [(one["gate"], one["outcome"], one["level"]) for one in lines(caplog, "decision")]
    assert found == [("c1", "refused", "WARNING"), ("c1", "approve", "INFO")]


async def test_an_attempt_that_is_tried_again_says_which_one_it_is(
    temporal: Temporal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "standfast.runs")

    class Away:
        tries = 0

        async def chat(self, messages: Any, tools: Any) -> Any:
            self.tries += 1
            if self.tries == 1:
                raise ConnectionError(f"no route with {SECRET}")
            return await ScriptedModel(["Done."]).chat(messages, tools)

    agent = Agent("clerk")
    async with temporal.worker(agent, llm=Away()):
        await temporal.run(agent)
        await until(lambda: len(lines(caplog, "model")) == 2)
    failed, answered = lines(caplog, "model")
    assert (failed["outcome"].partition(":")[0], failed["level"], "attempt" in failed) == ("error", "WARNING", False)
    assert (answered["outcome"], answered["attempt"]) == ("answered", 2)
    assert not [record for record in caplog.records if record.name == "standfast.runs" and SECRET in record.message]


async def test_a_tool_that_is_tried_again_leaves_a_line_and_no_traceback(
    temporal: Temporal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tries = []

    @tool(safe_to_retry=True, retry=RetryPolicy(initial_interval=0.001))
    async def knock(door: str) -> str:
        tries.append(door)
        if len(tries) == 1:
            raise RetryableError("nobody is at home")
        return "come in"

    agent = Agent("clerk", tools=[knock])
    async with temporal.worker(agent, llm=ScriptedModel([asks_for(call("knock", "c1", door="left")), "Done."])):
        await temporal.run(agent)
        await until(lambda: len(lines(caplog, "tool")) == 2)
    failed, returned = lines(caplog, "tool")
    assert (failed["outcome"], failed["level"]) == ("error:RetryableError", "WARNING")
    assert (returned["outcome"], returned["attempt"]) == ("returned", 2)
    assert [record.message for record in caplog.records if record.exc_info] == []
