"""Values that people may edit at a gate before they approve them. The same with both drivers."""

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from support.pipeline_drivers import InProcess, PipelineDriver, Went
from support.resets import resets
from support.temporal_runs import Temporal, chain, pending, result, until

from integration.pipelines.test_gates import writer
from integration.pipelines.test_pipelines import echo, says
from standfast import (
    Agent,
    Approval,
    DefinitionError,
    InputError,
    Pipeline,
    Step,
    pipeline,
    run_pipeline,
    tool,
)
from standfast.temporal import load_shown, start_pipeline
from standfast.temporal.workflows.run import run_lifetime
from standfast.testing import ScriptedModel


class Article(BaseModel):
    title: str
    words: int = 0

    @field_validator("title")
    @classmethod
    def _check(cls, value: str) -> str:
        if value == "empty":
            raise ValueError("a title says something")
        return value.strip()


DRAFT = '{"title": "Draft", "words": 5}'
drafts = Step("write", agent=Agent("drafts"), output=Article)


def edited(**approval: Any) -> Pipeline:
    """Return a pipeline with a writer, a gate at which people edit, and a publisher."""
    ok: Step[Article] = Step("ok", approval=Approval(edit=Article, **approval))
    return (
        pipeline("w")
        .step(drafts)
        .step(ok)
        .step("publish", agent=writer, input=lambda ctx: f"{ctx[ok].title}, {ctx.prev['ok'].words} words")
        .build()
    )


def decides(digest: str, by: str = "ada", decision: str = "approve", gate: str = "ok", **more: Any) -> dict[str, Any]:
    return {"gate": gate, "decision": decision, "by": by, "digest": digest, **more}


async def asked_in(pipelines: PipelineDriver, asked: Pipeline, *decisions: Mapping[str, Any], gate: str = "ok") -> Went:
    """Run a pipeline whose gate gets decisions, each with the digest that it shows then unless it has one."""
    model, temporal = ScriptedModel([DRAFT, "out"]), pipelines.temporal
    if isinstance(pipelines, InProcess):
        options: dict[str, Any] = {"run_key": temporal.session(), "store": temporal.store, "llm": model}
        went, refused = await run_pipeline(asked, **options), []
        for decision in decisions:
            try:
                given = [{**decides(str(went.digest), gate=gate), **decision}]
                went = await run_pipeline(asked, decisions=given, **options)
            except InputError as error:
                refused.append(str(error))
        outputs = {name: getattr(value, "model_dump", lambda v=value: v)() for name, value in went.outputs.items()}
        results = {path: one.model_dump(mode="json") for path, one in went.step_results.items()}
        return Went(went.status, results, outputs, error=went.error, refused=tuple(refused))
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=model):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        refused = []
        for decision in decisions:
            (item,) = await pending(run)
            try:
                await temporal.people.decide(run.id, **{**decides(item["digest"], gate=gate), **decision})
            except InputError as error:
                refused.append(str(error))
        ended = await result(run)
    return Went(
        ended["status"], ended["step_results"], ended["outputs"], error=ended.get("error"), refused=tuple(refused)
    )


async def test_what_people_edit_is_the_output_of_the_gate(pipelines: PipelineDriver) -> None:
    went = await asked_in(pipelines, edited(), {"edit": {"title": " Better ", "words": 7}})
    assert (went.status, went.outputs["ok"]) == ("complete", {"title": "Better", "words": 7})


async def test_without_an_edit_the_gate_gives_what_it_showed(pipelines: PipelineDriver) -> None:
    went = await asked_in(pipelines, edited(), {})
    assert (went.status, went.outputs["ok"]) == ("complete", {"title": "Draft", "words": 5})


async def test_a_later_step_reads_the_edited_value_by_its_model(pipelines: PipelineDriver) -> None:
    seen = []

    def told(ctx: Any) -> str:
        seen.append(ctx.prev["ok"])
        return "go"

    asked = pipeline("w").step(drafts).step("ok", approval=Approval(edit=Article))
    went = await asked_in(pipelines, asked.step("last", agent=writer, input=told).build(), {"edit": {"title": "B"}})
    assert went.status == "complete"
    assert seen == [Article(title="B")]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({"words": "many", "title": "t"}, "words"),
        ({"title": "empty"}, "a title says something"),
        ({"title": "t", "colour": "red"}, "has no 'colour'"),
        ([1], "does not match"),
    ],
)
async def test_an_edit_that_does_not_fit_is_refused_and_the_gate_stays_open(
    pipelines: PipelineDriver, edit: Any, why: str
) -> None:
    went = await asked_in(pipelines, edited(), {"edit": edit}, {"edit": {"title": "B"}})
    assert (went.status, went.outputs["ok"]) == ("complete", {"title": "B", "words": 0})
    (refused,) = went.refused
    assert why in refused
    assert "gate ok: edit" in refused


