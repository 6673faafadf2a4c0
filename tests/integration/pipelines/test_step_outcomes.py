"""The outcome of a step's tool or agent, and the question at a gate, are the same with both drivers."""

from collections.abc import Callable
from typing import Any

import pytest
from support.doubles import echo
from support.pipeline_drivers import PipelineDriver
from support.transcripts import asks_for, call

from standfast import (
    Agent,
    Approval,
    InterruptError,
    Loop,
    Step,
    TerminalError,
    ToolDurabilityError,
    pipeline,
    tool,
)
from standfast.agent_loop import digest_of
from standfast.testing import ScriptedModel

NOBODY = "it asks a question, which cannot be answered here: Who?"


@pytest.mark.parametrize(
    ("raised", "response"),
    [
        (ValueError("no luck"), "no luck"),
        (TerminalError("gone", 410), "gone"),
        (InterruptError("Who?"), NOBODY),
        (SystemExit(3), "3"),
        (ToolDurabilityError("x", "y", reason="the line went dead"),
         "tool-durability-error: it may or may not have run to its end: the line went dead"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
async def test_what_a_tool_came_to_means_the_same_for_its_step(
    pipelines: PipelineDriver, raised: BaseException, response: str
) -> None:
    @tool
    async def post() -> str:
        """Post."""
        raise raised

    went = await pipelines.run(pipeline("w").step("post", run=post).build(), ScriptedModel([]))
    assert (went.failed_step, went.error_reason) == ("post", "tool-failed")
    assert went.error == f"Step 'post': its tool failed: {response}"
    assert went.step_results["post"] == {"status": "error", "response": response, "iterations": 0}


@tool
async def give_up() -> str:
    """Give up."""
    raise TerminalError("card is blocked", 402)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("agent", "answer", "response"),
    [
        (Agent("a", output=dict[str, int], loop=Loop(output_retries=0)), "hello",
         "error: the answer does not fit the agent's output"),
        (Agent("a", tools=[echo], loop=Loop(max_iterations=1)), asks_for(call("echo", "c1", text="x"), text="thinking"),
         "max-iterations: thinking"),
        (Agent("a", tools=[give_up], on_terminal_tool_error="stop"), asks_for(call("give_up", "c1")),
         "error: card is blocked"),
        (Agent("a", tools=[give_up], on_terminal_tool_error="fail"), asks_for(call("give_up", "c1")),
         "error: Agent 'a' failed: card is blocked"),
        (Agent("a"), RuntimeError("no ink"), "error: no ink"),
    ],
    ids=["does not fit", "is cut", "stops", "fails", "has no model"],
)  # fmt: skip
async def test_what_an_agent_came_to_means_the_same_for_its_step(
    pipelines: PipelineDriver, agent: Agent, answer: Any, response: str
) -> None:
    went = await pipelines.run(pipeline("w").step("say", agent=agent).build(), ScriptedModel([answer]))
    assert (went.failed_step, went.error_reason) == ("say", "agent-failed")
    assert str(went.error).startswith(f"Step 'say': its agent ended with {response}")
    status, _, said = response.partition(": ")
    assert went.step_results["say"]["status"] == status
    assert went.step_results["say"]["response"].startswith(said)


def _leave(ctx: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "step",
    [
        lambda: pipeline("w").step("one", agent=Agent("a"), input=_leave),
        lambda: pipeline("w").step("one", approval=Approval(message=_leave)),
        lambda: pipeline("w").branch("one", on=_leave, cases={"x": Step("x", agent=Agent("a"))}),
        lambda: pipeline("w").map("one", Step("x", agent=Agent("a")), over=_leave),
    ],
    ids=["input", "message", "on", "over"],
)
async def test_a_function_that_would_end_the_process_raises_at_its_step(
    pipelines: PipelineDriver, step: Callable[[], Any]
) -> None:
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await pipelines.run(step().build(), ScriptedModel(["hello"]))


async def test_people_are_asked_the_same_at_a_gate_and_decide_on_the_same_digest(pipelines: PipelineDriver) -> None:
    flow = pipeline("w").step("ok", approval=Approval(message=lambda ctx: f"Ship {ctx.input}?" + "x" * 70_000)).build()
    shown = (await pipelines.run(flow, ScriptedModel([]), "it")).approval_message
    assert shown is not None
    assert shown.startswith("Ship it?xxx")
    assert len(shown) < 70_000
    decision = {"gate": "ok", "decision": "approve", "by": "ada"}
    seen = [{"label": "input", "kind": "text", "text": "it"}]
    other = {**decision, "digest": digest_of("ok", "Ship that?", seen)}
    decisions = [other, {**decision, "digest": digest_of("ok", shown, seen)}]
    went = await pipelines.run(flow, ScriptedModel([]), "it", decisions=decisions)
    assert (went.status, went.outputs["ok"]["by"]) == ("complete", ["ada"])
    assert [why.partition(":")[0] for why in went.refused] == ["gate ok has changed"]
