"""Rejections that continue, or return to an earlier step with people's comments. The same with both drivers."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.pipeline_drivers import PipelineDriver
from support.temporal_runs import Temporal, result, until

from integration.pipelines.test_gates import approve, reject, writer
from integration.pipelines.test_pipelines import echo, says
from standfast import (
    Approval,
    DefinitionError,
    InputError,
    Message,
    Pipeline,
    Step,
    StepContext,
    pipeline,
    run_pipeline,
    tool,
)
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


def draft(ctx: StepContext) -> str:
    """Return the writer's prompt: its earlier text, and people's comments on it."""
    if ctx.feedback is None:
        return "write"
    return f"{ctx.feedback}|{ctx.prev['write']['response']}|{ctx.prev['ok']['by']}"


def reviewed(*, on_reject: str = "write", **approval: Any) -> Pipeline:
    """Return a pipeline with a writer, a gate that goes back to it, and a publisher."""
    return (
        pipeline("w")
        .step("write", agent=writer, input=draft)
        .step("ok", approval=Approval(on_reject=on_reject, **approval))
        .step("publish", agent=writer, input=lambda ctx: f"publish {ctx.prev['write']['response']} {ctx.feedback}")
        .build()
    )


async def test_a_rejection_goes_back_with_the_comment_and_asks_again(pipelines: PipelineDriver) -> None:
    decisions = [reject(by="ada", comment="too long"), approve("ok_2", by="ada")]
    went = await pipelines.run(reviewed(), ScriptedModel(echo), decisions=decisions)
    assert went.status == "complete"
    assert went.outputs["write"] == {"response": "<too long|<write>|['ada']>"}
    assert went.outputs["ok"] == {"decision": "approve", "by": ["ada"], "comment": None, "edit": None}
    assert went.outputs["publish"] == {"response": "<publish <too long|<write>|['ada']> None>"}
    assert list(went.step_results) == ["write", "ok", "write_2", "publish"]


async def test_it_goes_back_so_often_and_then_ends_as_rejected(pipelines: PipelineDriver) -> None:
    model = ScriptedModel(echo)
    decisions = [reject(comment="one"), reject("ok_2", comment="two"), reject("ok_3", by="eve", comment="three")]
    went = await pipelines.run(reviewed(max_rejections=2), model, decisions=decisions)
    assert (went.status, went.failed_step, went.error_reason) == ("error", "ok_3", "approval-rejected")
    assert went.error == "gate ok_3 was rejected by eve: three"
    assert len(model.calls) == 3


async def test_a_rejection_without_a_word_goes_back_too(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(reviewed(), ScriptedModel(echo), decisions=[reject(), approve("ok_2")])
    assert went.outputs["write"] == {"response": "<|<write>|[]>"}


async def test_a_step_that_does_not_ask_what_to_do_is_told_what_people_said(pipelines: PipelineDriver) -> None:
    asked = pipeline("w").step("write", agent=writer).step("ok", approval=Approval(on_reject="write")).build()
    went = await pipelines.run(asked, ScriptedModel(echo), decisions=[reject(comment="shorter"), approve("ok_2")])
    assert went.outputs["write"] == {"response": '<Execute step "write" again; it was rejected: shorter>'}


async def test_a_rejection_may_let_it_continue(pipelines: PipelineDriver) -> None:
    asked = (
        pipeline("w")
        .step("ok", approval=Approval(on_reject="continue"))
        .step("b", agent=writer, input=lambda ctx: f"{ctx.prev['ok']['decision']} {ctx.prev['ok']['comment']}")
        .build()
    )
    went = await pipelines.run(asked, ScriptedModel(echo), decisions=[reject(comment="no")])
    assert (went.status, went.outputs["b"]) == ("complete", {"response": "<reject no>"})


async def test_time_that_is_over_has_not_asked_for_changes(temporal: Temporal) -> None:
    asked, model = reviewed(timeout=0.05, on_timeout="reject"), says("a", "a")
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        ended = await result(run)
    assert (ended["failed_step"], ended["error_reason"]) == ("ok", "approval-rejected")

    async def here() -> Any:
        went = await run_pipeline(asked, llm=model, run_key="here", store=temporal.store)
        return went.status != "pending" and went

    went = await until(here)
    assert (went.failed_step, went.error_reason) == ("ok", "approval-rejected")


# --- effects ---


async def test_an_effect_of_one_round_is_not_taken_for_that_of_the_next(pipelines: PipelineDriver) -> None:
    ran: list[str] = []

    @tool
    async def post(text: str) -> str:
        """Post a text."""
        ran.append(text)
        return f"posted {text}"

    asked = (
        pipeline("w")
        .step("write", agent=writer, input=draft)
        .step("post", run=post, input=lambda ctx: {"text": ctx.prev["write"]["response"]})
        .step("ok", approval=Approval(on_reject="write"))
        .build()
    )
    decisions = [reject(comment="again"), approve("ok_2")]
    went = await pipelines.run(asked, says("same", "same"), decisions=decisions)
    assert ran == ["same", "same"]
    assert went.outputs["post"] == "posted same"
    assert [path for path in went.step_results if path.startswith("post")] == ["post", "post_2"]


# --- within stages ---


def told(messages: Sequence[Message], tools: Any) -> str:
    return messages[-1].content


async def test_each_item_of_a_map_goes_back_for_itself(pipelines: PipelineDriver) -> None:
    inner = (
        pipeline("inner")
        .step("write", agent=writer, input=lambda ctx: f"{ctx.input}{ctx.feedback or ''}")
        .step("ok", approval=Approval(on_reject="write"))
        .step("end", agent=writer, input=lambda ctx: f"end {ctx.prev['write']['response']}")
        .build()
    )
    each = Step("each", pipeline=inner, input=lambda ctx: ctx.item)
    asked = pipeline("w").map("all", each, over=lambda ctx: ["x", "y"]).build()
    decisions = [
        reject("all/0/ok", comment="1"),
        approve("all/1/ok"),
        reject("all/0/ok_2", comment="2"),
        approve("all/0/ok_3"),
    ]
    went = await pipelines.run(asked, ScriptedModel(told), decisions=decisions)
    assert went.outputs == {"all": [{"response": "end x2"}, {"response": "end y"}]}


async def test_each_round_of_a_loop_counts_its_own_rejections(pipelines: PipelineDriver) -> None:
    inner = (
        pipeline("inner")
        .step("write", agent=writer, input=lambda ctx: f"{ctx.input}{ctx.feedback or ''}")
        .step("ok", approval=Approval(on_reject="write", max_rejections=1))
        .step("last", agent=writer, input=lambda ctx: ctx.prev["write"]["response"])
        .build()
    )
    body = Step("body", pipeline=inner, input=lambda ctx: str(ctx.iteration))
    asked = pipeline("w").loop("again", body, until=lambda ctx: ctx.iteration == 1).build()
    decisions = [
        reject("again/0/ok", comment="a"),
        approve("again/0/ok_2"),
        reject("again/1/ok", comment="b"),
        approve("again/1/ok_2"),
    ]
    went = await pipelines.run(asked, ScriptedModel(told), decisions=decisions)
    assert went.outputs == {"again": {"response": "1b"}}


async def test_all_that_are_asked_at_once_say_what_they_think_before_it_goes_back(pipelines: PipelineDriver) -> None:
    gates = [Step(name, approval=Approval(on_reject="write")) for name in ("law", "style")]
    asked = (
        pipeline("w")
        .step("write", agent=writer, input=lambda ctx: f"write {ctx.feedback}")
        .parallel("both", *gates)
        .step("b", agent=writer, input=lambda ctx: ctx.prev["write"]["response"])
        .build()
    )
    decisions = [
        reject("both/law", comment="unlawful"),
        reject("both/style", comment="ugly"),
        approve("both_2/law"),
        approve("both_2/style"),
    ]
    went = await pipelines.run(asked, ScriptedModel(told), decisions=decisions)
    assert went.outputs["b"] == {"response": "write unlawful\nugly"}
    assert went.outputs["both"]["law"]["decision"] == "approve"


async def test_after_it_went_back_another_branch_may_be_taken(pipelines: PipelineDriver) -> None:
    cases = {
        "long": Step("long", agent=writer, input=lambda ctx: "a long one"),
        "short": Step("short", agent=writer, input=lambda ctx: "a short one"),
    }
    asked = (
        pipeline("w")
        .branch("write", on=lambda ctx: "long" if ctx.feedback is None else "short", cases=cases)
        .step("ok", approval=Approval(on_reject="write"))
        .step("b", agent=writer, input=lambda ctx: f"{sorted(ctx.prev)} {ctx.prev['write']['response']}")
        .build()
    )
    went = await pipelines.run(asked, ScriptedModel(told), decisions=[reject(comment="shorter"), approve("ok_2")])
    assert went.outputs["b"] == {"response": "['ok', 'short', 'write'] a short one"}
    assert went.outputs["write"] == {"response": "a short one"}


async def test_two_gates_go_back_to_different_steps(pipelines: PipelineDriver) -> None:
    def step(name: str) -> Step[Any]:
        return Step(name, agent=writer, input=lambda ctx: f"{name} {ctx.feedback}")

    asked = (
        pipeline("w")
        .step(step("a"))
        .step("one", approval=Approval(on_reject="a"))
        .step(step("b"))
        .step("two", approval=Approval(on_reject="b"))
        .build()
    )
    decisions = [
        approve("one"),
        reject("two", comment="b!"),
        reject("two_2", comment="b!!"),
        approve("two_3"),
    ]
    went = await pipelines.run(asked, ScriptedModel(told), decisions=decisions)
    assert [went.outputs[name] for name in ("a", "b")] == [{"response": "a None"}, {"response": "b b!!"}]
    back = pipeline("w").step(step("a")).step("one", approval=Approval(on_reject="a"))
    asked = back.step(step("b")).step("two", approval=Approval(on_reject="a")).build()
    decisions = [reject("one", comment="1"), approve("one_2"), reject("two", comment="2"), approve("one_3"),
                 approve("two_2")]  # fmt: skip
    went = await pipelines.run(asked, ScriptedModel(told), decisions=decisions)
    assert [went.outputs[name] for name in ("a", "b")] == [{"response": "a 2"}, {"response": "b 2"}]


# --- verdicts ---


async def test_a_verdict_counts_once_and_not_for_the_next_round(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(reviewed(), ScriptedModel(echo), decisions=[reject(comment="no"), approve("ok")])
    assert (went.status, went.pending_step) == ("pending", "ok_2")
    assert "ok was" in went.refused[0]


async def test_a_restart_uses_what_a_rejection_has_led_to_and_asks_the_last_gate_again(
    pipelines: PipelineDriver,
) -> None:
    model, key = ScriptedModel(told), pipelines.temporal.session("first")
    decisions = [reject(comment="no"), approve("ok_2")]
    went = await pipelines.run(reviewed(), model, decisions=decisions, run_key=key)
    calls = len(model.calls)
    again = await pipelines.run(reviewed(), model, decisions=[approve("ok_2")], restart_of=key, restart_from="publish")
    assert (again.status, again.outputs) == ("complete", went.outputs | {"ok": again.outputs["ok"]})
    assert len(model.calls) == calls + 1


async def test_without_a_store_the_results_of_earlier_calls_say_what_was_rejected() -> None:
    model = ScriptedModel(echo)
    first = await run_pipeline(reviewed(), llm=model)
    second = await run_pipeline(
        reviewed(), llm=model, previous_results=first.step_results, decisions=[reject(comment="no")]
    )
    assert (second.status, second.pending_step) == ("pending", "ok_2")
    assert list(second.step_results) == ["write", "ok", "write_2"]
    third = await run_pipeline(reviewed(), llm=model, previous_results=second.step_results, resume_after="ok_2")
    assert third.status == "complete"
    assert third.outputs["write"] == {"response": "<no|<write>|[]>"}
    assert len(model.calls) == 3
    forged = {**second.step_results, "ok": {"status": "complete", "response": '{"decision": "approve"}'}}
    with pytest.raises(InputError, match=r"ok is a gate, and .* is not its verdict"):
        await run_pipeline(reviewed(), llm=model, previous_results=forged, resume_after="ok_2")


async def test_a_step_that_failed_after_a_rejection_runs_again_without_another_question(
    pipelines: PipelineDriver,
) -> None:
    store, key = pipelines.temporal.store, "failing"
    options: dict[str, Any] = {"store": store, "run_key": key}
    await run_pipeline(reviewed(), llm=says("one"), **options)
    failed = await run_pipeline(reviewed(), llm=ScriptedModel([]), decisions=[reject(comment="no")], **options)
    assert (failed.status, failed.failed_step) == ("error", "write_2")
    went = await run_pipeline(reviewed(), llm=says("two"), **options)
    assert (went.status, went.pending_step) == ("pending", "ok_2")
    assert went.outputs["write"] == {"response": "two"}


# --- declarations ---


@pytest.mark.parametrize("target", ["publish", "ok", "nothing", "write_2", ""])
def test_a_gate_goes_back_to_a_stage_before_it(target: str) -> None:
    with pytest.raises(DefinitionError, match="the name of a stage before it; there are write"):
        reviewed(on_reject=target)


def test_what_a_rejection_does_is_declared_in_one_place() -> None:
    with pytest.raises(DefinitionError, match="goes with on_reject="):
        Approval(max_rejections=2)
    with pytest.raises(DefinitionError, match="max_rejections must be"):
        Approval(on_reject="a", max_rejections=0)
    with pytest.raises(DefinitionError, match="max_rejections must be at most 100"):
        Approval(on_reject="a", max_rejections=101)
    with pytest.raises(DefinitionError, match="also applies to escalations"):
        Approval(timeout=1, on_timeout="escalate", escalate_to=Approval(on_reject="a"))