async def test_all_of_a_quorum_approve_the_edit_that_they_see(pipelines: PipelineDriver) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2)
    went = await asked_in(pipelines, asked, {"edit": {"title": "B"}}, {"by": "bob"})
    assert (went.status, went.outputs["ok"]) == ("complete", {"title": "B", "words": 0})


async def test_nobody_approves_what_was_edited_in_the_meantime_without_having_seen_it(
    pipelines: PipelineDriver,
) -> None:
    asked = edited(approvers=["ada", "bob", "cy"], quorum=2)
    went = await asked_in(
        pipelines, asked, {"edit": {"title": "B"}}, {"by": "bob", "digest": "0" * 32},
        {"by": "bob", "edit": {"title": "C"}}, {"by": "cy"},
    )  # fmt: skip
    assert (went.status, went.outputs["ok"]) == ("complete", {"title": "C", "words": 0})  # a new proposal
    assert [("has changed, since ada has edited it to" in why) for why in went.refused] == [True]


async def test_a_person_who_asked_for_it_may_edit_but_somebody_else_approves(pipelines: PipelineDriver) -> None:
    asked = edited(exclude_requester=True)
    went = await asked_in(pipelines, asked, {"edit": {"title": "B"}}, {"by": "ada"}, {"by": "bob"})
    assert (went.status, went.outputs["ok"]) == ("complete", {"title": "B", "words": 0})
    assert len(went.refused) == 1


async def test_an_edit_is_not_lost_when_a_later_gate_is_approved_without_a_store() -> None:
    asked = (
        pipeline("w")
        .step(drafts)
        .step("ok", approval=Approval(edit=Article))
        .step("last", approval=Approval())
        .step("publish", agent=writer, input=lambda ctx: ctx.prev["ok"].title)
        .build()
    )
    first = await run_pipeline(asked, llm=says(DRAFT))
    edit = [decides(str(first.digest), edit={"title": "B"})]
    second = await run_pipeline(asked, llm=says(), previous_results=first.step_results, decisions=edit)
    assert second.pending_step == "last"
    model = ScriptedModel(echo)
    third = await run_pipeline(asked, llm=model, previous_results=second.step_results, resume_after="last")
    assert third.outputs["publish"] == {"response": "<B>"}


async def test_an_edit_is_kept_when_a_later_step_raises(temporal: Temporal) -> None:
    options: dict[str, Any] = {"run_key": "again", "store": temporal.store}
    first = await run_pipeline(edited(), llm=says(DRAFT), **options)
    broken = Step("publish", agent=writer, input=lambda ctx: fail())
    asked = pipeline("w").step(drafts).step("ok", approval=Approval(edit=Article)).step(broken).build()
    edit = [decides(str(first.digest), edit={"title": "B"})]
    with pytest.raises(RuntimeError):
        await run_pipeline(asked, llm=says(), decisions=edit, **options)
    went = await run_pipeline(edited(), llm=ScriptedModel(echo), **options)
    assert went.outputs["publish"] == {"response": "<B, 0 words>"}


def fail() -> str:
    raise RuntimeError("broken")


async def test_a_rejection_goes_back_and_the_new_draft_is_edited(pipelines: PipelineDriver) -> None:
    asked = (
        pipeline("w")
        .step("write", agent=writer, input=lambda ctx: f"{ctx.feedback} {ctx.prev.get('ok', 'first')}")
        .step("ok", approval=Approval(edit=Article, show=lambda ctx: Article(title=ctx.prev["write"]["response"]),
                                      on_reject="write"))
        .step("last", agent=writer, input=lambda ctx: ctx.prev["ok"].title)
        .build()
    )  # fmt: skip
    temporal, model = pipelines.temporal, ScriptedModel(echo)
    if isinstance(pipelines, InProcess):
        options: dict[str, Any] = {"run_key": "back", "store": temporal.store, "llm": model}
        first = await run_pipeline(asked, **options)
        no = decides(str(first.digest), decision="reject", comment="shorter")
        second = await run_pipeline(asked, decisions=[no], **options)
        went = await run_pipeline(asked, decisions=[decides(str(second.digest), gate="ok_2")], **options)
        assert went.outputs["last"] == {"response": "<<shorter None>>"}
        return
    async with temporal.worker(writer, pipelines=[asked], llm=model):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        no = decides(item["digest"], decision="reject", comment="shorter")
        await temporal.people.decide(run.id, **no)
        assert await until_gate(run, "ok_2")
        (item,) = await pending(run)
        await temporal.people.decide(run.id, **decides(item["digest"], gate="ok_2"))
        assert (await result(run))["outputs"]["last"] == {"response": "<<shorter None>>"}


async def until_gate(run: Any, gate: str) -> Any:
    return await until(lambda: _is_at(run, gate))


async def _is_at(run: Any, gate: str) -> bool:
    return [item["name"] for item in await pending(run)] == [gate]


