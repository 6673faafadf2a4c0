"""Gates: who decides, what counts, and how the pipeline continues. The same with both drivers."""

from typing import Any

import pytest
from support.pipeline_drivers import PipelineDriver

from integration.pipelines.test_pipelines import echo, says
from standfast import Agent, Approval, Pipeline, Step, pipeline
from standfast.testing import ScriptedModel

writer = Agent("writer")


def flow(access: Any = None, **approval: Any) -> Pipeline:
    """Return a pipeline with a gate between two steps."""
    return (
        pipeline("w", access=access)
        .step("write", agent=writer)
        .step("ok", approval=Approval(**approval))
        .step("publish", agent=writer, input=lambda ctx: str(ctx.prev["ok"]))
        .build()
    )


def approve(gate: str = "ok", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": "approve", **more}


def reject(gate: str = "ok", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": "reject", **more}


TEAM = {"groups": {"ops": ["ada", "bob", "leads"], "leads": ["eve"]}}


async def test_a_pipeline_waits_at_a_gate_before_it_continues(pipelines: PipelineDriver) -> None:
    model = says("the text")
    gate = Approval(message=lambda ctx: f"publish {ctx.prev['write']['response']} of {ctx.input}?")
    went = await pipelines.run(
        pipeline("w").step("write", agent=writer).step("ok", approval=gate).step("b", agent=writer).build(), model, "me"
    )
    assert (went.status, went.pending_step) == ("pending", "ok")
    assert went.approval_message == "publish the text of me?"
    assert list(went.step_results) == ["write"]
    assert went.outputs == {"write": {"response": "the text"}}
    assert len(model.calls) == 1


async def test_an_approval_lets_it_continue_and_is_seen_by_later_steps(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(
        flow(), ScriptedModel(echo), decisions=[approve(by="ada", comment="fine", edit={"n": 1})]
    )
    assert went.status == "complete"
    decided = {"decision": "approve", "by": ["ada"], "comment": "fine", "edit": {"n": 1}}
    assert went.outputs["ok"] == decided
    assert went.outputs["publish"] == {"response": f"<{decided}>"}
    assert list(went.step_results) == ["write", "publish"]


async def test_a_rejection_ends_it_with_its_reason(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(flow(), says("text"), decisions=[reject(by="ada", comment="too long")])
    assert (went.status, went.failed_step, went.error_reason) == ("error", "ok", "approval-rejected")
    assert went.error == "gate ok was rejected by ada: too long"
    assert list(went.step_results) == ["write"]


async def test_a_second_gate_waits_again(pipelines: PipelineDriver) -> None:
    two = (
        pipeline("w").step("a", approval=Approval(message="one?")).step("b", approval=Approval(message="two?")).build()
    )
    went = await pipelines.run(two, says(), decisions=[approve("a")])
    assert (went.pending_step, went.approval_message) == ("b", "two?")
    assert (await pipelines.run(two, says(), decisions=[approve("a"), approve("b")])).status == "complete"


async def test_only_those_may_decide_who_were_asked(pipelines: PipelineDriver) -> None:
    gated = flow(approvers=["ops"], **TEAM)
    went = await pipelines.run(gated, says("text"), decisions=[approve(by="mallory"), approve(), reject(by="mallory")])
    assert (went.status, went.pending_step) == ("pending", "ok")
    assert went.refused == (
        "gate ok: mallory may not decide it; ada, bob, eve may",
        "gate ok: by is missing; name the person who decides",
        "gate ok: mallory may not decide it; ada, bob, eve may",
    )
    assert (await pipelines.run(gated, ScriptedModel(echo), decisions=[approve(by="eve")])).status == "complete"


async def test_a_pipeline_may_say_who_approves(pipelines: PipelineDriver) -> None:
    gated = flow(access={"approve": lambda user: user == "ada"})
    went = await pipelines.run(gated, ScriptedModel(echo), decisions=[approve(by="bob"), approve(by="ada")])
    assert went.status == "complete"
    assert went.refused == ("gate ok: bob may not decide it",)


@pytest.mark.parametrize(("rule", "why"), [(lambda user: {}[user], "raised KeyError"), (lambda user: 1, "gave 1")])
async def test_an_access_rule_that_gives_no_answer_lets_nobody_decide(
    pipelines: PipelineDriver, rule: Any, why: str
) -> None:
    went = await pipelines.run(flow(access={"approve": rule}), says("text"), decisions=[approve(by="typo")])
    assert went.status == "pending"
    assert why in went.refused[0]


async def test_a_pipeline_may_say_who_starts_it(pipelines: PipelineDriver) -> None:
    gated = flow(access={"start": lambda user: user == "ada"})
    with pytest.raises(Exception, match="bob may not start it"):
        await pipelines.run(gated, says(), user_id="bob")
    assert (await pipelines.run(gated, says("text"), user_id="ada")).status == "pending"


async def test_a_quorum_needs_so_many_different_people(pipelines: PipelineDriver) -> None:
    gated = flow(approvers=["ops"], quorum=2, **TEAM)
    decisions = [approve(by="ada"), approve(by="ada"), approve(by="eve")]
    went = await pipelines.run(gated, ScriptedModel(echo), decisions=decisions)
    assert (went.status, went.outputs["ok"]["by"]) == ("complete", ["ada", "eve"])
    assert went.refused == ("gate ok: ada has approved it already",)


async def test_one_rejection_is_enough_for_a_quorum(pipelines: PipelineDriver) -> None:
    gated = flow(approvers=["ops"], quorum=3, **TEAM)
    went = await pipelines.run(gated, says("text"), decisions=[approve(by="ada"), reject(by="bob")])
    assert (went.status, went.error) == ("error", "gate ok was rejected by bob")


async def test_approvals_of_a_quorum_agree_on_the_edit(pipelines: PipelineDriver) -> None:
    gated = flow(quorum=2, approvers=["ada", "bob"])
    decisions = [approve(by="ada", edit=1), approve(by="bob", edit=2), approve(by="bob", edit=1)]
    went = await pipelines.run(gated, ScriptedModel(echo), decisions=decisions)
    assert (went.status, went.refused) == ("complete", ("gate ok: other people have approved it with another edit: 1",))


async def test_a_person_who_asked_for_it_may_be_kept_from_approving_it(pipelines: PipelineDriver) -> None:
    gated = flow(exclude_requester=True)
    decisions = [approve(by="ada"), approve(by="bob")]
    went = await pipelines.run(gated, ScriptedModel(echo), decisions=decisions, user_id="ada")
    assert went.refused == ("gate ok: ada has asked for it, and cannot approve it",)
    assert went.status == "complete"
    went = await pipelines.run(gated, says("text"), decisions=[reject(by="ada")], user_id="ada")
    assert went.error_reason == "approval-rejected"


async def test_a_decision_on_something_else_than_what_is_shown_does_not_count(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(flow(), says("text"), decisions=[approve(by="ada", digest="0" * 32)])
    assert (went.status, "has changed" in went.refused[0]) == ("pending", True)


async def test_gates_beside_each_other_are_decided_in_any_order(pipelines: PipelineDriver) -> None:
    both = (
        pipeline("w")
        .parallel("all", Step("legal", approval=Approval()), Step("tech", approval=Approval()))
        .step("publish", agent=writer, input=lambda ctx: f"{ctx.prev['legal']['by']} {ctx.prev['tech']['by']}")
        .build()
    )
    decisions = [approve("all/tech", by="bob"), approve("all/legal", by="ada")]
    went = await pipelines.run(both, ScriptedModel(echo), decisions=decisions)
    assert went.outputs["publish"] == {"response": "<['ada'] ['bob']>"}


async def test_a_gate_in_a_loop_asks_again_in_each_round(pipelines: PipelineDriver) -> None:
    inner = pipeline("round").step("write", agent=writer).step("ok", approval=Approval()).build()
    looped = (
        pipeline("w")
        .loop("refine", Step("round", pipeline=inner), until=lambda ctx: ctx.prev["round"]["comment"] == "good", max=3)
        .build()
    )
    decisions = [approve("refine/0/ok", comment="again"), approve("refine/1/ok", comment="good")]
    went = await pipelines.run(looped, says("one", "two"), decisions=decisions)
    assert (went.status, went.outputs["refine"]["comment"]) == ("complete", "good")


async def test_a_gate_that_nobody_knows_is_refused(pipelines: PipelineDriver) -> None:
    went = await pipelines.run(flow(), says("text"), decisions=[approve("nope"), approve("write")])
    assert went.status == "pending"
    assert "nope" in went.refused[0]
    assert "write" in went.refused[1]