async def test_a_large_value_is_read_from_the_store_as_it_was_edited(temporal: Temporal) -> None:
    long = Article(title="x" * 20_000)
    ok = Approval(edit=Article, show=lambda ctx: {"article": long, "note": "short"}, approvers=["ada", "bob"], quorum=2)
    asked = pipeline("w").step("ok", approval=ok).step("last", agent=writer).build()
    async with temporal.worker(writer, pipelines=[asked], llm=says("out")):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        (item,) = await pending(run)
        shown = await load_shown(temporal.store, item)
        assert [(one["label"], one["kind"]) for one in shown] == [("article", "json"), ("note", "text")]
        await temporal.people.decide(run.id, **decides(item["digest"], edit={"title": "y" * 20_000}))
        (item,) = await pending(run)
        shown = await load_shown(temporal.store, item)
        assert shown[0]["value"] == {"title": "y" * 20_000}
        await temporal.people.decide(run.id, **decides(item["digest"], by="bob"))
        assert (await result(run))["outputs"]["ok"]["title"] == "y" * 20_000


@pytest.mark.slow
async def test_a_reset_to_any_point_keeps_the_edit_and_asks_nobody_again(temporal: Temporal) -> None:
    asked = edited(approvers=["ada", "bob", "cy"], quorum=3)
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        for by, edit in (("ada", {"title": "B"}), ("bob", None), ("cy", {"title": "B"})):
            (item,) = await pending(run)
            await temporal.people.decide(run.id, **decides(item["digest"], by=by, edit=edit))
        assert (await result(run))["outputs"]["ok"] == {"title": "B", "words": 0}
        async for again in resets(temporal, run):
            assert (await result(again))["outputs"]["ok"] == {"title": "B", "words": 0}


async def test_an_edit_goes_along_when_the_run_continues_as_new(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifetime, "EVENTS", 25)
    people = [f"p{number}" for number in range(5)]
    asked = edited(approvers=people, quorum=5)
    async with temporal.worker(writer, drafts.agent, pipelines=[asked], llm=ScriptedModel([DRAFT, "out"])):
        run = await start_pipeline(temporal.client, "w", run_key=temporal.session(), task_queue=temporal.name)
        for by in people:
            (item,) = await pending(run)
            edit = {"title": "B"} if by == "p0" else None
            await temporal.people.decide(run.id, **decides(item["digest"], by=by, edit=edit))
        assert (await result(run))["outputs"]["ok"] == {"title": "B", "words": 0}
        assert len(await chain(temporal.client, run)) > 1


def test_definitions_that_cannot_work_say_why() -> None:
    with pytest.raises(DefinitionError, match="must be a pydantic model"):
        Approval(edit=dict)
    with pytest.raises(DefinitionError, match='edit with on_reject="continue"'):
        Approval(edit=Article, on_reject="continue")
    with pytest.raises(DefinitionError, match="by its own schema"):
        tool(approval=Approval(edit=Article))(fail)
    with pytest.raises(DefinitionError, match="set it only in the first"):
        Approval(timeout=1, on_timeout="escalate", escalate_to=Approval(edit=Article))
    with pytest.raises(DefinitionError, match="leave output= out"):
        Step("ok", approval=Approval(edit=Article), output=dict)


async def test_a_value_that_is_not_of_the_model_is_an_error_of_the_gate() -> None:
    asked = pipeline("w").step("write", agent=writer).step("ok", approval=Approval(edit=Article)).build()
    with pytest.raises(InputError, match="title"):
        await run_pipeline(asked, llm=says("no draft"))


async def test_time_does_not_approve_an_edit_that_too_few_have_approved(temporal: Temporal) -> None:
    asked = edited(approvers=["ada", "bob"], quorum=2, timeout=3, on_timeout="approve")
    options: dict[str, Any] = {"run_key": "time", "store": temporal.store}
    first = await run_pipeline(asked, llm=says(DRAFT), **options)
    second = await run_pipeline(
        asked, llm=says(), decisions=[decides(str(first.digest), edit={"title": "B"})], **options
    )
    assert (second.status, second.shown[0]["value"]) == ("pending", {"title": "B"})
    model = ScriptedModel(echo)

    async def over() -> bool:
        return (await run_pipeline(asked, llm=model, **options)).status == "complete"

    assert await until(over)
    went = await run_pipeline(asked, llm=model, **options)
    assert went.outputs["ok"] == Article(title="Draft", words=5)


async def test_a_gate_behind_an_edit_shows_what_was_edited(temporal: Temporal) -> None:
    asked = (
        pipeline("w")
        .step(drafts)
        .step("ok", approval=Approval(edit=Article))
        .step("last", approval=Approval())
        .build()
    )  # fmt: skip
    options: dict[str, Any] = {"run_key": "behind", "store": temporal.store}
    first = await run_pipeline(asked, llm=says(DRAFT), **options)
    second = await run_pipeline(
        asked, llm=says(), decisions=[decides(str(first.digest), edit={"title": "B"})], **options
    )
    assert second.shown == [{"label": "ok", "kind": "json", "value": {"title": "B", "words": 0}}]
